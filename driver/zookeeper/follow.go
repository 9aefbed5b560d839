package zookeeper

// This file has Follow: an observer's view of a queue, kept by watches on contenders and on
// the directory.

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/znode"
)

// Follow implements driver.Follower. An observer of a queue's first contenders, up to a
// waiter, needs to know only that one of them is gone, because new contenders join behind
// them: the nodes of these contenders are watched. Without a waiter the next to join
// changes the head, so the directory is watched as well. A directory's watch fires whenever
// a contender joins or leaves, which is too often in a long queue.
func (s *session) Follow(ctx context.Context, queue string, head func([]driver.Node) (n int, complete bool)) (driver.Followed, error) {
	dir := s.path(queue)
	for {
		l, err := s.look(ctx, dir)
		if err != nil {
			return driver.Followed{}, err
		}
		var directory *watch
		n, complete := head(l.nodes)
		if !complete {
			if directory, err = s.watchDirectory(ctx, dir); err != nil {
				return driver.Followed{}, err
			}
			l = *directory.listed
			n, complete = head(l.nodes)
		}
		f, ok, err := s.followNodes(ctx, queue, l.nodes[:n])
		if err != nil {
			return driver.Followed{}, err
		}
		if !ok { // one of them is gone
			continue
		}
		f.Others = l.others
		if complete {
			return f, nil
		}
		f.Watches = append(f.Watches, &directory.Watch)
		if directory.stat != nil && znode.IsPlain(directory.stat) {
			err = s.readAll(ctx, s.readPlain(dir, func(holder driver.Contender) { f.Contenders = append(f.Contenders, holder) }))
		}
		return f, err
	}
}

// followNodes watches the contenders and returns them. ok is false if one is gone.
func (s *session) followNodes(ctx context.Context, queue string, nodes []driver.Node) (f driver.Followed, ok bool, err error) {
	a, err := s.armWatches(ctx, queue, nodes, false)
	if err != nil {
		return f, false, err
	}
	for i, w := range a.watches {
		switch fired := w.Fired(); {
		case w.failure() != nil:
			return f, false, w.failure()
		case w.stat == nil, fired != 0 && fired != driver.Changed:
			return f, false, s.pause(ctx, 0)
		}
		f.Contenders = append(f.Contenders, znode.NewContender(nodes[i], w.raw, w.stat))
		f.Watches = append(f.Watches, &w.Watch)
	}
	return f, true, nil
}

// look is what a directory contains.
type look struct {
	nodes  []driver.Node
	others []string // the other children
}

func newLook(children []string, nodes []driver.Node) look {
	l := look{nodes: nodes}
	for _, name := range children {
		if !znode.IsContender(name) {
			l.others = append(l.others, name)
		}
	}
	slices.Sort(l.others)
	return l
}

// look lists a directory, which need not exist, unless a watch proves the last listing
// unchanged.
func (s *session) look(ctx context.Context, dir string) (l look, err error) {
	if w := s.watches.at(childrenOf(dir)); w != nil && w.isArmed() && w.Fired() == 0 {
		return *w.listed, nil
	}
	err = s.readAll(ctx, s.readChildren(dir, func(found *listing) []read {
		l = newLook(found.children(), found.contenders())
		return nil
	}))
	return l, err
}

// childrenOf is where watches has the watch on the children of a directory. No node has
// such a path.
func childrenOf(dir string) string { return dir + "/" }

// watchDirectory returns an armed watch on a directory. The listing in the watch is of the
// moment when watching began.
func (s *session) watchDirectory(ctx context.Context, dir string) (*watch, error) {
	for {
		w, made := s.watch(childrenOf(dir))
		if made {
			s.requests.start(s.listAndWatch(dir, w))
		}
		switch {
		case w == nil || !s.awaitAnswer(ctx, w):
			return nil, s.gaveUp(ctx)
		case w.failure() != nil:
			return nil, w.failure()
		case w.listed != nil:
			return w, nil
		}
		if err := s.pause(ctx, 0); err != nil {
			return nil, err
		}
	}
}

// listAndWatch returns the request to arm the watch on a directory, or on the creation of a
// missing directory.
func (s *session) listAndWatch(dir string, w *watch) *request {
	q := childrenRequest(dir, s.listings.length(dir))
	q.watch()
	q.noted = func(q *request) {
		switch {
		case errors.Is(q.err, zk.ErrNoNode):
			s.requests.start(s.watchCreation(dir, w))
		case q.err == nil:
			stat := q.stat // a copy, because the watch outlives the request
			listed := newLook(q.children, znode.Contenders(q.children))
			w.stat, w.listed = &stat, &listed
			w.armed()
		default:
			s.noteUnwatched(w, q.err)
		}
	}
	return q
}

// watchCreation returns the request to watch for the creation of a directory.
func (s *session) watchCreation(dir string, w *watch) *request {
	q := existsRequest(dir)
	q.watch()
	q.noted = func(q *request) {
		switch {
		case errors.Is(q.err, zk.ErrNoNode):
			w.listed = new(look)
			w.armed()
		case q.err == nil: // created in between
			s.requests.start(s.listAndWatch(dir, w))
		default:
			s.noteUnwatched(w, q.err)
		}
	}
	return q
}

// fireDirectory is called for a server's event about the children of a directory, or its
// creation or removal.
func (s *session) fireDirectory(dir string) {
	if w := s.watches.at(childrenOf(dir)); w != nil && w.isArmed() {
		s.fireWatch(w, driver.Changed)
	}
}

// checkDirectory is checkTarget for the watch on a directory.
func (s *session) checkDirectory(dir string) (isGone func(w *watch) bool, err error) {
	q, err := s.exists(s.alive, dir)
	exists := err == nil
	if errors.Is(err, zk.ErrNoNode) {
		err = nil
	}
	return func(w *watch) bool {
		if w.stat == nil || !exists {
			return exists != (w.stat != nil)
		}
		return q.stat.Czxid != w.stat.Czxid || q.stat.Cversion != w.stat.Cversion
	}, err
}

// directoryOf returns the directory watched at path, if path is a directory's.
func directoryOf(path string) (dir string, ok bool) { return strings.CutSuffix(path, "/") }
