package main

// This file has the shop: customers, and trouble with locks.

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/zktest"
)

// shop is two services with common locks. Here they are in one process.
type shop struct{ orders, billing *lockpool.Pool }

func openShop(ctx context.Context, address string, meters metric.MeterProvider) (*shop, error) {
	s := new(shop)
	for _, p := range []struct {
		name string
		pool **lockpool.Pool
	}{{"orders", &s.orders}, {"billing", &s.billing}} {
		pool, err := openPool(p.name, address, meters)
		if err != nil {
			return nil, errors.Join(err, s.close())
		}
		*p.pool = pool
		// Opening a pool does not connect. Ping does, to find a wrong address
		// early.
		pingCtx, cancel := context.WithTimeout(ctx, 3*time.Second)
		err = pool.Ping(pingCtx)
		cancel()
		if err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	return s, nil
}

func (s *shop) close() (err error) {
	for _, pool := range []*lockpool.Pool{s.orders, s.billing} {
		if pool != nil {
			err = errors.Join(err, pool.Close())
		}
	}
	return err
}

// work simulates customers and trouble until ctx ends. It returns the first unexpected
// error.
func (s *shop) work(ctx context.Context, embedded *zktest.Server) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	repeat := func(n int, request func(context.Context) error) {
		for range n {
			all.Go(func() { // ends with ctx
				for ctx.Err() == nil {
					if err := request(ctx); err != nil && !expected(err) {
						cancel(err)
					}
					pause(ctx, 20*time.Millisecond)
				}
			})
		}
	}
	repeat(4, s.order)
	repeat(2, s.look)
	repeat(3, s.transfer)
	repeat(1, s.refund)
	repeat(1, s.charge)
	repeat(4, s.quote)
	repeat(1, s.reprice)
	repeat(4, s.print)
	all.Go(func() { // ends with ctx
		for round := 0; pause(ctx, 500*time.Millisecond) == nil; round++ {
			if err := s.trouble(ctx, embedded, round); err != nil && !expected(err) {
				cancel(err)
			}
		}
	})
	all.Wait()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// expected reports whether the error is normal in this shop: customers lose
// patience, locks are busy or lost, two requests wait for each other, and the program
// ends.
func expected(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		errors.Is(err, lockpool.ErrDeadlock) || errors.Is(err, lockpool.ErrLocked) || errors.Is(err, lockpool.ErrLockLost) || errors.Is(err, lockpool.ErrNotHeld)
}

// pause returns after a random time between d and 2d, or when ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d + rand.N(d)):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// spend returns a function taking a random time between d and 2d.
func spend(d time.Duration) func(context.Context) error {
	return func(ctx context.Context) error { return pause(ctx, d) }
}

func (s *shop) order(ctx context.Context) error {
	name := fmt.Sprintf("orders/%d", rand.N(3))
	return s.orders.Do(ctx, name, func(ctx context.Context) error {
		if err := pause(ctx, 15*time.Millisecond); err != nil {
			return err
		}
		return s.orders.Do(ctx, name, spend(5*time.Millisecond)) // reentry
	})
}

// look waits for a few milliseconds at most.
func (s *shop) look(ctx context.Context) error {
	if lock, err := s.billing.TryLock(ctx, "orders/1"); err == nil {
		_ = lock.Unlock(ctx)
	}
	return s.billing.Do(ctx, "orders/2", spend(time.Millisecond), lockpool.WaitAtMost(8*time.Millisecond))
}

func (s *shop) transfer(ctx context.Context) error {
	from := rand.N(4)
	locks, err := s.billing.LockAll(ctx, []string{fmt.Sprintf("accounts/%d", from), fmt.Sprintf("accounts/%d", from+1)})
	if err != nil {
		return err
	}
	return locks.Do(ctx, spend(10*time.Millisecond))
}

// refund and charge take the same locks in different orders, by mistake: now and then each
// waits for the other, until one of them fails with ErrDeadlock.
func (s *shop) refund(ctx context.Context) error {
	return both(ctx, s.billing, "accounts/8", "accounts/9")
}

func (s *shop) charge(ctx context.Context) error {
	return both(ctx, s.orders, "accounts/9", "accounts/8")
}

func both(ctx context.Context, pool *lockpool.Pool, first, second string) error {
	return pool.Do(ctx, first, func(ctx context.Context) error {
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
		return pool.Do(ctx, second, spend(5*time.Millisecond))
	})
}

func (s *shop) quote(ctx context.Context) error {
	return s.orders.Do(ctx, "prices", spend(10*time.Millisecond), lockpool.Shared())
}

func (s *shop) reprice(ctx context.Context) error {
	return s.billing.Do(ctx, "prices", spend(20*time.Millisecond))
}

func (s *shop) print(ctx context.Context) error {
	return s.orders.Semaphore("printers", 2).Do(ctx, 1, spend(20*time.Millisecond))
}

// trouble breaks locks, and now and then expires a session, possible only on the embedded
// server.
func (s *shop) trouble(ctx context.Context, embedded *zktest.Server, round int) error {
	if embedded != nil && round%20 == 0 {
		sessions := embedded.State().Sessions
		if err := embedded.ExpireSession(sessions[rand.N(len(sessions))].ID); err != nil {
			return err
		}
	}
	queue, err := s.orders.Queue(ctx, "orders/0")
	if err != nil || len(queue.Contenders) == 0 || !queue.Contenders[0].Holds { // between two turns, the first waits in memory
		return err
	}
	return s.orders.Break(ctx, "orders/0", queue.Contenders[0].Node)
}
