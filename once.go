package lockpool

// This file has runs that finish once for each key.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/nodedata"
)

// Once calls fn unless a run for the key has finished before, on any machine: then the
// error is a [*DoneError], which wraps ErrDone. Several machines start a run, and one is to
// finish; name says what is run, and the key which run: the day of a report, or an order's
// number.
//
//	today := time.Now().UTC().Format(time.DateOnly)
//	err := pool.Once(ctx, "cron/cleanup", today, cleanUp)
//	if errors.Is(err, lockpool.ErrDone) {
//		return nil // another machine has done it
//	}
//
// A run has finished when fn has returned nil and the lock was held until then. The end is
// recorded before the lock is given back, so no other caller is granted the lock without
// finding the record. A nil error means that this call's run has finished. If fn returns an
// error or panics, or the process or the session ends, there is no record, and the next
// caller, perhaps a waiting one, runs fn again. So a key finishes once; fn starts once more
// for each unfinished run, and what an unfinished run has left behind must not harm the
// next one.
//
// Each name and key has a lock of its own, with the name name + "/" + Escape("run:"+key),
// at most 512 bytes: runs for different keys do not wait for each other. If they are to,
// call Once in a Do of a lock, such as name. Once waits for the lock until ctx ends, as
// [Pool.Do] does; a finished key costs one request, and no wait. With WaitAtMost(0), the
// error is ErrLocked if another caller runs for the key. The options are WaitAtMost,
// Revocable and [KeepDone]. A holder of the lock enters again.
//
// fn gets a context like that of Do. If the lock is lost before the run is recorded, the
// error wraps ErrLockLost, and the run has not finished. If the connection breaks while the
// run is being recorded, Once finds out the outcome, and gives up 5 s after ctx has ended:
// then the error wraps ErrLockLost, and says that the run was not recorded, or that the
// outcome is not known.
//
// Records are kept for a week, unless [KeepDone] says otherwise, and then removed: on
// ZooKeeper by later runs of any name. A key without a record runs again. Name and key are
// visible to all readers of the service's data.
func (p *Pool) Once(ctx context.Context, name, key string, fn func(ctx context.Context) error, opts ...LockOption) error {
	return once(ctx, p, p.carriedHandle(ctx), p.enter, name, key, fn, opts)
}

// Once is [Pool.Once], with the handle as the holder.
func (h *Handle) Once(ctx context.Context, name, key string, fn func(ctx context.Context) error, opts ...LockOption) error {
	return once(ctx, h.pool, h, h.enter, name, key, fn, opts)
}

// Run is a finished run of a function; see [Pool.Once].
type Run struct {
	Name, Key string
	Finished  time.Time // by the service's clock
	Token     int64     // of the held lock; see Lock.Token
	Origin
}

// DoneError is the error of [Pool.Once] for a key with a finished run. DoneError wraps
// ErrDone.
type DoneError struct{ Run }

func (e *DoneError) Error() string {
	by := nodedata.Origin(e.Origin)
	return fmt.Sprintf("%s: the run for %q finished at %s (%s)", ErrDone, e.Key, e.Finished.UTC().Format(time.RFC3339), by)
}

func (e *DoneError) Unwrap() error { return ErrDone }

// Finished returns the records of the finished runs of the name, the oldest first.
func (p *Pool) Finished(ctx context.Context, name string) (runs []Run, err error) {
	var records []driver.Record
	if err = p.checkName(name); err == nil {
		err = p.withSession(ctx, use(func(ctx context.Context, recorder driver.Recorder) (err error) {
			records, err = recorder.Records(ctx, Escape(name))
			return err
		}))
	}
	for _, r := range records {
		key, err := Unescape(r.Key)
		if err != nil {
			key = r.Key // of a node that was created by hand
		}
		runs = append(runs, newRun(name, key, r))
	}
	return runs, lockError(opFinished, name, err)
}

// Forget removes the records of the finished runs of the name with the given keys, or all
// of them if no keys are given. Then the keys can run again. A missing record is not an
// error.
func (p *Pool) Forget(ctx context.Context, name string, keys ...string) error {
	err := p.checkName(name)
	var escaped []string
	for _, key := range keys {
		if err == nil {
			err = p.checkRun(name, key)
		}
		escaped = append(escaped, Escape(key))
	}
	if err == nil {
		err = p.withSession(ctx, use(func(ctx context.Context, recorder driver.Recorder) error {
			return recorder.Forget(ctx, Escape(name), escaped...)
		}))
	}
	return lockError(opForget, name, err)
}

// lockOfRun returns the name of the lock of a run for the key.
func lockOfRun(name, key string) string { return name + "/" + Escape(driver.RunPrefix+key) }

// checkRun is called before anything is sent.
func (p *Pool) checkRun(name, key string) error {
	if err := p.checkName(name); err != nil {
		return err
	}
	if key == "" {
		return fmt.Errorf("%w: the key is empty", ErrInvalidName)
	}
	if err := p.checkName(lockOfRun(name, key)); err != nil {
		return fmt.Errorf("%w (the name of the lock of that run, NAME/run:KEY)", err)
	}
	return nil
}

func newRun(name, key string, r driver.Record) Run {
	by := nodedata.Parse(r.Data)
	return Run{Name: name, Key: key, Finished: r.Finished, Token: by.Token, Origin: Origin(by.Origin)}
}

// jobRun is one call of Once.
type jobRun struct {
	pool      *Pool
	name, key string
	record    driver.Record
}

// once is Once. by is the handle that will lock, if there is one already.
func once(ctx context.Context, p *Pool, by *Handle, enter func(context.Context, string, *request, *Lock) (*Lock, error), name, key string,
	fn func(ctx context.Context) error, opts []LockOption) error {
	if fn == nil {
		return errors.New("lockpool: Once: the function is nil")
	}
	req := request{op: opOnce, keepDone: defaultKeepDone}
	err := req.with(opts)
	if err == nil {
		err = p.checkRun(name, key)
	}
	if err != nil {
		return notAcquired(opOnce, name, err)
	}
	j := &jobRun{p, name, key, driver.Record{Name: Escape(name), Key: Escape(key), Keep: req.keepDone}}
	began := time.Now()
	if err := j.look(ctx, by, &req); err != nil {
		return notAcquired(opOnce, name, err)
	}
	req.wait -= time.Since(began)
	l, err := enter(ctx, lockOfRun(name, key), &req, new(Lock))
	if err != nil {
		return err
	}
	if err = j.run(ctx, l, fn); err != nil {
		return err
	}
	if clearer, ok := l.hold.tenancy.session.Session.(driver.Clearer); ok {
		err = clearer.ClearRecords(ctx, j.record)
		if err != nil && ctx.Err() == nil && p.accepting.Err() == nil {
			p.telemetry.LogOldRecords(ctx, name, err)
		}
	}
	return nil
}

// look looks for a record before the lock is taken.
func (j *jobRun) look(ctx context.Context, by *Handle, req *request) error {
	ctx, cancel := req.bound(ctx)
	defer cancel()
	return j.pool.withSessionUntil(by.until(j.pool), ctx, by, nil, j.check)
}

// check returns a DoneError if there is a record.
func (j *jobRun) check(ctx context.Context, s *session) error {
	return use(func(ctx context.Context, recorder driver.Recorder) error {
		r, found, err := recorder.Record(ctx, j.record.Name, j.record.Key)
		if found {
			return &DoneError{newRun(j.name, j.key, r)}
		}
		return err
	})(ctx, s)
}

// run calls fn under the lock, if there is no record, and records the end.
func (j *jobRun) run(ctx context.Context, l *Lock, fn func(ctx context.Context) error) (err error) {
	var under *heldContext // nil if a method of ctx panics
	told := false          // what became of the lock
	defer func() {
		unlocked := l.Unlock(ctx)
		if !told && under != nil {
			err = under.done(err, unlocked)
		}
	}()
	under = newHeldContext(ctx, l)
	// On the session of the lock, which has seen what happened before the grant.
	if err = j.check(under, l.hold.tenancy.session); err == nil {
		var token int64
		token, err = l.Token(under)
		j.record.Data = nodedata.OfRun(j.pool.owner.Data(nodedata.Request{Span: j.pool.spanToLink(ctx)}), token)
	}
	if err != nil {
		if under.Err() != nil {
			err = j.pool.withCause(under, l.hold.handle, unanswered(err))
		} else {
			err = asLoss(err)
		}
		return notAcquired(opOnce, j.name, err)
	}
	if err = apart(fn(under)); err == nil {
		err = lockError(opOnce, j.name, j.finish(ctx, l))
		told = err == nil || errors.Is(err, ErrLockLost) || errors.Is(err, ErrNotHeld)
	}
	return err
}

// finish records the run while the lock is held. Whatever happens to the lock meanwhile,
// the tenancy gives no other turn before the outcome is known.
func (j *jobRun) finish(ctx context.Context, l *Lock) error {
	h, t := l.hold, l.hold.tenancy
	if err := h.stayFor(l.entry); err != nil {
		return fmt.Errorf("the run was not recorded as finished: %w", err)
	}
	defer t.drop(canceled)
	wait, cancel := outlasting(ctx, closeTimeout)
	defer cancel()
	node, err := t.current(wait)
	if err == nil {
		err = t.recorder().Finish(wait, t.queue, node, j.record)
	}
	err = j.settle(wait, l, node, err)
	if errors.Is(err, driver.ErrRecorded) { // fn has called Once itself
		if done := j.check(wait, t.session); done != nil {
			return done
		}
	}
	return err
}

// stayFor adds a holder to the tenancy, which cannot end before the holder leaves, if the
// entry is still held.
func (h *hold) stayFor(entry uint64) error {
	h.handle.mu.Lock()
	defer h.handle.mu.Unlock()
	if err := h.life.failure(); err != nil {
		return err
	}
	if h.entries.index(entry) < 0 {
		return ErrNotHeld
	}
	turns := &h.tenancy.turns
	h.handle.pool.local.change(turns, func() { turns.holders++ })
	return nil
}

// recorder returns the session's recorder of runs: the call has looked for a record there
// before.
func (t *tenancy) recorder() driver.Recorder { return t.session.Session.(driver.Recorder) }

// settle returns the error for the caller of a run whose recording returned err, and finds
// out an unknown outcome.
func (j *jobRun) settle(wait context.Context, l *Lock, node driver.Node, err error) error {
	p, t := j.pool, l.hold.tenancy
	undecided := errors.Is(err, driver.ErrUndecided)
	switch ended := wait.Err() != nil && errors.Is(err, wait.Err()); { // wait's error would be taken for the function's
	case ended && undecided:
		err = lostWith(fmt.Errorf("no server has answered: %w (%v)", driver.ErrUndecided, wait.Err()))
	case ended:
		err = lostWith(fmt.Errorf("no server has answered: %v", err))
	}
	switch {
	case err == nil:
		return nil
	case !undecided:
		return fmt.Errorf("the run was not recorded as finished: %w", asLoss(err))
	case t.session.Err() == nil: // wait has ended
		return fmt.Errorf("it is not known whether the run was recorded as finished: %w", err)
	}
	recorded := false
	unknown := p.withSessionUntil(p.alive, wait, nil, nil, use(func(ctx context.Context, recorder driver.Recorder) (err error) {
		recorded, err = recorder.Settle(ctx, t.queue, node, j.record)
		return err
	}))
	switch {
	case unknown != nil:
		return fmt.Errorf("it is not known whether the run was recorded as finished: %w (%v)", asLoss(err), unknown)
	case !recorded:
		return fmt.Errorf("the run was not recorded as finished: %w", lostWith(t.session.Err()))
	}
	return nil
}

// asLoss makes an error of a request on the session of a lock say that the lock is lost, if
// so.
func asLoss(err error) error {
	if !errors.Is(err, ErrLockLost) && (errors.Is(err, driver.ErrSessionLost) || errors.Is(err, driver.ErrRemoved)) {
		return lostWith(err)
	}
	return err
}
