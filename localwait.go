package lockpool

// This file has the waits of calls in the queue of their process.

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/nodedata"
	"github.com/lockpool/lockpool/recipe"
)

// mayWaitLocally reports whether a request may wait in a localQueue.
func (h *Handle) mayWaitLocally(req *request) bool {
	if kind := req.kind(); h.pool.local.most == 0 || req.try || req.op == opOnce || kind != driver.Exclusive && kind != driver.Shared {
		return false
	}
	return !h.holdsAny()
}

// awaitTurn waits, until ctx ends, for a turn of a tenancy. If it returns none and no
// error, the call is to acquire the lock from the service.
func (a *acquisition) awaitTurn(ctx context.Context) (t *tenancy, turn int, err error) {
	if a.local.alone {
		return nil, 0, nil
	}
	w := a.joinLocally()
	if w == nil {
		return nil, 0, nil
	}
	accepted := false
	defer func() {
		if !accepted { // ctx has ended, or user code panics
			a.giveUpTurn()
		}
	}()
	select {
	case <-w.done:
	default:
		a.waits(a.WaitingLocally)
		if err := a.awaitLocally(ctx, w); err != nil {
			return nil, 0, err
		}
	}
	if w.turns != nil {
		t = w.turns.tenancy
		a.progress.onSession(t.session)
	}
	accepted = true
	return t, w.turn, w.err
}

// awaitLocally waits for the end of the wait in memory.
func (a *acquisition) awaitLocally(ctx context.Context, w *localWaiter) error {
	var long <-chan time.Time
	if timer := a.UntilLong(); timer != nil {
		defer timer.Stop()
		long = timer.C
	}
	for {
		select {
		case <-w.done:
			if w.blocked {
				a.progress.blockedUntilNow()
			}
			return nil
		case <-long:
			a.WaitingLong()
		case <-ctx.Done():
			return a.explainLocally(ctx, w)
		}
	}
}

// joinLocally returns nil if the caller is the delegate. Otherwise it returns a waiter,
// which may have a turn already.
func (a *acquisition) joinLocally() *localWaiter {
	waits, slow, behind := a.pool.local.join(a.name, &a.local)
	if !waits {
		return nil
	}
	if slow {
		a.placeToTell()
	}
	a.WaitsBehind(behind)
	return &a.local
}

// giveUpTurn gives up the place in the queue, or what the call has got meanwhile.
func (a *acquisition) giveUpTurn() {
	if got := a.pool.local.giveUp(&a.local); got != nil { // a delegate has got nothing: see resign
		got.tenancy.drop(canceled)
	}
}

// resign gives up what the call has not used: the next waiter becomes the delegate if the
// call was the delegate, and has the place, or else the place is left.
func (a *acquisition) resign() {
	local, at := &a.pool.local, a.local.place
	a.local.place = nil
	if a.local.queue == nil || at != nil && local.passPlace(&a.local, at) {
		return
	}
	local.resign(&a.local)
	if at != nil {
		_ = at.session.Leave(canceled, a.name, at.node) // continues in the background
	}
}

// checkTry returns an error if a try is to fail because other calls of the pool wait for
// the lock in memory, or did so until a moment ago.
func (a *acquisition) checkTry() error {
	kind := a.req.kind()
	if a.req.try && (kind == driver.Exclusive || kind == driver.Shared) && a.pool.local.wouldOvertake(a.name, a.req.shared) {
		return fmt.Errorf("%w: other calls of this pool wait for it", ErrLocked)
	}
	return nil
}

// explainLocally returns the error of a wait in memory whose context has ended.
func (a *acquisition) explainLocally(ctx context.Context, w *localWaiter) error {
	at := a.stands()
	select {
	case <-w.done: // just as ctx ended
		switch {
		case w.err != nil:
			return w.err
		case w.turns != nil:
			at = w.turns.tenancy.stands()
		case w.blocked:
			return recipe.Busy(ctx.Err())
		}
	default:
	}
	a.progress.standsLocally(at)
	switch {
	case at.session == nil:
		return a.pool.explainNoSlot(ctx, ctx.Err()) // nor has the delegate a session
	case at.wait().Behind.Name != "":
		return recipe.Busy(fmt.Errorf("waiting behind %s: %w", at.wait().Behind, ctx.Err()))
	}
	return ctx.Err()
}

const localPrefix = "local-" // of what stands for a node's name of a waiter without a node

func (p *Pool) localName(id int64) string {
	return fmt.Sprintf("%s%s-%d", localPrefix, p.id, id)
}

// inMemory is the waiters for a lock in memory. The first is a delegate that was one of them:
// the node may be too new for the caller, or not be known yet.
type inMemory struct {
	waiters []Contender
	behind  string // the node that they wait behind
	joining string // the session of a delegate whose node is not known

	held map[string]newestTurn // nodes of the pool that are not the delegate's
}

// localWaiters returns the waiters for the lock in memory. before are the turns before the nodes
// were read.
func (p *Pool) localWaiters(name string, before map[string]newestTurn) (in inMemory) {
	in.held = p.turnsOf(name) // first: what is held later may be the delegate's
	maps.Copy(in.held, before)
	found, t, delegate := p.local.find(name)
	if t != nil {
		in.behind = t.nodeNow().Name
	}
	add := func(w localWaiter, node string) {
		kind := driver.Exclusive
		if w.shared {
			kind = driver.Shared
		}
		owner := nodedata.Parse(p.owner.Data(nodedata.Request{Span: w.span, Local: true}))
		in.waiters = append(in.waiters, Contender{
			Lock: name, Node: cmp.Or(node, p.localName(w.id)), Kind: kind.String(), Local: true, Asked: w.began, Origin: Origin(owner.Origin), At: w.at, Revocable: w.revocable,
		})
	}
	if delegate != nil {
		at := delegate.progress.now()
		in.behind = cmp.Or(at.node, in.behind)
		if delegate.hasWaited {
			add(*delegate, at.node)
			if at.node == "" && at.session != nil {
				in.joining = at.session.Info().ID
			}
		}
	}
	for _, w := range found {
		add(w, "")
	}
	return in
}

// revokeLocally revokes the waiters without a node that have one of the names.
func (p *Pool) revokeLocally(name string, names []string) {
	if len(names) > 0 {
		asked := map[string]bool{}
		for _, n := range names {
			asked[n] = true
		}
		giveUp := p.local.revoke(name, func(w *localWaiter) bool { return asked[p.localName(w.id)] })
		if giveUp != nil {
			giveUp(ErrRevoked)
		}
	}
}

// isRevoked reports whether the call was revoked by its name in memory.
func (a *acquisition) isRevoked() bool {
	return a.local.hasWaited && a.pool.local.isRevoked(&a.local)
}
