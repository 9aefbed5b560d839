package main

// This file has the rows of many sessions, and of many locks of one session.

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// idle returns the member's processor time for a session of which nothing is held, in
// microseconds a second, and how many seconds the sessions had.
func idle(sessions []session) (perSession float64, seconds int) {
	const quiet, measured = 10, 30 // seconds
	time.Sleep(quiet * time.Second)
	before := metric(endpoint, "process_cpu_seconds_total")
	time.Sleep(measured * time.Second)
	used := metric(endpoint, "process_cpu_seconds_total") - before
	return used * 1e6 / measured / float64(len(sessions)), len(sessions) * (quiet + measured)
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
