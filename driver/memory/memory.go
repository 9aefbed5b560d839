// Package memory is lockpool in one process, without a server: for unit tests of programs
// with lockpool, and for programs on one machine, perhaps to grow.
//
// A test makes a [Store], and opens a pool for each part of the program that would be a
// separate process:
//
//	store := memory.New()
//	pool, err := lockpool.OpenConnector(store)
//
// The test can then cause the events of production: [Store.Expire] ends sessions,
// [Store.Pause] stops the answers, and [Store.Remove] takes a lock away from its holder.
//
// A program selects the driver by its name. The connect string names the store, shared by
// all pools of the process with the same string; the empty string is a name as well:
//
//	import _ "github.com/lockpool/lockpool/driver/memory"
//
//	pool, err := lockpool.Open("memory", "")
//
// All kinds of locks work as on a service, with the same order and the same guarantees,
// among the pools of one store. They exclude no other process. Records of finished runs
// (see lockpool's Pool.Once), and the limits set for semaphores, are kept until the process
// ends. A session lasts until ended by its pool or by Expire: a stuck holder never loses
// its locks.
//
// A store has no goroutines and no timers. In a bubble of testing/synctest, use a store
// created there.
//
// A lock's name is a relative path such as orders/42, as on ZooKeeper. But a plain lock
// does not exclude the locks below its name, and other peculiarities of ZooKeeper are not
// imitated: test programs that depend on them on a server.
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

// Shared returns the store of the given name, the one used by lockpool.Open("memory",
// name). A shared store is created by the first call, and lasts as long as the process.
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

// Store contains locks. It is a driver.Connector, for lockpool.OpenConnector: all pools on
// a Store share the locks. A Store is safe for concurrent use.
type Store struct {
	// mu guards everything, in the sessions as well. A call holds mu from the first look to
	// the answer, and watches fire under mu. So calls happen one after the other, and
	// events are in the order of the changes.
	mu        sync.Mutex
	order     int64 // of the newest session, node or record
	sessions  []*session
	queues    map[string]*queue   // with a contender
	limits    map[string]*entry   // of semaphores, if they are set
	followers map[string]watchers // of queues, existing or not
	records   map[recordKey]driver.Record
	sweepAt   int // how many records there may be before old ones are removed

	pauses  int
	resumed chan struct{} // closed by the last resume; nil if the store is not paused
	later   []func()      // what is to be done then
}

// New returns a store of its own, sharing no locks with others.
func New() *Store {
	return &Store{queues: map[string]*queue{}, limits: map[string]*entry{}, followers: map[string]watchers{}, records: map[recordKey]driver.Record{}}
}

// Expire ends the sessions with the given IDs, or all sessions if none are given, as a
// service does after too long a silence of a client. It returns the number of ended
// sessions. Locks held on them are lost, and waiters on them queue again, on a new session.
// The ID of a holder's or waiter's session is in the result of lockpool's Pool.Queue:
//
//	q, err := pool.Queue(ctx, "job")
//	store.Expire(q.Contenders[0].Session)
//
// A holder is told at once, but so is a waiter: the next holder may begin before the
// context of the former one has ended. The same happens on any service that ends a session
// early; fencing tokens are for such cases. While the store is paused, the locks are not
// granted before the store goes on, as when a lease runs out on a silent service.
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

// Pause makes the store answer no more, like an unreachable service, until resume is
// called: calls wait until their contexts end or the store goes on, and no session hears of
// a change. Locks stay held, because sessions do not end by themselves: call Expire to end
// them. Locks unlocked meanwhile are free when the store goes on.
//
// A store paused several times goes on when each of the pauses has been resumed. Calling
// the same resume again does nothing. Resume before closing a pool: otherwise closing waits
// as for a service, for up to 5 s.
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
	for len(st.later) > 0 { // what is done may add events, to be told last
		do := st.later[0]
		st.later = st.later[1:]
		do()
	}
	st.later = nil
	close(st.resumed)
	st.resumed = nil
}

// whenServed calls do now or, if the store is paused, when the store goes on: first of all,
// and in the order of the calls of whenServed. Both are called with st.mu held.
func (st *Store) whenServed(do func()) {
	if st.resumed == nil {
		do()
	} else {
		st.later = append(st.later, do)
	}
}

// Remove removes the node of a contender for the named lock, as an operator does by hand: a
// holder is told of the loss of the lock, and a waiter queues again. The names of nodes are
// in the result of lockpool's Pool.Queue. The node "limit" is the limit set for a
// semaphore. Remove reports whether there was such a node.
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
