package zookeeper

// This file has the nodes of plain locks: their data, and the nodes held by a session.

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/znode"
)

// A plain lock has no queue: the lock is one ephemeral node with the name of the lock. The
// name is used again and again, so a GUID at the beginning of the data distinguishes one
// holder's node from another's.

// plainPrefix begins the data of a plain lock's node.
func plainPrefix(guid string) string { return znode.GUIDPrefix + guid + "\n" }

// plainNodes are the nodes of the plain locks held by a session, by path. There are several
// at a path if one was removed by another client and the session has created the next
// before noticing: answers received together are seen in any order.
type plainNodes struct {
	mu     sync.Mutex
	byPath map[string]plainNodesAt
}

// plainNodesAt are the nodes at one path, the oldest first.
type plainNodesAt []plainNode

// index returns the place of the node with a name, or -1.
func (at plainNodesAt) index(name string) int {
	return slices.IndexFunc(at, func(n plainNode) bool { return n.name == name })
}

type plainNode struct {
	name      string
	uncertain bool          // a check failed
	since     time.Duration // when confirmed, by expiry.now
	claims    *claims       // of the path
	turn      int64         // equal to claims.turn() until another node of this process gets the name
}

// at returns the record of a node of the session.
func (p *plainNodes) at(path string, node driver.Node) (n plainNode, recorded bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := p.byPath[path].index(node.Name); i >= 0 {
		return p.byPath[path][i], true
	}
	return plainNode{}, false
}

// add adds a node, which addUnnamed may have added before.
func (p *plainNodes) add(path string, node plainNode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := p.byPath[path].index(node.name); i >= 0 {
		p.byPath[path][i] = node
		return
	}
	p.byPath[path] = append(p.byPath[path], node)
}

// addUnnamed adds a node whose data was replaced by a revocation while the reply to the
// create was lost. If the session already holds the lock, the node is another's, and
// addUnnamed reports false.
func (p *plainNodes) addUnnamed(path string, node driver.Node) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.byPath[path]) > 0 {
		return false
	}
	p.byPath[path] = plainNodesAt{{name: node.Name}}
	return true
}

// holds reports whether the node is the last added by the session.
func (p *plainNodes) holds(path string, node driver.Node) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := p.byPath[path].index(node.Name)
	return i >= 0 && i == len(p.byPath[path])-1
}

// forget removes a node after its end.
func (p *plainNodes) forget(path string, node driver.Node) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := p.byPath[path].index(node.Name); i >= 0 {
		p.byPath[path] = slices.Delete(p.byPath[path], i, i+1)
	}
	if len(p.byPath[path]) == 0 {
		delete(p.byPath, path)
	}
}

// forgetPath removes the nodes at path, which are gone.
func (p *plainNodes) forgetPath(path string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.byPath, path)
}

// markUncertain notes that the node may have been replaced by another's.
func (p *plainNodes) markUncertain(path string, node driver.Node) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := p.byPath[path].index(node.Name); i >= 0 {
		p.byPath[path][i] = plainNode{name: node.Name, uncertain: true}
	}
}

// unwatched is how long a new node is assumed to exist without a watch: no operator removes
// a node by hand so soon.
const unwatched = 50 * time.Millisecond

// ownsPlain reports whether the session may still own the node, and whether this is as
// certain as after a read of the node: no other handle of this process has taken the name
// since, and the node's watch has not fired, or the node is too young to need a watch.
func (s *session) ownsPlain(path string, node driver.Node) (owns, certain bool) {
	w := s.watches.at(path)
	p, recorded := s.plainNodes.at(path, node) // after w, because an event changes this first
	if !recorded {
		return false, true
	}
	if p.uncertain || p.claims == nil || p.claims.turn() != p.turn {
		return true, false
	}
	return true, s.expiry.now()-p.since < unwatched || w != nil && w.isArmed() && s.matchesPlain(path, node, w.raw, w.stat)
}

// isPlainAt reports whether the node at path is the given node of the session. unconfirmed
// means that the reply to the create was lost, so that the node may exist without being
// recorded.
func (s *session) isPlainAt(path string, node driver.Node, unconfirmed bool) (bool, error) {
	err := s.insist(context.Background(), s.decideWrites)
	var q *request
	if err == nil {
		q, err = s.get(context.Background(), path)
	}
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return false, nil
	case err != nil:
		return false, err
	}
	return s.matchesPlain(path, node, q.data, &q.stat) ||
		unconfirmed && s.hasRevokeRequest(q.data, &q.stat) && s.plainNodes.addUnnamed(path, node), nil
}

// matchesPlain reports whether data and stat, read at path, belong to the node. A
// revocation may have replaced the node's name, or may have been meant for the holder
// before. Then the node is the one held there by the session, provided that the node
// belongs to the session at all.
func (s *session) matchesPlain(path string, node driver.Node, data []byte, stat *zk.Stat) bool {
	if znode.PlainNode(data, stat) == node {
		return true
	}
	return s.hasRevokeRequest(data, stat) && s.plainNodes.holds(path, node)
}

// hasRevokeRequest reports whether a node of the session contains a revocation.
func (s *session) hasRevokeRequest(data []byte, stat *zk.Stat) bool {
	_, revoked := znode.CutRevocation(data)
	return revoked && stat.EphemeralOwner == s.id()
}
