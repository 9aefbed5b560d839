// Package driver is the contract between lockpool and a coordination service.
//
// A service keeps queues of nodes. Each node belongs to a session and is removed when the
// session ends. A [Session] joins, lists, watches and leaves queues: an exclusive or shared
// lock needs this, and every driver must have it. The other interfaces of this package
// ([PlainLocker], [Limiter], [Recorder] and so on) are optional, as in database/sql/driver:
// a session implements the possibilities of the service. A missing interface is refused to
// the user, with errors.ErrUnsupported and the driver's name.
//
// Package recipe contains the lock algorithms, and reaches the service only through this
// package. Package drivertest proves the laws below for a driver. Users of lockpool need
// neither.
//
// # Queues and nodes
//
// The name of a queue is a lock's name after [Connector.CheckName], or NAME/Guards,
// NAME/Leases (of a semaphore) or Waits/NAME; no lock's name can be confused with them (see
// the function [CheckName]). Parts are separated by slashes.
//
// A [Node] is a contender. Name is unique in the queue and never used again, and nodes are
// compared with ==. In Private a driver keeps what the driver alone needs to find the node
// again.
//
// # Laws
//
// Each has the name of the proving tests in package drivertest.
//
//   - Join: one call creates at most one node, whatever is lost and repeated. After an
//     error there is no node, or the driver removes the node unasked before the session
//     ends.
//   - Order: a node has a larger Seq than the nodes already in the queue, and follows them
//     in every listing. If a listing lacks the node, or one before the node, though neither
//     has left, the listing was begun before Join returned or, by another session, before
//     the answer to a Ping sent after Join returned.
//   - Watch: a watch fires once, after a change or the removal of the node, at the end of
//     the session (Interrupted, or Missing for a node of the session; never Deleted), or
//     when a connection breaks (Interrupted). A change that cannot be reported is found in
//     bounded time (Unnoticed).
//   - Events: if a watch has fired with Deleted, and another watch of the session, set
//     before, has not fired, then the other node existed at the removal of the first. If
//     the service does not order events, the driver reads the other nodes before firing
//     Deleted. Every call begun after an event reflects the event and everything before the
//     event, also if the connection breaks and another server answers.
//   - Deleted: a node of another session was removed, not changed. A node of the watch's
//     own session was removed by the session, alive at that moment; otherwise the event is
//     Missing.
//   - Leave: after a nil error the node is gone for all sessions. Leave continues after the
//     end of the context, until the node or the session is gone. A removal by the session
//     itself is no ErrRemoved, even if an answer was lost and the request repeated.
//   - Lease: while Lease is positive, the service does not remove the session's nodes by
//     itself, and Done is closed before. The driver's documentation proves this from the
//     service's behavior, and states assumptions about clocks and servers. The proof may
//     not be left to users.
//   - Session: a session never continues as another one. When the session is over, Done is
//     closed, Err wraps ErrSessionLost, every call returns the same error, and all watches
//     have fired.
//   - Answers: an inconclusive answer (a timeout, an overloaded server, a lost connection)
//     ends no session, and is neither success nor ErrRemoved.
//   - Context: the context bounds how long a call waits, by a few milliseconds, and the
//     error wraps the context's error. A call whose context has ended already sends nothing
//     (except Leave). A begun request is completed or undone in the background.
//   - Created: Watch.Created is positive, less than 1<<53, and larger for a node created
//     later, whatever became of queues and servers in between.
//   - Close: afterward no node of the session is left, if the service answers within the
//     context, and no goroutine. Close may be called again, also when the session is over:
//     a session that the service may still keep, because the lease has ended or an earlier
//     Close was not answered, is closed there.
//   - Unsupported: an impossible request is refused before anything is sent.
//   - Kinds: a queue, a plain lock and a semaphore of one name exclude each other. Of two
//     begun together, at least one is refused, with ErrKind, by Join, TryCreate, Limit or
//     SetLimit. A semaphore is in use while Guards or Leases have a contender: a limit
//     alone, left by former users, does not refuse Join (but may refuse TryCreate).
//
// A driver may call [Watch.Fire] with a mutex held: Fire never calls the driver. The pool
// calls Err, Done and Lease with mutexes held, so they must not wait. Slices from a driver
// have no spare capacity, and neither side changes them later.
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
	// ErrSessionLost reports that the session is over: expired, abandoned or closed. The
	// nodes are gone or about to go, and no further call succeeds.
	ErrSessionLost = errors.New("session lost")

	// ErrExpired reports that the service has ended the session earlier than the client's
	// clock allows: other clients may have been granted the locks before the client knew.
	// The wrapping error also wraps ErrSessionLost.
	ErrExpired = errors.New("expired")

	// ErrUnavailable reports that no session could be opened: no server was reached, or
	// none answered. The wrapping error says why.
	ErrUnavailable = errors.New("no server available")

	// ErrPermanent reports a failure to open a session for good: the credentials are
	// refused, a certificate is not valid, or the server is not one of the service. The
	// wrapping error says which.
	ErrPermanent = errors.New("trying again will not help")

	// ErrNoPermission reports a missing right. The wrapping error names the right and the
	// path.
	ErrNoPermission = errors.New("no permission")

	// ErrRemoved reports that another client has removed the node.
	ErrRemoved = errors.New("own node was removed")

	// ErrKind reports that another kind of lock is in use under the name. The wrapping
	// error says which.
	ErrKind = errors.New("another kind of lock is in use under this name")

	// ErrLimit reports that a semaphore has no limit, because none was given and none is
	// set, or because the set limit is not a number.
	ErrLimit = errors.New("limit of the semaphore")

	// ErrTooMany reports that the service cannot look at so many nodes at one moment.
	ErrTooMany = errors.New("too many nodes to look at in one step")

	// ErrSequenceExhausted reports that sequence numbers no longer order the queue: the
	// counter is exhausted.
	ErrSequenceExhausted = errors.New("sequence numbers of the queue are exhausted")

	// ErrRecorded reports an earlier record of the same name and key.
	ErrRecorded = errors.New("recorded before")

	// ErrUndecided reports that a transaction was sent and not answered, and may yet be
	// carried out.
	ErrUndecided = errors.New("it is not known whether the service carried it out")
)

// A semaphore keeps contenders in two queues below the semaphore's name, and the limit in a
// node. (The names are from Curator's InterProcessSemaphoreV2.)
const (
	Guards = "locks"  // the first contender may add leases
	Leases = "leases" // the holders of permits, and the one waiting contender
	Limit  = "limit"
)

// Records is where a service keeps the records of finished runs. No lock's name begins with
// this part.
const Records = ".done"

// RunPrefix begins the last part of the names of the locks of runs, not used by any other
// client.
const RunPrefix = "run:"

// Waits has the nodes of calls with locks, waiting for a lock without a queue: the queue
// Waits/NAME. No lock's name begins with this part.
const Waits = ".waits"

// Reports is the queue with the reports of pools, below Waits, where no lock's name leads.
const Reports = Waits + "/" + Waits

// Costs is the queue with the costs that pools publish, beside Reports.
const Costs = Waits + "/.costs"

// Driver opens connectors from connect strings.
type Driver interface {
	// OpenConnector parses dsn, and never dials. Errors name the wrong part of dsn, and
	// contain no secrets.
	OpenConnector(dsn string) (Connector, error)
}

// Connector is a driver with a fixed configuration. A Connector is safe for concurrent use.
// The pool closes an io.Closer after the sessions.
type Connector interface {
	// Connect opens a new session. The context bounds only the opening, not
	// the life of the session. An error wraps ErrPermanent, ErrUnavailable or,
	// if the context has ended, the context's error.
	Connect(ctx context.Context) (Session, error)

	// CheckName returns nil if name can be the name of a lock, and otherwise an error with
	// the reason. CheckName sends nothing. Refused are the names refused by the function
	// CheckName, and names impossible or reserved at the service, but no name made of parts
	// from lockpool.Escape. (No such part begins with a dot.)
	CheckName(name string) error

	// CheckPermits returns nil if n permits of the semaphore can be taken in one step, and
	// otherwise an error with the reason.
	CheckPermits(name string, n int) error

	// IsContender reports whether node can be the name of a contender's node, in any queue
	// and of any session. The names come from users.
	IsContender(node string) bool

	// DriverName returns the driver's name for telemetry, such as "zookeeper".
	DriverName() string
}

// Session is one session with the service. At the end of the session, all nodes of the
// session are removed. A Session is safe for concurrent use. The package's documentation
// contains the laws for the methods.
type Session interface {
	// Join creates a node at the end of the queue, and the queue itself if necessary. An
	// abandoned Join may still read r.Data, which the caller does not change.
	Join(ctx context.Context, queue string, r Request) (Joined, error)

	// List returns the contenders in the queue, in the order of joining, without other
	// nodes. A missing queue is empty. (List is not called for a lock without a queue.) The
	// caller must not modify the slice, nor the slices of Join: other calls may return them
	// as well.
	List(ctx context.Context, queue string) ([]Node, error)

	// Watch watches nodes, each for its next change, in one round trip. The watch on a
	// missing node has already fired with Missing, perhaps with the Queue, and leaves nothing
	// at the service. All watches of a session on the same node share one at the service. An
	// unneeded Watch requires no call.
	//
	// A Node with nothing but the Name Limit stands for the limit of the semaphore with the
	// queue's name, if the session is a Limiter.
	Watch(ctx context.Context, queue string, nodes ...Node) ([]*Watch, error)

	// Data returns the data stored in the node. The error is ErrRemoved if the node
	// is gone.
	Data(ctx context.Context, queue string, node Node) ([]byte, error)

	// Leave removes the node. The context bounds only the wait: the removal begins even if
	// the context has ended, and continues in the background until the node is certainly
	// gone or the session is over. A nil error means that the node is gone, and ErrRemoved
	// that another client had already removed the node (or a part, if the permits of one
	// Node are several nodes of the service). If the service refuses the removal, the error
	// is ErrNoPermission.
	Leave(ctx context.Context, queue string, node Node) error

	// Verify asks the service whether all the nodes, of any sessions, exist at one moment,
	// in a way that a server cut off from the others cannot answer. The error is ErrRemoved
	// if one does not, or if the node of a plain lock can no longer be told from another
	// one, and ErrTooMany if there are too many nodes for one moment (a hundred are not).
	Verify(ctx context.Context, nodes ...Located) error

	// LeaveIf removes a node of the session if all the others, as for Verify, exist at the
	// same moment, in one step. The error is ErrRemoved if the node itself, or one of the
	// others, is gone or has changed; then nothing is removed, except perhaps with the node
	// of a plain lock among them. A removal by the session itself is no ErrRemoved.
	// Whatever LeaveIf returns, the caller must remove the node with Leave, which returns
	// nil or ErrRemoved for a former node.
	LeaveIf(ctx context.Context, node Located, others ...Located) error

	// Rewrite changes the data stored in a node of the session. A revocation and the node's
	// place stay. The node's watches fire with Changed, those of the session before Rewrite
	// returns. The error is ErrRemoved if the node is gone.
	Rewrite(ctx context.Context, queue string, node Node, data []byte) error

	// Ping sends a request that a server cut off from the others cannot answer, and waits
	// for the answer. Later reads of the session are not older. (Without a Ping, a session
	// may not know the latest changes of others, and calls about their nodes, such as
	// Watch, may not find them yet. A session never reads anything older than before.)
	Ping(ctx context.Context) error

	// Info describes the session for telemetry and errors.
	Info() Info

	// Alive returns nil if the session is certainly not over. If the machine's clocks leave
	// a doubt, Alive waits for an answer of the service until ctx ends; without a doubt
	// Alive sends nothing, and ignores an ended ctx. The pool calls Alive before each grant
	// and at each release. Alive returns another error if the service's numbers have become
	// too large for Watch.Created.
	Alive(ctx context.Context) error

	// Lease returns for how much longer the session certainly lives, by the client's own
	// clock, if the service answers nothing from now on: 0 if the session is over, and
	// math.MaxInt64 if only Close ends the session. While the service answers, the lease
	// never becomes much shorter than half of the session timeout, the time after which the
	// service ends a silent session (of an Idler, for a moment after idleness, a fifth).
	Lease() time.Duration

	// Done returns a channel closed when the session is over, and before the service can
	// remove the session's nodes: at the latest when, by the client's own clock, the
	// service might expire the session.
	Done() <-chan struct{}

	// Err returns nil until Done is closed, and then an error wrapping ErrSessionLost; and
	// ErrExpired if the service has ended the session too early.
	Err() error

	// Close ends the session: Done is closed, and then all nodes are removed; after the end
	// of the lease, no earlier than the service could by itself, because warned holders
	// count on the time. When Close returns, no goroutine of the session is left. The
	// context bounds the wait for the service. Without an answer, Close returns the
	// context's error, and the service removes the nodes when the session expires. The
	// same holds with an error that wraps errors.ErrUnsupported: the service closes a
	// session only on the session's connection, which has ended.
	Close(ctx context.Context) error
}

// Request is what a node asks for.
type Request struct {
	Kind    Kind
	Permits int    // of a Permit
	Limit   int    // of a Permit: the limit in the node (Node.Limit), or 0
	Data    []byte // stored in the node
}

// Info describes a session for telemetry. It contains no secrets.
type Info struct {
	Driver string // like Connector.DriverName
	ID     string // in the service's notation
	Peer   string // address of the current server, or else of the last one
}

// Kind is a node's kind of access.
type Kind int

const (
	// Exclusive is exclusive access.
	Exclusive Kind = iota
	// Shared is access shared with other Shared ones.
	Shared
	// Convertible is exclusive access whose node may be gone because a Shared one has taken
	// the place, so a removal alone grants nothing. Convertible nodes are found in
	// listings, if another client of the service replaces nodes (unlike Downgrade, which
	// watches tell). No call asks for one, but a driver may create one for an Exclusive
	// Request.
	Convertible
	// Permit is for permits of a semaphore, with a node in the Leases.
	Permit
	// Plain is exclusive access to a lock without a queue (PlainLocker). Seq is 0.
	Plain
	// Guard is exclusive access to the Guards of a semaphore, with an Exclusive node.
	Guard
)

// String returns the kind as one word.
func (k Kind) String() string {
	return [...]string{"mutex", "read", "write", "semaphore", "plain", "guard"}[k]
}

// Node is one contender in a queue.
type Node struct {
	Name string // unique in the queue, and never used again
	Kind Kind
	Seq  int64 // smaller for earlier contenders; may start over when a queue is empty

	Permits int    // of a Permit: their number
	Limit   int    // of a Permit: the stated limit of the semaphore, or 0
	Private string // for the driver alone
}

// Located is a node, of any session, and the node's queue; for a plain lock, the lock's
// name.
type Located struct {
	Queue string
	Node
	Version int64 // if not 0: the data has not changed since Inspect returned this version
}

// Joined is the result of Session.Join.
type Joined struct {
	Node  Node
	Queue []Node // at some moment after Node was created
}

// Place returns the index of a node in a queue, or -1.
func Place(queue []Node, node Node) int {
	i := sort.Search(len(queue), func(i int) bool { return queue[i].Seq >= node.Seq })
	for ; i < len(queue) && queue[i].Seq == node.Seq; i++ {
		if queue[i] == node {
			return i
		}
	}
	return -1
}

// String returns the name in a form safe to log: other clients may choose any name.
func (n Node) String() string {
	const most = 200
	if len(n.Name) <= most && utf8.ValidString(n.Name) && !strings.ContainsFunc(n.Name, unprintable) {
		return n.Name
	}
	return strconv.Quote(n.Name[:min(len(n.Name), most)])
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }
