package zktest

// This file has the tables of watches.

import "slices"

// watchMode says whether a watch fires once, and for which nodes.
type watchMode int

const (
	oneShotWatch    watchMode = iota
	persistentWatch           // stays after firing
	recursiveWatch            // persistent, and fires for all descendants, too
)

// watchTable holds the watches by path. Like ZooKeeper, a replica has two: of
// data, set by exists and getData, and of children.
type watchTable map[string]map[*conn]watchMode

func (t watchTable) add(path string, c *conn, mode watchMode) {
	if t[path] == nil {
		t[path] = map[*conn]watchMode{}
	}
	t[path][c] = mode
}

func (t watchTable) remove(path string, c *conn) bool {
	_, found := t[path][c]
	delete(t[path], c)
	if len(t[path]) == 0 {
		delete(t, path)
	}
	return found
}

func (t watchTable) removeConn(c *conn) {
	for path := range t {
		t.remove(path, c)
	}
}

func (t watchTable) each(f func(path string, c *conn, mode watchMode)) {
	for path, watchers := range t {
		for c, mode := range watchers {
			f(path, c, mode)
		}
	}
}

// trigger returns the connections whose watches fire for an event, sorted by number, and
// removes the one-time watches.
func (t watchTable) trigger(event EventType, path string) (conns []*conn) {
	for c, mode := range t[path] {
		if mode != recursiveWatch || event != NodeChildrenChanged {
			conns = append(conns, c)
		}
		if mode == oneShotWatch {
			t.remove(path, c)
		}
	}
	for above := path; above != "/" && event != NodeChildrenChanged; {
		above, _ = split(above)
		for c, mode := range t[above] {
			if mode == recursiveWatch && !slices.Contains(conns, c) {
				conns = append(conns, c)
			}
		}
	}
	slices.SortFunc(conns, func(a, b *conn) int { return a.client.number - b.client.number })
	return conns
}

// change is one node created, deleted or changed by a transaction.
type change struct {
	event     EventType // never NodeChildrenChanged, implied by the others
	path      string
	acl       []acl // of the node, at the moment of the change
	parentACL []acl // nil unless the node is created or deleted
}

// notifyWatchers sends the events of a change to the replica's connections.
func (rep *replica) notifyWatchers(ch change) {
	conns := rep.data.trigger(ch.event, ch.path)
	rep.sendEvents(conns, ch.event, ch.path, ch.acl)
	if ch.event == NodeDeleted {
		// A connection watching data and children gets one event.
		others := rep.child.trigger(NodeDeleted, ch.path)
		others = slices.DeleteFunc(others, func(c *conn) bool { return slices.Contains(conns, c) })
		rep.sendEvents(others, NodeDeleted, ch.path, ch.acl)
	}
	if ch.event == NodeCreated || ch.event == NodeDeleted {
		parent, _ := split(ch.path)
		rep.sendEvents(rep.child.trigger(NodeChildrenChanged, parent), NodeChildrenChanged, parent, ch.parentACL)
	}
}

// sendEvents sends an event to the connections with the right to read the node: others must
// not learn of the node (CVE-2024-23944).
func (rep *replica) sendEvents(conns []*conn, event EventType, path string, list []acl) {
	for _, c := range conns {
		if allowed(list, permRead, c.identities) {
			c.sendEvent(event, path)
		}
	}
}
