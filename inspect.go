package lockpool

// This file has Queue: the holders and waiters of a lock.

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
	Foreign    []string    // names of other nodes there, which are no contenders known to lockpool
}

// Contender is a holder or a waiter, in lockpool or in another client.
type Contender struct {
	Lock    string    // its name
	Node    string    // the name of its node, for Pool.Break and Pool.Revoke
	Kind    string    // mutex (exclusive), read, write (exclusive, of Curator's read/write lock), semaphore, or plain
	Holds   bool      // false for a waiter
	Permits int       // of a semaphore: how many; 0 if a waiter's node does not say
	Token   int64     // see Lock.Token; of several turns of another process, the token of the first; 0 if there is none
	Session string    // the session with the service
	Asked   time.Time // when the request was made, by the service's clock

	// Granted is the time of the grant to a holder of this pool, by this machine's clock.
	// For others Granted is zero, because the service does not record grants.
	Granted time.Time

	// Kept means that the pool of the node keeps the lock while no other contender wants the
	// lock (see WithKeptLocks): the lock may be unused. Unused is since when no handle of this
	// pool has held the lock, though the lock is not free (see also HoldAtLeast). Unused is zero
	// for a lock in use, and for a lock of another pool.
	Kept   bool
	Unused time.Time

	// Local means a handle of this pool that waits for the lock without a node, behind
	// another handle (see WithLocalTurns). Node is then a name for this pool's Revoke, as
	// long as the handle waits without a node, and Asked is by this machine's clock.
	Local bool

	// Callers are the calls of another pool that wait in memory behind the contender, as the
	// pool has reported: about a second ago, and only if one of them has waited for a second.
	Callers int

	// Revocable means that the request has the option of the same name: the holder releases the
	// lock when asked.
	Revocable bool

	passesOn bool // the process may pass the lock on in memory

	Origin        // as far as the node tells; of a holder with Callers, Trace is that of the present turn
	At     string // the place of the request in the program, if known: "main.refund (refund.go:24) from main.serve (main.go:57)"
}

// Origin says where a request comes from, as lockpool writes into each node.
type Origin struct {
	Owner string // see WithOwner
	Host  string
	PID   int
	Trace string // the span that asked, as W3C's traceparent, if there is one
}

// Queue returns the holders and waiters of the named lock. Queue only reads, node by node,
// so a lock that changes hands quickly may show two successive holders.
func (p *Pool) Queue(ctx context.Context, name string) (Queue, error) {
	var q Queue
	err := p.checkName(name)
	if err == nil {
		err = p.withSession(ctx, func(ctx context.Context, s *session) error {
			before := p.turnsOf(name)
			found, foreign, err := inspect(ctx, s, name)
			if err != nil {
				return err
			}
			q = Queue{Foreign: foreign, Contenders: describe(found, p.localWaiters(name, before), p.turnsOf(name))}
			addCrowds(&q, func() crowds { return p.crowdsOf(ctx, s) })
			return nil
		})
	}
	q.Name = name
	return q, lockError(opQueue, name, err)
}

// describe describes contenders, some of them the pool's, and inserts the waiters in memory
// without the one that is among the contenders.
func describe(found []*waitgraph.Contender, in inMemory, held map[string]newestTurn) (described []Contender) {
	local := in.waiters
	isFirst := func(c *waitgraph.Contender) bool {
		_, held := in.held[c.Name]
		return c.Name == local[0].Node || in.joining != "" && c.Session == in.joining && c.Record.Local && !held
	}
	if len(local) > 0 {
		if i := slices.IndexFunc(found, isFirst); i >= 0 {
			local, in.behind = local[1:], found[i].Name
		}
	}
	for _, c := range found {
		told := tell(c)
		h, ours := held[c.Name]
		told.Granted, told.Unused = h.granted, h.unused
		told.Token, _ = packToken(c.Created, h.turn)
		if first := c.Record.Token; first > 0 && first < told.Token { // of a downgraded lock
			told.Token = first
			if ours {
				told.Token = h.token
			}
		}
		described = append(described, told)
		if c.Name == in.behind {
			described = append(described, local...)
			local = nil
		}
	}
	return append(described, local...)
}

// tell describes a contender as far as the node tells.
func tell(c *waitgraph.Contender) Contender {
	return Contender{
		Lock: c.Lock, Node: c.Name, Kind: c.Kind().String(), Holds: !c.Waits, Permits: c.Permits, Session: c.Session,
		Asked: c.Joined, Kept: c.Record.Kept, Origin: Origin(c.Record.Origin), At: c.Record.At, Revocable: c.Record.Revocable, passesOn: c.Record.Local,
	}
}

// newestTurn is the newest turn of a node of the pool.
type newestTurn struct {
	turn    int
	token   int64
	granted time.Time
	unused  time.Time // zero for a lock in use
}

// turnsOf returns the newest turns of a lock, by node.
func (p *Pool) turnsOf(name string) map[string]newestTurn {
	p.mu.Lock()
	defer p.mu.Unlock()
	newest := map[string]newestTurn{}
	for _, s := range p.sessions {
		for _, t := range s.tenancies[name] {
			newest[t.nodeNow().Name] = newestTurn{t.newest, t.knownToken(t.newest), t.granted, p.local.idleSince(&t.turns)}
		}
	}
	return newest
}

// inspect returns the contenders of the named lock, of any kind, and the names of the other
// nodes there.
func inspect(ctx context.Context, s *session, name string) (found []*waitgraph.Contender, foreign []string, err error) {
	inspector, err := driver.Offer[driver.Inspector](s.Session)
	if err != nil {
		return nil, nil, err
	}
	return lookAt(name, func(queue string, _ headOf) ([]driver.Contender, []string, error) {
		return inspector.Inspect(ctx, queue, nil)
	})
}

// lookAt is inspect with a function to read a queue, or the head.
func lookAt(name string, read readFunc) (found []*waitgraph.Contender, foreign []string, err error) {
	queues, others, err := readLock(name, read)
	if err != nil {
		return nil, nil, err
	}
	return waitgraph.New(queues).Shown(), foreignOf(others), nil
}

// readFunc reads the contenders of a queue, or of the head, and the names of the other
// nodes there.
type readFunc func(queue string, head headOf) ([]driver.Contender, []string, error)

// headOf returns how many contenders of a queue an observer wants (see
// driver.Follower).
type headOf func(queue []driver.Node) (n int, complete bool)

// readLock reads the queues of a lock of any kind: a semaphore has guards and leases beside
// the queue of the name. others are the names of the other nodes.
func readLock(name string, read readFunc) (queues []waitgraph.Queue, others []string, err error) {
	add := func(queue string, head headOf) {
		if err != nil {
			return
		}
		found, more, failed := read(queue, head)
		queues, others, err = append(queues, waitgraph.Read(name, queue, found)), append(others, more...), failed
	}
	if add(name, untilFirstWaiter); isSemaphore(others) {
		// Guards first: a contender not seen there yet has no lease either.
		add(name+"/"+driver.Guards, onlyFirst)
		add(name+"/"+driver.Leases, everybody)
	}
	return queues, others, err
}

// isSemaphore reports whether others belong to a semaphore, which may lack one queue.
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

// List returns the sorted names of the locks below prefix, such as orders, with a holder or
// a waiter; the empty prefix means all. Names without the right to read are included,
// because they may be locks in use. List visits every node there, with a bounded number of
// requests under way.
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
