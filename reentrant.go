package lockpool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/petermattis/goid"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockpool/lockpool/driver"
)

// Lock is one entry into a lock. A session that locks what it holds enters
// again and gets another Lock; the lock is let go when the last of them is
// unlocked, in whatever order. (Curator's InterProcessMutex counts the same
// way, per thread.)
//
// The methods of a Lock may be called from any goroutine, at any time.
//
// A Lock must not be copied.
type Lock struct {
	_     noCopy
	hold  *hold
	entry uint64
}

// hold is a lock held by a session, with one entry for each Lock.
type hold struct {
	handle  *Handle
	name    string
	kind    driver.Kind   // Mutex and Read are one
	queue   string        // where the node is
	limit   int           // of a semaphore, as given
	session *session      // the session at the service that the node lives on
	began   time.Time     // when it was granted
	ended   time.Time     // set once, before over
	span    trace.Span    // see WithHoldSpans; nil if there is none
	counted bool          // among those that are held
	lost    chan struct{} // closed when the lock ends otherwise than by Unlock
	token   atomic.Int64  // 0 until the node is watched
	guard   *time.Timer   // begins to watch the node

	alive context.Context // ends with the hold
	kill  context.CancelFunc

	// Guarded by session.mu. The numbers of the entries not yet left. A number
	// is used once, so that no Lock, nor a copy of it, can leave another's; the
	// numbers of those that only read are odd.
	entries   []uint64
	last      uint64
	exclusive int       // how many of the entries do not only read
	storage   [4]uint64 // where entries begins, to spare the heap

	depth atomic.Int32 // len(entries), for everyone

	over        atomic.Bool
	mu          sync.Mutex
	node        driver.Node   // the node that holds the lock
	downgrading chan struct{} // closed when the node is another one; nil unless it is about to be
	cause       error         // set before over; see lose
	contexts    map[*heldContext]struct{}

	data      []byte          // stored in the node
	revocable bool            // contexts end when it is revoked; guarded by mu
	revoked   context.Context // ends when somebody has asked for the lock
	ask       context.CancelFunc
}

// begun completes a hold.
func (h *hold) begun() *hold {
	h.began = time.Now()
	h.lost = make(chan struct{})
	h.revoked, h.ask = context.WithCancel(context.Background())
	h.alive, h.kill = context.WithCancel(context.Background())
	h.entries = h.storage[:0]
	return h
}

// admit says whether there may be one more entry.
func (h *hold) checkReentry(req request) error {
	if err := h.err(); err != nil {
		return err
	}
	kind := req.kind()
	switch {
	case h.exclusive == 0 && !req.shared:
		return ErrUpgrade
	case (kind == driver.Permit || kind == driver.Plain || h.kind == driver.Permit || h.kind == driver.Plain) && kind != h.kind:
		return fmt.Errorf("%w: this session holds it as %s", ErrKindMismatch, h.kind)
	case kind == driver.Permit && req.limit != h.limit:
		return fmt.Errorf("%w: %d was given, but %d where the session acquired permits", ErrLimit, req.limit, h.limit)
	case kind == driver.Permit && req.permits > h.node.Permits:
		return ErrUpgrade
	}
	if req.revocable {
		h.makeRevocable()
	}
	return nil
}

// enter adds an entry.
func (h *hold) enter(reads bool) Lock {
	h.last += 2 - h.last&1 // even
	if reads {
		h.last++
	} else {
		h.exclusive++
	}
	h.entries = append(h.entries, h.last)
	h.depth.Store(int32(len(h.entries)))
	return Lock{hold: h, entry: h.last}
}

// leave removes an entry and reports whether it was there.
func (h *hold) leave(entry uint64) bool {
	i := len(h.entries) - 1
	if i < 0 || h.entries[i] != entry { // almost always the last one
		if i = slices.Index(h.entries, entry); i < 0 {
			return false
		}
	}
	h.entries = append(h.entries[:i], h.entries[i+1:]...)
	if entry&1 == 0 {
		h.exclusive--
	}
	h.depth.Store(int32(len(h.entries)))
	return true
}

// leaveAll removes all entries.
func (h *hold) leaveAll() {
	h.entries, h.exclusive = nil, 0
	h.depth.Store(0)
}

// err is nil as long as the lock is held.
func (h *hold) err() error {
	if !h.over.Load() {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cause
}

// failure is the error of unlocking a hold that has ended already; nil as long
// as it has not.
func (h *hold) failure() error {
	err := h.err()
	if err == nil || err == ErrNotHeld || errors.Is(err, ErrLockLost) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrNotHeld, err)
}

// lose makes a hold that has ended one that was lost, as its release has shown.
func (h *hold) markLost(cause error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cause == ErrNotHeld {
		close(h.lost)
	}
	h.cause = cause
}

// lostWith is the cause of a hold that ended with its session.
func lostWith(err error) error { return fmt.Errorf("%w: %w", ErrLockLost, err) }

// end ends the hold: its contexts, and if it was not unlocked (ErrNotHeld) but
// lost or taken by the closing of session or pool, whoever waits for that. It
// reports false if the hold had ended before; if not, tell comes next.
func (h *hold) end(cause error) bool {
	h.mu.Lock()
	if h.cause != nil {
		h.mu.Unlock()
		return false
	}
	h.cause, h.ended = cause, time.Now()
	h.over.Store(true)
	contexts := h.contexts
	h.contexts = nil
	h.mu.Unlock()
	for c := range contexts {
		c.stop()
		c.cancel(cause)
	}
	if cause != ErrNotHeld {
		close(h.lost)
	}
	h.kill()
	return true
}

// Unlock leaves the lock once. The last Unlock lets the lock go and waits, until
// ctx ends, for the service to confirm that. Whether or not it is confirmed in
// time, the lock is let go: an error of ctx means that this still happens, in
// the background.
//
// ctx may come from [Lock.Context]. Letting go ends that context, which does not
// end the wait: what it was made from does, and its deadline.
//
// Unlocking a Lock twice is ErrNotHeld and changes nothing. If the lock was
// lost, the error is ErrLockLost: what was done under it may have been done
// beside somebody else.
func (l *Lock) Unlock(ctx context.Context) error {
	if l == nil || l.hold == nil {
		return &LockError{opUnlock, "", ErrNotHeld}
	}
	if err := l.hold.handle.unlock(ctx, l); err != nil {
		return &LockError{opUnlock, l.hold.name, err}
	}
	return nil
}

// Depth returns how many entries into the lock its holder has not left yet; 0
// if it is not held.
func (l *Lock) Depth() int {
	if l.hold.over.Load() {
		return 0
	}
	return int(l.hold.depth.Load())
}

// Name returns the name of the lock.
func (l *Lock) Name() string { return l.hold.name }

// Format implements fmt.Formatter: a lock in a log is its name.
func (l *Lock) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "lockpool.Lock(%s)", l.Name()) }

// Lost is closed when the lock is lost, or taken away because its session or
// pool was closed. It is not closed by unlocking. See [ErrLockLost] for what
// loses a lock.
func (l *Lock) Lost() <-chan struct{} { return l.hold.lost }

// Context returns a context for work under the lock. It is derived from parent,
// and ends as well when the lock is lost (context.Cause then wraps ErrLockLost)
// or let go (ErrNotHeld, or the error of what was closed).
//
// It carries the holder: Pool.Lock and Pool.Do with it, on the goroutine that
// calls Context now, re-enter what the holder holds. Handed to another
// goroutine it carries nothing, because two goroutines must not share an
// exclusive lock; there the same calls are a holder of their own.
//
// Every call makes a new context, which lasts until parent or the lock ends:
// call it once for a critical section, not once in every round of a loop.
func (l *Lock) Context(parent context.Context) context.Context {
	ctx, _ := l.context(parent)
	return ctx
}

// heldContext is a context that ends with a hold, and carries its holder.
type heldContext struct {
	context.Context
	parent    context.Context
	cancel    context.CancelCauseFunc
	hold      *hold
	entry     uint64      // of the Lock that made it
	goroutine int64       // on which it counts
	stop      func() bool // waiting for the end of parent
}

// carrierKey is the key of what carries a holder of the pool in a context.
type carrierKey struct{ *Pool }

// Value implements context.Context.
func (c *heldContext) Value(key any) any {
	switch key {
	case heldKey{}, carrierKey{c.hold.handle.pool}:
		return c
	}
	return c.Context.Value(key)
}

// context also returns a function that ends the context.
func (l *Lock) context(parent context.Context) (context.Context, context.CancelCauseFunc) {
	h := l.hold
	c := &heldContext{parent: parent, hold: h, entry: l.entry, goroutine: goid.Get()}
	c.Context, c.cancel = context.WithCancelCause(parent)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cause != nil {
		c.cancel(h.cause)
		return c, c.cancel
	}
	if h.revocable && h.isRevoked() {
		c.cancel(ErrRevoked)
	}
	if h.contexts == nil {
		h.contexts = map[*heldContext]struct{}{}
	}
	h.contexts[c] = struct{}{}
	forget := func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.contexts, c)
	}
	c.stop = context.AfterFunc(parent, forget) // c has ended with it
	return c, func(cause error) {
		c.stop()
		forget()
		c.cancel(cause)
	}
}

// LockFromContext returns the innermost lock under which ctx was made, by
// [Lock.Context] or by a Do, of whatever pool. Unlike the holder in the context it
// counts on every goroutine, so that any code under the lock has its token. It
// makes no new entry: the caller must not unlock it.
func LockFromContext(ctx context.Context) (*Lock, bool) {
	c, ok := ctx.Value(heldKey{}).(*heldContext)
	if !ok {
		return nil, false
	}
	return &Lock{hold: c.hold, entry: c.entry}, true
}

// Token returns the fencing token of the lock: a positive number that is larger
// than that of everyone who held the lock before, on any machine, also if the
// lock's node was removed and made again, servers were restarted, or another
// one leads. Send it along with every write to a store, and let the store refuse
// a write whose token is smaller than one it has seen: that stops the late write
// of a holder that lost the lock and does not know it yet, because it was
// paused. (ZooKeeper: the zxid that created the lock's node.)
//
// Tokens begin anew when the service loses its memory: an ensemble that was
// wiped, or restored from a backup, gives out numbers that a store has seen. Let
// the store forget its tokens then, or compare the token together with a number
// of yours that you raise whenever that happens.
//
// The first call for a lock may ask the service, and ctx bounds its wait.
// Entries into a lock that is held share one token. If the lock is not held any
// more the error says why, as Unlock's does.
func (l *Lock) Token(ctx context.Context) (int64, error) {
	h := l.hold
	for {
		err := h.failure()
		token := h.token.Load()
		if err == nil && token == 0 {
			_, err = h.watchNode(ctx)
		}
		switch {
		case err != nil:
			return 0, &LockError{opToken, h.name, err}
		case token != 0:
			return token, nil
		}
	}
}

// Verify asks the service whether the lock is still held, in such a way that a
// server that is cut off from the others can not answer: nil means that the
// lock was held at some moment during the call. If not, the error wraps
// ErrLockLost, and the lock is lost from then on. Any other error, such as
// ctx's, means that there was no answer.
//
// There is no need to call it in order to learn of a loss: see [Lock.Lost].
func (l *Lock) Verify(ctx context.Context) error {
	h := l.hold
	err := h.failure()
	if err == nil {
		err = h.verify(ctx)
	}
	if err != nil {
		return &LockError{opVerify, h.name, err}
	}
	return nil
}

// carried returns the holder in ctx, if it belongs to this goroutine.
func (p *Pool) carriedHandle(ctx context.Context) *Handle {
	c, _ := ctx.Value(carrierKey{p}).(*heldContext)
	if c == nil || c.goroutine != goid.Get() || c.hold.handle.closed.Load() {
		return nil
	}
	return c.hold.handle
}

// record counts a new hold, unless the pool is closed or the session it stands
// on is over.
func (p *Pool) addHold(h *hold) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.alive.Done():
		return ErrPoolClosed
	case <-p.drained: // Shutdown has seen the last lock go, and is about to close
		return ErrPoolClosed
	default:
	}
	if err := h.session.Err(); err != nil { // by its lease, and mourn has not come to it
		return err
	}
	if h.session.closed.Load() { // dismiss is about to
		return driver.ErrSessionLost
	}
	h.session.holds[h] = struct{}{}
	p.held++
	h.guard = time.AfterFunc(guardAfter, func() { p.guard(h) })
	if h.revocable {
		h.guard.Reset(0)
	}
	return nil
}

// strike takes a hold that has ended from the record.
func (p *Pool) removeHold(h *hold) {
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		h.guard.Stop()
		delete(h.session.holds, h)
		p.held--
		p.closeIfIdle(h.session)
		if p.held == 0 && p.drained != nil {
			close(p.drained)
		}
	}()
	p.telemetry.countReentries(h)
}
