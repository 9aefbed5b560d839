package zktest

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// Holder is a node that was the first of a queue: the holder of the lock.
type Holder struct {
	Path    string
	Session int64
	From    int64 // zxid of the transaction that made it the first
	Until   int64 // zxid of the transaction that ended this; 0 if it is still the first
}

// Holders is the history of a queue: which of its sequential nodes was the
// first, in the server's order of transactions. A test can check against it that
// no two clients held the lock at the same time.
type Holders struct {
	server  *Server
	parent  string
	history []Holder // guarded by Server.mu
}

// TrackHolders starts recording the holders of a queue: of the children of
// parent whose names end with a sequence number.
func (s *Server) TrackHolders(parent string) *Holders {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := &Holders{server: s, parent: parent}
	h.update(s.zxid)
	s.holders = append(s.holders, h)
	return h
}

// Now returns the path of the first node, or "" if there is none.
func (h *Holders) Now() string {
	h.server.mu.Lock()
	defer h.server.mu.Unlock()
	return h.first()
}

// History returns all holders so far, in order.
func (h *Holders) History() []Holder {
	h.server.mu.Lock()
	defer h.server.mu.Unlock()
	return slices.Clone(h.history)
}

func (h *Holders) first() (path string) {
	n := h.server.committed()[h.parent]
	if n == nil {
		return ""
	}
	least := int64(math.MaxInt64)
	for _, name := range n.children.list {
		number, err := strconv.ParseInt(name[max(0, len(name)-10):], 10, 64)
		if err == nil && number < least {
			least, path = number, strings.TrimSuffix(h.parent, "/")+"/"+name
		}
	}
	return path
}

// update records the first node after the transaction zxid. Server.mu is held.
func (h *Holders) update(zxid int64) {
	path := h.first()
	if n := len(h.history); n > 0 && h.history[n-1].Until == 0 {
		if h.history[n-1].Path == path {
			return
		}
		h.history[n-1].Until = zxid
	}
	if path != "" {
		h.history = append(h.history, Holder{Path: path, Session: h.server.committed()[path].owner, From: zxid})
	}
}

// updateHolders updates the histories of the queues that a transaction changes.
func (s *Server) updateHolders(p *proposal) {
	for _, h := range s.holders {
		if slices.ContainsFunc(p.changes, func(ch change) bool { return strings.HasPrefix(ch.path, h.parent) }) {
			h.update(p.zxid)
		}
	}
}

// committed returns the leader's tree without what it has only proposed.
func (s *Server) committed() tree {
	if s.isEnsemble() {
		return s.lead.member.tree
	}
	return s.tree
}
