package zookeeper

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/lockpool/lockpool/driver"
)

// Layout says how the nodes of locks are named, and so which clients of other
// kinds a lock excludes. Pools with different layouts exclude each other; who
// meets a client of another kind sets the layout that this client respects.
type Layout string

const (
	// LayoutCurator, the default, excludes Curator's InterProcessMutex and
	// go-zookeeper's Lock. They take a reader of lockpool for one of theirs, so
	// that they wait for it, if for longer than they must.
	LayoutCurator Layout = "curator"

	// LayoutCuratorRW is that of Curator's InterProcessReadWriteLock, whose readers
	// and lockpool's share the lock. InterProcessMutex does not see it.
	LayoutCuratorRW Layout = "curator-rw"

	// LayoutKazoo is LayoutCurator, and excludes all locks of kazoo as well, with
	// and without extra_lock_patterns: each contender has a second node, named as
	// kazoo does. The nodes that hold the queues are persistent then, because a
	// Lock of kazoo fails for good when ZooKeeper has removed an empty one.
	LayoutKazoo Layout = "kazoo"

	// LayoutKazooRW is LayoutKazoo, but readers share the lock with kazoo's
	// ReadLock. Use WriteLock there beside it, because kazoo's Lock does not wait
	// for anybody who reads.
	LayoutKazooRW Layout = "kazoo-rw"
)

// naming is how a layout ends the names of a contender's nodes, the second of
// which is its twin.
type naming struct {
	exclusive, shared []string
	persistent        bool // the queues
}

var layouts = map[Layout]naming{
	LayoutCurator:   {exclusive: []string{mutexEnding}, shared: []string{readerEnding}},
	LayoutCuratorRW: {exclusive: []string{"__WRIT__"}, shared: []string{"__READ__"}},
	LayoutKazoo:     {exclusive: []string{mutexEnding, "__lock__"}, shared: []string{readerEnding, "__lock__"}, persistent: true},
	LayoutKazooRW:   {exclusive: []string{mutexEnding, "__lock__"}, shared: []string{readerEnding, "__rlock__"}, persistent: true},
}

func (l Layout) naming() naming { return layouts[l] }

const (
	mutexEnding  = "lock-"  // of Curator's InterProcessMutex and go-zookeeper, too
	readerEnding = "rlock-" // lockpool's own
	permitEnding = "lease-" // of Curator's InterProcessSemaphoreV2, too
)

// limitMark begins the limit that a lease of ours states: in its name, so that the
// listing says it. (Other clients do not read the names of leases.)
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

// endings are those of all clients that are understood, before the number. One
// that ends in another stands before it. A node with none of them is no
// contender and is ignored, unless it looks like one (Session.noStrangers).
var endings = []struct {
	text string
	kind driver.Kind
}{
	{readerEnding, driver.Read},
	{mutexEnding, driver.Mutex},
	{"__READ__", driver.Read}, // Curator's InterProcessReadWriteLock
	{"__WRIT__", driver.Write},
	{"__rlock__", driver.Read}, // kazoo's ReadLock
	{"__lock__", driver.Mutex}, // kazoo's Lock and WriteLock
	{permitEnding, driver.Permit},
}

// of returns the endings of a contender's nodes.
func (n naming) endings(kind driver.Kind, permits, limit int) []string {
	switch kind {
	case driver.Permit:
		ending := permitEnding
		if limit > 0 {
			ending = fmt.Sprintf("%s%d-%s", limitPrefix, limit, permitEnding)
		}
		return slices.Repeat([]string{ending}, permits)
	case driver.Read:
		return n.shared
	case driver.Guard:
		return []string{mutexEnding}
	default:
		return n.exclusive
	}
}

// protected is how the name of a node begins that carries a GUID of its
// creator, by which it is found again when the reply to the create is lost.
// (Curator's "protection"; the GUID there is the client's, here it is ours.)
const guidPrefix = "_c_"

// prefix returns the name of a node without its number.
func namePrefix(guid, ending string) string {
	if strings.HasSuffix(ending, "lock__") { // kazoo's
		return strings.ReplaceAll(guid, "-", "") + ending
	}
	return guidPrefix + guid + "-" + ending
}

// isSemaphore reports whether these are the children of a semaphore's directory.
// Either may be missing: the server removes an empty container after a while, that
// of the guards also while permits are held.
func isSemaphore(children []string) bool {
	return slices.Contains(children, driver.Guards) || slices.Contains(children, driver.Leases)
}

// guidLength is that of a GUID as lockpool and Curator write it.
const guidLength = len("00000000-0000-0000-0000-000000000000")

// guidOf returns the GUID in the name of one of our nodes.
func guidOf(name string) string { return name[len(guidPrefix):][:guidLength] }

// isOf reports whether a node of that name was made with the GUID.
func hasGUID(name, guid string) bool {
	return strings.HasPrefix(name, guidPrefix+guid+"-") || strings.HasPrefix(name, strings.ReplaceAll(guid, "-", "")+"__")
}

// shared returns the node that takes the place of one of ours that asks to be
// alone.
func (n naming) downgraded(node driver.Node) driver.Node {
	guid := guidOf(node.Name)
	read := driver.Node{Kind: driver.Read, Seq: node.Seq, Name: namePrefix(guid, n.shared[0]) + formatSeq(node.Seq)}
	if node.Alias != "" {
		read.Alias = namePrefix(guid, n.shared[1]) + formatSeq(node.Seq+1)
	}
	return read
}

// names returns the names of the nodes that a contender consists of.
func nodeNames(node driver.Node) []string {
	all := []string{node.Name}
	if node.Alias != "" {
		all = append(all, node.Alias)
	}
	begin := strings.TrimSuffix(node.Name, formatSeq(node.Seq))
	for i := 1; i < node.Permits; i++ {
		all = append(all, begin+formatSeq(node.Seq+int32(i)))
	}
	return all
}

// number is how the server writes the number of a node.
func formatSeq(seq int32) string { return fmt.Sprintf("%0*d", seqLength, seq) }

// numberLength is that of the number at the end of a name, if it is positive.
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

// parseNumber reads a child's name whose number is at begin.
func parseNodeAt(name string, begin int) (driver.Node, bool) {
	if begin <= 0 || name[begin] == '+' {
		return driver.Node{}, false
	}
	for _, e := range endings {
		if strings.HasSuffix(name[:begin], e.text) {
			seq, err := strconv.ParseInt(name[begin:], 10, 32)
			node := driver.Node{Name: name, Kind: e.kind, Seq: int32(seq)}
			if e.kind == driver.Permit {
				node.Permits, node.Limit = 1, limitOf(name[:begin])
			}
			return node, err == nil
		}
	}
	return driver.Node{}, false
}

// isNumbered reports whether the name is that of a sequential node of a kind that
// is not understood, as far as names tell.
func looksSequential(name string) bool {
	if _, ok := parseNode(name); ok || len(name) < seqLength {
		return false
	}
	digits := strings.TrimPrefix(name[len(name)-seqLength:], "-")
	return strings.Trim(digits, "0123456789") == ""
}

// sorted returns the contenders among children in the order of their numbers,
// never of their names, which would put -2147483648 in the wrong place.
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

// place orders nodes with one number: Curator 5.5 and later makes the node of who
// goes on reading while the one that is alone still stands.
func rank(n driver.Node) int {
	if n.Kind == driver.Read {
		return 1
	}
	return 0
}

// grouped makes one of the nodes that one contender of lockpool consists of. They
// were created in one transaction, so their numbers follow each other.
func mergeNodes(nodes []driver.Node) []driver.Node {
	queue := nodes[:0]
	for _, node := range nodes {
		if last := len(queue) - 1; last < 0 || !merge(&queue[last], node) {
			queue = append(queue, node)
		}
	}
	return queue
}

// absorb adds another node to a contender, if it belongs to it.
func merge(c *driver.Node, node driver.Node) bool {
	if node.Seq != c.Seq+int32(max(c.Permits, 1)) || c.Alias != "" ||
		!strings.HasPrefix(c.Name, guidPrefix) || len(c.Name) < len(guidPrefix)+guidLength {
		return false
	}
	ours := strings.HasPrefix(node.Name, guidPrefix)
	switch {
	case ours != (node.Kind == driver.Permit) || (c.Kind == driver.Permit) != ours || !hasGUID(node.Name, guidOf(c.Name)) || node.Limit != c.Limit:
		return false
	case ours:
		c.Permits++
	default:
		c.Alias = node.Name
	}
	return true
}

// maxName bounds the length of a lock's name in bytes. ZooKeeper has no limit
// but the packet's; every request and every watch carries the name.
const maxName = 512

// CheckName implements driver.Connector. A lock's name is a relative path of
// at most 512 bytes, such as orders/42.
func (c *Connector) CheckName(name string) error {
	switch {
	case name == "":
		return errors.New("it is empty")
	case len(name) > maxName:
		return fmt.Errorf("it is longer than %d bytes", maxName)
	case name[0] == '/':
		return errors.New("it begins with a slash; a name is a relative path such as orders/42")
	}
	if err := checkPath(name); err != nil {
		return err
	}
	for part := range strings.SplitSeq(name, "/") {
		if _, ok := parseNode(part); ok || strings.HasPrefix(part, guidPrefix) {
			return fmt.Errorf("its part %q could be mistaken for a contender's node", part)
		}
	}
	if of, last, ok := cutLast(name); ok && (last == driver.Guards || last == driver.Leases || last == driver.Limit) {
		return fmt.Errorf("%s is where a semaphore %q keeps its nodes", name, of)
	}
	if first, _, _ := strings.Cut(name, "/"); first == "zookeeper" && c.cfg.Chroot == "" {
		return errors.New("/zookeeper belongs to the server; use another name or a chroot")
	}
	return nil
}

// cutLast cuts off the last part of a name that has several.
func cutLast(name string) (of, last string, ok bool) {
	i := strings.LastIndexByte(name, '/')
	if i < 0 {
		return "", name, false
	}
	return name[:i], name[i+1:], true
}

// CheckPermits implements driver.Connector. The leases are made in one request,
// so some hundred permits fit.
func (c *Connector) CheckPermits(name string, n int) error {
	const others = 160 // bytes of a request for a node, but for what follows
	one := others + len(c.cfg.Chroot) + len(name)
	for _, acl := range c.cfg.ACL {
		one += len(acl.Scheme) + len(acl.ID) + 12
	}
	if most := (maxSend - maxData) / one; n > most {
		return fmt.Errorf("%d at once do not fit into one request to the server: ask for at most %d", n, most)
	}
	return nil
}

// maxData is more than what a pool stores in a node.
const maxData = 2 << 10

// checkPath checks a path without its leading slash as the server does
// (org.apache.zookeeper.common.PathUtils), so that it is refused before
// anything is sent.
func checkPath(path string) error {
	if !utf8.ValidString(path) {
		return errors.New("it is not valid UTF-8")
	}
	for part := range strings.SplitSeq(path, "/") {
		switch part {
		case "":
			return errors.New("it has an empty part (two slashes, or one at an end)")
		case ".", "..":
			return fmt.Errorf("it has a part %q", part)
		}
	}
	for _, r := range path {
		switch {
		case r <= 0x1f, r >= 0x7f && r <= 0x9f:
			return fmt.Errorf("it has the control character %U", r)
		case r >= 0xd800 && r <= 0xf8ff, r >= 0xfff0:
			return fmt.Errorf("it has the character %U, which ZooKeeper does not allow", r)
		}
	}
	return nil
}
