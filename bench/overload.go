package main

// This file has the scenario of a lock that is wanted more often than the lock can serve.

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockpool/lockpool"
)

const (
	overWork     = time.Millisecond
	overDeadline = 50 * time.Millisecond
	overload     = 10 // times what the lock can serve
)

// overloaded has pools ask for a lock: as often as they can get the lock, and then ten times as
// often, without a bound of the queue, with MaxWaiters and with InTime.
func overloaded(count int) []float64 {
	var pools []poolClient
	for range count {
		p := openPool(ours, &network{}, sessionTimeout)
		defer p.close()
		pools = append(pools, p)
	}
	lock := newLock()[1:]
	served := saturate(pools, lock)
	unbounded, _ := offer(pools, lock, overload*served)
	most, refusals := offer(pools, lock, overload*served, lockpool.MaxWaiters(16/count))
	inTime, more := offer(pools, lock, overload*served, lockpool.InTime())
	refusals = append(refusals, more...)
	slices.Sort(refusals)
	p99 := 0.0
	if len(refusals) > 0 {
		p99 = millis(refusals[len(refusals)*99/100])
	}
	return []float64{100 * unbounded / served, 100 * most / served, 100 * inTime / served, p99}
}

// saturate returns the turns per second of a few goroutines of each pool.
func saturate(pools []poolClient, lock string) float64 {
	var turns atomic.Int64
	var all sync.WaitGroup
	end := time.Now().Add(*duration)
	for _, p := range pools {
		for range 8 {
			all.Go(func() {
				for time.Now().Before(end) {
					check(p.Do(context.Background(), lock, workUnder))
					turns.Add(1)
				}
			})
		}
	}
	all.Wait()
	return float64(turns.Load()) / duration.Seconds()
}

// offer makes calls at a rate, each with a deadline, and returns how many end in time, per
// second, and how long the refused ones took.
func offer(pools []poolClient, lock string, rate float64, opts ...lockpool.LockOption) (inTime float64, refusals []time.Duration) {
	var done atomic.Int64
	var mu sync.Mutex
	var all sync.WaitGroup
	start := time.Now()
	for made := 0; time.Since(start) < *duration; time.Sleep(time.Millisecond) {
		for ; float64(made) < rate*time.Since(start).Seconds(); made++ {
			p := pools[made%len(pools)]
			all.Go(func() {
				began := time.Now()
				ctx, cancel := context.WithDeadline(context.Background(), began.Add(overDeadline))
				defer cancel()
				err := p.Do(ctx, lock, workUnder, opts...)
				switch took := time.Since(began); {
				case errors.Is(err, lockpool.ErrQueueFull):
					mu.Lock()
					refusals = append(refusals, took)
					mu.Unlock()
				case err == nil && took <= overDeadline: // otherwise too late for the lock, the work or the unlock
					done.Add(1)
				}
			})
		}
	}
	all.Wait()
	return float64(done.Load()) / duration.Seconds(), refusals
}

func workUnder(context.Context) error {
	time.Sleep(overWork)
	return nil
}
