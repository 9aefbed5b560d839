package lockpool

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/waitgraph"
)

// Queue describes the holders and waiters of a lock at one moment.
type Queue struct {
	Name       string
	Contenders []Contender // in the order in which they asked
	Foreign    []string    // names of other nodes there, which are not contenders of a kind that lockpool knows
}

// Contender is a holder or a waiter, in lockpool or in another client.
type Contender struct {
	Lock    string    // its name
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

	Origin        // as far as the node tells
	At     string // where in its program it asked, if its handle held other locks: "main.refund (refund.go:24) from main.serve (main.go:57)"
}

// Origin says where a request comes from: what lockpool writes into each node.
type Origin struct {
	Owner string // see WithOwner
	Host  string
	PID   int
	Trace string // the span that asked, as W3C's traceparent, if there is one
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
func describe(found []*waitgraph.Contender, held map[string]*hold, local []Contender, behind string) (described []Contender) {
	for _, c := range found {
		told := tell(c)
		h, turn := held[c.Name], 0
		if h != nil {
			told.Granted, turn = h.life.began, h.turn
		}
		told.Token, _ = packToken(c.Created, turn)
		if first := c.Record.Token; first > 0 && first < told.Token { // of a lock that was downgraded
			told.Token = first
			if h != nil {
				told.Token = h.knownToken()
			}
		}
		described = append(described, told)
		if c.Name == behind {
			described = append(described, local...)
			local = nil
		}
	}
	return append(described, local...)
}

// tell describes a contender as far as its node tells.
func tell(c *waitgraph.Contender) Contender {
	return Contender{
		Lock: c.Lock, Node: c.Name, Kind: c.Kind().String(), Holds: !c.Waits, Permits: c.Permits, Session: c.Session,
		Asked: c.Joined, Origin: Origin(c.Record.Origin), At: c.Record.At,
	}
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

// inspect returns the contenders of the lock of that name, whatever its kind, and the
// names of the other nodes there.
func inspect(ctx context.Context, s *session, name string) (found []*waitgraph.Contender, foreign []string, err error) {
	inspector, err := driver.Offer[driver.Inspector](s.Session)
	if err != nil {
		return nil, nil, err
	}
	return lookAt(name, func(queue string, _ headOf) ([]driver.Contender, []string, error) {
		return inspector.Inspect(ctx, queue, nil)
	})
}

// lookAt is inspect with a function that reads a queue, or its head.
func lookAt(name string, read readFunc) (found []*waitgraph.Contender, foreign []string, err error) {
	queues, others, err := readLock(name, read)
	if err != nil {
		return nil, nil, err
	}
	return waitgraph.New(queues).Shown(), foreignOf(others), nil
}

// readFunc reads the contenders of a queue, or its head, and the names of the other nodes
// there.
type readFunc func(queue string, head headOf) ([]driver.Contender, []string, error)

// headOf returns how many contenders of a queue an observer wants (see
// driver.Follower).
type headOf func(queue []driver.Node) (n int, complete bool)

// readLock reads the queues of a lock, of whatever kind: a semaphore has its guards and its
// leases beside its own. others are the names of the other nodes.
func readLock(name string, read readFunc) (queues []waitgraph.Queue, others []string, err error) {
	add := func(queue string, head headOf) {
		if err != nil {
			return
		}
		found, more, failed := read(queue, head)
		queues, others, err = append(queues, waitgraph.Read(name, queue, found)), append(others, more...), failed
	}
	if add(name, untilFirstWaiter); isSemaphore(others) {
		// Guards first: a contender that is not seen there yet has no lease either.
		add(name+"/"+driver.Guards, onlyFirst)
		add(name+"/"+driver.Leases, everybody)
	}
	return queues, others, err
}

// isSemaphore reports whether others are those of a semaphore, which may lack one queue.
func isSemaphore(others []string) bool {
	return slices.Contains(others, driver.Guards) || slices.Contains(others, driver.Leases)
}

// foreignOf returns the nodes that are not part of the lock.
func foreignOf(others []string) []string {
	if !isSemaphore(others) {
		return others
	}
	return slices.DeleteFunc(others, func(name string) bool {
		return name == driver.Guards || name == driver.Leases || name == driver.Limit
	})
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
