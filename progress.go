package lockpool

// This file has what is known about a wait: for its error, and for the log of long waits.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/nodedata"
	"github.com/lockpool/lockpool/recipe"
)

// progress is how far an acquisition has come.
type progress struct {
	mu sync.Mutex
	standing
}

// standing is what a wait stands behind.
type standing struct {
	session *session
	node    string       // in the service's queue
	behind  *recipe.Wait // for what the acquisition waits there; nil if for nothing
	blocked time.Time    // when there last was news of a contender ahead; zero after the loss of the connection
}

// wait returns what the acquisition waits for, or the zero Wait.
func (s standing) wait() recipe.Wait {
	if s.behind == nil {
		return recipe.Wait{}
	}
	return *s.behind
}

// newsGrace is how old the last news of a contender ahead may be for an unanswered call to
// count as kept from the lock. If there are none for longer, the service is silent.
const newsGrace = time.Second

func (p *progress) onSession(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.session = s
}

func (p *progress) queued(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.node = node
}

func (p *progress) waitsBehind(w recipe.Wait) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if before := p.wait(); w.Data == nil && w.Behind == before.Behind {
		w.Data = before.Data // from before a revocation of another client's node
	}
	p.behind, p.blocked = &w, time.Now()
}

// blockedUntilNow is called after a wait in memory behind a holder.
func (p *progress) blockedUntilNow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.blocked = time.Now()
}

// standsLocally records where a wait in memory stands.
func (p *progress) standsLocally(at standing) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.session, p.behind, p.blocked = at.session, at.behind, at.blocked
}

// woken is called for an event; over means that the wait behind the contender is over.
func (p *progress) woken(e driver.Event, over bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.blocked = time.Now(); e == driver.Interrupted {
		p.blocked = time.Time{}
	}
	if over {
		p.behind = nil
	}
}

func (p *progress) requeued() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.node, p.behind, p.blocked = "", nil, time.Time{}
}

func (p *progress) now() standing {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.standing
}

// stands returns where the acquisition stands: for a wait in memory, behind the node that
// keeps the lock from the pool, or holds the lock for the pool.
func (a *acquisition) stands() standing {
	t, delegate, ok := a.pool.local.obstacle(&a.local)
	switch {
	case !ok:
		return a.progress.now()
	case t != nil:
		return t.stands()
	}
	return delegate.now()
}

// stands returns where a call stands that waits in memory for a turn of the tenancy.
func (t *tenancy) stands() standing {
	w := t.asObstacle()
	return standing{session: t.session, behind: &w}
}

// warnLongWait is called when the wait has lasted for the duration of WithLongWait.
func (a *acquisition) warnLongWait() {
	const patience = 5 * time.Second // for the holder's name
	t, waited := a.pool.telemetry, time.Since(a.Began())
	if !t.ShouldLogLongWait(a.name) || !a.pool.begin() {
		return
	}
	defer a.pool.work.Done()
	at := a.stands()
	w, s := at.wait(), at.session
	var holder driver.Node
	var data []byte
	if s != nil && a.req.kind() != driver.Plain { // waiters for a plain lock wait for the holder
		ctx, cancel := context.WithTimeout(a.Context(), patience)
		defer cancel()
		queue := cmp.Or(w.Queue, a.req.queue(a.name)) // there may be no node yet
		if queue == a.name+"/"+driver.Guards {
			queue = a.name + "/" + driver.Leases
		}
		holder, data = recipe.FindHolder(ctx, s, queue, driver.Node{})
	}
	t.LogLongWait(a.Context(), a.lock(), waited, a.left(at, waited), w, holder, data, a.placeOf(holder, data, s))
}

// left returns how much longer a wait will last if the contenders before hold the lock for the
// usual time, or 0 if that is not known or the queue has not moved as usual.
func (a *acquisition) left(at standing, waited time.Duration) time.Duration {
	const doubt = 3 // times longer than usual
	usual := a.pool.costs.usual(a.name)
	if kind := a.req.kind(); at.session == nil || usual == 0 || kind != driver.Exclusive && kind != driver.Shared {
		return 0
	}
	ctx, cancel := context.WithTimeout(a.Context(), time.Second)
	defer cancel()
	nodes, err := at.session.List(ctx, a.name)
	place := slices.IndexFunc(nodes, func(n driver.Node) bool { return n.Name == at.node }) // -1 in memory behind the holder
	ahead := time.Duration(max(place, 0) + a.pool.local.aheadOf(&a.local))
	if err != nil || waited > doubt*(ahead+2)*usual {
		return 0
	}
	return ahead * usual
}

// placeOf returns where in the program the holder asked for the lock, if known.
func (a *acquisition) placeOf(holder driver.Node, data []byte, s *session) string {
	record := nodedata.Parse(data)
	if at, ours := a.pool.local.heldAt(a.name, holder.Name); ours {
		return at
	}
	if record.Local { // perhaps passed on
		ctx, cancel := context.WithTimeout(a.Context(), time.Second)
		defer cancel()
		if crowd, ok := a.pool.crowdsOf(ctx, s)[[2]string{a.name, holder.Name}]; ok {
			return crowd.At
		}
	}
	return record.At
}

// describeBlocker adds to the error of a call whose context has ended what the call waited
// for: another contender, named with the owner as far as known (ErrLocked), or an answer of
// the service (ErrUnavailable).
func (a *acquisition) describeBlocker(ctx context.Context, err error) error {
	at := a.progress.now()
	w := at.wait()
	switch node := w.Behind.String(); {
	case errors.Is(err, errNoFreeHandle):
	case node == "" && err == ctx.Err():
		err = fmt.Errorf("no place in the queue yet: %w", err)
	case node != "" && !strings.Contains(err.Error(), node):
		err = fmt.Errorf("waiting behind %s: %w", node, err)
	}
	if time.Since(at.blocked) < newsGrace {
		err = also{err, ErrLocked}
	}
	err = unanswered(err)
	if owner := nodedata.Parse(w.Data).String(); owner != "" {
		err = fmt.Errorf("%w (owner: %s)", err, owner)
	}
	return err
}
