package lockpool

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/nodedata"
	"github.com/lockpool/lockpool/recipe"
)

// Queue describes the holders and waiters of a lock at one moment.
type Queue struct {
	Name       string
	Contenders []Contender // in the order in which they asked
	Foreign    []string    // names of other nodes there, which are not contenders of a kind that lockpool knows
}

// Contender is a holder or a waiter, in lockpool or in another client.
type Contender struct {
	Node    string    // the name of its node, for Pool.Break and Pool.Revoke
	Kind    string    // mutex (exclusive), read, write (exclusive, of Curator's read/write lock), semaphore, or plain
	Holds   bool      // if false, it waits
	Permits int       // of a semaphore: how many; 0 for a waiter that does not say
	Token   int64     // see Lock.Token; of several turns that another process has, that of the first; 0 if there is none
	Session string    // its session with the service
	Asked   time.Time // when it asked, by the service's clock

	// Granted is when it was granted the lock, by this machine's clock, if it is a
	// holder of this pool. Otherwise it is zero, because the service does not record it.
	Granted time.Time

	// Local means that it is a handle of this pool that waits for the lock without a
	// node, behind another handle (see WithLocalTurns). Node is then a name that this
	// pool's Revoke accepts, for as long as the handle waits without a node, and Asked is
	// by this machine's clock.
	Local bool

	// What a lockpool contender says about itself.
	Owner string // see WithOwner
	Host  string
	PID   int
	Trace string // the span that asked, as W3C's traceparent, if there is one
	At    string // where in its program it asked, if its handle held other locks (see DeadlockWait)
}

// Queue returns the holders and waiters of the lock of that name. It only reads. It
// reads node by node, so for a lock that changes hands quickly it may show two
// successive holders.
func (p *Pool) Queue(ctx context.Context, name string) (Queue, error) {
	var q Queue
	err := p.checkName(name)
	if err == nil {
		err = p.withSession(ctx, func(ctx context.Context, s *session) error {
			found, foreign, err := inspect(ctx, s, name)
			local, behind := p.localWaiters(name)
			q = Queue{Foreign: foreign, Contenders: describe(found, newestByNode(p.holdsOf(name)), local, behind)}
			return err
		})
	}
	q.Name = name
	return q, lockError(opQueue, name, err)
}

// describe describes contenders, of which the pool holds some, and inserts those that wait in
// memory after the node behind.
func describe(found []contender, held map[string]*hold, local []Contender, behind string) (described []Contender) {
	for _, c := range found {
		owner := nodedata.Parse(c.Data)
		var granted time.Time
		turn := 0
		if h := held[c.Name]; h != nil {
			granted, turn = h.life.began, h.turn
		}
		token, _ := packToken(c.Created, turn)
		if owner.Token > 0 && owner.Token < token { // of a lock that was downgraded
			token = owner.Token
			if h := held[c.Name]; h != nil {
				token = h.knownToken()
			}
		}
		described = append(described, Contender{
			Node: c.Name, Kind: c.kind, Holds: c.holds, Permits: c.Permits, Token: token, Session: c.Session,
			Asked: c.Joined, Granted: granted, Owner: owner.Owner, Host: owner.Host, PID: owner.PID, Trace: owner.Trace, At: owner.At,
		})
		if c.Name == behind {
			described = append(described, local...)
			local = nil
		}
	}
	return append(described, local...)
}

// newestByNode returns the newest of the holds of a lock for each of its nodes.
func newestByNode(holds []*hold) map[string]*hold {
	newest := map[string]*hold{}
	for _, h := range holds {
		node := h.tenancy.nodeNow().Name
		if other := newest[node]; other == nil || other.turn < h.turn {
			newest[node] = h
		}
	}
	return newest
}

// contender is a contender that was found, with its queue.
type contender struct {
	driver.Contender
	queue string
	kind  string
	holds bool
}

// inspect returns the contenders of the lock of that name, whatever its kind, and the
// names of the other nodes there.
func inspect(ctx context.Context, s *session, name string) (found []contender, foreign []string, err error) {
	inspector, err := driver.Offer[driver.Inspector](s.Session)
	if err != nil {
		return nil, nil, err
	}
	return lookAt(name, func(queue string, _ headOf) ([]driver.Contender, []string, error) {
		return inspector.Inspect(ctx, queue, nil)
	})
}

// headOf returns how many contenders of a queue an observer wants (see
// driver.Follower).
type headOf func(queue []driver.Node) (n int, complete bool)

// lookAt is inspect with a function that reads a queue, or its head.
func lookAt(name string, read func(queue string, head headOf) ([]driver.Contender, []string, error)) (found []contender, foreign []string, err error) {
	look := func(queue string, head headOf) ([]contender, []string, error) {
		contenders, foreign, err := read(queue, head)
		return judge(queue, contenders), foreign, err
	}
	found, foreign, err = look(name, untilFirstWaiter)
	if err != nil || !slices.Contains(foreign, driver.Guards) && !slices.Contains(foreign, driver.Leases) { // either may be missing
		return found, foreign, err
	}
	// Guards first: a contender that is not seen there yet has no lease either.
	guards, inGuards, err := look(name+"/"+driver.Guards, onlyFirst)
	if err != nil {
		return nil, nil, err
	}
	leases, inLeases, err := look(name+"/"+driver.Leases, everybody)
	foreign = slices.DeleteFunc(slices.Concat(foreign, inGuards, inLeases), func(name string) bool {
		return name == driver.Guards || name == driver.Leases || name == driver.Limit
	})
	return append(found, permits(guards, leases)...), foreign, err
}

// permits returns the contenders of a semaphore. A contender with leases and the guard
// waits, or is just being granted its permits.
func permits(guards, leases []contender) (found []contender) {
	for _, c := range leases {
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
		found[i].kind = driver.Permit.String()
	}
	return found
}

// asksFor reports whether a guard and a lease belong to the same call that acquires
// permits. Curator's nodes do not say, but a Curator session rarely makes two such
// calls at a time.
func (c contender) asksFor(lease contender) bool {
	ours, its := nodedata.Parse(c.Data).Ask, nodedata.Parse(lease.Data).Ask
	return ours == its && (ours != "" || c.holds && c.Session == lease.Session && c.Created < lease.Created)
}

// judge determines which contenders of a queue hold the lock.
func judge(queue string, contenders []driver.Contender) []contender {
	nodes, found := make([]driver.Node, len(contenders)), make([]contender, len(contenders))
	for i, c := range contenders {
		nodes[i] = c.Node
	}
	for i, c := range contenders {
		obstacles := recipe.RuleOf(c.Kind)(nodes, i)
		found[i] = contender{c, queue, c.Kind.String(), len(obstacles) == 0}
	}
	return found
}

// List returns the names of the locks below prefix, such as orders, that have a holder
// or a waiter, sorted; the empty prefix means all. Names that the pool has no right to read
// are among them, because they may be locks in use. It lists every node there, with a
// bounded number of requests under way.
func (p *Pool) List(ctx context.Context, prefix string) (names []string, err error) {
	if prefix != "" {
		err = p.checkName(prefix)
	}
	if err == nil {
		err = p.withSession(ctx, use(func(ctx context.Context, inspector driver.Inspector) (err error) {
			names, err = inspector.Queues(ctx, prefix)
			return err
		}))
	}
	if err != nil {
		return nil, fmt.Errorf("lockpool: list locks below %q: %w", prefix, err)
	}
	return names, nil
}
