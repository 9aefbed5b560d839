package zktest

import "slices"

// watchMode is how long a watch lasts and what it sees.
type watchMode int

const (
	oneShot   watchMode = iota
	permanent           // ZooKeeper's "persistent": not removed by firing
	recursive           // permanent, and sees everything below
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

func (t watchTable) forget(c *conn) {
	for path := range t {
		t.remove(path, c)
	}
}

// fired returns who is to be told of an event, in the order of connections,
// and removes the watches that fire once.
func (t watchTable) fired(event EventType, path string) (who []*conn) {
	for c, mode := range t[path] {
		if mode != recursive || event != NodeChildrenChanged {
			who = append(who, c)
		}
		if mode == oneShot {
			t.remove(path, c)
		}
	}
	if event != NodeChildrenChanged {
		for above := path; above != "/"; {
			above, _ = split(above)
			for c, mode := range t[above] {
				if mode == recursive && !slices.Contains(who, c) {
					who = append(who, c)
				}
			}
		}
	}
	slices.SortFunc(who, func(a, b *conn) int { return a.line.number - b.line.number })
	return who
}

// change is one node created, deleted or changed by a transaction.
type change struct {
	event     EventType // but NodeChildrenChanged, which follows from the others
	path      string
	acl       []acl // of the node, at the moment of the change
	parentACL []acl
}

// fire tells the member's connections of a change.
func (m *member) fire(ch change) {
	told := m.data.fired(ch.event, ch.path)
	m.tell(told, ch.event, ch.path, ch.acl)
	if ch.event == NodeDeleted {
		// Who watches data and children is told once.
		more := m.child.fired(NodeDeleted, ch.path)
		m.tell(slices.DeleteFunc(more, func(c *conn) bool { return slices.Contains(told, c) }), NodeDeleted, ch.path, ch.acl)
	}
	if ch.event == NodeCreated || ch.event == NodeDeleted {
		parent, _ := split(ch.path)
		m.tell(m.child.fired(NodeChildrenChanged, parent), NodeChildrenChanged, parent, ch.parentACL)
	}
}

// tell sends an event to those who may read the node: not knowing that it is
// there is part of not being allowed to read it (CVE-2024-23944).
func (m *member) tell(who []*conn, event EventType, path string, list []acl) {
	for _, c := range who {
		if allowed(list, permRead, c.who) {
			c.event(event, path)
		}
	}
}
