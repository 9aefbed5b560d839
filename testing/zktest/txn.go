package zktest

// This file has transactions.

import (
	"fmt"
	"slices"
	"strings"
)

// txn is one transaction: a write request, the end of a session, or the deletion of an
// empty container. The methods check a request in ZooKeeper's order, because clients see
// which error comes first.
type txn struct {
	s          *Server
	zxid       int64
	session    int64      // owner of the ephemerals created
	identities []identity // nil for the server itself, with all permissions
	changes    []change
	undo       []func()         // one for each change, in the same order
	effects    []func(*replica) // what the members of an ensemble apply
	ended      int64            // the session ended by the transaction, or 0
}

// begin starts a transaction. Even a failed transaction takes a zxid.
func (s *Server) begin(session int64, identities []identity) *txn {
	s.zxid++
	if ss := s.sessions[session]; ss != nil && s.conf.keeper {
		s.touch(ss)
	}
	return &txn{s: s, zxid: s.zxid, session: session, identities: identities}
}

// rollback undoes all changes.
func (x *txn) rollback() {
	for _, undo := range slices.Backward(x.undo) {
		undo()
	}
	x.changes, x.undo, x.effects = nil, nil, nil
}

// effect adds a change to each member's state. The transaction itself has changed the
// leader's.
func (x *txn) effect(do func(*replica)) {
	if x.s.isEnsemble() {
		x.effects = append(x.effects, do)
	}
}

func (x *txn) allowed(n *node, perms int32) bool {
	return x.identities == nil || allowed(n.acl, perms, x.identities)
}

// newKind returns the kind of node made by a create, and whether the name gets a sequence
// number. In a multi the flags decide, and the operation only says whether there is a TTL;
// otherwise the operation decides about containers.
func (x *txn) newKind(p part, inMulti bool) (k kind, sequential bool, code Code) {
	if p.flags < 0 || p.flags > 6 {
		return 0, false, ErrBadArguments
	}
	timed := p.flags == 5 || p.flags == 6
	if inMulti && timed && p.op != OpCreateTTL {
		return 0, false, ErrMarshalling
	}
	if timed && !x.s.conf.extendedTypes {
		return 0, false, ErrUnimplemented
	}
	if timed && (p.ttl < 1 || p.ttl >= 1<<40) || !inMulti && timed != (p.op == OpCreateTTL) {
		return 0, false, ErrBadArguments
	}
	k = [...]kind{persistent, ephemeral, persistent, ephemeral, container, ttl, ttl}[p.flags]
	if !inMulti {
		if p.op == OpCreateContainer {
			k = container
		} else if k == container {
			k = persistent
		}
	}
	return k, p.flags == 2 || p.flags == 3 || p.flags == 6, OK
}

// create returns the path of the new node.
func (x *txn) create(p part, inMulti bool) (string, Code) {
	k, sequential, code := x.newKind(p, inMulti)
	if code != OK {
		return "", code
	}
	if !strings.Contains(p.path, "/") || strings.Contains(p.path, "\x00") {
		return "", ErrBadArguments
	}
	acl, code := fixupACL(p.acl, x.identities)
	if code != OK {
		return "", code
	}
	parentPath, _ := split(p.path)
	parent := x.s.tree.at(parentPath)
	if parent == nil {
		return "", ErrNoNode
	}
	if !x.allowed(parent, permCreate) {
		return "", ErrNoAuth
	}
	path := p.path
	if sequential {
		path += fmt.Sprintf("%010d", parent.created)
	}
	if !validPath(path) {
		return "", ErrBadArguments
	}
	if x.s.tree.at(path) != nil {
		return "", ErrNodeExists
	}
	if parent.kind == ephemeral {
		return "", ErrNoChildrenEphemeral
	}

	now := x.s.unixMilli()
	n := &node{
		data: p.data, acl: acl, kind: k,
		czxid: x.zxid, mzxid: x.zxid, pzxid: x.zxid, ctime: now, mtime: now,
		children: newNameSet(x.s.conf.seed, path),
	}
	switch k {
	case ephemeral:
		n.owner = x.session
		x.s.sessions[x.session].ephemerals[path] = true
	case ttl:
		n.ttl = p.ttl
	}
	_, name := split(path)
	created, pzxid := parent.created, parent.pzxid
	blank := *n
	x.effect(func(rep *replica) {
		copied := blank
		rep.tree[path] = &copied
		rep.tree.at(parentPath).addChild(name, x.zxid)
	})
	x.s.tree[path] = n
	parent.addChild(name, x.zxid)
	x.record(change{NodeCreated, path, acl, parent.acl}, func() {
		x.s.remove(path)
		parent.created, parent.pzxid = created, pzxid
	})
	return path, OK
}

// remove removes a node from the leader's tree.
func (s *Server) remove(path string) {
	n := s.tree[path]
	s.tree.remove(path)
	if n.kind == ephemeral {
		delete(s.sessions[n.owner].ephemerals, path)
	}
}

// reserved are the undeletable nodes.
var reserved = []string{"/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"}

func (x *txn) delete(path string, version int32) Code {
	if !strings.Contains(path, "/") || strings.Contains(path, "\x00") || slices.Contains(reserved, path) {
		return ErrBadArguments
	}
	parentPath, name := split(path)
	parent := x.s.tree.at(parentPath)
	if parent == nil {
		return ErrNoNode
	}
	if !x.allowed(parent, permDelete) {
		return ErrNoAuth
	}
	n := x.s.tree[path]
	if n == nil {
		return ErrNoNode
	}
	if version != -1 && version != n.version {
		return ErrBadVersion
	}
	if len(n.children.list) > 0 {
		return ErrNotEmpty
	}
	pzxid := parent.pzxid
	x.s.recordRemoval(x, path, n)
	x.effect(func(rep *replica) {
		rep.tree.remove(path)
		rep.tree.at(parentPath).pzxid = x.zxid
	})
	x.s.remove(path)
	parent.pzxid = x.zxid
	x.record(change{NodeDeleted, path, n.acl, parent.acl}, func() {
		x.s.tree[path] = n
		parent.children.add(name)
		parent.pzxid = pzxid
		if n.kind == ephemeral {
			x.s.sessions[n.owner].ephemerals[path] = true
		}
	})
	return OK
}

func (x *txn) setData(path string, data []byte, version int32) (*node, Code) {
	n, code := x.find(path, permWrite)
	if code != OK {
		return nil, code
	}
	if version != -1 && version != n.version {
		return nil, ErrBadVersion
	}
	before := *n
	n.data, n.version, n.mzxid, n.mtime = data, n.version+1, x.zxid, x.s.unixMilli()
	after := *n
	x.effect(func(rep *replica) {
		n := rep.tree[path]
		n.data, n.version, n.mzxid, n.mtime = after.data, after.version, after.mzxid, after.mtime
	})
	x.record(change{event: NodeDataChanged, path: path, acl: n.acl}, func() {
		n.data, n.version, n.mzxid, n.mtime = before.data, before.version, before.mzxid, before.mtime
	})
	return n, OK
}

// setACL is never part of a multi, and so has no undo. It fires no watch.
func (x *txn) setACL(path string, list []acl, version int32) (*node, Code) {
	if !validPath(path) {
		return nil, ErrBadArguments
	}
	fixed, code := fixupACL(list, x.identities)
	if code != OK {
		return nil, code
	}
	n, code := x.find(path, permAdmin)
	if code != OK {
		return nil, code
	}
	if version != -1 && version != n.aversion {
		return nil, ErrBadVersion
	}
	n.acl, n.aversion = fixed, n.aversion+1
	aversion := n.aversion
	x.effect(func(rep *replica) { rep.tree[path].acl, rep.tree[path].aversion = fixed, aversion })
	return n, OK
}

func (x *txn) check(path string, version int32) Code {
	n, code := x.find(path, permRead)
	if code == OK && version != -1 && version != n.version {
		return ErrBadVersion
	}
	return code
}

// find returns a node if the path is valid and the transaction has one of perms.
func (x *txn) find(path string, perms int32) (*node, Code) {
	if !validPath(path) {
		return nil, ErrBadArguments
	}
	n := x.s.tree[path]
	if n == nil {
		return nil, ErrNoNode
	}
	if !x.allowed(n, perms) {
		return nil, ErrNoAuth
	}
	return n, OK
}

// record adds a change and the function to undo the change.
func (x *txn) record(ch change, undo func()) {
	x.changes = append(x.changes, ch)
	x.undo = append(x.undo, undo)
}

// result is the outcome of one part of a multi.
type result struct {
	op   Op
	code Code
	path string
	stat Stat
	data []byte
	list []string
}

// multi applies all parts or none. It returns a result for each part in both
// cases, but none if a part is malformed and no earlier part has failed.
func (x *txn) multi(parts []part) ([]result, Code) {
	results := make([]result, len(parts))
	for i, p := range parts {
		results[i] = x.applyPart(p, true)
		code := results[i].code
		if code == OK {
			continue
		}
		x.rollback()
		if code == ErrMarshalling {
			return nil, code
		}
		for j := range results {
			results[j] = result{op: -1} // code OK for the parts before the failed one
			if j > i {
				results[j].code = ErrRuntimeInconsistency
			}
		}
		results[i].code = code
		break
	}
	return results, OK
}

// applyPart applies an operation, alone or as a part of a multi.
func (x *txn) applyPart(p part, inMulti bool) result {
	r := result{op: p.op}
	var n *node
	switch p.op {
	case OpDelete:
		r.code = x.delete(p.path, p.version)
	case OpSetData:
		n, r.code = x.setData(p.path, p.data, p.version)
	case OpSetACL:
		n, r.code = x.setACL(p.path, p.acl, p.version)
	case OpCheck:
		r.code = x.check(p.path, p.version)
	default:
		if r.path, r.code = x.create(p, inMulti); r.code != OK {
			return r
		}
		n = x.s.tree[r.path]
		// In a multi, ZooKeeper replies by the kind of the new node, not by the request.
		r.op = OpCreate
		if n.kind == container || n.kind == ttl {
			r.op = OpCreate2
		}
	}
	if n != nil {
		r.stat = n.stat()
	}
	return r
}
