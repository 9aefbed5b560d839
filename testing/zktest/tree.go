package zktest

// This file has the tree of nodes.

import (
	"bytes"
	"hash/fnv"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"unicode/utf8"
)

// Stat is a node's metadata.
type Stat struct {
	Czxid, Mzxid   int64 // zxid of the creation and of the last change of data
	Ctime, Mtime   int64 // the same as milliseconds since 1970
	Version        int32 // changes of data
	Cversion       int32 // creations and deletions of children
	Aversion       int32 // changes of the ACL
	EphemeralOwner int64 // the session of an ephemeral, otherwise 0
	DataLength     int32
	NumChildren    int32
	Pzxid          int64 // zxid of the last creation or deletion of a child
}

// kind says when the server deletes a node by itself.
type kind int

const (
	persistent kind = iota
	ephemeral       // at the end of the session
	container       // after the deletion of the last child
	ttl             // after the TTL without a change, if without children
)

// node is a node of a tree, changed in place; the slices data and acl are replaced, never
// modified, so that copies may share them.
type node struct {
	data                []byte // nil for null
	acl                 []acl
	kind                kind
	owner               int64 // of an ephemeral
	ttl                 int64 // milliseconds
	czxid, mzxid, pzxid int64
	ctime, mtime        int64
	version, aversion   int32
	created             int32 // children ever created: the next sequence number
	children            nameSet
}

func (n *node) stat() Stat {
	return Stat{
		Czxid: n.czxid, Mzxid: n.mzxid, Pzxid: n.pzxid, Ctime: n.ctime, Mtime: n.mtime,
		Version: n.version, Aversion: n.aversion,
		Cversion:       2*n.created - int32(len(n.children.list)),
		EphemeralOwner: n.owner, // 0 unless ephemeral
		DataLength:     int32(len(n.data)), NumChildren: int32(len(n.children.list)),
	}
}

// addChild adds a child and counts it. ZooKeeper keeps the largest count seen, so the count
// stops at the last number.
func (n *node) addChild(child string, zxid int64) {
	if n.created < math.MaxInt32 {
		n.created++
	}
	n.children.add(child)
	n.pzxid = zxid
}

// nameSet is a set of names in the order seen by clients. The order is arbitrary, so that
// no client comes to rely on the order, but always the same for the same names, as in the
// real server's hash tables.
type nameSet struct {
	salt uint64
	list []string // in the order of keys
	keys []uint64
}

// newNameSet returns an empty set in an order dependent on the seed and the owner.
func newNameSet(seed uint64, owner string) nameSet { return nameSet{salt: orderKey(seed, owner)} }

// orderKey maps names to numbers, similar names to distant ones.
func orderKey(salt uint64, name string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return rand.NewPCG(salt, h.Sum64()).Uint64()
}

// find returns the index of a name, or where to insert the name.
func (s *nameSet) find(name string) (i int, key uint64, found bool) {
	key = orderKey(s.salt, name)
	for i, _ = slices.BinarySearch(s.keys, key); i < len(s.keys) && s.keys[i] == key; i++ {
		if s.list[i] == name {
			return i, key, true
		}
	}
	return i, key, false
}

func (s *nameSet) add(name string) {
	i, key, found := s.find(name)
	if !found {
		s.list, s.keys = slices.Insert(s.list, i, name), slices.Insert(s.keys, i, key)
	}
}

func (s *nameSet) remove(name string) {
	if i, _, found := s.find(name); found {
		s.list, s.keys = slices.Delete(s.list, i, i+1), slices.Delete(s.keys, i, i+1)
	}
}

func (s *nameSet) has(name string) bool {
	_, _, found := s.find(name)
	return found
}

func (s *nameSet) clone() nameSet { return nameSet{s.salt, slices.Clone(s.list), slices.Clone(s.keys)} }

// tree holds all nodes by path.
type tree map[string]*node

func newTree(seed uint64) tree {
	t := tree{}
	for path, children := range map[string][]string{
		"/": {"zookeeper"}, "/zookeeper": {"quota", "config"}, "/zookeeper/quota": nil, "/zookeeper/config": nil,
	} {
		// These children do not count as created: Cversion is negative.
		n := &node{data: []byte{}, acl: []acl{{identity: worldAnyone, perms: permAll}}, children: newNameSet(seed, path)}
		for _, child := range children {
			n.children.add(child)
		}
		t[path] = n
	}
	t["/zookeeper/config"].acl = []acl{{identity: worldAnyone, perms: permRead}}
	t["/zookeeper/config"].aversion = -1
	return t
}

// at returns the node at path, or nil. The empty path also denotes the root.
func (t tree) at(path string) *node {
	if path == "" {
		path = "/"
	}
	return t[path]
}

// remove removes the node at path, which must exist.
func (t tree) remove(path string) {
	parentPath, name := split(path)
	delete(t, path)
	t[parentPath].children.remove(name)
}

// clone returns a copy, unaffected by later changes of t.
func (t tree) clone() tree {
	c := make(tree, len(t))
	for path, n := range t {
		copied := *n
		copied.children = n.children.clone()
		c[path] = &copied
	}
	return c
}

// equals reports whether two trees have the same nodes.
func (t tree) equals(other tree) bool {
	return maps.EqualFunc(t, other, func(a, b *node) bool {
		return a.stat() == b.stat() && a.kind == b.kind && bytes.Equal(a.data, b.data) && slices.Equal(a.acl, b.acl) &&
			slices.Equal(a.children.list, b.children.list)
	})
}

// countDescendants returns the number of nodes below path.
func (t tree) countDescendants(path string) (n int32) {
	prefix := strings.TrimSuffix(path, "/") + "/"
	for other := range t {
		if strings.HasPrefix(other, prefix) && other != "/" {
			n++
		}
	}
	return n
}

// split splits a path, which must contain a slash, into the parent's path and
// the name.
func split(path string) (parent, name string) {
	i := strings.LastIndexByte(path, '/')
	if i == 0 {
		return "/", path[1:]
	}
	return path[:i], path[i+1:]
}

// validPath reports whether a node can have this path.
func validPath(path string) bool {
	if path == "/" {
		return true
	}
	rest, ok := strings.CutPrefix(path, "/")
	if !ok {
		return false
	}
	for name := range strings.SplitSeq(rest, "/") {
		if name == "" || name == "." || name == ".." {
			return false
		}
	}
	// ZooKeeper checks UTF-16 units. Characters beyond the BMP are surrogates
	// there, and malformed UTF-8 is U+FFFD: both are refused.
	return !strings.ContainsFunc(rest, func(r rune) bool {
		switch {
		case r <= 0x1f, r >= 0x7f && r <= 0x9f, r >= 0xd800 && r <= 0xf8ff, r >= 0xfff0, r == utf8.RuneError:
			return true
		}
		return false
	})
}
