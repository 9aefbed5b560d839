// Package driver is the contract between lockpool and a coordination service.
//
// Every lock of lockpool can be built on a service that keeps ordered queues of nodes,
// each of which lives as long as its session. A driver implements four operations on
// such queues ([Session.Join], [Session.List], [Session.Watch], [Session.Leave]), and
// the sessions themselves; package recipe contains the lock algorithms, which reach the
// service only through a driver.
//
// Users of lockpool need this package only to write a driver. It imports no other
// package of lockpool.
package driver

import (
	"context"
	"errors"
	"sort"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

var (
	// ErrSessionLost reports that the session is over: expired, abandoned or closed.
	// Its nodes are gone or about to go, and no further call on it succeeds.
	ErrSessionLost = errors.New("session lost")

	// ErrExpired reports that the service has ended the session earlier than the
	// client's clock allows: others may have been granted its locks before the client
	// knew. The error that wraps it also wraps ErrSessionLost.
	ErrExpired = errors.New("expired")

	// ErrUnavailable reports that no session could be opened: no server was
	// reached, or none answered. The error that wraps it says why.
	ErrUnavailable = errors.New("no server available")

	// ErrPermanent reports that no session can be opened and that trying again
	// will not help: the credentials are refused, a certificate is not valid, or
	// the server is not one of the service. The error that wraps it says which.
	ErrPermanent = errors.New("trying again will not help")

	// ErrNoPermission reports a missing right. The error that wraps it names
	// the right and the path.
	ErrNoPermission = errors.New("no permission")

	// ErrRemoved reports that another client has removed the node.
	ErrRemoved = errors.New("own node was removed")

	// ErrKind reports that another kind of lock is in use under the name. The
	// error that wraps it says which.
	ErrKind = errors.New("another kind of lock is in use under this name")

	// ErrLimit reports that a semaphore has no limit, because none was given and none
	// is set, or that the one that is set is not a number.
	ErrLimit = errors.New("limit of the semaphore")

	// ErrSequenceExhausted reports that sequence numbers no longer order the
	// queue: its counter is exhausted.
	ErrSequenceExhausted = errors.New("sequence numbers of the queue are exhausted")

	// ErrRecorded reports that there is a record of that name and key already.
	ErrRecorded = errors.New("recorded before")

	// ErrUndecided reports that a transaction was sent, that its answer was not received,
	// and that it may yet be carried out.
	ErrUndecided = errors.New("it is not known whether the service carried it out")
)

// A semaphore keeps its contenders in two queues below its name, and its limit in a
// node. (The queues have the names that Curator's InterProcessSemaphoreV2 uses.)
const (
	Guards = "locks"  // its first contender may add leases
	Leases = "leases" // the holders of permits, and the one contender that waits for them
	Limit  = "limit"
)

// Records is where a service keeps the records of finished runs. No lock has a name that
// begins with this part.
const Records = ".done"

// Waits is where calls that wait for a lock without a queue, and hold others, have nodes:
// the queue Waits/NAME. No lock has a name that begins with this part.
const Waits = ".waits"

// Driver opens connectors from connect strings.
type Driver interface {
	// OpenConnector parses dsn; it never dials. Its errors name the part of dsn
	// that is wrong, and contain no secrets.
	OpenConnector(dsn string) (Connector, error)
}

// Connector is a driver with a fixed configuration. It is safe for concurrent
// use. If it is an io.Closer, the pool closes it after its sessions.
type Connector interface {
	// Connect opens a new session. The context bounds only the opening, not
	// the life of the session. An error wraps ErrPermanent, ErrUnavailable or,
	// if the context has ended, the context's error.
	Connect(ctx context.Context) (Session, error)

	// CheckName returns nil if name can be the name of a lock, and otherwise an
	// error that says why not. It sends nothing.
	CheckName(name string) error

	// CheckPermits returns nil if n permits of the semaphore can be taken in one
	// step, and otherwise an error that says why not.
	CheckPermits(name string, n int) error

	// IsContender reports whether node can be the name of a contender's node.
	IsContender(node string) bool

	// DriverName returns the driver's name for telemetry, such as "zookeeper".
	DriverName() string
}

// Session is one session with the service. When it ends, all its nodes are removed.
// A Session never continues as another session. It is safe for concurrent use.
//
// The context given to a call bounds how long the caller waits, and a call whose
// context has already ended sends nothing (except Leave). If the context ends while a
// reply is on its way, the driver completes or undoes the call in the background.
type Session interface {
	// Join creates one node at the end of the queue, and the queue itself if necessary.
	// permits and limit are those of a Permit; other clients see the limit in the node
	// (Node.Limit). known is a node of the session up to which the caller knows the queue,
	// or zero.
	//
	// Join creates exactly one node whatever happens to requests and replies.
	// If it returns an error, there is no node, or the driver is removing it.
	// data is stored in the node; the driver does not retain it.
	Join(ctx context.Context, queue string, kind Kind, permits, limit int, data []byte, known Node) (Joined, error)

	// List returns the contenders in the queue, in the order in which they joined,
	// without nodes that are not contenders. A queue that does not exist is empty. The
	// caller must not modify the slice, nor those of Join: other calls may return them as
	// well.
	List(ctx context.Context, queue string) ([]Node, error)

	// TryCreate creates the node of a lock without a queue. If the node already exists,
	// it returns that node and false. In all other respects it is like Join.
	TryCreate(ctx context.Context, name string, data []byte) (node Node, created bool, err error)

	// Limit returns the smaller of the limit set for the semaphore and the one given,
	// which may be 0 for none. Limit ignores the limits that leases state. The watch
	// fires when the limit that is set changes; it is nil if none is set. The error is
	// ErrLimit if there is no limit at all, and ErrKind if another kind of lock is in
	// use under the name.
	Limit(ctx context.Context, name string, given int) (limit int, watch *Watch, err error)

	// SetLimit sets the limit of a semaphore. It stays set until its node is removed.
	SetLimit(ctx context.Context, name string, limit int) error

	// Watch watches nodes, each for its next change, in one round trip. The watch on a
	// node that no longer exists has already fired with Missing, and leaves nothing at
	// the service. All watches of a session on the same node share one at the service.
	// A Watch that is no longer needed requires no call.
	//
	// Watches of one session fire in the order of the changes: if another watch is
	// seen to have fired and this one, set before, has not, then its node existed
	// when the other node changed.
	Watch(ctx context.Context, queue string, nodes ...Node) ([]*Watch, error)

	// Data returns the data stored in the node. The error is ErrRemoved if the node
	// is gone.
	Data(ctx context.Context, queue string, node Node) ([]byte, error)

	// Leave removes the node. The context bounds only the wait: the removal begins even
	// if the context has ended, and continues in the background until the node is
	// certainly gone or the session is over. A nil error means that the node is gone,
	// and ErrRemoved that another client had already removed it or a part of it.
	Leave(ctx context.Context, queue string, node Node) error

	// Downgrade replaces a Mutex or Write node by a Read with the same number, in
	// one step. Watches on the old node fire with Changed, never with Deleted.
	// Downgrade waits for the service until the session is over. If it returns an
	// error, the node has not changed.
	Downgrade(queue string, node Node, data []byte) (Node, error)

	// Inspect returns the contenders in the queue, in order, with their data, and
	// the names of the other nodes in the queue; for a lock without a queue it
	// returns the holder. It reflects all changes made before the call, only reads,
	// and leaves no watch. Contenders that leave meanwhile may be missing. If want is not
	// nil, contenders for which it returns false are not read: only their Node is set.
	Inspect(ctx context.Context, queue string, want func(Node) bool) (contenders []Contender, others []string, err error)

	// Follow returns the contenders at the head of the queue, in order, with their data,
	// and watches of which one fires when these may no longer be the head. For a lock
	// without a queue, that is its holder. The queue need not exist.
	//
	// head is given the contenders of the queue. It returns how many of them are wanted,
	// and whether those who join later change nothing as long as these are there; if so,
	// the watches do not fire for them. Follow may call it several times.
	//
	// Follow reflects what the session has seen of the service, which is everything
	// before the last answer to Ping. It only reads. The watches stay at the service until
	// they fire: one for each contender returned, and one for the queue if those who join
	// later matter. All that follow a queue on one session share them.
	Follow(ctx context.Context, queue string, head func([]Node) (n int, complete bool)) (Followed, error)

	// Queues returns the names of all locks below prefix that have a contender, of any
	// kind, sorted; an empty prefix means all. Those that the session has no right to
	// read are among them, because they may be locks in use.
	Queues(ctx context.Context, prefix string) ([]string, error)

	// Break removes another contender's node, and logs that. The error is
	// ErrRemoved if the node was gone already.
	Break(ctx context.Context, queue string, node Node) error

	// Revoke asks the node's contender to give up the lock: the node's watches fire
	// with Changed, and later ones have Watch.Revoked set. The error is ErrRemoved if
	// the node was gone already.
	Revoke(ctx context.Context, queue string, node Node) error

	// Finish creates a record and, in the same step, removes the node or, if keep is true,
	// checks that it exists. So whoever is granted the lock later finds the record.
	//
	// A nil error means that the record was created. Otherwise the caller still has the
	// node to remove, and there is no such record and never will be, unless the error is
	// ErrUndecided: then Settle tells. It is ErrRemoved if the node was gone, and
	// ErrRecorded if there was another record. The end of ctx ends the call.
	Finish(ctx context.Context, queue string, node Node, keep bool, r Record) error

	// Settle decides a Finish whose outcome is not known because its session, another
	// one, is over. It makes sure that the node is gone, so that Finish cannot succeed
	// anymore, and then reports whether the record exists.
	Settle(ctx context.Context, queue string, node Node, r Record) (recorded bool, err error)

	// Record returns the record of that name and key, if there is one. The service may be
	// slow to show one that other sessions have created, but what was recorded under a
	// lock is shown to those who were granted the lock later.
	Record(ctx context.Context, name, key string) (r Record, found bool, err error)

	// Records returns all records of that name, the oldest first. They include all that
	// were created before the call.
	Records(ctx context.Context, name string) ([]Record, error)

	// Forget removes the records of that name with the given keys, or all of them if no
	// keys are given.
	Forget(ctx context.Context, name string, keys ...string) error

	// ForgetOld removes the records of that name that are older than keep when the given
	// one is created, by the service's clock. It does nothing if it did so for any caller
	// in the last quarter of that time.
	ForgetOld(ctx context.Context, r Record, keep time.Duration) error

	// Verify asks the service whether the node exists, in a way that a server cut off
	// from the others cannot answer. The error is ErrRemoved if the node does not
	// exist.
	Verify(ctx context.Context, queue string, node Node) error

	// VerifyAll asks the service, as Verify does, whether all the nodes, of any sessions,
	// exist at one moment: in one transaction, whose size is bounded (there is room for a few
	// hundred nodes, and a permit has one each); more is an error. The error is ErrRemoved if
	// they do not, or if that of a plain lock can no longer be told from another one.
	VerifyAll(ctx context.Context, nodes ...Located) error

	// Ping sends a request that a server cut off from the others cannot answer, and
	// waits for the answer.
	Ping(ctx context.Context) error

	// Info describes the session for telemetry.
	Info() Info

	// Unremovable returns a channel that is closed when the service refuses to
	// remove a node of the session. The node goes with the session, so the session
	// should be closed as soon as nothing else needs it.
	Unremovable() <-chan struct{}

	// Alive returns nil if the session is certainly not over. If the machine's clocks
	// do not settle that, it waits for an answer from the service that does. It is
	// called before a lock is granted. It returns another error if the service's numbers
	// have become too large for Watch.Created.
	Alive(ctx context.Context) error

	// Lease returns for how much longer the session certainly lives, by the client's own
	// clock, if the service answers nothing from now on: 0 if the session is over. While
	// the service answers, it never becomes much shorter than half of the session timeout.
	Lease() time.Duration

	// Done returns a channel that is closed when the session is over. It is closed
	// before the service can remove the session's nodes: at the latest when, by the
	// client's own clock, the service might expire the session.
	Done() <-chan struct{}

	// Err returns nil until Done is closed, and then an error that wraps
	// ErrSessionLost.
	Err() error

	// Close ends the session and removes all its nodes. When it returns, no
	// goroutine of the session is left. The context bounds the wait for the service;
	// if that does not answer, it removes the nodes when it expires the session.
	Close(ctx context.Context) error
}

// Info describes a session for telemetry. It contains no secrets.
type Info struct {
	ID   string // in the service's notation
	Peer string // address of the current server, or else of the last one
}

// Kind is the kind of access that a node requests.
type Kind int

const (
	// Mutex is exclusive access.
	Mutex Kind = iota
	// Read is access shared with other Reads.
	Read
	// Write is exclusive access with a node that may leave a Read with its own
	// number behind (Curator's downgrade), so its deletion alone grants nothing.
	Write
	// Permit is for permits of a semaphore. Its node is in the Leases.
	Permit
	// Plain is exclusive access to a lock without a queue.
	Plain
	// Guard is exclusive access to the Guards of a semaphore. Its node is a Mutex.
	Guard
)

// String returns the kind as one word.
func (k Kind) String() string {
	return [...]string{"mutex", "read", "write", "semaphore", "plain", "guard"}[k]
}

// Contender is a node with the details that Inspect returns.
type Contender struct {
	Node
	Session string    // like Info.ID
	Created int64     // like Watch.Created
	Joined  time.Time // by the service's clock
	Data    []byte    // as stored by Join
}

// Record says that a run has finished. It does not end with a session.
type Record struct {
	Name, Key string // each one part of a lock's name, such as lockpool.Escape returns
	Data      []byte // different from that of every other record

	// Set by the service.
	Created  int64     // like Watch.Created
	Finished time.Time // by the service's clock
}

// Followed is the result of Session.Follow.
type Followed struct {
	Contenders []Contender
	Others     []string // as from Inspect
	Watches    []*Watch
}

// Node is one contender in a queue. It may consist of several nodes of the
// service, which are created and removed together; it is gone as soon as one of
// them is.
type Node struct {
	Name string // unique in its queue and never used again
	Kind Kind
	Seq  int32 // sequence number: contenders that joined earlier have smaller ones

	Alias   string // name of a second node, for clients that do not know the first
	Permits int    // of a Permit: the number of permits, and of nodes
	Limit   int    // of a Permit: the semaphore's limit that it states, or 0
}

// Located is a node, of any session, and its queue; for a plain lock, that is its name.
type Located struct {
	Queue string
	Node
}

// Joined is the result of Session.Join.
type Joined struct {
	Node Node

	// Queue is the queue as it was at some moment after the node was created. It may be
	// nil if Behind is not.
	Queue []Node

	// Behind are nodes of the session that joined the queue one directly after the other,
	// Node directly after the last of them: nobody else has joined it in between. Some may
	// have left.
	Behind []Node
}

// Place returns the index of a node in a queue, or -1 if it is not there.
func Place(queue []Node, node Node) int {
	i := sort.Search(len(queue), func(i int) bool { return queue[i].Seq >= node.Seq })
	for ; i < len(queue) && queue[i].Seq == node.Seq; i++ {
		if queue[i] == node {
			return i
		}
	}
	return -1
}

// String returns the name in a form that is safe to log: other clients may choose
// any name.
func (n Node) String() string {
	const most = 200
	if len(n.Name) <= most && utf8.ValidString(n.Name) && !strings.ContainsFunc(n.Name, unprintable) {
		return n.Name
	}
	return strconv.Quote(n.Name[:min(len(n.Name), most)])
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }
