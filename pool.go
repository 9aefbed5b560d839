package lockpool

// This file has pools: opening, the calls that need no handle, closing.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/jackc/puddle/v2"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/nodedata"
	"github.com/lockpool/lockpool/internal/telemetry"
)

// Pool gives out handles, the holders of locks. A Pool is safe for concurrent use and
// long-lived: one per ensemble and process is usual.
type Pool struct {
	connector driver.Connector
	cfg       config
	telemetry *telemetry.Telemetry
	unobserve func()         // unregisters the pool's metrics
	id        string         // in the names of waiters without a node
	owner     nodedata.Owner // stored in each node of the pool
	slots     *puddle.Pool[*slot]

	// Shutdown and Close end accepting: from then on a handle without locks cannot lock.
	// Close ends alive: from then on no handle can. Both causes are ErrPoolClosed. What a
	// goroutine adds to the pool with mu held, after a check of alive, Close finds.
	accepting context.Context
	refuse    context.CancelCauseFunc
	alive     context.Context
	kill      context.CancelCauseFunc
	work      sync.WaitGroup      // goroutines of the pool, and calls awaited by Close
	waiting   atomic.Int32        // calls waiting for a lock
	inUse     atomic.Int32        // handles with a slot
	taken     atomic.Int32        // slots, also of calls that still wait for a session
	slotWaits slotWaits           // of calls
	panicked  atomic.Pointer[any] // by user code, for Close
	ages      ages                // of requests ended by a deadlock (victim.go)
	local     localQueues         // of calls that wait in memory (localqueue.go)
	nested    nestedWaits         // of handles with other locks (nested.go)
	report    report              // of the calls that wait in memory (crowd.go)
	costs     costs               // of locks (cost.go)
	published report              // of the costs

	mu         sync.Mutex
	sessions   []*session
	pending    *pendingSession // nil if none
	connectErr error           // of the last attempt to open a session
	connected  bool            // a session has been opened
	seekers    int             // calls waiting for a session
	handles    map[*Handle]struct{}
	held       int // current holds
	unwatched  unwatched
	drained    chan struct{} // created by Shutdown; closed when held is 0
}

// Open returns a pool on the named driver, which must have been imported:
//
//	import _ "github.com/lockpool/lockpool/driver/zookeeper"
//
//	pool, err := lockpool.Open("zookeeper", "zk1:2181,zk2:2181,zk3:2181/locks")
//
// Open only parses the arguments; the first use of the pool connects. The driver's package
// describes the connect string.
func Open(driverName, dsn string, opts ...Option) (*Pool, error) {
	d, err := driver.Registered(driverName)
	if err != nil {
		return nil, fmt.Errorf("lockpool: %w", err)
	}
	connector, err := d.OpenConnector(dsn)
	if err != nil {
		return nil, fmt.Errorf("lockpool: %w", err)
	}
	return OpenConnector(connector, opts...)
}

// OpenConnector is Open for a configuration too large for a string.
func OpenConnector(connector driver.Connector, opts ...Option) (*Pool, error) {
	if connector == nil {
		return nil, errors.New("lockpool: OpenConnector: the connector is nil")
	}
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	p := &Pool{
		connector: connector,
		cfg:       cfg,
		telemetry: newTelemetry(cfg, connector),
		id:        uuid.NewString(),
		owner:     nodedata.NewOwner(cfg.owner),
		handles:   map[*Handle]struct{}{},
		local:     localQueues{most: cfg.localTurns, keeping: keeping{most: cfg.keptLocks, unused: cfg.keptUnused}},
	}
	p.accepting, p.refuse = context.WithCancelCause(context.Background())
	p.alive, p.kill = context.WithCancelCause(context.Background())
	p.slots, err = puddle.NewPool(&puddle.Config[*slot]{
		Constructor: func(context.Context) (*slot, error) { return new(slot), nil },
		Destructor:  func(*slot) {},
		MaxSize:     int32(cfg.maxHandles),
	})
	if err != nil {
		return nil, fmt.Errorf("lockpool: %w", err)
	}
	p.local.report = p.reportCrowds
	p.costs.open(p.publishCosts, cfg.localTurns > 0)
	p.report.queue, p.published.queue = driver.Reports, driver.Costs
	p.unobserve = p.observe()
	return p, nil
}

// Format implements fmt.Formatter: a pool is logged as the name of its driver.
func (p *Pool) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "lockpool.Pool(%s)", p.connector.DriverName())
}

// Handle returns a new handle: one holder of locks. The call waits, until ctx ends, for a
// free handle and for a connection. Close returns the handle to the pool.
func (p *Pool) Handle(ctx context.Context) (*Handle, error) {
	h, err := p.newHandle()
	if err == nil {
		opened := false
		defer func() {
			if !opened { // user code panics
				_ = h.Close(canceled)
			}
		}()
		err = h.open(ctx)
		opened = true
	}
	if err != nil {
		return nil, fmt.Errorf("lockpool: open a handle: %w", err)
	}
	return h, nil
}

// newHandle returns a handle without a slot. The handle returns to the pool when idle.
func (p *Pool) newHandle() (*Handle, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.accepting.Err() != nil {
		return nil, ErrPoolClosed
	}
	h := &Handle{pool: p, transient: true}
	p.handles[h] = struct{}{}
	return h, nil
}

// begin registers work for which Close waits, and reports false if the pool is closed;
// otherwise the caller ends the work with work.Done.
func (p *Pool) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.alive.Err() != nil { // and Close may wait for work already
		return false
	}
	p.work.Add(1)
	return true
}

// Lock waits for the named lock until ctx ends, and returns the lock, held by a new handle
// until the unlock.
//
// If ctx comes from [Lock.Context] or [Pool.Do] and was created on this goroutine, the
// handle in ctx locks instead: a lock already held by this handle is entered again, without
// waiting and without a request to the service.
//
// ctx bounds the wait, never how long the lock is held.
func (p *Pool) Lock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return p.lock(ctx, name, &request{op: opLock}, new(Lock), opts)
}

// TryLock is Lock without waiting for other contenders: if the lock has a holder or a
// waiter, the error is ErrLocked. TryLock waits, until ctx ends, for the service's answer
// and, if necessary, for a free handle.
func (p *Pool) TryLock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return p.lock(ctx, name, &request{op: opLock, try: true}, new(Lock), opts)
}

func (p *Pool) lock(ctx context.Context, name string, req *request, l *Lock, opts []LockOption) (*Lock, error) {
	if err := req.with(opts); err != nil {
		return nil, notAcquired(req.String(), name, err)
	}
	return p.enter(ctx, name, req, l)
}

func (p *Pool) enter(ctx context.Context, name string, req *request, l *Lock) (*Lock, error) {
	if h := p.carriedHandle(ctx); h != nil {
		l, err := h.enter(ctx, name, req, l)
		if !shouldTryAnew(ctx, err) {
			return l, err
		}
	}
	h, err := p.newHandle()
	if err != nil {
		return nil, notAcquired(req.String(), name, err)
	}
	defer h.returnIfUnused() // after an error, or a panic in user code
	return h.enter(ctx, name, req, l)
}

// shouldTryAnew reports whether a call by the handle that ctx carries needs another handle,
// because another goroutine has just unlocked the last lock of the former one. (If that was
// the end of ctx, the error says so.)
func shouldTryAnew(ctx context.Context, err error) bool {
	return errors.Is(err, ErrNotHeld) && (ctx.Err() == nil || !errors.Is(err, ctx.Err()))
}

// Do calls fn under the named lock, and returns fn's error. Do waits for the lock until ctx
// ends; without the lock, fn is not called.
//
// The context of fn is derived from ctx and ends when the lock is lost, with the cause
// ErrLockLost. The context carries the holder: with it, Pool.Lock and Pool.Do enter the
// lock again (see [Pool.Lock]).
//
// Do unlocks when fn returns or panics, even if ctx has ended by then. (A Do within, for
// the same lock, asks no server: the outermost tells a removal of which no event has come.)
// If the service does not confirm the release, the error says so, in a text that errors.Is
// does not take for the end of a context: others may have broken the lock. If the lock was
// lost by then, the error wraps ErrLockLost as well as fn's error; if the pool was closed,
// the error wraps ErrNotHeld and ErrPoolClosed. If fn returns its context's error because
// the lock was revoked (see [Revocable]), the error also wraps ErrRevoked.
func (p *Pool) Do(ctx context.Context, name string, fn func(ctx context.Context) error, opts ...LockOption) error {
	if fn == nil {
		return errNilFunc
	}
	lock, err := p.Lock(ctx, name, opts...)
	if err != nil {
		return err
	}
	return do(ctx, fn, []*Lock{lock})
}

// do calls fn under the locks and unlocks them.
func do(ctx context.Context, fn func(ctx context.Context) error, locks []*Lock) (err error) {
	inner, began := ctx, false
	defer func() {
		for i := 0; !began && i < len(locks); i++ { // a method of ctx panics
			_ = locks[i].Unlock(canceled)
		}
	}()
	for _, l := range locks {
		under := newHeldContext(inner, l)
		inner = under
		defer func() { err = under.done(err, l.Unlock(ctx)) }() // unlocks each lock, whatever panics
	}
	began = true
	return apart(fn(inner))
}

// done returns the error for the caller of a function under a lock, after the unlock.
func (c *heldContext) done(err, unlockErr error) error {
	if errors.Is(err, context.Canceled) && context.Cause(c) == ErrRevoked && c.hold.life.isRevoked() {
		err = errors.Join(err, &LockError{opHold, c.hold.name, ErrRevoked})
	}
	if unlockErr == nil {
		unlockErr = lockError(opUnlock, c.hold.name, c.hold.checkEntry(c.parent))
	}
	if unlockErr != nil {
		err = errors.Join(err, hide(unlockErr, ofTheFunction))
	}
	return err
}

var errNilFunc = errors.New("lockpool: Do: the function is nil")

// Ping opens a session if there is none, and asks the service for an answer that requires a
// majority of the servers. Ping waits for both until ctx ends.
func (p *Pool) Ping(ctx context.Context) error {
	err := p.withSession(ctx, func(ctx context.Context, s *session) error { return s.Ping(ctx) })
	if err != nil {
		return fmt.Errorf("lockpool: ping: %w", err)
	}
	return nil
}

// Shutdown closes the pool when the holders have finished: when everything is unlocked, and
// the time of each HoldAtLeast has passed. Meanwhile a handle with locks may take further
// locks in order to finish; all other locking or waiting calls return ErrPoolClosed. If ctx
// ends first, Shutdown closes the pool anyway and returns ctx's error. ctx bounds the wait
// for holders; closing may take 5 s more, as in Close.
func (p *Pool) Shutdown(ctx context.Context) error {
	refuseNil(ctx)
	p.refuse(ErrPoolClosed)
	p.abandonAcquisitions(false) // handles with locks may take more in order to finish
	p.keepNone()
	p.mu.Lock()
	if p.drained == nil {
		p.drained = make(chan struct{})
		p.noteDrained()
	}
	drained := p.drained
	p.mu.Unlock()
	var err error
	select {
	case <-drained:
	case <-ctx.Done():
		select {
		case <-drained: // at the same time
		default:
			err = fmt.Errorf("lockpool: shutdown: closed while locks were held: %w", ctx.Err())
		}
	case <-p.alive.Done(): // by Close
	}
	return errors.Join(err, p.Close())
}

// abandonAcquisitions ends the acquisitions under way, all or those of handles without locks,
// and returns the handles. There are no more, because accepting has ended.
func (p *Pool) abandonAcquisitions(all bool) []*Handle {
	p.mu.Lock()
	handles := slices.Collect(maps.Keys(p.handles))
	p.mu.Unlock()
	for _, h := range handles {
		if ctx, giveUp, holds := h.underWay(); giveUp != nil && (all || !holds) {
			go p.abandon(giveUp)
			<-ctx.Done()
		}
	}
	return handles
}

// abandon ends an acquisition, and returns when methods of the caller's context have. Nothing
// waits for the methods, and Close raises their panics.
func (p *Pool) abandon(giveUp context.CancelCauseFunc) {
	var panicked any
	if guard(&panicked, func() { giveUp(ErrPoolClosed) }); panicked != nil {
		p.panicked.Store(&panicked)
	}
}

// Close closes the pool at once. Waiting calls return ErrPoolClosed. Everything held is
// released, and the contexts of the locks end with the cause ErrPoolClosed. If servers do
// not answer, Close gives up on them after 5 s; the locks are then free when the sessions
// expire. When Close returns, nothing of the pool is left running, except perhaps methods of
// the callers' contexts. Closing a pool again is not an error. If locks come free before
// their time (see [HoldAtLeast]), Close returns an error with their names; Shutdown waits
// instead.
func (p *Pool) Close() error {
	p.refuse(ErrPoolClosed)
	p.kill(ErrPoolClosed)
	p.mu.Lock()
	sessions := p.sessions
	var early error
	var held []*hold
	for _, s := range sessions {
		for _, all := range s.tenancies {
			for _, t := range all {
				early = errors.Join(early, t.cutShort())
			}
		}
		held = append(held, s.closeTenancies()...)
	}
	p.unwatched.stop()
	p.mu.Unlock()
	p.costs.close()
	var panicked any
	defer raise(&panicked)
	handles := p.abandonAcquisitions(true) // before the sessions end, which an acquisition would take for a loss
	for _, h := range held {
		early = errors.Join(early, h.cutShort())
	}
	held = slices.DeleteFunc(held, func(h *hold) bool { return !h.life.end(ErrPoolClosed, false) })

	// Closing a session releases its locks, and ends every call on it.
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var closing sync.WaitGroup
	for _, s := range sessions {
		closing.Go(func() { s.close(ctx) })
	}
	closing.Wait()
	for _, h := range held { // after all have ended, and the locks are free
		defer h.reportEnd(ErrPoolClosed) // deferred, so that each runs even if user code panics
	}

	for _, h := range handles {
		guard(&panicked, func() { _ = h.close(ctx, ErrPoolClosed) }) // what it held has ended above
	}
	p.slots.Close()
	p.work.Wait()
	if by := p.panicked.Swap(nil); by != nil {
		panicked = *by
	}
	p.unobserve()
	if c, ok := p.connector.(io.Closer); ok {
		return errors.Join(early, c.Close())
	}
	return early
}

// holdsOf returns the pool's holds of the named lock.
func (p *Pool) holdsOf(name string) (holds []*hold) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.sessions {
		holds = append(holds, s.holdsOf(name)...)
	}
	return holds
}
