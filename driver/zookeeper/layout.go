package zookeeper

// This file has the names of contenders' nodes, in each layout.

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/znode"
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
	LayoutCurator:   {exclusive: []string{znode.MutexEnding}, shared: []string{znode.ReaderEnding}},
	LayoutCuratorRW: {exclusive: []string{"__WRIT__"}, shared: []string{"__READ__"}},
	LayoutKazoo:     {exclusive: []string{znode.MutexEnding, "__lock__"}, shared: []string{znode.ReaderEnding, "__lock__"}, persistent: true},
	LayoutKazooRW:   {exclusive: []string{znode.MutexEnding, "__lock__"}, shared: []string{znode.ReaderEnding, "__rlock__"}, persistent: true},
}

func (l Layout) naming() naming { return layouts[l] }

// endings returns the endings of a contender's nodes.
func (n naming) endings(kind driver.Kind, permits, limit int) []string {
	switch kind {
	case driver.Permit:
		ending := znode.PermitEnding
		if limit > 0 {
			ending = fmt.Sprintf("%s%d-%s", znode.LimitPrefix, limit, znode.PermitEnding)
		}
		return slices.Repeat([]string{ending}, permits)
	case driver.Shared:
		return n.shared
	case driver.Guard:
		return []string{znode.MutexEnding}
	default:
		return n.exclusive
	}
}

// beginOfPath returns the path of a node in dir without the node's number.
func beginOfPath(dir, guid, ending string) string {
	if strings.HasSuffix(ending, "lock__") { // kazoo's
		return dir + "/" + strings.ReplaceAll(guid, "-", "") + ending
	}
	return dir + "/" + znode.GUIDPrefix + guid + "-" + ending
}

// isSemaphore reports whether these are the children of a semaphore's directory. Either of
// the two may be missing: the server removes an empty container after a while, the guards'
// even while permits are held.
func isSemaphore(children []string) bool {
	return slices.Contains(children, driver.Guards) || slices.Contains(children, driver.Leases)
}

// downgraded returns the Shared node created in place of an exclusive lockpool node.
func (n naming) downgraded(node driver.Node) driver.Node {
	name := func(ending string, seq int64) string {
		return lastPart(beginOfPath("", znode.GUIDOf(node.Name), ending)) + znode.FormatSeq(seq)
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
		all = append(all, strings.TrimSuffix(node.Name, znode.FormatSeq(node.Seq))+znode.FormatSeq(node.Seq+int64(i)))
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

// looksSequential reports whether the name looks like a sequential node's, but no known
// contender's.
func looksSequential(name string) bool {
	if _, ok := znode.Parse(name); ok || len(name) < znode.SeqLength {
		return false
	}
	digits := strings.TrimPrefix(name[len(name)-znode.SeqLength:], "-")
	return strings.Trim(digits, "0123456789") == ""
}
