package zktest

// This file has requests, from the packet to the reply.

import (
	"slices"
	"strings"
)

// apply applies one request and answers it, perhaps later. s.mu is held.
func (s *Server) apply(c *conn, r Request, packet []byte, answer answer) {
	rep, ss := c.replica, c.session
	d := &decoder{rest: packet[8:]} // after the header

	switch r.Op {
	case OpAuth:
		answer(s.authenticate(c, r, d))
		return
	case OpSASL:
		if token := d.buffer(); token == nil {
			answer(nil, false)
			return
		}
		e := s.replyHeader(c, r, 0, OK)
		e.buffer(nil)
		answer(e.packet(), true)
		return
	}
	switch {
	case !s.knows(r.Op, *d):
		answer(nil, false)
	case s.conf.keeper && r.Op == OpPing:
		r.Xid = xidPing
		s.writeAlive(c, func() { answer(s.reply(c, r, rep.zxid, OK), true) })
	case s.conf.keeper && r.Op == OpSync:
		s.writeAlive(c, func() { answer(s.applyRead(c, r, d)) })
	case r.Op == OpPing:
		r.Xid = xidPing
		answer(s.reply(c, r, rep.zxid, OK), true)
	case r.Op == OpSync:
		s.sync(rep, func() { answer(s.applyRead(c, r, d)) })
	case r.Op.writes():
		s.write(rep, func() { s.applyWrite(c, ss.id, r, d, answer) })
	default:
		answer(s.applyRead(c, r, d))
	}
}

// replyHeader begins a reply.
func (s *Server) replyHeader(c *conn, r Request, zxid int64, code Code) encoder {
	s.record(Record{Kind: Replied, Conn: r.Conn, Session: r.Session, Op: r.Op, Paths: r.Paths, Zxid: zxid, Code: code})
	s.checkZxid(c, Record{Kind: Replied, Conn: r.Conn, Session: r.Session, Op: r.Op, Paths: r.Paths, Zxid: zxid, Code: code})
	e := newPacket()
	e.int(r.Xid)
	e.long(zxid)
	e.int(int32(code))
	return e
}

// reply returns a reply without a record: to a request without a result, or of
// failure.
func (s *Server) reply(c *conn, r Request, zxid int64, code Code) []byte {
	return s.replyHeader(c, r, zxid, code).packet()
}

// authenticate adds an identity to the connection, or ends the connection.
func (s *Server) authenticate(c *conn, r Request, d *decoder) ([]byte, bool) {
	d.int() // the type, always 0
	scheme, credentials := d.string(), d.buffer()
	switch {
	case d.malformed:
		return nil, false
	case scheme == "digest" && credentials != nil:
		id := digest(string(credentials))
		if id == s.conf.super {
			c.addIdentity(superUser)
		}
		c.addIdentity(id)
	case scheme == "ip":
	default:
		return s.reply(c, r, 0, ErrAuthFailed), false
	}
	return s.reply(c, r, 0, OK), true
}

// addIdentity adds an identity to the connection.
func (c *conn) addIdentity(id identity) {
	if !slices.Contains(c.identities, id) {
		c.identities = append(slices.Clone(c.identities), id)
	}
}

// applyWrite proposes a transaction. It fails if the session is over or has moved to
// another member.
func (s *Server) applyWrite(c *conn, session int64, r Request, d *decoder, answer answer) {
	rep := c.replica
	if r.Op == OpReconfig && !d.reconfig() {
		s.atMember(s.lead, rep, func() { // without taking a zxid
			answer(s.reply(c, r, rep.zxid, ErrMarshalling), true)
		})
		return
	}
	ss := s.sessions[session]
	x := s.begin(session, c.identities)
	if ss == nil || ss.at != rep {
		s.propose(x, rep, func() { answer(nil, false) })
		return
	}
	if r.Op == OpCloseSession {
		x.endSession(ss, true)
		s.propose(x, rep, func() {
			if s.conf.keeper {
				answer(nil, false)
				return
			}
			answer(s.reply(c, r, x.zxid, OK), false)
		})
		return
	}
	body, code := x.apply(r.Op, d)
	s.propose(x, rep, func() {
		if r.Op == OpCheck && code == OK {
			answer(nil, true) // the real server fails to encode this reply, and goes on without a reply
			return
		}
		answer(append(s.replyHeader(c, r, x.zxid, code), body...).packet(), true)
	})
}

// apply applies a request and returns the record of its reply.
func (x *txn) apply(op Op, d *decoder) (e encoder, code Code) {
	switch op {
	case OpReconfig:
		return nil, ErrReconfigDisabled
	case OpDeleteContainer:
		return nil, ErrBadArguments // the real server accepts no path from a client
	}
	if op == OpMulti {
		parts, ok := decodeMulti(d)
		for _, p := range parts {
			ok = ok && p.op != OpGetData && p.op != OpGetChildren
		}
		if !ok {
			return nil, ErrMarshalling
		}
		results, code := x.multi(parts)
		if code == OK {
			e = encodeResults(results)
		}
		return e, code
	}
	p := decodePart(d, op)
	if d.malformed {
		return nil, ErrMarshalling
	}
	r := x.applyPart(p, false)
	if r.path != "" {
		e.string(r.path)
	}
	if r.code == OK && op != OpCreate && op != OpDelete && op != OpCheck {
		e.stat(r.stat)
	}
	return e, r.code
}

// encodeResults encodes the record of a multi's reply.
func encodeResults(results []result) (e encoder) {
	for _, r := range results {
		if r.code != OK {
			r.op = -1
		}
		e.int(int32(r.op))
		e.bool(false)
		e.int(int32(r.code))
		switch r.op {
		case -1:
			e.int(int32(r.code))
		case OpCreate:
			e.string(r.path)
		case OpCreate2:
			e.string(r.path)
			e.stat(r.stat)
		case OpSetData:
			e.stat(r.stat)
		case OpGetChildren:
			e.strings(r.list)
		case OpGetData:
			e.buffer(r.data)
			e.stat(r.stat)
		}
	}
	e.int(-1)
	e.bool(true)
	e.int(-1)
	return e
}

// applyRead applies a request without changes to nodes, and returns the reply.
func (s *Server) applyRead(c *conn, r Request, d *decoder) (reply []byte, alive bool) {
	body, code := s.read(c, r.Op, d)
	if code == ErrUnimplemented {
		return s.reply(c, r, -1, code), false
	}
	return append(s.replyHeader(c, r, c.replica.zxid, code), body...).packet(), true
}

// read returns the record of the reply to a request without changes to nodes.
func (s *Server) read(c *conn, op Op, d *decoder) (e encoder, code Code) {
	rep := c.replica
	switch op {
	case OpExists, OpGetData, OpGetChildren, OpGetChildren2:
		p := decodePart(d, op)
		if d.malformed {
			return nil, ErrMarshalling
		}
		return s.readNode(c, p)
	case OpGetACL:
		path := d.path()
		n, code := s.lookup(c, path, permRead|permAdmin)
		if d.malformed || n == nil {
			return nil, malformedOr(d, code)
		}
		list := n.acl
		if !allowed(list, permAdmin, c.identities) {
			list = maskDigests(list)
		}
		e.acl(list)
		e.stat(n.stat())
	case OpSync:
		e.buffer(d.buffer()) // a null path comes back as null
	case OpSetWatches, OpSetWatches2:
		s.setWatches(c, op, d)
	case OpAddWatch:
		code = rep.addWatch(c, d)
		e.int(0)
	case OpCheckWatches:
		code = rep.removeWatches(c, op, d.path(), d.int())
	case OpRemoveWatches:
		code = rep.removeWatches(c, op, d.string(), d.int())
	case OpMultiRead:
		parts, ok := decodeMulti(d)
		if !ok {
			return nil, ErrMarshalling
		}
		return s.multiRead(c, parts)
	case OpGetEphemerals:
		e.strings(s.ephemeralsOf(rep, c.session.id, d.string()))
	case OpGetAllChildrenNumber:
		path := d.path()
		n, code := s.lookup(c, path, permRead)
		if d.malformed || n == nil {
			return nil, malformedOr(d, code)
		}
		e.int(rep.tree.countDescendants(path))
	case OpWhoAmI:
		e.int(int32(len(c.identities)))
		for _, id := range c.identities {
			user, _, _ := strings.Cut(id.id, ":")
			e.string(id.scheme)
			e.string(user)
		}
	default:
		return nil, ErrUnimplemented
	}
	if d.malformed {
		code = ErrMarshalling
	}
	if code != OK {
		e = nil
	}
	return e, code
}

func (s *Server) multiRead(c *conn, parts []part) (encoder, Code) {
	results := make([]result, len(parts))
	for i, p := range parts {
		if p.op != OpGetData && p.op != OpGetChildren {
			return nil, ErrMarshalling
		}
		results[i].op = p.op
		n, code := s.lookup(c, p.path, permRead)
		if results[i].code = code; n == nil {
			continue
		}
		results[i].data, results[i].stat = n.data, n.stat()
		results[i].list = n.children.list
	}
	return encodeResults(results), OK
}

// ephemeralsOf returns a session's ephemerals whose path has the prefix, as a member
// sees them.
func (s *Server) ephemeralsOf(rep *replica, session int64, prefix string) []string {
	// As Java's trim does.
	if trimmed := strings.TrimFunc(prefix, func(r rune) bool { return r <= ' ' }); trimmed == "" || trimmed == "/" {
		prefix = "/"
	}
	paths := newNameSet(s.conf.seed, "")
	for path, n := range rep.tree {
		if n.kind == ephemeral && n.owner == session && strings.HasPrefix(path, prefix) {
			paths.add(path)
		}
	}
	return paths.list
}

// malformedOr returns ErrMarshalling if the record was malformed, otherwise code.
func malformedOr(d *decoder, code Code) Code {
	if d.malformed {
		return ErrMarshalling
	}
	return code
}

// lookup returns a node accessible to the connection with one of perms, or without any
// permission if perms is 0.
func (s *Server) lookup(c *conn, path string, perms int32) (*node, Code) {
	n := c.replica.tree.at(path)
	if n == nil {
		return nil, ErrNoNode
	}
	if perms != 0 && !allowed(n.acl, perms, c.identities) {
		return nil, ErrNoAuth
	}
	return n, OK
}

// readNode reads a node, and sets a watch if the request asks for one and the node exists.
// Only exists sets a watch on a missing node.
func (s *Server) readNode(c *conn, p part) (e encoder, code Code) {
	perms, table := int32(permRead), c.replica.data
	switch p.op {
	case OpExists:
		if strings.Contains(p.path, "\x00") {
			return nil, ErrBadArguments
		}
		perms = 0
	case OpGetChildren, OpGetChildren2:
		table = c.replica.child
	}
	n, code := s.lookup(c, p.path, perms)
	if p.watch && (code == OK || p.op == OpExists && code == ErrNoNode) {
		table.add(p.path, c, oneShotWatch)
	}
	if code != OK {
		return nil, code
	}
	switch p.op {
	case OpGetData:
		e.buffer(n.data)
	case OpGetChildren, OpGetChildren2:
		e.strings(n.children.list)
	}
	if p.op != OpGetChildren {
		e.stat(n.stat())
	}
	return e, OK
}

// removeWatches removes watches or, for OpCheckWatches, only checks for them.
func (rep *replica) removeWatches(c *conn, op Op, path string, of int32) Code {
	const children, data, both = 1, 2, 3
	var tables []watchTable
	switch of {
	case children:
		tables = []watchTable{rep.child}
	case data:
		tables = []watchTable{rep.data}
	case both:
		tables = []watchTable{rep.child, rep.data}
	default:
		return ErrMarshalling
	}
	code := ErrNoWatcher
	for _, t := range tables {
		// ZooKeeper's check accepts any connection's watch.
		if op == OpCheckWatches && len(t[path]) > 0 || op == OpRemoveWatches && t.remove(path, c) {
			code = OK
		}
	}
	return code
}

// setWatches restores the watches of a client whose connection broke, and sends the missed
// events. It cannot detect that a node was deleted and created again, or created and
// deleted.
func (s *Server) setWatches(c *conn, op Op, d *decoder) {
	since := d.long()
	data, exist, child := d.strings(), d.strings(), d.strings()
	var persistent [2][]string // by mode
	if op == OpSetWatches2 {
		persistent[0], persistent[1] = d.strings(), d.strings()
	}
	if d.malformed {
		return
	}
	rep, t := c.replica, c.replica.tree
	renew := func(paths []string, table watchTable, event EventType, changed func(*node) int64) {
		for _, path := range paths {
			switch n := t.at(path); {
			case n == nil:
				c.sendEvent(NodeDeleted, path)
			case changed(n) > since:
				c.sendEvent(event, path)
			default:
				table.add(path, c, oneShotWatch)
			}
		}
	}
	renew(data, rep.data, NodeDataChanged, func(n *node) int64 { return n.mzxid })
	for _, path := range exist {
		if t.at(path) != nil {
			c.sendEvent(NodeCreated, path)
		} else {
			rep.data.add(path, c, oneShotWatch)
		}
	}
	renew(child, rep.child, NodeChildrenChanged, func(n *node) int64 { return n.pzxid })
	for mode, paths := range persistent {
		for _, path := range paths {
			rep.addPersistent(path, c, mode)
		}
	}
}

// addWatch applies OpAddWatch.
func (rep *replica) addWatch(c *conn, d *decoder) Code {
	path, mode := d.string(), d.int()
	if d.malformed || mode != 0 && mode != 1 {
		return ErrMarshalling
	}
	rep.addPersistent(path, c, int(mode))
	return OK
}

// addPersistent adds a watch by the mode of OpAddWatch: 0 is persistent, 1 is
// recursive.
func (rep *replica) addPersistent(path string, c *conn, mode int) {
	rep.data.add(path, c, persistentWatch+watchMode(mode))
	rep.child.add(path, c, persistentWatch+watchMode(mode))
}
