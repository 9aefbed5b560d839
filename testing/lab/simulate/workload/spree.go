package workload

// This file has one lock taken many times in succession, quickly or with pauses.

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/lockpool/lockpool"
)

// inRush reports whether the workers of all processes now take locks in sprees, like
// processes starting the same work at the same time.
func (c *Client) inRush() bool {
	return c.Processes > 0 && c.Rush > 0 && time.Duration(c.Now())%c.RushEvery >= c.RushEvery-c.Rush
}

// spree takes one lock many times in quick succession: in most cases the own process's,
// wanted by no other process then, and sometimes another's. Some holders keep the lock for
// longer, and some waiters soon give up. In some rushes, these locks are plain.
func (c *Client) spree(pool *lockpool.Pool, r *rand.Rand, worker int) error {
	owner := c.Process
	if chance(r, 10) {
		owner = r.IntN(c.Processes)
	}
	kind, name := own, NameOf(own, owner)
	if time.Duration(c.Now())/c.RushEvery%3 == 0 { // the same for all workers
		kind, name = Plain, NameOf(Plain, locksOf(Plain, c.Locks)+owner)
	}
	for range 20 + r.IntN(21) {
		t := &turn{
			Client: c, pool: pool, r: r, worker: worker, id: c.ids.Add(1), kind: kind, name: name,
			brief: !chance(r, 3), bound: bound{limit: between(r, 0, c.Timeout)},
		}
		if chance(r, 20) {
			t.bound.limit = between(r, 0, t.bound.limit/20)
		}
		kinds[kind].prepare(t)
		if err := t.take(context.Background()); errors.Is(err, lockpool.ErrPoolClosed) {
			return err
		}
	}
	return nil
}

// revisit takes one lock several times, with pauses in which the process may keep the lock:
// in most cases the own process's lock, and sometimes another's, which asks for the lock.
// Some of these locks are read-write locks, with mostly readers.
func (c *Client) revisit(pool *lockpool.Pool, r *rand.Rand, worker int) error {
	owner, pause := c.Process, between(r, 0, c.Pause/4)
	if chance(r, 25) {
		owner = r.IntN(c.Processes)
	}
	kind, name := own, NameOf(own, owner)
	if chance(r, 30) {
		kind, name = ReadWrite, NameOf(ReadWrite, locksOf(ReadWrite, c.Locks)+owner)
	}
	for range 3 + r.IntN(10) {
		t := &turn{
			Client: c, pool: pool, r: r, worker: worker, id: c.ids.Add(1), kind: kind, name: name,
			brief: kind == own && chance(r, 50), bound: bound{limit: between(r, 0, c.Timeout)},
		}
		kinds[kind].prepare(t)
		if err := t.take(context.Background()); errors.Is(err, lockpool.ErrPoolClosed) {
			return err
		}
		time.Sleep(between(r, 0, pause))
	}
	return nil
}
