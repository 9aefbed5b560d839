package main

// This file has the rows of many sessions, and of many locks of one session.

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// ttl is the TTL of the sessions, the default.
const ttl = 15 * time.Second

// idle returns the member's processor time for a session of which nothing is held, in
// microseconds a second, and how many seconds the sessions had.
func idle(sessions []session) (perSession float64, seconds int) {
	const measured = 2 * ttl
	before := metric(endpoint, "process_cpu_seconds_total")
	time.Sleep(measured)
	used := metric(endpoint, "process_cpu_seconds_total") - before
	seconds = len(sessions) * int(measured/time.Second)
	return used * 1e6 / float64(seconds), seconds
}

// sessionEnds ends a session that holds 10,000 locks, and returns the longest time that another
// one needs meanwhile to take a lock and to release the lock, in milliseconds.
func sessionEnds(sessions []session) (longest float64, locks int) {
	const count = 10_000
	ctx := context.Background()
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			for name := i; name < count; name += 50 {
				check(sessions[0].locker(fmt.Sprint("held/", name)).lock(ctx))
			}
		})
	}
	all.Wait()
	time.Sleep(time.Second)
	ended := make(chan struct{})
	l := sessions[1].locker("another")
	go func() {
		time.Sleep(100 * time.Millisecond)
		sessions[0].close()
		time.Sleep(100 * time.Millisecond)
		close(ended)
	}()
	for {
		began := time.Now()
		check(l.lock(ctx))
		check(l.unlock())
		longest = max(longest, time.Since(began).Seconds()*1000)
		select {
		case <-ended:
			return longest, count
		default:
		}
	}
}
