package lockpool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/recipe"
)

// Queue is who holds a lock and who waits for it, at one moment.
type Queue struct {
	Name       string
	Contenders []Contender // in the order in which they asked
	Foreign    []string    // what else is there, by name: no contenders of a kind that lockpool knows
}

// Contender is one who holds a lock or waits for it, of whatever client.
type Contender struct {
	Node    string    // the name of its node, which Pool.Break takes
	Kind    string    // mutex (alone), read, write (alone, in Curator's read/write lock), semaphore, or plain
	Holds   bool      // or waits
	Permits int       // of a semaphore: how many; 0 if it waits and does not say
	Token   int64     // see Lock.Token
	Session string    // its session with the service
	Asked   time.Time // when it asked, by the service's clock

	// Granted is when it got the lock, by this machine's clock, if it is a holder
	// of this pool; else it is zero, because the service does not record it.
	Granted time.Time

	// What it says of itself, if it is one of lockpool.
	Owner string // see WithOwner
	Host  string
	PID   int
	Trace string // the span that asked, as W3C's traceparent, if there is one
}

// Queue returns who holds the lock of that name and who waits for it. It only
// reads. The list is made node by node, so in a lock that changes hands quickly
// it may show two holders that came one after the other.
func (p *Pool) Queue(ctx context.Context, name string) (Queue, error) {
	q := Queue{Name: name}
	if err := p.checkName(name); err != nil {
		return q, &LockError{opQueue, name, err}
	}
	err := p.withSession(ctx, func(ctx context.Context, m *session) error {
		found, foreign, err := inspect(ctx, m, name)
		q = Queue{Name: name, Foreign: foreign}
		granted := p.granted(name)
		for _, c := range found {
			owner := readOwner(c.Data)
			token := c.Created
			if owner.Token > 0 && owner.Token < token {
				token = owner.Token
			}
			q.Contenders = append(q.Contenders, Contender{
				Node: c.Name, Kind: c.kind, Holds: c.holds, Permits: c.Permits, Token: token, Session: c.Session,
				Asked: c.Asked, Granted: granted[c.Name], Owner: owner.Owner, Host: owner.Host, PID: owner.PID, Trace: owner.Trace,
			})
		}
		return err
	})
	if err != nil {
		return q, &LockError{opQueue, name, err}
	}
	return q, nil
}

// granted returns when the pool's holders of a lock were granted it, by node.
func (p *Pool) granted(name string) map[string]time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	granted := map[string]time.Time{}
	for _, m := range p.sessions {
		for h := range m.holds {
			if h.name == name {
				h.mu.Lock()
				granted[h.node.Name] = h.began
				h.mu.Unlock()
			}
		}
	}
	return granted
}

// contender is one that was found, and in which queue.
type contender struct {
	driver.Contender
	queue string
	kind  string
	holds bool
}

// inspect returns the contenders of the lock of that name, of whatever kind it is,
// and what else is there.
func inspect(ctx context.Context, m *session, name string) (found []contender, foreign []string, err error) {
	found, foreign, err = inspectQueue(ctx, m, name)
	if err != nil || !slices.Contains(foreign, driver.Guards) && !slices.Contains(foreign, driver.Leases) { // either may be missing
		return found, foreign, err
	}
	// Guards first: who is not seen there yet has no lease either.
	guards, strange, err := inspectQueue(ctx, m, name+"/"+driver.Guards)
	if err != nil {
		return nil, nil, err
	}
	leases, stranger, err := inspectQueue(ctx, m, name+"/"+driver.Leases)
	foreign = slices.DeleteFunc(slices.Concat(foreign, strange, stranger), func(name string) bool {
		return name == driver.Guards || name == driver.Leases || name == driver.Limit
	})
	for _, c := range leases {
		// Who has leases and the guard waits, or is just being granted them.
		i := slices.IndexFunc(guards, func(guard contender) bool { return guard.asksFor(c) })
		if c.holds = i < 0; !c.holds {
			guards = slices.Delete(guards, i, i+1)
		}
		found = append(found, c)
	}
	for _, c := range guards {
		c.holds = false
		found = append(found, c)
	}
	for i := range found {
		if found[i].queue != name {
			found[i].kind = driver.Permit.String()
		}
	}
	return found, foreign, err
}

// asksFor reports whether a guard and a lease are of one who asks for permits.
// Curator's do not say, but one session of it hardly asks twice at a time.
func (c contender) asksFor(lease contender) bool {
	ours, its := askOf(c.Data), askOf(lease.Data)
	return ours == its && (ours != "" || c.holds && c.Session == lease.Session && c.Created < lease.Created)
}

func inspectQueue(ctx context.Context, m *session, queue string) ([]contender, []string, error) {
	contenders, foreign, err := m.Inspect(ctx, queue)
	nodes, found := make([]driver.Node, len(contenders)), make([]contender, len(contenders))
	for i, c := range contenders {
		nodes[i] = c.Node
	}
	for i, c := range contenders {
		obstacles, _ := recipe.RuleOf(c.Kind)(nodes, i)
		found[i] = contender{c, queue, c.Kind.String(), len(obstacles) == 0}
	}
	return found, foreign, err
}

// Locks returns the names of the locks below prefix, such as orders, that
// somebody holds or waits for, sorted; the empty prefix means all. It lists
// every node there, one after the other.
func (p *Pool) List(ctx context.Context, prefix string) (names []string, err error) {
	if prefix != "" {
		err = p.checkName(prefix)
	}
	if err == nil {
		err = p.withSession(ctx, func(ctx context.Context, m *session) (err error) {
			names, err = m.Queues(ctx, prefix)
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("lockpool: locks below %q: %w", prefix, err)
	}
	return names, nil
}

// Break takes the lock, or the place in its queue, from a contender, by the name
// of its node that [Pool.Queue] gave. It is for a contender that is stuck, and
// is recorded in the log. A holder of lockpool is told that it has lost the
// lock, and a waiter queues again; but what a holder does that does not listen
// goes on beside the next one's work. If the contender has gone already, the
// error is ErrNotHeld.
func (p *Pool) Break(ctx context.Context, name, node string) error {
	err := p.checkName(name)
	if err == nil {
		err = p.checkNode(node)
	}
	if err == nil {
		err = p.withSession(ctx, func(ctx context.Context, m *session) error {
			found, _, err := inspect(ctx, m, name)
			i := slices.IndexFunc(found, func(c contender) bool { return c.Node.Name == node })
			switch {
			case err != nil:
				return err
			case i < 0:
				return driver.ErrRemoved
			}
			return m.Break(ctx, found[i].queue, found[i].Node)
		})
	}
	if errors.Is(err, driver.ErrRemoved) {
		err = fmt.Errorf("%w: %s has gone", ErrNotHeld, node)
	}
	if err != nil {
		return &LockError{opBreak, name, err}
	}
	return nil
}

func (p *Pool) checkNode(node string) error {
	if !p.connector.IsContender(node) {
		return fmt.Errorf("%q is not the name of a contender's node: take it from Queue", node)
	}
	return nil
}

// asking calls do with a session that stands, and again on another one if that
// is lost meanwhile. It takes no handle: a pool whose handles all wait can still
// look, and break what they wait for.
func (p *Pool) withSession(ctx context.Context, do func(ctx context.Context, m *session) error) error {
	if err := ctx.Err(); err != nil { // panics if ctx is nil
		return withCause(ctx, err)
	}
	if p.accepting.Err() != nil || !p.begin() {
		return ErrPoolClosed
	}
	defer p.work.Done()
	ctx, cancel := bound(ctx, p.accepting)
	defer cancel(nil)
	for {
		began := time.Now()
		p.countSeeker(1)
		m, err := p.pickSession(ctx)
		p.countSeeker(-1)
		p.telemetry.slotAcquired(ctx, began, err)
		if err == nil {
			err = do(ctx, m)
		}
		if ctx.Err() != nil && err != nil {
			return withCause(ctx, err)
		}
		if !errors.Is(err, driver.ErrSessionLost) && !errors.Is(err, driver.ErrUnavailable) {
			return err
		}
	}
}
