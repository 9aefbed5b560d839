package zookeeper

// This file has the names of contenders' nodes, in each layout, and the reading of them.

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lockpool/lockpool/driver"
)

// Layout determines how the nodes of locks are named, and thus which other kinds of clients
// a lock excludes. Pools with different layouts exclude each other; a pool that shares
// locks with another kind of client needs the layout respected by the other client.
type Layout string

const (
	// LayoutCurator, the default, excludes Curator's InterProcessMutex and go-zookeeper's
	// Lock. Both mistake a lockpool reader for a contender of their own kind and wait for
	// the reader, sometimes longer than necessary.
	LayoutCurator Layout = "curator"

	// LayoutCuratorRW is the layout of Curator's InterProcessReadWriteLock, whose readers
	// share the lock with lockpool's readers. InterProcessMutex does not see these nodes.
	LayoutCuratorRW Layout = "curator-rw"

	// LayoutKazoo is LayoutCurator, but also excludes all locks of kazoo, with and without
	// extra_lock_patterns: each contender has a second node, named as in kazoo. The
	// directories of queues are persistent, because kazoo's Lock fails permanently when
	// ZooKeeper has removed an empty container.
	LayoutKazoo Layout = "kazoo"

	// LayoutKazooRW is LayoutKazoo, but readers share the lock with kazoo's
	// ReadLock. The exclusive lock on kazoo's side is then WriteLock, because kazoo's
	// Lock does not wait for readers.
	LayoutKazooRW Layout = "kazoo-rw"
)

// naming is how the names of a contender's nodes end in a layout, the second node being its
// alias, and whether the directories of queues are persistent.
type naming struct {
	exclusive, shared []string
	persistent        bool
}

var layouts = map[Layout]naming{
	LayoutCurator:   {exclusive: []string{mutexEnding}, shared: []string{readerEnding}},
	LayoutCuratorRW: {exclusive: []string{"__WRIT__"}, shared: []string{"__READ__"}},
	LayoutKazoo:     {exclusive: []string{mutexEnding, "__lock__"}, shared: []string{readerEnding, "__lock__"}, persistent: true},
	LayoutKazooRW:   {exclusive: []string{mutexEnding, "__lock__"}, shared: []string{readerEnding, "__rlock__"}, persistent: true},
}

func (l Layout) naming() naming { return layouts[l] }

const (
	mutexEnding  = "lock-"  // also of Curator's InterProcessMutex and go-zookeeper
	readerEnding = "rlock-" // lockpool's own
	permitEnding = "lease-" // also of Curator's InterProcessSemaphoreV2
)

// limitPrefix precedes the limit stated by a lockpool lease. The limit is part of the name,
// so that a listing shows the limit. (Other clients do not read the names of leases.)
const limitPrefix = "of"

// limitOf reads the limit from the name of a lease without its number.
func limitOf(name string) int {
	const guid = len(guidPrefix) + guidLength + len("-")
	if len(name) < guid {
		return 0
	}
	stated, ok := strings.CutPrefix(strings.TrimSuffix(name[guid:], "-"+permitEnding), limitPrefix)
	limit, err := strconv.ParseInt(stated, 10, 32)
	if !ok || err != nil {
		return 0
	}
	return max(int(limit), 0)
}

// endings are the endings of contenders' names, before the number, of all known clients. An
// ending comes before its suffixes. A node with none of these endings is not a contender,
// and is ignored unless the name looks like a contender's (checkForeignContenders).
var endings = []struct {
	text string
	kind driver.Kind
}{
	{readerEnding, driver.Shared},
	{mutexEnding, driver.Exclusive},
	{"__READ__", driver.Shared}, // Curator's InterProcessReadWriteLock
	{"__WRIT__", driver.Convertible},
	{"__rlock__", driver.Shared},   // kazoo's ReadLock
	{"__lock__", driver.Exclusive}, // kazoo's Lock and WriteLock
	{permitEnding, driver.Permit},
}

// endings returns the endings of a contender's nodes.
func (n naming) endings(kind driver.Kind, permits, limit int) []string {
	switch kind {
	case driver.Permit:
		ending := permitEnding
		if limit > 0 {
			ending = fmt.Sprintf("%s%d-%s", limitPrefix, limit, permitEnding)
		}
		return slices.Repeat([]string{ending}, permits)
	case driver.Shared:
		return n.shared
	case driver.Guard:
		return []string{mutexEnding}
	default:
		return n.exclusive
	}
}

// guidPrefix begins the name of a node with a GUID, by which the creator finds the node if
// the reply to the create is lost. (Curator calls this "protection"; there the client
// generates the GUID, here lockpool does.)
const guidPrefix = "_c_"

// beginOfPath returns the path of a node in dir without the node's number.
func beginOfPath(dir, guid, ending string) string {
	if strings.HasSuffix(ending, "lock__") { // kazoo's
		return dir + "/" + strings.ReplaceAll(guid, "-", "") + ending
	}
	return dir + "/" + guidPrefix + guid + "-" + ending
}

// isSemaphore reports whether these are the children of a semaphore's directory. Either of
// the two may be missing: the server removes an empty container after a while, the guards'
// even while permits are held.
func isSemaphore(children []string) bool {
	return slices.Contains(children, driver.Guards) || slices.Contains(children, driver.Leases)
}

// guidLength is the length of a GUID as lockpool and Curator write it.
const guidLength = len("00000000-0000-0000-0000-000000000000")

// guidOf returns the GUID in the name of a lockpool node.
func guidOf(name string) string { return name[len(guidPrefix):][:guidLength] }

// hasGUID reports whether the named node was created with the GUID.
func hasGUID(name, guid string) bool {
	return strings.HasPrefix(name, guidPrefix+guid+"-") || strings.HasPrefix(name, strings.ReplaceAll(guid, "-", "")+"__")
}

// downgraded returns the Shared node created in place of an exclusive lockpool node.
func (n naming) downgraded(node driver.Node) driver.Node {
	name := func(ending string, seq int64) string {
		return lastPart(beginOfPath("", guidOf(node.Name), ending)) + formatSeq(seq)
	}
	read := driver.Node{Kind: driver.Shared, Seq: node.Seq, Name: name(n.shared[0], node.Seq)}
	if node.Private != "" {
		read.Private = name(n.shared[1], node.Seq+1)
	}
	return read
}

// nodeNames returns the names of a contender's nodes.
func nodeNames(node driver.Node) []string {
	all := []string{node.Name}
	if node.Private != "" {
		all = append(all, node.Private)
	}
	for i := 1; i < node.Permits; i++ {
		all = append(all, strings.TrimSuffix(node.Name, formatSeq(node.Seq))+formatSeq(node.Seq+int64(i)))
	}
	return all
}

// nodeCount is the number of nodeNames.
func nodeCount(node driver.Node) int {
	n := max(node.Permits, 1)
	if node.Private != "" {
		n++
	}
	return n
}

// formatSeq formats the number of a node as the server does.
func formatSeq(seq int64) string { return fmt.Sprintf("%0*d", seqLength, seq) }

// seqLength is the length of a number, unless it is negative.
const seqLength = 10

// parseNode reads a child's name from its end. The server appends the number as
// %010d: ten characters, or eleven for the lowest negative ones.
func parseNode(name string) (driver.Node, bool) {
	begin := len(name) - seqLength
	if begin > 0 && name[begin-1] == '-' && name[begin] >= '1' {
		if node, ok := parseNodeAt(name, begin-1); ok {
			return node, true
		}
	}
	return parseNodeAt(name, begin)
}

// parseNodeAt is parseNode for a name whose number begins at begin.
func parseNodeAt(name string, begin int) (driver.Node, bool) {
	if begin <= 0 || name[begin] == '+' {
		return driver.Node{}, false
	}
	for _, e := range endings {
		if strings.HasSuffix(name[:begin], e.text) {
			seq, err := strconv.ParseInt(name[begin:], 10, 32)
			node := driver.Node{Name: name, Kind: e.kind, Seq: seq}
			if e.kind == driver.Permit {
				node.Permits, node.Limit = 1, limitOf(name[:begin])
			}
			return node, err == nil
		}
	}
	return driver.Node{}, false
}

// looksSequential reports whether the name looks like a sequential node's, but no known
// contender's.
func looksSequential(name string) bool {
	if _, ok := parseNode(name); ok || len(name) < seqLength {
		return false
	}
	digits := strings.TrimPrefix(name[len(name)-seqLength:], "-")
	return strings.Trim(digits, "0123456789") == ""
}

// contendersOf returns the contenders among children in the order of their numbers, never
// of their names: these would put -2147483648 in the wrong place.
func contendersOf(children []string) []driver.Node {
	queue := make([]driver.Node, 0, len(children))
	for _, name := range children {
		if node, ok := parseNode(name); ok {
			queue = append(queue, node)
		}
	}
	slices.SortFunc(queue, func(a, b driver.Node) int {
		return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Name, b.Name))
	})
	return mergeNodes(queue)
}

// rank orders nodes with the same number: to downgrade, Curator 5.5 and later creates
// the reader's node while the writer's node still exists.
func rank(n driver.Node) int {
	if n.Kind == driver.Shared {
		return 1
	}
	return 0
}

// mergeNodes merges the nodes of one lockpool contender into one Node. The nodes were
// created in one transaction, so their numbers are consecutive.
func mergeNodes(nodes []driver.Node) []driver.Node {
	queue := nodes[:0]
	for _, node := range nodes {
		if last := len(queue) - 1; last < 0 || !merge(&queue[last], node) {
			queue = append(queue, node)
		}
	}
	return queue
}

// merge adds node to the contender c if node belongs to c.
func merge(c *driver.Node, node driver.Node) bool {
	if node.Seq != c.Seq+int64(max(c.Permits, 1)) || c.Private != "" ||
		!strings.HasPrefix(c.Name, guidPrefix) || len(c.Name) < len(guidPrefix)+guidLength {
		return false
	}
	own := strings.HasPrefix(node.Name, guidPrefix)
	lease := own && node.Kind == driver.Permit && c.Kind == driver.Permit
	alias := !own && node.Kind != driver.Permit && c.Kind != driver.Permit
	if !lease && !alias || node.Limit != c.Limit || !hasGUID(node.Name, guidOf(c.Name)) { // GUIDs last: in a long queue they take time
		return false
	}
	if lease {
		c.Permits++
	} else {
		c.Private = node.Name
	}
	return true
}
