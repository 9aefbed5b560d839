package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockpool/lockpool"
)

// uncontended measures one worker on one lock: each acquisition and each release.
func uncontended(name string) {
	clients := []string{"floor", "zklock", "lockpool"}
	acquire, release := figures{}, figures{}
	for turn := range *runs + 1 {
		for _, kind := range clients {
			a, r := lockAndUnlock(kind)
			if turn > 0 { // the first turn warms up the server
				acquire.add(kind, a)
				release.add(kind, r)
			}
		}
	}
	acquire.print(name+", acquire p50, µs", clients, lowerIsBetter, "%.0f", "at most 1.15")
	release.print(name+", release p50, µs", clients, lowerIsBetter, "%.0f", "at most 1.1")
}

// lockAndUnlock is one turn of uncontended. It returns the medians in µs.
func lockAndUnlock(kind string) (acquire, release float64) {
	c := must(open(kind, *server, 1))
	defer c.close()
	w := c.worker("/bench-" + kind)
	var a, r []float64
	for end := time.Now().Add(*duration); time.Now().Before(end); {
		t0 := time.Now()
		check(w.lock())
		t1 := time.Now()
		check(w.unlock())
		a, r = append(a, micros(t1.Sub(t0))), append(r, micros(time.Since(t1)))
	}
	return median(a), median(r)
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// handOver lets n processes contend for one lock, each holding it long enough that
// all others are queued when it is unlocked. It measures the time from the call
// of Unlock to the grant in another process.
func handOver(name string, n int, target string) {
	clients := []string{"zklock", "lockpool"}
	times := figures{}
	for turn := range *runs {
		for _, kind := range clients {
			var all []hold
			for _, holds := range contend(kind, n, 3*time.Millisecond, turn) {
				all = append(all, holds...)
			}
			slices.SortFunc(all, func(a, b hold) int { return cmp.Compare(a.Granted, b.Granted) })
			var gaps []float64
			for i, next := range all[1:] {
				if all[i].Process != next.Process {
					gaps = append(gaps, micros(time.Duration(next.Granted-all[i].Unlocked)))
				}
			}
			times.add(kind, median(gaps))
		}
	}
	times.print(name+", p50, µs", clients, speedup, "%.0f", target)
}

// contention lets n processes contend for one lock and do nothing under it. The
// lock is free again before another process can queue for it, so the server's
// writes limit the throughput.
func contention(name string, n int) {
	clients := []string{"zklock", "lockpool"}
	rates := figures{}
	for turn := range *runs {
		for _, kind := range clients {
			total := 0
			for _, holds := range contend(kind, n, 0, turn) {
				total += len(holds)
			}
			rates.add(kind, float64(total)/duration.Seconds())
		}
	}
	rates.print(name+", locks/s", clients, higherIsBetter, "%.0f", "")
}

const drainWaiters = 1000

// drain fills a queue with waiters, then measures how fast it empties when each
// waiter unlocks as soon as it is granted the lock, and what that costs the server.
func drain(name string) {
	clients := []string{"zklock", "lockpool"}
	rates, requests, events := figures{}, figures{}, figures{}
	for turn := range *runs {
		for _, kind := range clients {
			took, received, sent := drainQueue(kind, fmt.Sprintf("/bench-drain-%s-%d", kind, turn))
			rates.add(kind, drainWaiters/took.Seconds())
			requests.add(kind, float64(received)/drainWaiters)
			events.add(kind, float64(sent-received)/drainWaiters) // each request has one reply
		}
	}
	rates.print(name+", hand-overs/s", clients, higherIsBetter, "%.0f", "")
	requests.print(name+", requests per waiter", clients, lowerIsBetter, "%.2f", "at most 2 requests")
	events.print(name+", events per waiter", clients, lowerIsBetter, "%.2f", "1 event")
}

// drainQueue is one turn of drain. It returns how long the drain took and how many
// packets the server received and sent meanwhile.
func drainQueue(kind, lock string) (took time.Duration, received, sent int) {
	c := must(open(kind, *server, 1))
	defer c.close()
	holder := c.worker(lock)
	check(holder.lock())
	var wg sync.WaitGroup
	for range drainWaiters {
		w := c.worker(lock)
		wg.Go(func() {
			check(w.lock())
			check(w.unlock())
		})
	}
	for mntr("zk_watch_count") < drainWaiters { // until all are queued
		time.Sleep(50 * time.Millisecond)
	}
	received, sent = mntr("zk_packets_received"), mntr("zk_packets_sent")
	start := time.Now()
	check(holder.unlock())
	wg.Wait()
	took = time.Since(start)
	return took, mntr("zk_packets_received") - received, mntr("zk_packets_sent") - sent
}

// mntr returns one of the server's counters.
func mntr(key string) int {
	conn := must(net.Dial("tcp", *server))
	defer conn.Close()
	must(io.WriteString(conn, "mntr"))
	for line := range strings.Lines(string(must(io.ReadAll(conn)))) {
		if fields := strings.Fields(line); len(fields) == 2 && fields[0] == key {
			return must(strconv.Atoi(fields[1]))
		}
	}
	log.Fatalf("%s does not report %s; is mntr in its 4lw.commands.whitelist?", *server, key)
	return 0
}

// manyLocks measures throughput without contention. All clients have as many
// connections as lockpool opens for that many handles.
func manyLocks(name string) {
	clients := []string{"floor", "zklock", "lockpool"}
	rates := figures{}
	for turn := range *runs + 1 {
		for _, kind := range clients {
			locks := lockInParallel(kind)
			if turn > 0 { // the first turn warms up the server
				rates.add(kind, float64(locks)/duration.Seconds())
			}
		}
	}
	rates.print(name+", locks/s", clients, higherIsBetter, "%.0f", "at least 0.85")
}

// lockInParallel is one turn of manyLocks. It returns how many locks were taken.
func lockInParallel(kind string) (locks int) {
	const workers, conns = 64, 2
	c := must(open(kind, *server, conns))
	defer c.close()
	var ws []worker
	for i := range workers {
		w := c.worker(fmt.Sprintf("/bench-many-%s-%d", kind, i))
		check(w.lock())
		check(w.unlock())
		ws = append(ws, w)
	}
	counts := make([]int, workers)
	var wg sync.WaitGroup
	end := time.Now().Add(*duration)
	for i, w := range ws {
		wg.Go(func() {
			for time.Now().Before(end) {
				check(w.lock())
				check(w.unlock())
				counts[i]++
			}
		})
	}
	wg.Wait()
	if pool, ok := c.(poolClient); ok && pool.Stats().OpenSessions != conns {
		log.Fatalf("lockpool has %d connections, the others have %d", pool.Stats().OpenSessions, conns)
	}
	for _, n := range counts {
		locks += n
	}
	return locks
}

// reentry measures entering and leaving a lock that its holder already holds.
func reentry(name string) {
	const limit = 50 // ns
	c := must(open("lockpool", *server, 1)).(poolClient)
	defer c.close()
	ctx := context.Background()
	handle := must(c.Handle(ctx))
	outer := must(handle.Lock(ctx, "bench-reentry"))
	times, allocations := figures{}, int64(0)
	for range *runs {
		result := testing.Benchmark(func(b *testing.B) { reenter(b, ctx, handle) })
		times.add("limit", limit)
		times.add("lockpool", float64(result.T.Nanoseconds())/float64(result.N))
		allocations = max(allocations, result.AllocsPerOp())
	}
	check(outer.Unlock(ctx))
	times.row(name+", ns", "lockpool", "limit", lowerIsBetter, "%.0f",
		fmt.Sprintf("at most %d ns, no allocation (got %d)", limit, allocations))
}

func reenter(b *testing.B, ctx context.Context, handle *lockpool.Handle) {
	b.ReportAllocs()
	for b.Loop() {
		inner, err := handle.Lock(ctx, "bench-reentry")
		check(err)
		check(inner.Unlock(ctx))
	}
}
