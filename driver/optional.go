package driver

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

// PlainLocker has locks without a queue: whoever creates the node first has the lock.
type PlainLocker interface {
	// TryCreate creates the node of a lock without a queue. If the node already exists,
	// it returns that node and false. In all other respects it is like Join.
	TryCreate(ctx context.Context, name string, data []byte) (node Node, created bool, err error)
}

// Limiter keeps the limits of semaphores. Semaphores need it.
type Limiter interface {
	// Limit returns the smaller of the limit set for the semaphore and the one given,
	// which may be 0 for none. Limit ignores the limits that leases state. The watch
	// fires when the limit that is set changes; it is nil if none is set. The error is
	// ErrLimit if there is no limit at all, and ErrKind if another kind of lock is in
	// use under the name.
	Limit(ctx context.Context, name string, given int) (limit int, watch *Watch, err error)

	// SetLimit sets the limit of a semaphore, which is 0 or more: nobody is granted permits
	// of one whose limit is 0. It stays set until its node is removed.
	SetLimit(ctx context.Context, name string, limit int) error
}

// Downgrader turns exclusive holds into shared ones without letting others in between.
// Without it, the holder of an exclusive lock cannot enter it as a reader.
type Downgrader interface {
	// Downgrade replaces an Exclusive or Convertible node by a Shared one with another
	// name and the same Seq, in one step, and its data by data, except that a revocation
	// stays. Watches on the old node fire with Changed, never with Deleted. The new node's
	// Created is its own, or that of the old one. Downgrade waits for the service until the
	// session is over. If it returns an error, the node has not changed.
	Downgrade(queue string, node Node, data []byte) (Node, error)
}

// Inspector shows contenders, and which locks exist. Deadlocks are found with it.
type Inspector interface {
	// Inspect returns the contenders in the queue, in order, with their data; for a lock
	// without a queue it returns the holder. It reflects all changes made before the call,
	// only reads, and leaves no watch. Contenders that leave meanwhile may be missing. If
	// want is not nil, contenders for which it returns false are not read: only their Node
	// is set.
	//
	// others tells whether the queue's name is that of a semaphore: it contains Guards and
	// Leases, each if that queue has a contender and perhaps for a while longer, and Limit
	// if a limit is set. It may contain other names that the service has there.
	Inspect(ctx context.Context, queue string, want func(Node) bool) (contenders []Contender, others []string, err error)

	// Queues returns the names of all locks below prefix that have a contender, of any
	// kind, sorted. Prefix consists of whole parts, and is itself among the locks; an empty
	// one means all. What is below Records and Waits is left out. Those that the session
	// has no right to read are among them, because they may be locks in use.
	Queues(ctx context.Context, prefix string) ([]string, error)
}

// Follower shows the head of a queue, and when that changes. Observers need it.
type Follower interface {
	// Follow returns the contenders at the head of the queue, in order, with their data,
	// and watches of which one fires when these may no longer be the head. For a lock
	// without a queue, that is its holder. The queue need not exist.
	//
	// head is given the contenders of the queue. It returns how many of them are wanted,
	// and whether those who join later change nothing as long as these are there; if so,
	// the watches do not fire for them. (If the queue is empty, they always matter.) The
	// event says nothing: the caller follows again. The holder of a plain lock need not be
	// among what head is given. Follow may call head several times, and head does not call
	// the driver.
	//
	// For a semaphore's name, the watches also fire when one of the others (as from Inspect)
	// appears or disappears.
	//
	// Follow reflects what the session has seen of the service, which is everything
	// before the last answer to Ping. It only reads. The watches stay at the service until
	// they fire: one for each contender returned, and one for the queue if those who join
	// later matter. All that follow a queue on one session share them.
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
	// Revoke asks the node's contender to give up the lock: the node's watches fire
	// with Changed, unless it was asked before, and later ones have Watch.Revoked set. The
	// error is ErrRemoved if the node was gone already.
	//
	// ours says that a session of this driver has created the node: then the stored data
	// stays as it is. Otherwise it may be replaced by what contenders of other clients
	// understand.
	Revoke(ctx context.Context, queue string, node Node, ours bool) error
}

// Recorder keeps records of finished runs, each written while its lock is held.
type Recorder interface {
	// Finish creates a record in a step that requires that the node exists, which stays. So
	// there is no record that was created after the node was gone.
	//
	// A nil error means that the record was created. The caller sees to it that no two
	// records have the same data, so a record that is found tells who created it. Otherwise
	// there is no such record and never will be, unless the error is ErrUndecided: then
	// Settle tells. It is ErrRemoved if the node was gone, and otherwise ErrRecorded if there
	// was another record. If ctx or the session ends after a request was sent and before it
	// was answered, the error is ErrUndecided, unless the driver knows; before that, it is
	// the context's or the session's.
	Finish(ctx context.Context, queue string, node Node, r Record) error

	// Settle decides a Finish whose outcome is not known because its session, another
	// one, is over. It makes sure that the node is gone, so that Finish cannot succeed
	// anymore, and then reports whether the record exists.
	Settle(ctx context.Context, queue string, node Node, r Record) (recorded bool, err error)

	// Record returns the record of that name and key, if there is one. The service may be
	// slow to show one that other sessions have created, but what was recorded under a
	// lock is shown to those who were granted the lock later (see the law Events).
	Record(ctx context.Context, name, key string) (r Record, found bool, err error)

	// Records returns all records of that name, the oldest first. They include all that
	// were created before the call.
	Records(ctx context.Context, name string) ([]Record, error)

	// Forget removes the records of that name with the given keys, or all of them if no
	// keys are given.
	Forget(ctx context.Context, name string, keys ...string) error
}

// Clearer removes old records. A Recorder whose service does not do that by itself needs it.
type Clearer interface {
	// ClearRecords removes records, of whatever name, that were created longer ago than they
	// are to be kept. The caller has just created the given one. To be cheap when it is called
	// for each record, it removes some of them only, or does nothing if that was done within
	// a quarter of the given one's Keep; or if the given one is gone.
	ClearRecords(ctx context.Context, r Record) error
}

// Refuser tells when the service has refused to remove a node, as those with rights may.
type Refuser interface {
	// Unremovable returns a channel that is closed when the service refuses to
	// remove a node of the session. The node goes with the session, so the session
	// should be closed as soon as nothing else needs it.
	Unremovable() <-chan struct{}
}

// Contender is a node with the details that Inspect returns.
type Contender struct {
	Node
	Session string    // like Info.ID
	Created int64     // like Watch.Created
	Joined  time.Time // by the service's clock
	Data    []byte    // as stored by Join
	Version int64     // positive; another one when the data has been changed
}

// Record says that a run has finished. It does not end with a session.
type Record struct {
	Name, Key string        // each one part of a lock's name, such as lockpool.Escape returns
	Data      []byte        // different from that of every other record
	Keep      time.Duration // it is not removed before, and soon after 1.25 times that

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
