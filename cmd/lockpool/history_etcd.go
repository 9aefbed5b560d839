package main

// This file has the history of locks by the revisions of etcd.

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/lockpool/lockpool/driver/etcd"
	"github.com/lockpool/lockpool/internal/nodedata"
	"github.com/lockpool/lockpool/internal/waitgraph"
	"github.com/lockpool/lockpool/internal/znode"
)

// revisionHistory follows locks through the revisions of etcd. Revisions have no times: of all
// changes, only a join is dated, by the client. So another change lies between two joins.
type revisionHistory struct {
	*history
	nodes     map[string]map[string]*waitgraph.Contender // by queue and name
	last      int64                                      // revision
	joined    time.Time                                  // the last contender, by a clock that may be ahead of now
	now       time.Time
	undated   []*instant // since the last join
	compacted bool
}

func newRevisionHistory(names []string) *revisionHistory {
	return &revisionHistory{history: newHistory(names), nodes: map[string]map[string]*waitgraph.Contender{}, now: time.Now()}
}

// readRevisions returns the history that etcd has kept.
func (c *connection) readRevisions(ctx context.Context, names []string, from, to string) (*history, error) {
	service, err := c.service()
	if err != nil {
		return nil, err
	}
	connector, ok := service.connector.(*etcd.Connector)
	if !ok {
		return nil, misused("ZooKeeper keeps the history in its files: give the directory of a server's with --txnlog")
	}
	h := newRevisionHistory(names)
	if err := h.between(from, to, h.now); err != nil {
		return nil, err
	}
	err = connector.History(ctx, h.apply)
	h.date(h.now)
	notes := []string{
		"only joins have times, by the clocks of the clients: a time with + is of the last join before, and the lengths say until when, up to the next join",
		"the numbers and times of locks count the shortest lengths",
		"a contender that another client has removed is shown as released, or as having given up",
	}
	if h.compacted {
		notes = append(notes, "etcd has compacted what was before")
	}
	h.finish(notes)
	return h.history, err
}

// date ends the time in which the latest changes can have been.
func (h *revisionHistory) date(t time.Time) {
	for _, p := range h.undated {
		if t.After(p.at) {
			p.latest = t
		}
	}
	h.undated = h.undated[:0]
}

// apply takes in a revision.
func (h *revisionHistory) apply(r etcd.Revision) (more bool) {
	changed, dated := map[string]bool{}, false // by lock
	if r.Number == 0 {
		for queue := range h.nodes {
			changed[znode.LockOf(queue)] = true
		}
		clear(h.nodes)
		h.compacted = true
	}
	p := &instant{order: cmp.Or(r.Number, h.last), unseen: r.Number == 0}
	h.last = p.order
	for _, c := range r.Changes {
		if r.Number == 0 && c.Joined.After(h.joined) {
			h.joined = c.Joined
		} else if r.Number == c.Created && !c.Left && !c.Joined.IsZero() {
			if h.joined, dated = c.Joined, true; h.joined.After(h.now) {
				h.joined = h.now
			}
			h.date(h.joined)
		}
		if lock := znode.LockOf(c.Queue); h.wants(lock) {
			h.change(c)
			changed[lock] = true
		}
	}
	p.at, p.latest = h.joined, h.joined
	if p.at.After(h.To) {
		return false
	}
	if !dated && !p.unseen {
		h.undated = append(h.undated, p)
	}
	for lock := range changed {
		h.see(p, lock, h.queue(lock), func(i *interval) (how, by string) {
			if slices.Contains(r.Ended, i.Session) {
				return "session ended", ""
			}
			return i.left(), ""
		})
	}
	return true
}

// change changes a contender.
func (h *revisionHistory) change(c etcd.Change) {
	name := cmp.Or(c.Private, c.Name) // the same after a downgrade
	if c.Left {
		delete(h.nodes[c.Queue], name)
	} else {
		insert(h.nodes, c.Queue, name, &waitgraph.Contender{Contender: c.Contender, Record: nodedata.Parse(c.Data)})
	}
}

// queue returns the contenders of a lock, as lockpool.Pool.Queue does.
func (h *revisionHistory) queue(lock string) []*waitgraph.Contender {
	return shown(lock, func(name string) (all []waitgraph.Contender) {
		for _, c := range h.nodes[name] {
			all = append(all, *c)
		}
		slices.SortFunc(all, func(a, b waitgraph.Contender) int { return cmp.Compare(a.Created, b.Created) })
		return all
	})
}
