package memory

// This file has watches, and what fires them.

import (
	"context"
	"slices"

	"github.com/lockpool/lockpool/driver"
)

// watchers are the watches on something, before they fire, one for each session.
type watchers []watcher

type watcher struct {
	session *session
	watch   *driver.Watch
}

// watch returns the session's watch, a new one if needed.
func (ws *watchers) watch(s *session) (w *driver.Watch, isNew bool) {
	for _, other := range *ws {
		if other.session == s {
			return other.watch, false
		}
	}
	w = driver.NewWatch()
	*ws = append(*ws, watcher{s, w})
	return w, true
}

// fire fires watches with an event or, if of is not nil, with the event of returns for each
// session.
func (st *Store) fire(ws *watchers, e driver.Event, of func(*session) driver.Event) {
	for _, w := range *ws {
		if of != nil {
			e = of(w.session)
		}
		e := e
		st.whenServed(func() { w.watch.Fire(e) })
	}
	*ws = nil
}

// changed tells the followers of a queue that a contender has joined or left. The followers
// of a semaphore's name are told of the semaphore's queues, too, even new ones.
func (st *Store) changed(queue string) {
	if ws := st.followers[queue]; ws != nil {
		delete(st.followers, queue)
		st.fire(&ws, driver.Changed, nil)
	}
	if name := driver.LockOf(queue); name != queue {
		st.changed(name)
	}
}

// unwatch fires the watches of an ended session.
func (s *session) unwatch() {
	end := func(ws watchers) watchers {
		return slices.DeleteFunc(ws, func(w watcher) bool {
			if w.session == s {
				w.watch.Fire(driver.Interrupted)
			}
			return w.session == s
		})
	}
	for _, q := range s.queues {
		for _, e := range q.entries {
			e.watchers = end(e.watchers)
		}
	}
	for _, e := range s.limits {
		e.watchers = end(e.watchers)
	}
	for queue, ws := range s.followers {
		if ws = end(ws); len(ws) == 0 {
			delete(s.followers, queue)
		} else {
			s.followers[queue] = ws
		}
	}
}

// Watch implements driver.Session.
func (s *session) Watch(ctx context.Context, queue string, nodes ...driver.Node) ([]*driver.Watch, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	watches := make([]*driver.Watch, len(nodes))
	for i, node := range nodes {
		e, _, _ := s.find(queue, node)
		if node.Name == driver.Limit {
			e = s.limits[queue]
		}
		if e != nil {
			watches[i] = e.watch(s)
		} else {
			watches[i] = driver.NewWatch()
			watches[i].Fire(driver.Missing)
		}
	}
	return watches, nil
}

// watch returns the session's watch on an entry.
func (e *entry) watch(s *session) *driver.Watch {
	w, isNew := e.watchers.watch(s)
	if isNew {
		w.Created, w.Data, w.Revoked = e.created, e.data, e.revoked
	}
	return w
}

// Follow implements driver.Follower.
func (s *session) Follow(ctx context.Context, queue string, head func([]driver.Node) (n int, complete bool)) (f driver.Followed, err error) {
	if err := s.begin(ctx); err != nil {
		return f, err
	}
	defer s.mu.Unlock()
	q := s.queue(queue)
	n, complete := head(q.nodes())
	for _, e := range q.entries[:n] {
		f.Contenders = append(f.Contenders, e.contender())
		f.Watches = append(f.Watches, e.watch(s))
	}
	if !complete {
		ws := s.followers[queue]
		w, _ := ws.watch(s)
		s.followers[queue] = ws
		f.Watches = append(f.Watches, w)
	}
	f.Others = s.others(queue)
	return f, nil
}
