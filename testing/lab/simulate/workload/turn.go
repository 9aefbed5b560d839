package workload

// This file has turns: one attempt of a worker to acquire a lock, and the hold.

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/lockpool/lockpool"
)

// turn is one attempt of a worker to acquire a lock, and the following hold.
type turn struct {
	*Client
	portion
	pool         *lockpool.Pool
	r            *rand.Rand
	worker       int
	kind         string
	name         string
	slow         bool // some holds of this lock are long
	revocable    bool
	beside       []string // the holder's other locks
	inner        int      // how many other locks the holder takes under this one
	brief        bool     // the holder does little
	again        bool     // the holder has lost this lock, without Unlock
	inDo         bool     // the lock is held by a call of Do, and lock is another entry
	rests        bool     // the lock may stay taken after Unlock
	next         string   // the other lock to be taken, if a certain one
	waits        bool     // the call does not only try
	unlocked     bool     // by another goroutine, while the holder waited for another lock
	bound        bound
	opts         []lockpool.LockOption
	acquire, try func(context.Context) (*lockpool.Lock, error)
	id           int64
	lock         *lockpool.Lock
	ending       sync.Once
}

// takeTurn takes one turn. The error is from the acquisition, or from an acquisition within
// the hold.
func (c *Client) takeTurn(pool *lockpool.Pool, r *rand.Rand, worker int) error {
	if c.inRush() {
		return c.spree(pool, r, worker)
	}
	if c.inTangle(worker) {
		return c.tangle(pool, r, worker)
	}
	if c.Processes > 0 && c.Rush > 0 && chance(r, 10) { // without rushes, no own lock is taken
		return c.revisit(pool, r, worker)
	}
	if chance(r, 5) && c.hasTwo() {
		return c.lockTwo(context.Background(), pool, r, worker, nil)
	}
	if c.Once && chance(r, 1) {
		return c.lockOnce(pool, r, worker)
	}
	if c.Once && chance(r, 4) {
		return c.runJob(pool, r, worker)
	}
	t := c.newTurn(pool, r, worker)
	if chance(r, 5) {
		_ = t.call(opRevoke, func(ctx context.Context) error { return pool.Revoke(ctx, t.name) })
	}
	if chance(r, 3) {
		_ = t.call(opQueue, func(ctx context.Context) error {
			_, err := pool.Queue(ctx, t.name)
			return err
		})
	}
	if chance(r, 1) {
		_ = t.call(opList, func(ctx context.Context) error {
			_, err := pool.List(ctx, "")
			return err
		})
	}
	return t.take(context.Background())
}

// take acquires the lock, for the holder in parent, if any, and holds the lock.
func (t *turn) take(parent context.Context) error {
	e := Event{
		ID: t.id, Worker: t.worker, Op: opLock, Lock: t.name, Permits: t.permits, Of: t.of, Revocable: t.revocable,
	}
	if t.inDo {
		return t.takeInDo(parent, e)
	}
	acquire := t.acquire
	if t.again {
		e.Op = opAgain
	} else if t.bound.atMost {
		t.opts = append(t.opts, lockpool.WaitAtMost(t.bound.limit))
	} else if t.next == "" && !t.waits && chance(t.r, 20) {
		e.Op, acquire = opTry, t.try
	}
	err := t.callFrom(parent, e, t.bound, func(ctx context.Context) (err error) {
		t.lock, err = acquire(ctx)
		return err
	})
	if err != nil {
		return err
	}
	if t.exclusive() {
		t.follow(t.lock.Context(context.Background()))
	}
	return t.hold()
}

// takeInDo is take by a call of Do. Now and then, the holder has a reader's hold when Do
// has returned.
func (t *turn) takeInDo(parent context.Context, e Event) (err error) {
	t.bound = bound{limit: t.bound.limit, canceled: true} // by a timer standing still with the machine
	e.Kind, e.At, e.Limit = eventCall, t.Now(), t.bound.limit
	t.Report(e)
	ctx, cancel := t.bound.context(t.Machine.On(parent), t.Now)
	defer cancel()
	release := Event{Kind: eventCall, ID: t.ids.Add(1), Worker: t.worker, Op: opDo, Lock: t.name, Hold: t.id, Limit: t.bound.limit, Rests: t.rests}
	var w *watcher // if the holder becomes a reader
	told := t.pool.Do(ctx, t.name, func(held context.Context) (failed error) {
		t.Report(Event{Kind: eventReturn, At: t.Now(), ID: e.ID})
		e.ID = release.ID
		t.follow(held)
		if held = context.WithoutCancel(held); t.kind != ReadWrite || chance(t.r, 50) {
			if t.lock, failed = t.acquire(held); failed == nil {
				err = t.hold()
			}
		} else if t.lock, failed = t.with(t.pool.Lock, lockpool.Shared())(held); failed == nil {
			w = t.watch()
			t.token(t.lock, eventToken)
			t.Report(Event{Kind: eventDowngrade, At: t.Now(), Hold: t.id})
			release.Hold = 0
		}
		if failed != nil {
			t.end(true)
		}
		release.At = t.Now()
		t.Report(release)
		return nil
	}, t.opts...)
	t.Report(Event{Kind: eventReturn, At: t.Now(), ID: e.ID, Error: class(told)})
	if e.ID != release.ID {
		return told
	}
	if w != nil {
		defer w.end()
		w.work(between(t.r, 0, t.Hold))
		t.inDo = false
		t.release()
	}
	return err
}

// follow reports when a context of the exclusive hold ends.
func (t *turn) follow(held context.Context) {
	context.AfterFunc(held, func() { t.Report(Event{Kind: eventContext, At: t.Now(), Hold: t.id}) })
}

// newTurn draws a lock and a way to acquire it. The first lock of each kind is left to one
// worker of each client: it may be held for longer than the session timeout, and others
// would only wait.
func (c *Client) newTurn(pool *lockpool.Pool, r *rand.Rand, worker int) *turn {
	t := &turn{Client: c, pool: pool, r: r, worker: worker, id: c.ids.Add(1), kind: c.Kinds[r.IntN(len(c.Kinds))]}
	i, n := 0, locksOf(t.kind, c.Locks)
	if worker > 0 && n > 1 {
		i = 1 + r.IntN(n-1)
	}
	t.name, t.slow, t.revocable = NameOf(t.kind, i), i == 0, chance(r, 40)
	if t.revocable {
		t.opts = append(t.opts, lockpool.Revocable())
	}
	t.bound = bound{limit: between(r, 100*time.Millisecond, 3*c.Timeout)}
	switch {
	case chance(r, 10):
		t.bound = bound{limit: between(r, 0, 200*time.Millisecond), canceled: true}
	case chance(r, 10):
		t.bound.atMost = true
	}
	switch {
	case chance(r, 5):
		t.inner = 1
	case chance(r, 2):
		t.inner = 2
	}
	kinds[t.kind].prepare(t)
	if t.inDo = t.kind != Semaphore && t.exclusive() && chance(r, 15); t.inDo && t.kind == Plain {
		t.opts = append(t.opts, lockpool.Plain())
	}
	if t.rests = (t.kind == Exclusive || t.kind == ReadWrite) && chance(r, 10); t.rests {
		t.opts = append(t.opts, lockpool.HoldAtLeast(between(r, 0, c.Hold)))
	}
	return t
}

func (t *turn) call(op string, do func(context.Context) error) error {
	return t.do(Event{Op: op}, do)
}

// do makes a call without a long wait, and reports the call as e.
func (t *turn) do(e Event, do func(context.Context) error) error {
	e.ID, e.Worker, e.Lock = t.ids.Add(1), t.worker, t.name
	return t.Client.call(e, bound{limit: between(t.r, 50*time.Millisecond, t.Timeout)}, do)
}

// end emits the end of the hold, once.
func (t *turn) end(lost bool) {
	at := t.Now() // may wait, and who waits for the other caller of Do stops virtual time
	t.ending.Do(func() { t.Report(Event{Kind: eventEnd, At: at, Hold: t.id, Lost: lost}) })
}

// hold works under the lock and unlocks the lock. The error is from an acquisition within
// the hold: the victim of a deadlock releases all locks.
func (t *turn) hold() error {
	w := t.watch()
	defer w.end()
	if t.brief {
		w.work(between(t.r, 0, t.Hold/20))
		err := t.nest(t.lock.Context)
		t.release()
		return err
	}
	downgrade := t.kind == ReadWrite && t.exclusive() && !t.inDo && chance(t.r, 50)
	late := downgrade && chance(t.r, 50) // at once, and asks for the token only then
	if !late {
		t.token(t.lock, eventToken)
	}
	if t.of == 1 {
		t.use()
	}
	if chance(t.r, 10) {
		t.reenter()
	}
	if chance(t.r, 5) {
		_ = t.call(opVerify, t.lock.Verify)
	}
	early := !downgrade || chance(t.r, 50)
	if early {
		if err := t.nest(t.lock.Context); t.unlocked || errors.Is(err, lockpool.ErrDeadlock) {
			t.release()
			return err
		}
	}
	span := between(t.r, 0, t.Hold)
	if t.slow && chance(t.r, t.LongHolds) {
		span = between(t.r, t.MinLong, t.MaxLong)
	}
	if downgrade && t.exclusive() {
		span /= 2
		if !late {
			w.work(span)
		}
		t.downgrade(late)
		if chance(t.r, 30) {
			span = 0 // the downgrade may still be under way
		}
		if !early {
			if err := t.nest(t.lock.Context); t.unlocked || errors.Is(err, lockpool.ErrDeadlock) {
				t.release()
				return err
			}
		}
	}
	w.work(span)
	if isClosed(w.lost) && chance(t.r, 50) {
		t.lockAgain()
	}
	t.release()
	return nil
}

// release ends the hold, and unlocks the lock.
func (t *turn) release() {
	if t.unlocked {
		return
	}
	t.end(false) // before another holder is possible
	e := Event{Op: opUnlock, Hold: t.id, Rests: t.rests}
	if t.inDo {
		e.Hold = 0 // Do has another entry
	}
	_ = t.do(e, t.lock.Unlock)
}

// endMeanwhile lets another goroutine end the hold, or turn it into a reader's, while the
// holder waits for another lock. The node may stay, and the wait keeps its place. The
// returned function waits for the end.
func (t *turn) endMeanwhile() (ended func()) {
	e := Event{ID: t.ids.Add(1), Worker: t.worker, Op: opUnlock, Lock: t.name, Hold: t.id, Rests: t.rests}
	after, b := between(t.r, 0, 2*t.Hold), bound{limit: between(t.r, 50*time.Millisecond, t.Timeout)}
	var reader *lockpool.Lock
	if t.kind == ReadWrite && t.exclusive() && chance(t.r, 50) {
		r, err := t.with(t.pool.Lock, lockpool.Shared())(t.lock.Context(context.Background()))
		if err == nil {
			e.Hold, reader = 0, r
		}
	}
	done := make(chan struct{})
	go func() { // ends when the lock is unlocked
		defer close(done)
		if time.Sleep(after); reader == nil {
			t.end(false)
		} else {
			t.Report(Event{Kind: eventDowngrade, At: t.Now(), Hold: t.id})
		}
		_ = t.Client.call(e, b, t.lock.Unlock)
	}()
	return func() {
		if <-done; reader == nil {
			t.unlocked = true
		} else {
			t.lock, t.permits = reader, 1
		}
	}
}

// lockAgain acquires the lost lock, for the same holder.
func (t *turn) lockAgain() {
	again := &turn{
		Client: t.Client, pool: t.pool, r: t.r, worker: t.worker, id: t.ids.Add(1), kind: t.kind, name: t.name,
		again: true, bound: bound{limit: time.Second},
	}
	kinds[t.kind].prepare(again)
	_ = again.take(context.WithoutCancel(t.lock.Context(context.Background())))
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// watcher watches a hold for its loss and for revocation requests.
type watcher struct {
	lost     <-chan struct{} // nil if losses are ignored
	yield    chan struct{}   // closed when the holder gives in to a request
	unlocked chan struct{}   // to be closed
	done     chan struct{}   // closed when the watcher has ended
}

// watch starts to watch the hold. Half of the holders release the lock on a revocation
// request; the request forces none of them.
func (t *turn) watch() *watcher {
	lock, lost, yields := t.lock, t.lock.Lost(), chance(t.r, 50)
	requested, revoked := t.requests()
	w := &watcher{lost, make(chan struct{}), make(chan struct{}), make(chan struct{})}
	if t.IgnoreLosses {
		w.lost = nil
	}
	go func() { // ends with the hold
		defer close(w.done)
		for {
			select {
			case <-lost:
				if !t.IgnoreLosses {
					t.end(true)
				}
				return
			case <-requested:
				if requested = nil; !revoked() { // the writer has become a reader
					requested, revoked = lock.Revoked(), func() bool { return true }
					continue
				}
				t.Report(Event{Kind: eventRevoke, At: t.Now(), Hold: t.id})
				if yields {
					close(w.yield)
				}
			case <-w.unlocked:
				return
			}
		}
	}()
	return w
}

// end ends the watch, even if the process was killed.
func (w *watcher) end() {
	close(w.unlocked)
	<-w.done
}

// work returns after d, or when the holder has a reason to release the lock.
func (w *watcher) work(d time.Duration) {
	select {
	case <-w.lost:
	case <-w.yield:
	case <-time.After(d):
	}
}

// requests returns a channel that is closed at a revocation request, if the holder listens
// for them. A revocable lock reports requests by the end of the context, but the context
// may also end for other reasons.
func (t *turn) requests() (requested <-chan struct{}, revoked func() bool) {
	switch {
	case !t.revocable:
		return nil, nil
	case t.kind == Semaphore:
		return t.lock.Revoked(), func() bool { return true }
	}
	held := t.lock.Context(context.Background())
	return held.Done(), func() bool { return errors.Is(context.Cause(held), lockpool.ErrRevoked) }
}

// downgrade turns an exclusive holder into a reader, who may ask for the token only now.
func (t *turn) downgrade(late bool) {
	held := t.lock.Context(context.Background())
	var reader *lockpool.Lock
	err := t.call(opDowngrade, func(context.Context) (err error) {
		reader, err = t.with(t.pool.Lock, lockpool.Shared())(held)
		return err
	})
	if err != nil {
		return
	}
	t.Report(Event{Kind: eventDowngrade, At: t.Now(), Hold: t.id})
	e := Event{ID: t.ids.Add(1), Worker: t.worker, Op: opUnlock, Lock: t.name}
	_ = t.Client.call(e, bound{limit: between(t.r, 0, t.Hold/4)}, t.lock.Unlock) // goes on in the background
	t.checkEnded(held)
	t.lock = reader
	if late {
		t.token(reader, eventToken)
	} else {
		t.token(reader, eventReenter)
	}
}

// lockOnce takes a turn with a lock whose name is not used again, and has little time.
func (c *Client) lockOnce(pool *lockpool.Pool, r *rand.Rand, worker int) error {
	id := c.ids.Add(1)
	t := &turn{
		Client: c, pool: pool, r: r, worker: worker, id: id, kind: own, name: fmt.Sprintf("%s-%d-%d", once, c.Seed, id),
		brief: true, bound: bound{limit: between(r, 0, 500*time.Millisecond)},
	}
	prepareExclusive(t)
	return t.take(context.Background())
}

// runJob runs the job of the present period, unless finished.
func (c *Client) runJob(pool *lockpool.Pool, r *rand.Rand, worker int) error {
	const length = Instant(time.Minute)
	e := Event{ID: c.ids.Add(1), Worker: worker, Op: opRun, Lock: job, Value: int64(c.Now() / length), Limit: closing}
	b := bound{limit: between(r, 100*time.Millisecond, 3*c.Timeout)}
	return c.call(e, b, func(ctx context.Context) error {
		return pool.Once(ctx, job, fmt.Sprint(e.Value), func(ctx context.Context) error {
			c.Report(Event{Kind: eventStart, At: c.Now(), ID: e.ID})
			select {
			case <-time.After(between(r, 0, c.Hold)):
			case <-ctx.Done():
			}
			return ctx.Err()
		})
	})
}

// reenter acquires the lock again, through the hold's context, and releases the new entry.
func (t *turn) reenter() {
	held := t.lock.Context(context.Background())
	var inner *lockpool.Lock
	err := t.call(opReenter, func(context.Context) (err error) {
		inner, err = t.acquire(held)
		return err
	})
	if err != nil {
		return
	}
	t.token(inner, eventReenter)
	held = inner.Context(context.Background())
	_ = t.call(opUnlock, inner.Unlock)
	t.checkEnded(held)
}

// checkEnded reports the context of an unlocked entry, unless ended.
func (t *turn) checkEnded(held context.Context) {
	if held.Err() == nil {
		t.Report(Event{Kind: eventOutlived, At: t.Now(), Hold: t.id})
	}
}

func (t *turn) token(held *lockpool.Lock, k EventKind) {
	var token int64
	_ = t.call(opToken, func(ctx context.Context) (err error) {
		token, err = held.Token(ctx)
		return err
	})
	if token != 0 {
		t.Report(Event{Kind: k, At: t.Now(), Hold: t.id, Token: token})
	}
}

// use uses what the lock protects, sometimes for long enough to lose the lock meanwhile.
func (t *turn) use() {
	switch id := t.ids.Add(1); {
	case !t.Uses:
	case id%50 == 0:
		time.Sleep(t.Timeout * 3 / 2)
	default:
		time.Sleep(time.Duration(id%7) * 3 / 2 * time.Millisecond)
	}
}
