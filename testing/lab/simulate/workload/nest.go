package workload

// This file has nested locks: tangles, duels, and locks taken in one call.

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lockpool/lockpool"
)

// inTangle reports whether a worker now takes several locks one after the other, without a
// common order: all workers do so at the same time, or one of each process. So they wait
// for each other in cycles, within a process and between processes, and many of these
// cycles touch.
func (c *Client) inTangle(worker int) bool {
	if c.Tangle == 0 || len(c.tangled()) < 2 {
		return false
	}
	now, lasts := time.Duration(c.Now()), c.Tangle
	if c.inDuel() {
		lasts *= 4
	}
	return now%c.TangleEvery >= c.TangleEvery-lasts && (now/c.TangleEvery%3 == 0 || worker == 1)
}

// inDuel reports whether the next tangle, or the present one, is a duel.
func (c *Client) inDuel() bool { return time.Duration(c.Now())/c.TangleEvery%6 == 1 }

// tangled returns the names of the locks taken together with others. Some holds of the
// first lock of each kind are long, and would keep others from forming cycles.
func (c *Client) tangled() (names []string) {
	for _, kind := range slices.Compact(slices.Sorted(slices.Values(c.Kinds))) {
		for i := 1; i < locksOf(kind, c.Locks); i++ {
			names = append(names, NameOf(kind, i))
		}
	}
	return names
}

// tangle takes turns with two or three locks until the tangle ends.
func (c *Client) tangle(pool *lockpool.Pool, r *rand.Rand, worker int) (err error) {
	if c.inDuel() {
		return c.duel(pool, r, worker)
	}
	for c.inTangle(worker) && !errors.Is(err, lockpool.ErrPoolClosed) {
		if chance(r, 10) && c.hasTwo() {
			err = c.lockTwo(context.Background(), pool, r, worker, nil)
		} else {
			t := c.newTangledTurn(pool, r, worker, nil)
			t.inner = 1 + r.IntN(2)
			err = t.take(context.Background())
		}
		time.Sleep(between(r, 0, c.Hold))
	}
	return err
}

// duel takes the same two locks again and again, until the tangle ends, while others take
// them in the other order. A victim of a deadlock begins again at once. One process begins
// later than the others after each turn.
func (c *Client) duel(pool *lockpool.Pool, r *rand.Rand, worker int) (err error) {
	pause := time.Millisecond                                                                        // as long as the caller's own work
	names := slices.DeleteFunc(c.tangled(), func(name string) bool { return kindOf(name) == Plain }) // the victim may take a plain lock again before the others
	n := int(time.Duration(c.Now()) / c.TangleEvery)
	pair := []string{names[n%len(names)], names[(n+1)%len(names)]}
	if c.Process%2 == 1 {
		slices.Reverse(pair)
	}
	patience := 3 * c.Timeout // for each of the two
	for c.inTangle(worker) && !errors.Is(err, lockpool.ErrPoolClosed) {
		e := Event{Kind: eventCall, At: c.Now(), ID: c.ids.Add(1), Worker: worker, Op: opDuel, Limit: c.TangleEvery + 2*patience}
		c.Report(e)
		victim := int64(0)
		for {
			t := c.turnBeside(pool, r, worker, pair[0], nil)
			t.brief, t.inner, t.next, t.bound = true, 1, pair[1], bound{limit: patience}
			if err = t.take(context.Background()); !errors.Is(err, lockpool.ErrDeadlock) {
				break
			}
			victim++
			time.Sleep(pause)
		}
		c.Report(Event{Kind: eventReturn, At: c.Now(), ID: e.ID, Value: victim})
		if c.Process == 0 {
			time.Sleep(100 * pause)
		}
		time.Sleep(pause)
	}
	return err
}

// newTangledTurn draws a lock to be taken with others, and a way to acquire the lock.
// beside are the names of the holder's locks. It returns nil if there is no other lock.
func (c *Client) newTangledTurn(pool *lockpool.Pool, r *rand.Rand, worker int, beside []string) *turn {
	names := slices.DeleteFunc(c.tangled(), func(name string) bool { return slices.Contains(beside, name) })
	if len(names) == 0 {
		return nil
	}
	return c.turnBeside(pool, r, worker, names[r.IntN(len(names))], beside)
}

// turnBeside draws a way to acquire a lock.
func (c *Client) turnBeside(pool *lockpool.Pool, r *rand.Rand, worker int, name string, beside []string) *turn {
	t := &turn{
		Client: c, pool: pool, r: r, worker: worker, id: c.ids.Add(1), kind: kindOf(name), name: name, beside: beside,
		brief: chance(r, 70), bound: c.patience(r),
	}
	kinds[t.kind].prepare(t)
	return t
}

// patience draws how long the holder of a lock waits for another one: in most cases long
// enough to be told of a deadlock.
func (c *Client) patience(r *rand.Rand) bound {
	b := bound{limit: between(r, min(2*time.Second, c.Timeout), 3*c.Timeout)}
	if chance(r, 20) {
		b = bound{limit: between(r, 0, 2*time.Second), canceled: chance(r, 50)}
	}
	b.atMost = !b.canceled && chance(r, 10)
	return b
}

// nest takes a turn with another lock for the same holder, if the turn has an inner lock.
// The wait may outlast the hold: a waiter need not notice the loss of a held lock. hold
// returns the context of the hold.
func (t *turn) nest(hold func(context.Context) context.Context) error {
	if t.inner == 0 {
		return nil
	}
	parent := hold(t.Machine.On(context.Background()))
	if chance(t.r, 30) {
		parent = context.WithoutCancel(parent)
	}
	beside := append(slices.Clone(t.beside), t.name)
	if t.next == "" && chance(t.r, 15) && t.hasTwo() && !slices.ContainsFunc(two, func(name string) bool { return slices.Contains(beside, name) }) {
		return t.lockTwo(parent, t.pool, t.r, t.worker, beside)
	}
	inner := t.newTangledTurn(t.pool, t.r, t.worker, beside)
	switch {
	case t.next != "":
		inner = t.turnBeside(t.pool, t.r, t.worker, t.next, beside)
		inner.waits, inner.bound = true, t.bound
	case inner == nil:
		return nil
	case t.acquire != nil && !t.inDo && chance(t.r, 30):
		parent = context.WithoutCancel(parent)
		defer func(ended func()) { ended() }(t.endMeanwhile())
	}
	inner.inner = t.inner - 1
	return inner.take(parent)
}

// two are the names of the locks taken in one call.
var two = []string{NameOf(Exclusive, 1), NameOf(Exclusive, 2)}

// hasTwo reports whether there are two such locks.
func (c *Client) hasTwo() bool { return slices.Contains(c.Kinds, Exclusive) && c.Locks > 2 }

// lockTwo takes a turn with two exclusive locks, both or none, for the holder in parent, if
// any. beside are the names of the locks held.
func (c *Client) lockTwo(parent context.Context, pool *lockpool.Pool, r *rand.Rand, worker int, beside []string) error {
	names := slices.Clone(two)
	turns := make([]*turn, len(names))
	b := bound{limit: between(r, 100*time.Millisecond, 3*c.Timeout)}
	begin := c.Now()
	for n, name := range names {
		turns[n] = &turn{Client: c, portion: portion{1, 1}, pool: pool, r: r, worker: worker, kind: Exclusive, name: name, id: c.ids.Add(1)}
		c.Report(Event{Kind: eventCall, At: begin, ID: turns[n].id, Worker: worker, Op: opLockAll, Lock: name, Permits: 1, Of: 1, Limit: b.limit})
	}
	ctx, cancel := b.context(c.Machine.On(parent), c.Now)
	defer cancel()
	if chance(r, 50) { // callers need not agree on an order
		slices.Reverse(names)
	}
	all, err := pool.LockAll(ctx, names)
	end := c.Now()
	for _, t := range turns {
		c.Report(Event{Kind: eventReturn, At: end, ID: t.id, Error: class(err)})
	}
	if err != nil {
		return err
	}
	var watchers []*watcher
	for _, t := range turns {
		t.lock = all[t.name]
		w := t.watch()
		watchers = append(watchers, w)
		defer w.end()
	}
	for _, t := range turns { // now with all watched
		t.token(t.lock, eventToken)
		t.use()
	}
	if chance(r, 20) {
		last := turns[1]
		last.beside, last.inner = append(slices.Clone(beside), turns[0].name), 1
		err = last.nest(all.Context)
	}
	if !errors.Is(err, lockpool.ErrDeadlock) {
		for _, w := range watchers {
			w.work(between(r, 0, c.Hold))
		}
	}
	for _, t := range turns {
		t.end(false)
	}
	other := Event{Kind: eventCall, At: c.Now(), ID: c.ids.Add(1), Worker: worker, Op: opUnlockAll, Lock: turns[1].name, Hold: turns[1].id, Limit: c.Timeout}
	c.Report(other)
	unlockErr := turns[0].do(Event{Op: opUnlockAll, Hold: turns[0].id}, all.Unlock)
	c.Report(Event{Kind: eventReturn, At: c.Now(), ID: other.ID, Error: class(unlockErr)})
	return err
}
