package driver

// This file has the optional interfaces of sessions.

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"
)

// Offer returns the session as a T, one of the optional interfaces of this package. If the
// driver has none, the error wraps errors.ErrUnsupported and names the driver.
func Offer[T any](s Session) (T, error) {
	offer, ok := s.(T)
	if !ok {
		return offer, fmt.Errorf("%w by driver %s, whose session is no driver.%s", errors.ErrUnsupported, s.Info().Driver, reflect.TypeFor[T]().Name())
	}
	return offer, nil
}

// PlainLocker has locks without a queue: the first creator of the node has the lock.
type PlainLocker interface {
	// TryCreate creates the node of a lock without a queue. If the node already exists,
	// TryCreate returns the node and false. In all other respects TryCreate is like Join.
	TryCreate(ctx context.Context, name string, data []byte) (node Node, created bool, err error)
}

// Limiter keeps the limits of semaphores. Semaphores need a Limiter.
type Limiter interface {
	// Limit returns the smaller of the set limit and the given limit, which may be 0 for
	// none. Limit ignores the limits stated by leases. The watch fires when the set limit
	// changes, and is nil if none is set. The error is ErrLimit if there is no limit at
	// all, and ErrKind if another kind of lock is in use under the name.
	Limit(ctx context.Context, name string, given int) (limit int, watch *Watch, err error)

	// SetLimit sets the limit of a semaphore, 0 or more: with 0, no caller is granted
	// permits. The limit stays set until the limit's node is removed.
	SetLimit(ctx context.Context, name string, limit int) error
}

// Downgrader turns exclusive holds into shared ones without letting others in between.
// Without a Downgrader, the holder of an exclusive lock cannot enter the lock as a reader.
type Downgrader interface {
	// Downgrade replaces an Exclusive or Convertible node by a Shared one with another
	// name, the same Seq and the given data, in one step; a revocation stays. Watches on
	// the old node fire with Changed, never with Deleted. Created is the new node's or the
	// old one's. Downgrade waits for the service until the session is over. After an error,
	// the node has not changed, unless the error is ErrUndecided.
	Downgrade(queue string, node Node, data []byte) (Node, error)
}

// Inspector shows contenders, and the existing locks. The search for deadlocks needs an
// Inspector.
type Inspector interface {
	// Inspect returns the contenders in the queue, in order, with their data; for a lock
	// without a queue, the holder. Inspect reflects all changes made before the call, only
	// reads, and leaves no watch. Contenders that leave meanwhile may be missing. If want
	// is not nil, contenders refused by want are not read: only their Node is set.
	//
	// others tells whether the queue's name is a semaphore's: others contains Guards and
	// Leases, each while the queue has a contender and perhaps for a while longer, and
	// Limit if a limit is set. Other names of the service may be there.
	Inspect(ctx context.Context, queue string, want func(Node) bool) (contenders []Contender, others []string, err error)

	// Queues returns the sorted names of all locks below prefix with a contender, of any
	// kind. Prefix consists of whole parts, and is itself among the locks; an empty prefix
	// means all. Names below Records and Waits are left out. Names without the right to
	// read are included, because they may be locks in use.
	Queues(ctx context.Context, prefix string) ([]string, error)
}

// Follower shows the head of a queue, and when the head changes. Observers need a Follower.
type Follower interface {
	// Follow returns the contenders at the head of the queue, in order, with their data,
	// and watches. One of the watches fires when the contenders may no longer be the head.
	// The head of a lock without a queue is the holder. The queue need not exist.
	//
	// head gets the contenders of the queue, and returns how many are wanted, and whether
	// later contenders change nothing as long as the wanted ones are there; then the
	// watches do not fire for later contenders. (They always matter to an empty queue.) The
	// event says nothing: the caller follows again. The holder of a plain lock need not be
	// passed to head. Follow may call head several times, and head does not call the
	// driver.
	//
	// For a semaphore's name, the watches also fire when one of the others (as from Inspect)
	// appears or disappears.
	//
	// Follow reflects what the session has seen of the service, everything before the last
	// answer to Ping, and only reads. The watches stay at the service until they fire: one
	// for each returned contender, and one for the queue if later contenders matter, which is
	// the last and fires with Changed when another contender joins or leaves. All followers of a
	// queue on one session share the watches.
	Follow(ctx context.Context, queue string, head func([]Node) (n int, complete bool)) (Followed, error)
}

// Breaker removes other sessions' nodes.
type Breaker interface {
	// Break removes another contender's node. The error is
	// ErrRemoved if the node was gone already.
	Break(ctx context.Context, queue string, node Node) error
}

// Revoker asks holders to give up a lock.
type Revoker interface {
	// Revoke asks the node's contender to give up the lock: the node's watches fire with
	// Changed, unless already asked before, and later watches have Watch.Revoked set. The
	// error is ErrRemoved if the node was gone already.
	//
	// ours says that a session of this driver has created the node: then the stored data
	// stays. Otherwise the data may be replaced by a form for the contenders of other
	// clients.
	Revoke(ctx context.Context, queue string, node Node, ours bool) error
}

// Recorder keeps records of finished runs, each written while the run's lock is held.
type Recorder interface {
	// Finish creates a record in a step that requires the node. The node stays. So no
	// record was created after the node was gone.
	//
	// A nil error means that the record was created. No two records have the same data, so
	// a found record tells the creator. After an error there is no such record and never
	// will be, unless the error is ErrUndecided: then Settle tells. The error is ErrRemoved
	// if the node was gone, and otherwise ErrRecorded if there was another record. If ctx
	// or the session ends between a request and the answer, the error is ErrUndecided,
	// unless the driver knows; before the request, the error is the context's or the
	// session's.
	Finish(ctx context.Context, queue string, node Node, r Record) error

	// Settle decides a Finish without a known outcome, of another session, already over.
	// Settle makes sure that the node is gone, so Finish cannot succeed anymore, and then
	// reports whether the record exists.
	Settle(ctx context.Context, queue string, node Node, r Record) (recorded bool, err error)

	// Record returns the record of the name and key, if there is one. The service may be
	// slow to show records of other sessions, but later holders of a lock see what was
	// recorded under the lock (see the law Events).
	Record(ctx context.Context, name, key string) (r Record, found bool, err error)

	// Records returns all records of the name, the oldest first, including every record
	// created before the call.
	Records(ctx context.Context, name string) ([]Record, error)

	// Forget removes the records of the name with the given keys, or all of them if no keys
	// are given.
	Forget(ctx context.Context, name string, keys ...string) error
}

// Clearer removes old records, for a Recorder whose service does not.
type Clearer interface {
	// ClearRecords removes records of any name whose time is over. The caller has just
	// created r. To be cheap for each record, ClearRecords removes only some records, or
	// none if records were cleared within a quarter of r.Keep, or if r is gone.
	ClearRecords(ctx context.Context, r Record) error
}

// Refuser tells when the service has refused to remove a node, as services with rights may.
type Refuser interface {
	// Unremovable returns a channel closed when the service refuses to remove a node of the
	// session. The node goes with the session, so the session should be closed as soon as
	// it is not needed.
	Unremovable() <-chan struct{}
}

// Counter tells from the numbers of nodes whether other contenders have joined.
type Counter interface {
	// Adjoins reports whether after has joined the queue directly after before, with no
	// contender in between. If the queue was empty in between, false may mean that the numbers
	// do not tell. Adjoins sends nothing, and waits for nothing.
	Adjoins(before, after Node) bool
}

// Sizer tells the size of a queue without listing the queue.
type Sizer interface {
	// Size returns a number of nodes, not smaller than the number of contenders in the queue,
	// but perhaps larger. A missing queue has none.
	Size(ctx context.Context, queue string) (int, error)
}

// Contender is a node with the details returned by Inspect.
type Contender struct {
	Node
	Session string    // like Info.ID
	Created int64     // like Watch.Created
	Joined  time.Time // by the service's clock
	Data    []byte    // as stored by Join
	Version int64     // positive; changes with the data
}

// Record says that a run has finished. A Record does not end with a session.
type Record struct {
	Name, Key string        // each one part of a lock's name, such as lockpool.Escape returns
	Data      []byte        // different from the data of every other record
	Keep      time.Duration // the record is removed later, but soon after 1.25 times Keep

	// Set by the service.
	Created  int64     // like Watch.Created
	Finished time.Time // by the service's clock
}

// Followed is the result of Follower.Follow.
type Followed struct {
	Contenders []Contender
	Others     []string // as from Inspect
	Watches    []*Watch
}

// Idler is a Session that costs the service less while nothing depends on the session.
type Idler interface {
	// IdleIf names a function that reports whether the session is unused: no node of the
	// session is held, and no call waits. Then Lease and Done need not be proved. A user of
	// the session first has the function return false, and then calls Alive: after a nil
	// error, Lease and Done hold again. The session calls the function from time to time,
	// with no mutex held; the function waits for nothing.
	IdleIf(unused func() bool)
}
