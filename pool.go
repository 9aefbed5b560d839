package lockpool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/jackc/puddle/v2"

	"github.com/lockpool/lockpool/driver"
)

// Pool gives out holders of locks. It is safe for concurrent use and meant to
// be long-lived: one per ensemble and process is usual.
type Pool struct {
	connector driver.Connector
	cfg       config
	telemetry *telemetry
	unobserve func() // ends what metrics ask of the pool
	owner     owner  // stored in every node of the pool
	slots     *puddle.Pool[slot]

	// Both end with the cause ErrPoolClosed: closing when those that hold nothing
	// get no more locks, living when nobody does. Whoever looks at living with
	// mu held is seen by Close, or sees it.
	accepting context.Context
	refuse    context.CancelCauseFunc
	alive     context.Context
	kill      context.CancelCauseFunc
	work      sync.WaitGroup // the pool's own goroutines, and calls that it must not outlive
	waiting   atomic.Int32   // calls that wait for a lock
	inUse     atomic.Int32   // handles that have a seat

	mu         sync.Mutex
	sessions   []*session
	pending    *pendingSession // nil if none
	connectErr error           // why the last try to open a session failed
	connected  bool            // there has been a session
	seekers    int             // calls that wait for a session
	handles    map[*Handle]struct{}
	held       int
	drained    chan struct{} // made by Shutdown; closed when held comes to 0
}

// Open returns a pool on the named driver, which must have been imported:
//
//	import _ "github.com/lockpool/lockpool/driver/zookeeper"
//
//	pool, err := lockpool.Open("zookeeper", "zk1:2181,zk2:2181,zk3:2181/locks")
//
// It only parses its arguments; the first use connects. The driver's package
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

// Drivers returns the names of the drivers that Open knows, sorted.
func Drivers() []string { return driver.Drivers() }

// OpenConnector is Open for a configuration that does not fit into a string.
func OpenConnector(connector driver.Connector, opts ...Option) (*Pool, error) {
	if connector == nil {
		return nil, errors.New("lockpool: OpenConnector of a nil connector")
	}
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	p := &Pool{
		connector: connector,
		cfg:       cfg,
		telemetry: newTelemetry(cfg, connector),
		owner:     newOwner(cfg.owner),
		handles:   map[*Handle]struct{}{},
	}
	p.accepting, p.refuse = context.WithCancelCause(context.Background())
	p.alive, p.kill = context.WithCancelCause(context.Background())
	p.slots, err = puddle.NewPool(&puddle.Config[slot]{
		Constructor: p.openSlot,
		Destructor:  p.closeSlot,
		MaxSize:     int32(cfg.maxHandles),
	})
	if err != nil {
		return nil, fmt.Errorf("lockpool: %w", err)
	}
	p.unobserve = p.observe()
	return p, nil
}

// Format implements fmt.Formatter: a pool in a log is its driver's name.
func (p *Pool) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "lockpool.Pool(%s)", p.connector.DriverName())
}

// Session returns a new handle: one holder of locks. It waits, until ctx ends,
// for a free handle and for a connection. Close it to give it back.
func (p *Pool) Handle(ctx context.Context) (*Handle, error) {
	s, err := p.openHandle(ctx)
	if err != nil {
		return nil, fmt.Errorf("lockpool: open a handle: %w", err)
	}
	return s, nil
}

func (p *Pool) openHandle(ctx context.Context) (*Handle, error) {
	s, err := p.newHandle()
	if err != nil {
		return nil, err
	}
	s.transient = true // until it is the caller's to close
	return s, s.exclusively(ctx, func(ctx context.Context) error {
		err := s.ensureSlot(ctx)
		if err != nil && ctx.Err() != nil {
			err = withCause(ctx, err)
		}
		s.mu.Lock()
		s.transient = err != nil
		s.mu.Unlock()
		return err
	})
}

// newSession returns a handle that has no seat yet.
func (p *Pool) newHandle() (*Handle, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.accepting.Err() != nil {
		return nil, ErrPoolClosed
	}
	s := &Handle{pool: p}
	p.handles[s] = struct{}{}
	return s, nil
}

// begin counts in something that Close waits for, unless the pool is closed. It
// ends with work.Done.
func (p *Pool) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.alive.Err() != nil { // and Close may wait for work already
		return false
	}
	p.work.Add(1)
	return true
}

// background runs do in a goroutine that Close waits for, unless the pool is
// closed.
func (p *Pool) background(do func()) bool {
	if !p.begin() {
		return false
	}
	go func() { // ends with do
		defer p.work.Done()
		do()
	}()
	return true
}

// bound returns a context that ends with ctx, or with until and for its cause.
func bound(ctx, until context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	if until.Err() != nil {
		cancel(context.Cause(until))
	}
	stop := context.AfterFunc(until, func() { cancel(context.Cause(until)) })
	return ctx, func(cause error) {
		stop()
		cancel(cause)
	}
}

// withCause completes the error of a call with why its context has ended.
func withCause(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if cause == ErrPoolClosed || cause == ErrHandleClosed {
		return cause
	}
	if cause != ctx.Err() && errors.Is(err, ctx.Err()) {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}

// Lock waits for the lock of that name until ctx ends, and returns it held by a
// handle of its own, which is given back when the lock is unlocked.
//
// If ctx comes from [Lock.Context] or [Pool.Do], and this is the goroutine on
// which it was made, the handle in it locks instead: a lock it holds is entered
// once more, without waiting and without a request to the service.
//
// ctx bounds the waiting, never how long the lock is held.
func (p *Pool) Lock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return p.lock(ctx, name, request{op: opLock}, new(Lock), opts)
}

// TryLock is Lock without waiting for other holders: if there is one, or
// somebody waits already, the error is ErrLocked. It does wait, until ctx ends,
// for the answer of the service and if need be for a free handle.
func (p *Pool) TryLock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return p.lock(ctx, name, request{op: opLock, try: true}, new(Lock), opts)
}

// RLock is [Session.RLock] as Lock is [Session.Lock].
func (p *Pool) RLock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return p.lock(ctx, name, request{op: opLock, shared: true}, new(Lock), opts)
}

// TryRLock is [Session.TryRLock] as TryLock is [Session.TryLock].
func (p *Pool) TryRLock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return p.lock(ctx, name, request{op: opLock, shared: true, try: true}, new(Lock), opts)
}

func (p *Pool) lock(ctx context.Context, name string, req request, l *Lock, opts []LockOption) (*Lock, error) {
	if err := req.apply(opts); err != nil {
		return nil, &LockError{req.String(), name, err}
	}
	return p.enter(ctx, name, req, l)
}

func (p *Pool) enter(ctx context.Context, name string, req request, l *Lock) (*Lock, error) {
	if s := p.carriedHandle(ctx); s != nil {
		l, err := s.enter(ctx, name, req, l)
		if !errors.Is(err, ErrNotHeld) { // else another goroutine has just unlocked the last lock of the handle
			return l, err
		}
	}
	s, err := p.newHandle()
	if err != nil {
		return nil, &LockError{req.String(), name, err}
	}
	s.transient = true
	return s.enter(ctx, name, req, l)
}

func (p *Pool) checkName(name string) error {
	if err := p.connector.CheckName(name); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidName, err)
	}
	return nil
}

// Do calls fn while holding the lock of that name, and returns fn's error. It
// waits for the lock until ctx ends; if it does not get it, fn is not called.
//
// The context given to fn ends, with the cause ErrLockLost, when the lock is
// lost. It is derived from ctx and carries the holder, so that
// Pool.Lock and Pool.Do with it re-enter the lock (see [Pool.Lock]).
//
// The lock is unlocked when fn returns, also if it panics, and whether or not
// ctx has ended by then. If fn had lost the lock by then, the error says so
// together with fn's: it wraps ErrLockLost, or if the pool was closed meanwhile
// ErrNotHeld and ErrPoolClosed. If fn returns its context's error because the
// lock was revoked (see [Revocable]), the error wraps ErrRevoked as well.
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
	inner := ctx
	for _, l := range locks {
		under, end := l.context(inner)
		inner = under
		defer func() { // unlocks each, whatever panics
			unlockErr := l.Unlock(ctx)
			end(ErrNotHeld)
			if errors.Is(err, context.Canceled) && context.Cause(under) == ErrRevoked {
				err = errors.Join(err, &LockError{opHold, l.hold.name, ErrRevoked})
			}
			if unlockErr != nil && !errors.As(unlockErr, new(unconfirmed)) { // the release continues without us
				err = errors.Join(err, unlockErr)
			}
		}()
	}
	return fn(inner)
}

var errNilFunc = errors.New("lockpool: Do of a nil function")

// Ping opens a session if there is none and asks the service for a sign of
// life that takes a quorum of it. It waits for both until ctx ends.
func (p *Pool) Ping(ctx context.Context) error {
	err := p.withSession(ctx, func(ctx context.Context, m *session) error { return m.Ping(ctx) })
	if err != nil {
		return fmt.Errorf("lockpool: ping: %w", err)
	}
	return nil
}

// Shutdown closes the pool, but first lets holders finish: it waits until
// everything held is unlocked. Meanwhile a handle that holds something may lock
// what else it needs to finish; everybody else, whether they ask for a lock or
// wait for one, gets ErrPoolClosed. When ctx ends before the last lock is
// unlocked, Shutdown closes the pool all the same and returns ctx's error.
func (p *Pool) Shutdown(ctx context.Context) error {
	p.refuse(ErrPoolClosed)
	p.mu.Lock()
	if p.drained == nil {
		p.drained = make(chan struct{})
		if p.held == 0 {
			close(p.drained)
		}
	}
	drained := p.drained
	p.mu.Unlock()
	var err error
	select {
	case <-drained:
	case <-ctx.Done():
		err = fmt.Errorf("lockpool: shutdown: closed while locks were held: %w", ctx.Err())
	case <-p.alive.Done(): // by Close
	}
	return errors.Join(err, p.Close())
}

// Close closes the pool at once. Whoever waits for a lock gets ErrPoolClosed.
// Everything held is released, and the contexts of those locks end with the
// cause ErrPoolClosed. When Close returns, nothing of the pool is left running.
// Closing a pool twice is no error.
func (p *Pool) Close() error {
	p.refuse(ErrPoolClosed)
	p.kill(ErrPoolClosed)
	p.mu.Lock()
	var held []*hold
	for _, m := range p.sessions {
		for h := range m.holds {
			held = append(held, h)
		}
	}
	members := p.sessions
	p.mu.Unlock()
	held = slices.DeleteFunc(held, func(h *hold) bool { return !h.end(ErrPoolClosed) })

	// Closing its session frees a member's locks, and ends every call on it.
	ctx, cancel := context.WithTimeout(context.Background(), closePatience)
	defer cancel()
	var closing sync.WaitGroup
	for _, m := range members {
		closing.Go(func() { m.close(ctx) })
	}
	closing.Wait()
	for _, h := range held { // now that all know, and the locks are free
		defer h.reportEnd(ErrPoolClosed) // may panic, which keeps nothing from closing
	}

	p.mu.Lock()
	handles := make([]*Handle, 0, len(p.handles))
	for s := range p.handles {
		handles = append(handles, s)
	}
	p.mu.Unlock()
	for _, s := range handles {
		_ = s.close(ctx, ErrPoolClosed) // what it held has ended above
	}
	p.slots.Close()
	p.work.Wait()
	p.unobserve()
	if c, ok := p.connector.(io.Closer); ok {
		return c.Close()
	}
	return nil
}
