package zktest

// This file has snapshots of the state, waiting for a state, and invariants.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// State is a snapshot of a server's state.
type State struct {
	Zxid     int64
	Nodes    map[string]Node // by path, including ZooKeeper's own nodes
	Sessions []Session       // by id
	Conns    []Conn          // by number
	Watches  []Watch         // by path, connection and kind
}

// Node is a node of a [State].
type Node struct {
	Data     []byte
	Stat     Stat
	Children []string // sorted
}

// Session is a client's session in a [State].
type Session struct {
	ID         int64
	Timeout    time.Duration
	ExpiresIn  time.Duration // until the expiry if the client sends nothing, rounded up to a tick
	Conn       int           // number of the connection, or 0
	Ephemerals []string      // sorted
}

// Conn is a client's connection in a [State].
type Conn struct {
	Number  int // from 1 in the order they were accepted
	Member  int // number of the client's member, from 1
	Session int64
	Addr    string // of the client
}

// Watch is a watch in a [State].
type Watch struct {
	Path       string
	Children   bool // a watch on the list of children; otherwise on the node and the data
	Persistent bool
	Conn       int
	Session    int64
}

// Children returns the sorted names of a node's children.
func (s *State) Children(path string) []string { return s.Nodes[path].Children }

// WatchesOf returns the number of watches on the node at path and its data, as set by
// exists and getData.
func (s *State) WatchesOf(path string) int { return s.watches(path, false) }

// ChildWatchesOf returns the number of watches on the list of children of path,
// as getChildren sets them.
func (s *State) ChildWatchesOf(path string) int { return s.watches(path, true) }

func (s *State) watches(path string, children bool) (n int) {
	for _, w := range s.Watches {
		if w.Path == path && w.Children == children {
			n++
		}
	}
	return n
}

// State returns a snapshot of the server's state.
func (s *Server) State() *State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.snapshot()
}

func (s *Server) snapshot() *State {
	st := &State{Zxid: s.zxid, Nodes: make(map[string]Node, len(s.tree))}
	for path, n := range s.tree {
		st.Nodes[path] = Node{Data: slices.Clone(n.data), Stat: n.stat(), Children: slices.Sorted(slices.Values(n.children.list))}
	}
	for _, id := range slices.Sorted(maps.Keys(s.sessions)) {
		ss := s.sessions[id]
		session := Session{
			ID: id, Timeout: ss.timeout, ExpiresIn: ss.expires - s.now(), Ephemerals: slices.Sorted(maps.Keys(ss.ephemerals)),
		}
		if ss.conn != nil {
			session.Conn = ss.conn.client.number
		}
		st.Sessions = append(st.Sessions, session)
	}
	for _, c := range s.sortedConns() {
		o := c.client.origin()
		st.Conns = append(st.Conns, Conn{o.conn, o.member, o.session, c.client.conn.RemoteAddr().String()})
	}
	s.eachWatch(func(rep *replica, path string, children bool, c *conn, mode watchMode) {
		st.Watches = append(st.Watches, Watch{path, children, mode != oneShotWatch, c.client.number, c.client.session.Load()})
	})
	slices.SortFunc(st.Watches, func(a, b Watch) int {
		kinds := 1
		if b.Children {
			kinds = -1
		}
		return cmp.Or(strings.Compare(a.Path, b.Path), a.Conn-b.Conn, kinds)
	})
	return st
}

// eachWatch calls f for every watch, in no order.
func (s *Server) eachWatch(f func(rep *replica, path string, children bool, c *conn, mode watchMode)) {
	for _, rep := range s.replicas {
		rep.data.each(func(path string, c *conn, mode watchMode) { f(rep, path, false, c, mode) })
		rep.child.each(func(path string, c *conn, mode watchMode) { f(rep, path, true, c, mode) })
	}
}

func (s *Server) sortedConns() []*conn {
	return slices.SortedFunc(maps.Keys(s.conns), func(a, b *conn) int { return a.client.number - b.client.number })
}

// connsAt returns the connections to a member, by number.
func (s *Server) connsAt(rep *replica) []*conn {
	return slices.DeleteFunc(s.sortedConns(), func(c *conn) bool { return c.replica != rep })
}

// notifyChange wakes the waiters of WaitFor.
func (s *Server) notifyChange() {
	close(s.change)
	s.change = make(chan struct{})
}

// WaitFor returns when cond returns true for the server's state. cond is called at once and
// after changes, and may miss states of an instant. Otherwise the error is ctx's, or says
// that the server is closed.
func (s *Server) WaitFor(ctx context.Context, cond func(*State) bool) error {
	return s.waitState(ctx, cond, func(st *State) string {
		return fmt.Sprintf("a state (zxid 0x%x, %d nodes, %d sessions, %d watches)", st.Zxid, len(st.Nodes), len(st.Sessions), len(st.Watches))
	})
}

// waitState is WaitFor, with a description of the awaited state.
func (s *Server) waitState(ctx context.Context, cond func(*State) bool, what func(*State) string) error {
	for {
		s.mu.Lock()
		state, change := s.snapshot(), s.change
		s.mu.Unlock()
		if cond(state) {
			return nil
		}
		select {
		case <-change:
		case <-ctx.Done():
			return fmt.Errorf("zktest: waiting for %s: %w", what(state), ctx.Err())
		case <-s.done:
			return fmt.Errorf("zktest: waiting for %s: %w", what(state), errClosed)
		}
	}
}

// WaitWatch returns when at least n connections watch the node at path or its data: for
// instance, when a contender waits for the deletion of this node, the predecessor. The
// error is ctx's.
func (s *Server) WaitWatch(ctx context.Context, path string, n int) error {
	return s.waitWatches(ctx, path, n, (*State).WatchesOf)
}

func (s *Server) waitWatches(ctx context.Context, path string, n int, count func(*State, string) int) error {
	if n < 1 || !validPath(path) {
		return fmt.Errorf("zktest: waiting for %d watches on %q: the number must be positive and the path valid", n, path)
	}
	return s.waitState(ctx, func(st *State) bool { return count(st, path) >= n }, func(st *State) string {
		return fmt.Sprintf("%d watches on %s, there are %d", n, path, count(st, path))
	})
}

// Invariants checks the server's state. An error is a bug in the server.
func (s *Server) Invariants() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf("zktest: "+format, args...)) }
	for path, n := range s.tree {
		if path != "/" {
			parentPath, name := split(path)
			if parent := s.tree[parentPath]; parent == nil || !parent.children.has(name) {
				wrong("%s is not a child of its parent", path)
			}
		}
		for _, name := range n.children.list {
			if s.tree[strings.TrimSuffix(path, "/")+"/"+name] == nil {
				wrong("the child %s of %s does not exist", name, path)
			}
		}
		switch owner := s.sessions[n.owner]; {
		case n.kind == ephemeral && (owner == nil || !owner.ephemerals[path]):
			wrong("the ephemeral %s belongs to no session", path)
		case n.kind == ephemeral && len(n.children.list) > 0:
			wrong("the ephemeral %s has children", path)
		case max(n.czxid, n.mzxid, n.pzxid) > s.zxid:
			wrong("%s was changed by a future transaction", path)
		}
	}
	for id, ss := range s.sessions {
		for path := range ss.ephemerals {
			if n := s.tree[path]; n == nil || n.owner != id {
				wrong("session 0x%x does not own %s", id, path)
			}
		}
		if ss.conn != nil && (ss.conn.session != ss || !s.conns[ss.conn]) {
			wrong("session 0x%x has a connection that is closed", id)
		}
	}
	s.eachWatch(func(rep *replica, path string, _ bool, c *conn, _ watchMode) {
		if !s.conns[c] || c.replica != rep {
			wrong("a connection that is closed watches %s", path)
		}
	})
	for _, rep := range s.replicas {
		if s.isEnsemble() && rep.leadership == s.lead && len(rep.log) == 0 && rep.zxid == s.zxid && !rep.tree.equals(s.tree) {
			wrong("member %d has another tree than its leader, after the same transactions", rep.number)
		}
	}
	return errors.Join(append(errs, s.trace.violations...)...)
}
