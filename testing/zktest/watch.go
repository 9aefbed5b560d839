package zktest

import "slices"

// watchMode is how long a watch lasts and what it sees.
type watchMode int

const (
	oneShotWatch    watchMode = iota
	persistentWatch           // ZooKeeper's "persistent": not removed by firing
	recursiveWatch            // permanent, and sees everything below
)

// watchTable is who watches which path. ZooKeeper has two of them: of data
// (set by exists and getData) and of children.
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

// fired returns who is to be told of an event, in the order of connections,
// and removes the watches that fire once.
func (t watchTable) trigger(event EventType, path string) (conns []*conn) {
	for c, mode := range t[path] {
		if mode != recursiveWatch || event != NodeChildrenChanged {
			conns = append(conns, c)
		}
		if mode == oneShotWatch {
			t.remove(path, c)
		}
	}
	if event != NodeChildrenChanged {
		for above := path; above != "/"; {
			above, _ = split(above)
			for c, mode := range t[above] {
				if mode == recursiveWatch && !slices.Contains(conns, c) {
					conns = append(conns, c)
				}
			}
		}
	}
	slices.SortFunc(conns, func(a, b *conn) int { return a.client.number - b.client.number })
	return conns
}

// change is one node created, deleted or changed by a transaction.
type change struct {
	event     EventType // but NodeChildrenChanged, which follows from the others
	path      string
	acl       []acl // of the node, at the moment of the change
	parentACL []acl
}

// fire tells the member's connections of a change.
func (rep *replica) notifyWatchers(ch change) {
	told := rep.data.trigger(ch.event, ch.path)
	rep.sendEvents(told, ch.event, ch.path, ch.acl)
	if ch.event == NodeDeleted {
		// Who watches data and children is told once.
		more := rep.child.trigger(NodeDeleted, ch.path)
		rep.sendEvents(slices.DeleteFunc(more, func(c *conn) bool { return slices.Contains(told, c) }), NodeDeleted, ch.path, ch.acl)
	}
	if ch.event == NodeCreated || ch.event == NodeDeleted {
		parent, _ := split(ch.path)
		rep.sendEvents(rep.child.trigger(NodeChildrenChanged, parent), NodeChildrenChanged, parent, ch.parentACL)
	}
}

// tell sends an event to those who may read the node: not knowing that it is
// there is part of not being allowed to read it (CVE-2024-23944).
func (rep *replica) sendEvents(conns []*conn, event EventType, path string, list []acl) {
	for _, c := range conns {
		if allowed(list, permRead, c.identities) {
			c.sendEvent(event, path)
		}
	}
}
