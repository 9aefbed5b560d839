package workload

// This file has bystanders: workers that revoke, break and limit the locks of others.

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/lockpool/lockpool"
)

// meddle asks for a lock back, breaks a holder or a waiter, or sets a limit. Some
// contenders have gone on by then: to their turn, to a reader's node, to the next lock.
func (c *Client) meddle(pool *lockpool.Pool, r *rand.Rand, worker int) error {
	kind := c.Kinds[r.IntN(len(c.Kinds))]
	t := &turn{Client: c, pool: pool, r: r, worker: worker, name: NameOf(kind, r.IntN(locksOf(kind, c.Locks)))}
	if kind == Exclusive && c.Processes > 0 && chance(r, 30) { // perhaps kept
		t.name = NameOf(own, r.IntN(c.Processes))
	}
	switch {
	case chance(r, 30):
		return t.call(opRevoke, func(ctx context.Context) error { return pool.Revoke(ctx, t.name) })
	case kind == Semaphore && chance(r, 30): // no caller states a larger one, so the same callers are admitted
		return t.call(opSetLimit, func(ctx context.Context) error {
			return pool.Semaphore(t.name, 1).SetLimit(ctx, mostPermits+1+r.IntN(2))
		})
	}
	var q lockpool.Queue
	err := t.call(opQueue, func(ctx context.Context) (err error) {
		q, err = pool.Queue(ctx, t.name)
		return err
	})
	if chance(r, 50) {
		time.Sleep(between(r, 0, c.Hold))
	}
	breaks, all := chance(r, 50), chance(r, 30)
	for _, n := range r.Perm(len(q.Contenders)) {
		found := q.Contenders[n]
		switch {
		case all && !found.Holds:
		case !breaks:
			err = t.call(opAsk, func(ctx context.Context) error { return pool.Revoke(ctx, t.name, found.Node) })
		case kind != Semaphore || c.Mixed == 0 || found.Holds: // or else only the guard shows that leases are about to be created
			err = t.do(Event{Op: opBreak, Value: orderOf(found.Token)}, func(ctx context.Context) error { return pool.Break(ctx, t.name, found.Node) })
		}
		if !all || errors.Is(err, lockpool.ErrPoolClosed) {
			return err
		}
	}
	return err
}
