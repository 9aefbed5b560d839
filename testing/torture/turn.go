//go:build linux

package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/lockpool/lockpool"
)

// turn is a lock that is to be taken, and then held.
type turn struct {
	*client
	portion
	pool      *lockpool.Pool
	r         *rand.Rand
	worker    int
	kind      string
	name      string
	slow      bool // it is a lock that may be held for long
	listens   bool
	take, try func(context.Context) (lock, error)
	id        int64
	lock      lock
	ending    sync.Once
}

// draw draws a lock and a way to take it. The first lock of each kind is left to
// one goroutine of each process: it may be held for as long as a session takes to
// expire, which others would only wait for.
func (c *client) draw(pool *lockpool.Pool, r *rand.Rand, worker int) *turn {
	t := &turn{client: c, pool: pool, r: r, worker: worker, id: c.ids.Add(1), kind: c.Kinds[r.IntN(len(c.Kinds))]}
	i, n := 0, locksOf(t.kind, c.Locks)
	if worker > 0 && n > 1 {
		i = 1 + r.IntN(n-1)
	}
	t.name, t.slow, t.listens = nameOf(t.kind, i), i == 0, chance(r, 40)
	ways[t.kind].prepare(t)
	return t
}

func (t *turn) call(op string, do func(context.Context) error) error {
	e := event{ID: t.ids.Add(1), Worker: t.worker, Op: op, Lock: t.name}
	return t.client.call(e, bound{between(t.r, 50*time.Millisecond, t.Timeout), false}, do)
}

// end is the end of the hold, by the client's belief.
func (t *turn) end(lost bool) {
	t.ending.Do(func() { t.tell(event{Kind: ended, At: now(), Hold: t.id, Lost: lost}) })
}

func (t *turn) hold() {
	begun, lost := now(), t.lock.Lost()
	asked, heard := t.requests()
	unlocked, watched := make(chan struct{}), make(chan struct{})
	// Who hears that somebody asks for the lock lets it go, or does not: nobody is
	// forced.
	yield, yields := make(chan struct{}), chance(t.r, 50)
	go func() { // ends with the hold
		defer close(watched)
		for {
			select {
			case <-lost:
				if !t.Heedless {
					t.end(true)
				}
				return
			case <-asked:
				asked = nil
				if !heard() {
					continue
				}
				t.tell(event{Kind: told, At: now(), Hold: t.id})
				if yields {
					close(yield)
				}
			case <-unlocked:
				return
			}
		}
	}()
	work := func(d time.Duration) {
		over := lost
		if t.Heedless {
			over = nil
		}
		select {
		case <-over:
		case <-yield:
		case <-time.After(d):
		}
	}
	token := t.token(t.lock, tokened)
	if t.of == 1 {
		t.access(token)
	}
	if chance(t.r, 10) {
		t.reenter()
	}
	if chance(t.r, 5) {
		_ = t.call(opVerify, t.lock.Verify)
	}
	span := between(t.r, 0, 50*time.Millisecond)
	if t.slow && chance(t.r, t.Long) {
		span = between(t.r, t.Shortest, t.Longest)
	}
	if t.kind == readWrite && t.alone() && chance(t.r, 50) {
		span /= 2
		work(span)
		t.share()
	}
	work(span)
	if t.of == 1 && now().since(begun) > t.Timeout/2 {
		t.access(token) // with an old token, if there was a pause or a loss
	}
	t.end(false) // before anybody else can hold it
	_ = t.call(opUnlock, t.lock.Unlock)
	close(unlocked)
	<-watched
}

// requests returns a channel that is closed when somebody asks for the lock, if
// this holder listens. Who has taken it to be revocable hears of it by a
// context, which may also have ended for another reason.
func (t *turn) requests() (asked <-chan struct{}, heard func() bool) {
	switch {
	case !t.listens:
		return nil, nil
	case t.kind == semaphore:
		return t.lock.Revoked(), func() bool { return true }
	}
	held := t.lock.Context(context.Background())
	return held.Done(), func() bool { return errors.Is(context.Cause(held), lockpool.ErrRevoked) }
}

// share goes on with a lock, which nobody else had, as one of those who read.
func (t *turn) share() {
	held := t.lock.Context(context.Background())
	var reading lock
	err := t.call(opShare, func(context.Context) (err error) {
		reading, err = t.by(t.pool.RLock)(held)
		return err
	})
	if err != nil {
		return
	}
	t.tell(event{Kind: shared, At: now(), Hold: t.id})
	_ = t.call(opUnlock, t.lock.Unlock)
	t.lock = reading
	t.token(reading, reentered)
}

func (t *turn) token(held lock, k kind) (token int64) {
	_ = t.call(opToken, func(ctx context.Context) (err error) {
		token, err = held.Token(ctx)
		return err
	})
	if token != 0 {
		t.tell(event{Kind: k, At: now(), Hold: t.id, Token: token})
	}
	return token
}

// reenter locks again, through the context.
func (t *turn) reenter() {
	held := t.lock.Context(context.Background())
	var inner lock
	err := t.call(opReenter, func(context.Context) (err error) {
		inner, err = t.take(held)
		return err
	})
	if err != nil {
		return
	}
	t.token(inner, reentered)
	_ = t.call(opUnlock, inner.Unlock)
}

// access writes the register, or now and then reads it.
func (t *turn) access(token int64) {
	id := t.ids.Add(1)
	e := event{Kind: accessing, ID: id, Op: opWrite, Lock: t.name, Token: token, Value: int64(os.Getpid())<<32 | id}
	if token == 0 || chance(t.r, 20) {
		e = event{Kind: accessing, ID: id, Op: opRead, Lock: t.name}
	}
	reply := make(chan answer, 1)
	t.mu.Lock()
	t.answers[id] = reply
	t.mu.Unlock()
	e.At = now()
	t.tell(e)
	<-reply
	t.tell(event{Kind: accessed, At: now(), ID: id})
}
