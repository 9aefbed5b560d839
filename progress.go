package lockpool

// This file has what is known about a wait: for its error, and for the log of long waits.

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/nodedata"
	"github.com/lockpool/lockpool/recipe"
)

// progress is how far an acquisition has come.
type progress struct {
	mu      sync.Mutex
	session *session
	node    string      // in the service's queue
	behind  recipe.Wait // for what the acquisition waits there
}

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
	if w.Data == nil && w.Behind == p.behind.Behind {
		w.Data = p.behind.Data // from before a revocation of another client's node
	}
	p.behind = w
}

// setObstacle replaces what the acquisition waits behind.
func (p *progress) setObstacle(behind recipe.Wait, s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.behind, p.session = behind, s
}

func (p *progress) woken() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.behind = recipe.Wait{}
}

func (p *progress) requeued() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.node, p.behind = "", recipe.Wait{}
}

func (p *progress) now() (behind recipe.Wait, s *session, node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.behind, p.session, p.node
}

// obstacle returns what the acquisition waits behind: for a wait in memory, the node that
// keeps the lock from the pool, or holds the lock for the pool.
func (a *acquisition) obstacle() (behind recipe.Wait, s *session) {
	t, delegate, ok := a.pool.local.obstacle(&a.local)
	switch {
	case !ok:
		delegate = &a.progress
	case t != nil:
		return t.asObstacle(), t.session
	}
	behind, s, _ = delegate.now()
	return behind, s
}

// warnLongWait is called when the wait has lasted for the duration of WithLongWait.
func (a *acquisition) warnLongWait() {
	const patience = 5 * time.Second // for the holder's name
	t, waited := a.pool.telemetry, time.Since(a.Began())
	if !t.ShouldLogLongWait(a.name) || !a.pool.begin() {
		return
	}
	defer a.pool.work.Done()
	w, s := a.obstacle()
	var holder driver.Node
	var data []byte
	if s != nil && a.req.kind() != driver.Plain { // waiters for a plain lock wait for the holder
		ctx, cancel := context.WithTimeout(a.ctx, patience)
		defer cancel()
		queue := w.Queue
		if queue == a.name+"/"+driver.Guards {
			queue = a.name + "/" + driver.Leases
		}
		holder, data = recipe.FindHolder(ctx, s, queue)
	}
	t.LogLongWait(a.ctx, a.lock(), waited, w, holder, data)
}

// describeBlocker adds to the error of a call whose context has ended what the call waited
// for: another contender, named with the owner as far as known (ErrLocked), or an answer of
// the service (ErrUnavailable).
func (a *acquisition) describeBlocker(ctx context.Context, err error) error {
	w, _, _ := a.progress.now()
	switch node := w.Behind.String(); {
	case errors.Is(err, errNoFreeHandle):
	case node == "" && err == ctx.Err():
		err = fmt.Errorf("no place in the queue yet: %w", err)
	case node != "" && !strings.Contains(err.Error(), node):
		err = fmt.Errorf("waiting behind %s: %w", node, err)
	}
	err = unanswered(err)
	if owner := nodedata.Parse(w.Data).String(); owner != "" {
		err = fmt.Errorf("%w (owner: %s)", err, owner)
	}
	return err
}
