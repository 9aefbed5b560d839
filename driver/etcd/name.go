package etcd

// This file has the keys of nodes, and the parsing of listings.

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/google/uuid"

	"github.com/lockpool/lockpool/driver"
)

// The key of a contender of the queue a is PREFIX/a/NAME, where NAME is the session's lease
// in hexadecimal (and nothing else for a Mutex of package concurrency), a GUID, and for
// readers and permits what they ask for. The node is named NAME@REVISION, or
// NAME@REVISION-r after a downgrade. The lock without a queue has the key PREFIX/a/plain.
// Since the last part of a key is never a part of a lock's name, a name may have parts like
// these.
const (
	plainName = "plain"
	sessions  = ".sessions" // a key for each session
)

// CheckName implements driver.Connector.
func (c *Connector) CheckName(name string) error {
	if err := driver.CheckName(name); err != nil {
		return err
	}
	if first, _, _ := strings.Cut(name, "/"); first == sessions {
		return fmt.Errorf("%s is not for locks", first)
	}
	return nil
}

// CheckPermits implements driver.Connector: any number of permits has one key.
func (*Connector) CheckPermits(string, int) error { return nil }

var contenderName = regexp.MustCompile(`^[0-9a-f]{1,16}(?:-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(-s|-r|-p([0-9]{1,10})-l([0-9]{1,10}))?)?$`)

// isKey reports whether a part of a name can be the last one of a contender's key. A
// hexadecimal part is the key of a Mutex only if as long as a lease's number usually is.
func isKey(part string) bool { return len(part) >= 12 && contenderName.MatchString(part) }

// IsContender implements driver.Connector.
func (*Connector) IsContender(node string) bool {
	key, _, created := strings.Cut(node, "@")
	return isKey(key) || created && contenderName.MatchString(key) || strings.HasPrefix(node, plainName+"-")
}

// keyName returns the last part of the key for a new contender of the session.
func (s *session) keyName(queue string, r driver.Request) string {
	ending := ""
	switch r.Kind {
	case driver.Shared:
		ending = "-s"
	case driver.Permit:
		ending = fmt.Sprintf("-p%d-l%d", r.Permits, r.Limit)
	}
	if name, ok := s.usedKeys.take(queue, ending); ok {
		return name
	}
	return s.idText() + "-" + uuid.NewString() + ending
}

// usedKeys are the last parts of the keys of former contenders, if each request to delete
// them was answered, so that none is on the way. They are used again: a server keeps a
// deleted key until the history is compacted, and passes over all deleted keys in listing a
// queue.
type usedKeys struct {
	mu  sync.Mutex
	all map[usedKey][]string
	n   int
}

// usedKey is where a key can be used again.
type usedKey struct{ queue, ending string }

// mostUsedKeys bounds the remembered keys, for users with a lock for each order and
// millions of orders.
const mostUsedKeys = 1 << 12

func (u *usedKeys) take(queue, ending string) (name string, ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	place := usedKey{queue, ending}
	names := u.all[place]
	if len(names) == 0 {
		return "", false
	}
	last := len(names) - 1
	if name = names[last]; last == 0 {
		delete(u.all, place)
	} else {
		u.all[place] = names[:last]
	}
	u.n--
	return name, true
}

func (u *usedKeys) put(queue, name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.all == nil || u.n >= mostUsedKeys {
		u.all, u.n = map[usedKey][]string{}, 0
	}
	place := usedKey{queue, contenderName.FindStringSubmatch(name)[1]}
	u.all[place] = append(u.all[place], name)
	u.n++
}

// key returns the key of a node.
func (s *session) key(queue string, node driver.Node) string {
	return s.prefix + queue + "/" + keyOf(node)
}

// keyOf returns the last part of a node's key. A plain lock's is always the same, and a
// downgraded node's the same as before. Other keys are used again as well, so the name of a
// node ends with the revision of its creation.
func keyOf(node driver.Node) string {
	if node.Kind == driver.Plain {
		return plainName
	}
	name, _, _ := strings.Cut(cmp.Or(node.Private, node.Name), "@")
	return name
}

// createdAt returns the revision of a node's creation.
func createdAt(node driver.Node) int64 {
	if node.Kind != driver.Plain {
		return node.Seq
	}
	n, _ := strconv.ParseInt(node.Private, 10, 64)
	return n
}

func plainNode(created int64) driver.Node {
	rev := strconv.FormatInt(created, 10)
	return driver.Node{Kind: driver.Plain, Name: plainName + "-" + rev, Private: rev}
}

// downgraded returns the node in place of a downgraded one.
func downgraded(node driver.Node) driver.Node {
	return driver.Node{Kind: driver.Shared, Name: node.Name + "-r", Private: node.Name, Seq: node.Seq}
}

// nodeOf returns the contender whose key has the last part name. A foreign one whose name
// is a lease is an exclusive contender. (Whether another key goes with a lease is not
// known: since etcd 3.7, listings of keys alone do not tell.)
func nodeOf(name string, kv *mvccpb.KeyValue) (driver.Node, bool) {
	if name == plainName {
		return plainNode(kv.CreateRevision), true
	}
	node := driver.Node{Name: fmt.Sprintf("%s@%d", name, kv.CreateRevision), Kind: driver.Exclusive, Seq: kv.CreateRevision}
	m := contenderName.FindStringSubmatch(name)
	switch {
	case name == driver.Limit || m == nil:
		return node, false
	case m[1] == "-s":
		node.Kind = driver.Shared
	case m[1] != "":
		node.Kind = driver.Permit
		node.Permits, _ = strconv.Atoi(m[2])
		node.Limit, _ = strconv.Atoi(m[3])
	case isShared(kv):
		node = downgraded(node)
	}
	return node, true
}

// contents are the keys of a lock of any kind.
type contents struct {
	queues map[string][]entry // by the part below the lock's name: "" for the lock's own queue
	limit  *mvccpb.KeyValue
	others []string
}

type entry struct {
	node driver.Node
	kv   *mvccpb.KeyValue
}

// parse sorts the keys below a lock's name. Keys of other locks, with longer names, are
// left out.
func (s *session) parse(name string, kvs []*mvccpb.KeyValue) contents {
	c := contents{queues: map[string][]entry{}}
	for _, kv := range kvs {
		part, last := "", strings.TrimPrefix(string(kv.Key), s.prefix+name+"/")
		if before, after, below := strings.Cut(last, "/"); below {
			if part, last = before, after; part != driver.Guards && part != driver.Leases {
				continue
			}
		}
		node, ok := nodeOf(last, kv)
		switch {
		case strings.Contains(last, "/"):
		case part == "" && last == driver.Limit:
			c.limit = kv
		case ok:
			c.queues[part] = append(c.queues[part], entry{node, kv})
		default:
			c.others = append(c.others, last)
		}
	}
	for _, q := range c.queues {
		slices.SortFunc(q, func(a, b entry) int { return cmp.Compare(a.kv.CreateRevision, b.kv.CreateRevision) })
	}
	return c
}

// queue returns the contenders of a queue of the lock.
func (c contents) queue(queue string) []entry {
	return c.queues[strings.TrimPrefix(queue[len(driver.LockOf(queue)):], "/")]
}

func nodesOf(entries []entry) []driver.Node {
	nodes := make([]driver.Node, 0, len(entries))
	for _, e := range entries {
		nodes = append(nodes, e.node)
	}
	return nodes
}

// parts returns the existing queues, and other parts, of a semaphore.
func (c contents) parts() (parts []string) {
	for _, part := range []string{driver.Leases, driver.Guards} {
		if len(c.queues[part]) > 0 {
			parts = append(parts, part)
		}
	}
	if c.limit != nil {
		parts = append(parts, driver.Limit)
	}
	return append(parts, c.others...)
}

// checkKind returns an error if another kind of lock than a contender's for queue is in
// use. plain says that the contender is a plain lock's.
func (c contents) checkKind(queue string, plain bool) error {
	semaphore := driver.LockOf(queue) != queue
	plainly, queued := 0, 0
	for _, e := range c.queues[""] {
		if e.node.Kind == driver.Plain {
			plainly++
		} else {
			queued++
		}
	}
	switch {
	case plainly > 0 && !plain:
		return fmt.Errorf("%w: a plain lock is held", driver.ErrKind)
	case queued > 0 && (plain || semaphore):
		return fmt.Errorf("%w: a queue with %d contenders", driver.ErrKind, queued)
	}
	if n := len(c.queues[driver.Guards]) + len(c.queues[driver.Leases]); n > 0 && !semaphore {
		return fmt.Errorf("%w: a semaphore with %d contenders", driver.ErrKind, n)
	}
	return nil
}
