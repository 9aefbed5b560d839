// Package driver is the contract between lockpool and a coordination service.
//
// A service that can keep an ordered queue of nodes, each tied to the life of
// a session, can carry every lock of lockpool. A driver implements four verbs
// on such queues ([Session.Join], [Session.List], [Session.Watch],
// [Session.Leave]) and the life of the session; the lock algorithms stand
// above it, in package recipe, and never see the network.
//
// Users of lockpool do not need this package. It imports nothing of lockpool.
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
	// ErrSessionLost reports that the session is over: expired, given up or
	// closed. Its nodes are gone or about to go, and no call on it will ever
	// succeed again.
	ErrSessionLost = errors.New("session lost")

	// ErrExpired reports that the session is over because the service says so,
	// although by this side's clock it could not be: what stood on it may have
	// been in other hands before. It comes with ErrSessionLost.
	ErrExpired = errors.New("expired")

	// ErrUnavailable reports that no session could be opened for now: no server
	// was reached, or none answered. The error that wraps it says why.
	ErrUnavailable = errors.New("no server available")

	// ErrPermanent reports that no session can be opened and that trying again
	// will not help: the credentials are refused, a certificate is not valid, or
	// what answers is another kind of server. The error that wraps it says which.
	ErrPermanent = errors.New("trying again will not help")

	// ErrNoPermission reports a missing right. The error that wraps it names
	// the right and the path it is missing on.
	ErrNoPermission = errors.New("no permission")

	// ErrRemoved reports that somebody else has removed a node of ours.
	ErrRemoved = errors.New("own node was removed")

	// ErrKind reports that another kind of lock is in use under the name. The
	// error that wraps it says what is there.
	ErrKind = errors.New("another kind of lock is in use under this name")

	// ErrLimit reports that a semaphore has no limit, because none was given and
	// none is set, or that what is set is no number.
	ErrLimit = errors.New("limit of the semaphore")

	// ErrSequenceExhausted reports that the queue's counter has come to its
	// end, where the service hands out numbers that no longer tell who came
	// first.
	ErrSequenceExhausted = errors.New("sequence numbers of the queue are exhausted")
)

// Where a semaphore has its contenders and its limit: in queues below its name.
// (The first two as Curator's InterProcessSemaphoreV2 has them.)
const (
	Guards = "locks"  // the first in it is the one who may add to the other
	Leases = "leases" // who has permits, and one who waits for them
	Limit  = "limit"
)

// Driver opens connectors from connect strings.
type Driver interface {
	// OpenConnector parses dsn; it never dials. Its errors name what is wrong
	// with dsn and contain no secret of it.
	OpenConnector(dsn string) (Connector, error)
}

// Connector is a driver in one fixed configuration. It is safe for concurrent
// use. If it is an io.Closer, a pool closes it after its sessions.
type Connector interface {
	// Connect opens a new session. The context bounds the opening only, not
	// the life of the session. Without a session the error wraps ErrPermanent,
	// ErrUnavailable, or if the context has ended its error.
	Connect(ctx context.Context) (Session, error)

	// CheckName says why name can not be the name of a queue, or returns nil.
	// It is called before anything is sent.
	CheckName(name string) error

	// CheckPermits says why so many permits of a semaphore can not be taken in one
	// step, or returns nil.
	CheckPermits(name string, n int) error

	// IsContender reports whether a node of that name would be a contender.
	IsContender(node string) bool

	// DriverName names the driver in telemetry, such as "zookeeper".
	DriverName() string
}

// Session is one session with the service: the unit of life and death. All its
// nodes vanish with it, and it is never replaced by another underneath its
// user. It is safe for concurrent use.
//
// The context given to a call bounds how long the caller waits, and a call
// whose context has ended before it began sends nothing (Leave excepted). A
// call that is given up while its reply is under way is brought to a clean end
// in the background.
type Session interface {
	// Join creates one node at the end of the queue, and the queue itself if
	// need be, and returns the node together with the queue as it stood at
	// some moment after the node was created. permits and limit, which the node
	// states for all to see (Node.Limit), count for a Permit only.
	//
	// It creates exactly one node whatever happens to requests and replies.
	// When it returns an error there is no node, or the driver is removing it.
	// data is stored in the node; the driver does not keep it.
	Join(ctx context.Context, queue string, kind Kind, permits, limit int, data []byte) (Node, []Node, error)

	// List returns the contenders in the queue, in the order in which they
	// joined. Nodes that are no contenders are left out. A queue that does not
	// exist is empty. Calls may share the slice, as those of Join do: it must not
	// be changed.
	List(ctx context.Context, queue string) ([]Node, error)

	// Take makes the node of a lock that has no queue. If there is one already, it
	// returns that, and not taken. Apart from that it is as Join.
	TryCreate(ctx context.Context, name string, data []byte) (node Node, taken bool, err error)

	// Limit returns the limit of a semaphore, but for what is stated in its leases:
	// the one that was set, with a watch that fires when that changes, or the one
	// given if that is smaller. The watch is nil if none was set. given may be 0,
	// for none. The error is ErrLimit if there is neither, and ErrKind if another
	// kind of lock is in use under the name.
	Limit(ctx context.Context, name string, given int) (limit int, watch *Watch, err error)

	// SetLimit sets it, for as long as the node for it exists.
	SetLimit(ctx context.Context, name string, limit int) error

	// Watch watches nodes, each for its next change, all in one round trip. The
	// watch on a node that does not exist any more has fired with Missing, and
	// leaves nothing behind. All who watch the same node share one watch at the
	// service. It is enough to forget a Watch that is no longer of interest.
	//
	// Watches of one session fire in the order of the changes: if a watch that
	// was set in time has not fired when another is seen to have fired, its
	// node stood when the other node changed.
	Watch(ctx context.Context, queue string, nodes ...Node) ([]*Watch, error)

	// Data returns what is stored in the node. The error is ErrRemoved if it is
	// gone.
	Data(ctx context.Context, queue string, node Node) ([]byte, error)

	// Leave removes the node. The context bounds the waiting, never whether
	// the removal happens: it is begun even if the context has ended, and goes
	// on in the background until the node is certainly gone or the session is
	// over. A nil error means that the node is gone, and ErrRemoved that somebody
	// else had removed it, or a part of it, before.
	Leave(ctx context.Context, queue string, node Node) error

	// Share puts a Read into the place of a Mutex or Write node, with the same
	// number, in one step for everyone who looks at the queue. Who watches the
	// old node is told that it changed, never that it is gone. It waits for the
	// service until the session is over. On an error nothing has changed.
	Downgrade(queue string, node Node, data []byte) (Node, error)

	// Inspect returns the contenders in the queue, in order, with all that is
	// known of them, and the names of the other nodes in it; or of a lock without
	// a queue the one that holds it. It knows of all that happened before the
	// call, reads only, and leaves no watch. A contender that goes meanwhile is
	// left out.
	Inspect(ctx context.Context, queue string) (contenders []Contender, others []string, err error)

	// Queues returns the names of the locks below prefix that have a contender,
	// of whatever kind, sorted; the empty prefix means all.
	Queues(ctx context.Context, prefix string) ([]string, error)

	// Break removes somebody else's node, and records that in the log. The error
	// is ErrRemoved if it was gone already.
	Break(ctx context.Context, queue string, node Node) error

	// Revoke asks whose node it is to give the lock back: the node's watches fire
	// with Changed, and whoever watches it from then on sees Watch.Revoked. The
	// error is ErrRemoved if it was gone already.
	Revoke(ctx context.Context, queue string, node Node) error

	// Stands asks the service whether the node exists, in such a way that a
	// member of it that is cut off from the others can not answer. The error
	// is ErrRemoved if it does not.
	Verify(ctx context.Context, queue string, node Node) error

	// Ping asks the service for a sign of life that a cut-off member of it
	// could not give by itself.
	Ping(ctx context.Context) error

	// Info describes the session for telemetry.
	Info() Info

	// Stuck is closed when the service refuses to remove a node of the session.
	// The node goes with the session, so the session should be closed when
	// nothing else needs it.
	Unremovable() <-chan struct{}

	// Alive returns nil if the session is not over, and there is no doubt that it
	// is not. If the machine's clocks have left one, it waits for the service to
	// settle that. It is asked before a lock is granted.
	Alive(ctx context.Context) error

	// Done is closed when the session is over, which is before the service can
	// give its nodes' places to others: at the latest when so much time has
	// passed, by our own clock, that it might.
	Done() <-chan struct{}

	// Err is nil until Done is closed, then wraps ErrSessionLost.
	Err() error

	// Close ends the session and with it all its nodes. When it returns,
	// nothing of the session is left running on this side. The context bounds
	// the wait for the service; if it does not answer, the nodes go when the
	// service expires the session.
	Close(ctx context.Context) error
}

// Info describes a session for telemetry. It holds no secret.
type Info struct {
	ID   string // as the service writes it
	Peer string // address of the server it is connected to now, or last was
}

// Kind is what a node in a queue asks for.
type Kind int

const (
	// Mutex asks to be alone in the queue's lock.
	Mutex Kind = iota
	// Read asks to share the lock with other Reads.
	Read
	// Write asks to be alone, and may leave a Read with its own number behind
	// when it goes (Curator's downgrade), so its going alone grants nothing.
	Write
	// Permit asks for permits of a semaphore, in its Leases.
	Permit
	// Plain asks to be alone in a lock without a queue.
	Plain
	// Guard asks to be alone in the Guards of a semaphore. Its node is a Mutex.
	Guard
)

// String is the kind in one word.
func (k Kind) String() string {
	return [...]string{"mutex", "read", "write", "semaphore", "plain", "guard"}[k]
}

// Contender is what can be seen of a node in a queue.
type Contender struct {
	Node
	Session string    // as Info.ID
	Created int64     // as Watch.Created
	Joined  time.Time // when it joined, by the service's clock
	Data    []byte    // what it stored
}

// Node is one contender in a queue. It may consist of several nodes of the
// service, which come and go together; it is gone as soon as one of them is.
type Node struct {
	Name string // unique in its queue, never used again
	Kind Kind
	Seq  int32 // place in the order of joining: smaller came first

	Alias   string // name of a second node, for clients that do not know the first
	Permits int    // of a Permit: how many, and so of how many nodes
	Limit   int    // of a Permit: that of the semaphore as it states it, or 0
}

// Place returns where a node stands in a queue, or -1 if it does not.
func Place(queue []Node, node Node) int {
	i := sort.Search(len(queue), func(i int) bool { return queue[i].Seq >= node.Seq })
	for ; i < len(queue) && queue[i].Seq == node.Seq; i++ {
		if queue[i] == node {
			return i
		}
	}
	return -1
}

// String is the name as it can stand in a log: other clients may choose any.
func (n Node) String() string {
	const most = 200
	if len(n.Name) <= most && utf8.ValidString(n.Name) && !strings.ContainsFunc(n.Name, unprintable) {
		return n.Name
	}
	return strconv.Quote(n.Name[:min(len(n.Name), most)])
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }
