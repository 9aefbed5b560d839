// Package driver is the contract between lockpool and a coordination service.
//
// A service keeps queues of nodes. Each node belongs to a session and is removed when that
// ends. A [Session] joins queues, lists and watches them, and leaves them: this is what an
// exclusive or shared lock needs, and what every driver must have. The other interfaces
// of this package ([PlainLocker], [Limiter], [Recorder] and so on) are optional, as in
// database/sql/driver: a session implements those that its service can carry. Whatever is
// missing is refused to the user, with errors.ErrUnsupported and the driver's name.
//
// Package recipe contains the lock algorithms, which reach the service only through this
// package. Package drivertest proves the laws below for a driver. Users of lockpool need
// neither.
//
// # Queues and nodes
//
// A queue is named by a lock's name, which has passed [Connector.CheckName], or by one of
// NAME/Guards, NAME/Leases (of a semaphore) and Waits/NAME, with which no name can be
// confused (see the function [CheckName]). Parts are separated by slashes.
//
// A [Node] is a contender. Its Name is unique in its queue and never used again, and nodes
// are compared with ==. What a driver needs to find the node again, but nobody else reads,
// it keeps in Private.
//
// # Laws
//
// Each has the name of the tests of package drivertest that prove it.
//
//   - Join: one call creates one node at most, whatever is lost and repeated. If it fails,
//     there is no node, or the driver removes it, without being asked, before the session ends.
//   - Order: a node that joins later has a larger Seq than those that are in the queue, and
//     follows them in every listing. A listing that lacks that node or one before it, though
//     neither has left, was begun before Join returned or, by another session, before that
//     session was answered a Ping that it sent after that.
//   - Watch: a watch fires once, after its node was changed or removed, and at the end of
//     its session (Interrupted, or Missing for a node of its own; never Deleted), and for
//     nothing else but a connection that broke (Interrupted). A change that cannot be
//     reported is found in bounded time (Unnoticed).
//   - Events: if a watch is seen to have fired with Deleted, and another of the session, set
//     before, has not fired, then the other's node existed when the first one's was removed. A
//     driver whose service does not order events reads the other nodes before it fires Deleted.
//     Every call that the session begins after an event reflects what the event says and all
//     that happened before it, also if the connection breaks and another server answers.
//   - Deleted: of another session's node it says that the node was removed, not changed. Of
//     a node of the watch's own session it says, too, that the session has removed it and was
//     alive at that moment; otherwise the event is Missing.
//   - Leave: after a nil error the node is gone for everybody. It continues after its context
//     has ended, until the node or the session is gone. What the session itself has removed
//     is no ErrRemoved, though an answer was lost and the request repeated.
//   - Lease: while Lease is positive, the service does not remove the session's nodes by
//     itself, and Done is closed before it does. The driver's documentation proves that from
//     its service's behavior, and states what it assumes of clocks and servers. It may not be
//     left to users.
//   - Session: it never continues as another one. When it is over, Done is closed, Err wraps
//     ErrSessionLost, every call returns that error, and all watches have fired.
//   - Answers: an answer from which nothing follows (a timeout, an overloaded server, a lost
//     connection) ends no session, and is neither success nor ErrRemoved.
//   - Context: it bounds how long a call waits, by a few milliseconds. The error wraps the
//     context's. A call whose context has ended before sends nothing (except Leave). What was
//     begun is completed or undone in the background.
//   - Created: Watch.Created is positive, less than 1<<53, and larger for a node that was
//     created later, whatever became of queues and servers in between.
//   - Close: afterward no node of the session is left, if the service answers within the
//     context, and no goroutine. It may be called again, also when the session is over: a
//     session that the service may still keep, because its lease has ended or an earlier Close
//     was not answered, is closed there.
//   - Unsupported: what the driver cannot do is refused before anything is sent.
//   - Kinds: a queue, a plain lock and a semaphore of one name exclude each other. Of two that
//     begin together, at least one is refused, with ErrKind, by Join, TryCreate, Limit or
//     SetLimit. A semaphore is in use while its Guards or Leases have a contender: a limit
//     alone, which stays when nobody uses it, does not refuse Join (but may refuse TryCreate).
//
// A driver calls [Watch.Fire] with whatever mutex held: what it calls never calls back.
// Slices that a driver returns have no spare capacity, and neither side changes them later.
// Err and Done are called with mutexes held, so they wait for nothing.
//
// This package imports no other package of lockpool.
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

	// ErrTooMany reports that the service cannot look at so many nodes at one moment.
	ErrTooMany = errors.New("too many nodes to look at in one step")

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

// RunPrefix begins the last part of the names of the locks of runs, which no other client uses.
const RunPrefix = "run:"

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

	// CheckName returns nil if name can be the name of a lock, and otherwise an error
	// that says why not. It sends nothing. It refuses what the function CheckName refuses,
	// and what the service cannot have as a name or has for something else, but no name
	// whose parts lockpool.Escape has returned. (No such part begins with a dot.)
	CheckName(name string) error

	// CheckPermits returns nil if n permits of the semaphore can be taken in one
	// step, and otherwise an error that says why not.
	CheckPermits(name string, n int) error

	// IsContender reports whether node can be the name of a contender's node, in any
	// queue and of any session. It is asked about names that users give.
	IsContender(node string) bool

	// DriverName returns the driver's name for telemetry, such as "zookeeper".
	DriverName() string
}

// Session is one session with the service. When it ends, all its nodes are removed. It is
// safe for concurrent use. The package's documentation contains the laws for its methods.
type Session interface {
	// Join creates a node at the end of the queue, and the queue itself if necessary. It
	// does not retain r.Data.
	Join(ctx context.Context, queue string, r Request) (Joined, error)

	// List returns the contenders in the queue, in the order in which they joined,
	// without nodes that are not contenders. A queue that does not exist is empty. (It is
	// not asked about a lock without a queue.) The caller must not modify the slice, nor
	// those of Join: other calls may return them as well.
	List(ctx context.Context, queue string) ([]Node, error)

	// Watch watches nodes, each for its next change, in one round trip. The watch on a
	// node that no longer exists has already fired with Missing, and leaves nothing at
	// the service. All watches of a session on the same node share one at the service.
	// A Watch that is no longer needed requires no call.
	//
	// A Node of which only Name is set, to Limit, stands for the limit of the semaphore
	// with the queue's name, if the session is a Limiter.
	Watch(ctx context.Context, queue string, nodes ...Node) ([]*Watch, error)

	// Data returns the data stored in the node. The error is ErrRemoved if the node
	// is gone.
	Data(ctx context.Context, queue string, node Node) ([]byte, error)

	// Leave removes the node. The context bounds only the wait: the removal begins even
	// if the context has ended, and continues in the background until the node is
	// certainly gone or the session is over. A nil error means that the node is gone,
	// and ErrRemoved that another client had already removed it (or a part of it, if the
	// permits of one Node are several nodes of the service). If the service refuses to remove
	// it, the error is ErrNoPermission.
	Leave(ctx context.Context, queue string, node Node) error

	// Verify asks the service whether all the nodes, of any sessions, exist at one moment,
	// in a way that a server cut off from the others cannot answer. The error is ErrRemoved
	// if they do not, or if the node of a plain lock can no longer be told from another one,
	// and ErrTooMany if the service cannot look at so many at one moment (it can at a
	// hundred).
	Verify(ctx context.Context, nodes ...Located) error

	// LeaveIf removes a node of the session if all the others, as for Verify, exist at that
	// moment, in one step. The error is ErrRemoved if the node itself, or one of the others, is
	// gone or has changed; then nothing is removed, except perhaps if one is that of a plain
	// lock. What the session itself has removed is no ErrRemoved. Whatever LeaveIf returns, the
	// node is the caller's to remove with Leave, which returns nil or ErrRemoved if it is gone.
	LeaveIf(ctx context.Context, node Located, others ...Located) error

	// Rewrite changes the data stored in a node of the session. A revocation stays, and so
	// does the node's place. The node's watches fire with Changed. The error is ErrRemoved if
	// the node is gone.
	Rewrite(ctx context.Context, queue string, node Node, data []byte) error

	// Ping sends a request that a server cut off from the others cannot answer, and
	// waits for the answer. What the session reads afterward is not older. (Without it, a
	// session may not know yet what others have done, and calls about their nodes, such as
	// Watch, may find them gone because they are not there yet. It never reads anything
	// older than what it has read before.)
	Ping(ctx context.Context) error

	// Info describes the session for telemetry and errors.
	Info() Info

	// Alive returns nil if the session is certainly not over. If the machine's clocks
	// do not settle that, it waits for an answer from the service that does, and
	// otherwise for nothing. It is called before a lock is granted. It returns another
	// error if the service's numbers have become too large for Watch.Created.
	Alive(ctx context.Context) error

	// Lease returns for how much longer the session certainly lives, by the client's own
	// clock, if the service answers nothing from now on: 0 if the session is over, and
	// math.MaxInt64 if it ends only when it is closed. While the service answers, it never
	// becomes much shorter than half of the session timeout, the time after which the
	// service ends a session from which it hears nothing.
	Lease() time.Duration

	// Done returns a channel that is closed when the session is over. It is closed
	// before the service can remove the session's nodes: at the latest when, by the
	// client's own clock, the service might expire the session.
	Done() <-chan struct{}

	// Err returns nil until Done is closed, and then an error that wraps ErrSessionLost;
	// and ErrExpired if the service has broken its promise and ended it earlier.
	Err() error

	// Close ends the session: Done is closed, and then all its nodes are removed, those of a
	// session whose lease has ended no earlier than the service could by itself: holders who
	// were told count on that time. When Close returns, no goroutine of the session is left.
	// The context bounds the wait for the service. If that does not answer, Close returns the
	// context's error, and the service removes the nodes when it expires the session.
	Close(ctx context.Context) error
}

// Request is what a node asks for.
type Request struct {
	Kind    Kind
	Permits int    // of a Permit
	Limit   int    // of a Permit: the limit that other clients see in the node (Node.Limit), or 0
	Data    []byte // stored in the node

	// Known is a node of the session up to which the caller knows the queue, or zero. The
	// driver may ignore it, and always set Joined.Queue.
	Known Node
}

// Info describes a session for telemetry. It contains no secrets.
type Info struct {
	Driver string // like Connector.DriverName
	ID     string // in the service's notation
	Peer   string // address of the current server, or else of the last one
}

// Kind is the kind of access that a node requests.
type Kind int

const (
	// Exclusive is exclusive access.
	Exclusive Kind = iota
	// Shared is access shared with other Shared ones.
	Shared
	// Convertible is exclusive access whose node may be gone because a Shared one has taken
	// its place, so its removal alone grants nothing. It is found in listings, if another
	// client of the service does that (unlike Downgrade, which its watches tell). No call
	// asks for it, but a driver may create one for an Exclusive Request.
	Convertible
	// Permit is for permits of a semaphore. Its node is in the Leases.
	Permit
	// Plain is exclusive access to a lock without a queue (PlainLocker). Its Seq is 0.
	Plain
	// Guard is exclusive access to the Guards of a semaphore. Its node is an Exclusive one.
	Guard
)

// String returns the kind as one word.
func (k Kind) String() string {
	return [...]string{"mutex", "read", "write", "semaphore", "plain", "guard"}[k]
}

// Node is one contender in a queue.
type Node struct {
	Name string // unique in its queue, and never used again
	Kind Kind
	Seq  int64 // contenders that joined earlier have smaller ones; may start over when a queue is empty

	Permits int    // of a Permit: their number
	Limit   int    // of a Permit: the semaphore's limit that it states, or 0
	Private string // for the driver alone
}

// Located is a node, of any session, and its queue; for a plain lock, that is its name.
type Located struct {
	Queue string
	Node
	Version int64 // if it is not 0: what is stored has not changed since Inspect has returned that
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
