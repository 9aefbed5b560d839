package main

// This file has the history of locks by the revisions of etcd.

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/driver/etcd"
	"github.com/lockpool/lockpool/internal/nodedata"
	"github.com/lockpool/lockpool/internal/waitgraph"
)

// revisionHistory follows locks through the revisions of etcd. Revisions have no times: of all
// changes, only a join is dated, by the client. So another change lies between two joins.
type revisionHistory struct {
	*history
	queues    map[string][]waitgraph.Contender // in order
	joined    time.Time                        // the last contender
	undated   []*instant                       // the later ones than the last join
	compacted bool
}

func newRevisionHistory(names []string) *revisionHistory {
	return &revisionHistory{history: newHistory(names), queues: map[string][]waitgraph.Contender{}}
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
	if err := h.between(from, to, time.Now()); err != nil {
		return nil, err
	}
	err = connector.History(ctx, h.apply)
	h.done()
	return h.history, err
}

// done completes the output.
func (h *revisionHistory) done() {
	h.date(time.Now())
	for _, i := range h.Intervals {
		if i.From == nil && i.begun.unseen { // joined before, and has held since an unknown time
			i.From = timeOrNull(i.Asked)
		}
	}
	notes := []string{
		"only joins have times, by the clients' clocks: a time with + is of the join before the change, and the longest length ends with the join after the change",
		"the numbers and times of locks count the shortest lengths",
		"a contender that another client has removed is shown as released, or as having given up",
	}
	if h.compacted {
		notes = append(notes, "etcd has compacted what was before")
	}
	h.finish(notes)
}

// date ends the time in which the undated changes can have been.
func (h *revisionHistory) date(t time.Time) {
	h.undated = slices.DeleteFunc(h.undated, func(p *instant) bool {
		after := t.After(p.at)
		if after {
			p.latest = t
		}
		return after
	})
}

// apply takes in a revision.
func (h *revisionHistory) apply(r etcd.Revision) {
	changed, dated, now := map[string]bool{}, false, time.Now()
	if r.All {
		for queue := range h.queues {
			changed[driver.LockOf(queue)] = true
		}
		clear(h.queues)
		h.compacted = true
		slices.SortFunc(r.Changes, func(a, b etcd.Change) int { return cmp.Compare(a.Created, b.Created) })
	}
	for _, c := range r.Changes {
		if joins := r.Number == c.Created && !c.Left; (joins || r.All) && !c.Joined.IsZero() {
			h.joined, dated = c.Joined, !r.All
			if h.joined.After(now) { // by the clock of the client
				h.joined = now
			}
		}
		if lock := driver.LockOf(c.Queue); h.wants(lock) {
			h.change(c)
			changed[lock] = true
		}
	}
	p := &instant{order: r.Number, at: h.joined, latest: h.joined, unseen: r.All}
	if dated {
		h.date(h.joined)
	} else {
		h.undated = append(h.undated, p)
	}
	for lock := range changed {
		h.see(p, lock, shown(lock, h.queue), func(i *interval) (how, by string) {
			if slices.Contains(r.Ended, i.Session) {
				return "session ended", ""
			}
			return i.left(), ""
		})
	}
}

// change changes a contender.
func (h *revisionHistory) change(c etcd.Change) {
	queue := h.queues[c.Queue]
	i := slices.IndexFunc(queue, func(o waitgraph.Contender) bool { return o.Created == c.Created })
	switch now := (waitgraph.Contender{Contender: c.Contender, Record: nodedata.Parse(c.Data)}); {
	case c.Left && i >= 0:
		queue = slices.Delete(queue, i, i+1)
	case i >= 0:
		queue[i] = now
	case !c.Left:
		queue = append(queue, now)
	}
	h.queues[c.Queue] = queue
}

func (h *revisionHistory) queue(name string) []waitgraph.Contender { return h.queues[name] }
