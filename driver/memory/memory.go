// Package memory is lockpool in one process, without a server: for unit tests of programs
// that use lockpool, and for programs on one machine that may grow.
//
// A test has a [Store] of its own, and opens a pool on it for each part of the program that
// would run as a process of its own:
//
//	store := memory.New()
//	pool, err := lockpool.OpenConnector(store)
//
// It can then cause what happens to a program in production: [Store.Expire] ends sessions,
// [Store.Pause] stops the answers, and [Store.Remove] takes a lock away from its holder.
//
// A program selects the driver by its name. The connect string names the store, which all
// pools of the process with the same string share; the empty string is a name as well:
//
//	import _ "github.com/lockpool/lockpool/driver/memory"
//
//	pool, err := lockpool.Open("memory", "")
//
// All kinds of locks work as on a service, with the same order and the same guarantees,
// among the pools of one store. Its locks exclude nobody in another process. Records of
// finished runs (see lockpool's Pool.Once), and the limits that are set for semaphores, are
// kept until the process ends. A session lasts until its pool or Expire ends it: there is
// no time after which a holder that is stuck loses its locks.
//
// A store has no goroutines and no timers. In a bubble of testing/synctest, use a store
// that was created there.
//
// A lock's name is a relative path such as orders/42, as on ZooKeeper. But a plain lock
// does not exclude the locks below its name, and what else ZooKeeper does and does not do
// is not imitated: test what depends on that on a server.
package memory

import (
	"log/slog"
	"slices"
	"sync"

	"github.com/lockpool/lockpool/driver"
)

func init() { driver.Register("memory", memoryDriver{}) }

type memoryDriver struct{}

// OpenConnector implements driver.Driver.
func (memoryDriver) OpenConnector(dsn string) (driver.Connector, error) { return Shared(dsn), nil }

// shared are the stores of the process by name. They are never removed.
var shared struct {
	mu     sync.Mutex
	byName map[string]*Store
}

// Shared returns the store of that name, which is the one that lockpool.Open("memory",
// name) uses. It is created when it is first asked for, and lasts as long as the process.
func Shared(name string) *Store {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	st := shared.byName[name]
	if st == nil {
		if shared.byName == nil {
			shared.byName = map[string]*Store{}
		}
		st = New()
		shared.byName[name] = st
	}
	return st
}

// Store contains locks. It is a driver.Connector, for lockpool.OpenConnector: all pools
// that are opened on a Store share its locks. It is safe for concurrent use.
type Store struct {
	// mu guards everything, in the sessions as well. A call holds it from the first look
	// to its answer, and watches fire under it. So calls happen one after the other, and
	// events are in the order of the changes.
	mu        sync.Mutex
	order     int64 // of the newest session, node or record
	sessions  []*session
	queues    map[string]*queue   // that have a contender
	limits    map[string]*entry   // of semaphores, if they are set
	followers map[string]watchers // of queues, which need not exist
	records   map[recordKey]driver.Record
	sweepAt   int // how many records there may be before old ones are removed

	pauses  int
	resumed chan struct{} // closed by the last resume; nil if the store is not paused
	later   []func()      // what is to be done then
}

// New returns a store that shares its locks with no other.
func New() *Store {
	return &Store{queues: map[string]*queue{}, limits: map[string]*entry{}, followers: map[string]watchers{}, records: map[recordKey]driver.Record{}}
}

// Expire ends the sessions with the given IDs, or all sessions if none are given, as a
// service does that has not heard from a client for too long. It returns how many it has
// ended. What was held on them is lost, and what waited on them queues again, on a new
// session. The ID of a holder's or waiter's session is in what lockpool's Pool.Queue
// returns:
//
//	q, err := pool.Queue(ctx, "job")
//	store.Expire(q.Contenders[0].Session)
//
// A holder is told at once, but a waiter is, too: the next holder may begin before the
// context of the former one has ended. That is so with any service that ends a session
// early, and what fencing tokens are for. While the store is paused, nobody is granted the
// locks before it goes on, as when a lease runs out on a silent service.
func (st *Store) Expire(ids ...string) (ended int) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, s := range slices.Clone(st.sessions) {
		if len(ids) == 0 || slices.Contains(ids, s.id) {
			s.end(driver.ErrExpired)
			ended++
		}
	}
	return ended
}

// Pause makes the store answer no more, like a service that cannot be reached, until
// resume is called: calls wait until their contexts end or the store goes on, and nobody
// hears of a change. Locks stay held, because sessions do not end by themselves: call
// Expire for that. Locks that are unlocked meanwhile are free when the store goes on.
//
// A store that is paused several times goes on when each of the pauses has been resumed.
// Calling the same resume again does nothing. Resume before a pool is closed: otherwise
// that waits as it does for a service, for up to 5 s.
func (st *Store) Pause() (resume func()) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.pauses++; st.pauses == 1 {
		st.resumed = make(chan struct{})
	}
	return sync.OnceFunc(st.resume)
}

func (st *Store) resume() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.pauses--; st.pauses > 0 {
		return
	}
	close(st.resumed)
	st.resumed = nil
	for _, do := range st.later {
		do()
	}
	st.later = nil
}

// whenServed calls do now or, if the store is paused, when it goes on: first of all, and in
// the order of the calls of whenServed. Both are called with st.mu held.
func (st *Store) whenServed(do func()) {
	if st.resumed == nil {
		do()
	} else {
		st.later = append(st.later, do)
	}
}

// Remove removes the node of a contender for the lock of that name, as an operator does
// by hand: a holder is told that it has lost the lock, and a waiter queues again. The names
// of nodes are in what lockpool's Pool.Queue returns. The node limit is that of the limit
// that is set for a semaphore. Remove reports whether there was such a node.
func (st *Store) Remove(name, node string) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if e := st.limits[name]; e != nil && node == driver.Limit {
		delete(st.limits, name)
		st.fire(&e.watchers, driver.Deleted, nil)
		st.changed(name)
		return true
	}
	for _, queue := range partsOf(name) {
		for _, e := range st.queue(queue).entries {
			if e.Name == node {
				return st.remove(queue, e.Node, nil) == nil
			}
		}
	}
	return false
}

// logBroken is called without st.mu, because the logger is user code.
func logBroken(queue string, node driver.Node, by *session) {
	slog.Warn("lockpool: a contender was removed by request", "queue", queue, "node", node, "session", by.id)
}
