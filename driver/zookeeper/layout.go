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

// layouts are the endings that clients give to the names of contenders, before
// the sequence number. A node with none of them is no contender and is ignored.
var layouts = []layout{
	// lockpool. What asks to be alone is named as by Curator's InterProcessMutex
	// and by go-zookeeper; what reads ends in what they take for one of theirs, so
	// that they wait for it, if for longer than they must.
	{"lock-", driver.Mutex, "rlock-"},
	{"__WRIT__", driver.Write, "__READ__"},  // Curator's InterProcessReadWriteLock
	{"__lock__", driver.Mutex, "__rlock__"}, // kazoo's Lock and WriteLock, and ReadLock
}

type layout struct {
	alone string
	kind  driver.Kind // of what asks to be alone
	read  string
}

// protected is how the name of a node begins that carries a GUID of its
// creator, by which it is found again when the reply to the create is lost.
// (Curator's "protection"; the GUID there is the client's, here it is ours.)
const protected = "_c_"

func prefix(guid string, kind driver.Kind) string {
	if kind == driver.Read {
		return protected + guid + "-" + layouts[0].read
	}
	return protected + guid + "-" + layouts[0].alone
}

// shared returns the node that takes the place of one that asks to be alone.
func shared(node driver.Node) driver.Node {
	begin := len(node.Name) - numberLength
	for _, l := range layouts {
		if guid, ok := strings.CutSuffix(node.Name[:begin], l.alone); ok {
			return driver.Node{Name: guid + l.read + node.Name[begin:], Kind: driver.Read, Seq: node.Seq}
		}
	}
	panic("zookeeper: nobody asks to be alone with " + node.Name)
}

// numberLength is that of the number at the end of a name, if it is positive.
const numberLength = 10

// parseNode reads a child's name from its end. The server appends the number as
// %010d: ten characters, or eleven for the lowest negative ones.
func parseNode(name string) (driver.Node, bool) {
	begin := len(name) - numberLength
	if begin > 0 && name[begin-1] == '-' && name[begin] >= '1' {
		if node, ok := parseNumber(name, begin-1); ok {
			return node, true
		}
	}
	return parseNumber(name, begin)
}

// parseNumber reads a child's name whose number is at begin.
func parseNumber(name string, begin int) (driver.Node, bool) {
	if begin <= 0 || name[begin] == '+' {
		return driver.Node{}, false
	}
	for _, l := range layouts {
		kind := l.kind
		switch {
		case strings.HasSuffix(name[:begin], l.read): // which may end in the other
			kind = driver.Read
		case !strings.HasSuffix(name[:begin], l.alone):
			continue
		}
		seq, err := strconv.ParseInt(name[begin:], 10, 32)
		return driver.Node{Name: name, Kind: kind, Seq: int32(seq)}, err == nil
	}
	return driver.Node{}, false
}

// sorted returns the contenders among children in the order of their numbers,
// never of their names, which would put -2147483648 in the wrong place.
func sorted(children []string) []driver.Node {
	queue := make([]driver.Node, 0, len(children))
	for _, name := range children {
		if node, ok := parseNode(name); ok {
			queue = append(queue, node)
		}
	}
	slices.SortFunc(queue, func(a, b driver.Node) int {
		if a.Seq != b.Seq {
			return cmp.Compare(a.Seq, b.Seq)
		}
		return cmp.Compare(a.Name, b.Name)
	})
	return queue
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
		if _, ok := parseNode(part); ok || strings.HasPrefix(part, protected) {
			return fmt.Errorf("its part %q could be mistaken for a contender's node", part)
		}
	}
	if first, _, _ := strings.Cut(name, "/"); first == "zookeeper" && c.cfg.Chroot == "" {
		return errors.New("/zookeeper belongs to the server; use another name or a chroot")
	}
	return nil
}

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
