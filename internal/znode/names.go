// Package znode reads the nodes of locks in ZooKeeper: the names and the data of contenders,
// of all known clients. The driver reads the nodes on a server, and lockpool history in a
// server's files.
package znode

// This file reads the names of contenders' nodes.

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lockpool/lockpool/driver"
)

const (
	MutexEnding  = "lock-"  // also of Curator's InterProcessMutex and go-zookeeper
	ReaderEnding = "rlock-" // lockpool's own
	PermitEnding = "lease-" // also of Curator's InterProcessSemaphoreV2
)

// LimitPrefix precedes the limit stated by a lockpool lease. The limit is part of the name,
// so that a listing shows the limit. (Other clients do not read the names of leases.)
const LimitPrefix = "of"

// limitOf reads the limit from the name of a lease without its number.
func limitOf(name string) int {
	const guid = len(GUIDPrefix) + GUIDLength + len("-")
	if len(name) < guid {
		return 0
	}
	stated, ok := strings.CutPrefix(strings.TrimSuffix(name[guid:], "-"+PermitEnding), LimitPrefix)
	limit, err := strconv.ParseInt(stated, 10, 32)
	if !ok || err != nil {
		return 0
	}
	return max(int(limit), 0)
}

// endings are the endings of contenders' names, before the number, of all known clients. An
// ending comes before its suffixes. A node with none of these endings is not a contender,
// and is ignored unless the name looks like a contender's (see the driver's checkForeignContenders).
var endings = []struct {
	text string
	kind driver.Kind
}{
	{ReaderEnding, driver.Shared},
	{MutexEnding, driver.Exclusive},
	{"__READ__", driver.Shared}, // Curator's InterProcessReadWriteLock
	{"__WRIT__", driver.Convertible},
	{"__rlock__", driver.Shared},   // kazoo's ReadLock
	{"__lock__", driver.Exclusive}, // kazoo's Lock and WriteLock
	{PermitEnding, driver.Permit},
}

// GUIDPrefix begins the name of a node with a GUID, by which the creator finds the node if
// the reply to the create is lost. (Curator calls this "protection"; there the client
// generates the GUID, here lockpool does.)
const GUIDPrefix = "_c_"

// GUIDLength is the length of a GUID as lockpool and Curator write it.
const GUIDLength = len("00000000-0000-0000-0000-000000000000")

// GUIDOf returns the GUID in the name of a lockpool node.
func GUIDOf(name string) string { return name[len(GUIDPrefix):][:GUIDLength] }

// HasGUID reports whether the named node was created with the GUID.
func HasGUID(name, guid string) bool {
	return strings.HasPrefix(name, GUIDPrefix+guid+"-") || strings.HasPrefix(name, strings.ReplaceAll(guid, "-", "")+"__")
}

// FormatSeq formats the number of a node as the server does.
func FormatSeq(seq int64) string { return fmt.Sprintf("%0*d", SeqLength, seq) }

// SeqLength is the length of a number, unless it is negative.
const SeqLength = 10

// Parse reads a child's name from its end. The server appends the number as
// %010d: ten characters, or eleven for the lowest negative ones.
func Parse(name string) (driver.Node, bool) {
	begin := len(name) - SeqLength
	if begin > 0 && name[begin-1] == '-' && name[begin] >= '1' {
		if node, ok := parseNodeAt(name, begin-1); ok {
			return node, true
		}
	}
	return parseNodeAt(name, begin)
}

// parseNodeAt is Parse for a name whose number begins at begin.
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

// IsContender reports whether the name is a contender's, of a known client.
func IsContender(name string) bool {
	_, ok := Parse(name)
	return ok
}

// Contenders returns the contenders among children in the order of their numbers, never
// of their names: these would put -2147483648 in the wrong place.
func Contenders(children []string) []driver.Node {
	queue := make([]driver.Node, 0, len(children))
	for _, name := range children {
		if node, ok := Parse(name); ok {
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
		!strings.HasPrefix(c.Name, GUIDPrefix) || len(c.Name) < len(GUIDPrefix)+GUIDLength {
		return false
	}
	own := strings.HasPrefix(node.Name, GUIDPrefix)
	lease := own && node.Kind == driver.Permit && c.Kind == driver.Permit
	alias := !own && node.Kind != driver.Permit && c.Kind != driver.Permit
	if !lease && !alias || node.Limit != c.Limit || !HasGUID(node.Name, GUIDOf(c.Name)) { // GUIDs last: in a long queue they take time
		return false
	}
	if lease {
		c.Permits++
	} else {
		c.Private = node.Name
	}
	return true
}
