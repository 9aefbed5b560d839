package drivertest

// This file has the laws of watches.

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/testing/plays"
)

// gone are the events of a node removed by another session, while the connection may break.
var gone = []driver.Event{driver.Deleted, driver.Unnoticed, driver.Interrupted}

// notDeleted are the events of a node of the session itself, not removed by the session.
var notDeleted = []driver.Event{driver.Missing, driver.Unnoticed, driver.Interrupted}

func watchForNothingElse(r *run) {
	s, other, queue := r.connect(), r.connect(), r.name()
	node := r.join(other, queue)
	before := r.join(other, queue)
	w := r.watchOne(s, node)
	r.waits(w, "the node is there")
	require.Equal(r, data, string(w.Data))
	require.False(r, w.Revoked)
	r.leave(other, before)
	r.leave(s, r.join(s, queue))
	r.leave(other, r.join(other, r.name()))
	_, err := other.Data(r.ctx, queue, node.Node)
	require.NoError(r, err)
	r.list(s, queue)
	r.waits(w, "the node has not changed")
	r.leave(other, node)
	r.fires(w, "the node has left", driver.Deleted)
	listed, err := s.List(r.ctx, queue)
	require.NoError(r, err)
	require.Empty(r, listed, "what was told is seen")
}

// watchAfterTheChange lists the queue as soon as a watch fires.
func watchAfterTheChange(r *run) {
	s, other, queue := r.connect(), r.connect(), r.name()
	for range 10 {
		node, stays := r.join(other, queue), r.join(other, queue)
		w := r.watchOne(s, node)
		plays.Together(r, 2, func(i int) error {
			if i == 0 {
				return other.Leave(r.ctx, queue, node.Node)
			}
			if err := r.first([]*driver.Watch{w}); err != nil {
				return err
			}
			listed, err := s.List(r.ctx, queue)
			if err == nil && slices.Contains(listed, node.Node) {
				err = fmt.Errorf("a watch has fired with %v, and the node is listed", w.Fired())
			}
			return err
		})
		r.leave(other, stays)
	}
}

func watchGone(r *run) {
	s, other, queue := r.connect(), r.connect(), r.name()
	gone, there := r.join(other, queue), r.join(other, queue)
	r.leave(other, gone)
	watches := r.watch(s, gone, there)
	require.NotZero(r, watches[0].Fired(), "the node was gone, and its watch has not fired")
	r.fires(watches[0], "the node was gone", driver.Missing)
	require.Zero(r, watches[0].Created)
	r.waits(watches[1], "the node is there")
	r.fires(r.watchOne(other, gone), "the session has removed the node before", driver.Missing)
}

func watchTogether(r *run) {
	const n = 10
	owner, sessions := r.connect(), r.connectAll(4)
	queue := r.name()
	var nodes []driver.Located
	for range n {
		nodes = append(nodes, r.join(owner, queue))
	}
	watches := make([][]*driver.Watch, 4*n)
	plays.Together(r, 4*n, func(i int) (err error) { // while the nodes leave
		if i < n {
			err = owner.Leave(r.ctx, queue, nodes[i].Node)
		}
		if err == nil {
			watches[i], err = sessions[i%4].Watch(r.ctx, queue, nodesOf(nodes)...)
		}
		return err
	})
	for _, each := range watches {
		for _, w := range each {
			r.fires(w, "the node has left", driver.Deleted, driver.Missing)
		}
	}
}

func watchDuringOutage(r *run) {
	r.need("Pause", r.Pause != nil)
	s, other, queue := r.connect(), r.connect(), r.name()
	node := r.join(other, queue)
	w := r.watchOne(s, node)
	resume := r.pause(s)
	ctx, cancel := r.shortly()
	_ = other.Leave(ctx, queue, node.Node) // continues if the service is silent
	cancel()
	resume()
	r.fires(w, "the node has left while the service was silent", gone...)
}

func watchLostEvent(r *run) {
	r.need("LoseEvent", r.LoseEvent != nil)
	s, other, queue := r.connect(), r.connect(), r.name()
	node := r.join(other, queue)
	w := r.watchOne(s, node)
	r.LoseEvent(s)
	r.leave(other, node)
	r.fires(w, "the node has left, and the service has not reported it", gone...)
}

// eventsInOrder has nodes of several sessions removed, each after the one before it. So
// after the firing of a watch, all watches before it must have fired.
func eventsInOrder(r *run) {
	const n = 60
	owners, watchers := r.connectAll(3), r.connectAll(3)
	queue := r.name()
	var nodes []driver.Located
	for i := range n {
		nodes = append(nodes, r.join(owners[i%3], queue))
	}
	all := make([][]*driver.Watch, len(watchers))
	for i, s := range watchers {
		all[i] = slices.Concat(r.watch(s, nodes[:n/2]...), r.watch(s, nodes[n/2:]...))
	}
	plays.Together(r, 1+len(watchers), func(i int) error {
		if i == len(watchers) {
			for i, node := range nodes {
				if err := owners[i%3].Leave(r.ctx, queue, node.Node); err != nil {
					return err
				}
			}
			return nil
		}
		for {
			unfired := slices.DeleteFunc(slices.Clone(all[i]), func(w *driver.Watch) bool { return w.Fired() != 0 })
			if len(unfired) == 0 {
				return nil
			}
			if err := r.first(unfired); err != nil {
				return err
			}
			if err := firedInOrder(all[i]); err != nil {
				return err
			}
		}
	})
}

// firedInOrder returns an error if a watch has told of a removal before an earlier one has
// fired. Interrupted watches, as at the end of the session, tell nothing.
func firedInOrder(watches []*driver.Watch) error {
	last := len(watches) - 1 // the last to tell of a removal
	for last >= 0 && watches[last].Fired() != driver.Deleted {
		last--
	}
	for before := range max(last, 0) {
		if watches[before].Fired() == 0 {
			return fmt.Errorf("node %d was removed before node %d, and its watch fires later", before, last)
		}
	}
	return nil
}

// eventsAfterOutage has the session hear of many removals at once, and looks all the time.
func eventsAfterOutage(r *run) {
	r.need("Pause", r.Pause != nil)
	if r.bubble {
		r.Skip("not proved: to look all the time stops the clock of a bubble")
	}
	s, owner := r.connect(), r.connect()
	for range 5 {
		queue := r.name()
		var nodes []driver.Located
		for range 30 {
			nodes = append(nodes, r.join(owner, queue))
		}
		watches := r.watch(s, nodes...)
		resume := r.pause(s)
		ctx, cancel := context.WithTimeout(r.ctx, r.Timeout/4) // less than a session lives in silence
		defer cancel()
		for _, node := range nodes {
			if err := owner.Leave(ctx, queue, node.Node); err != nil {
				r.Skipf("not proved: Options.Pause has stopped the other session as well, or it is too slow: %v", err)
			}
		}
		resume()
		for begun := time.Now(); watches[len(watches)-1].Fired() == 0; {
			require.NoError(r, firedInOrder(watches))
			require.NoError(r, r.ctx.Err(), "no watch of the last node has fired in %v", time.Since(begun).Round(time.Second))
		}
		require.NoError(r, firedInOrder(watches))
	}
}

func eventsOnAnotherServer(r *run) {
	r.need("Lag", r.Lag != nil)
	s, owner, queue := r.connect(), r.connect(), r.name()
	node := r.join(owner, queue)
	w := r.watchOne(s, node)
	move := r.Lag(s)
	var run driver.Record
	records, ok := owner.(driver.Recorder)
	if ok {
		run = r.newRecord(records)
		require.NoError(r, records.Finish(r.ctx, queue, node.Node, run))
	}
	r.leave(owner, node)
	r.fires(w, "the node has left", driver.Deleted)
	move()
	if ok {
		_, found, err := s.(driver.Recorder).Record(r.ctx, run.Name, run.Key)
		require.NoError(r, err)
		require.True(r, found, "the run was recorded before the node left")
	}
	require.Empty(r, r.list(s, queue), "the node has left")
}

func deletedOthers(r *run) {
	s, owner, queue := r.connect(), r.connect(), r.name()
	left, closed := r.join(owner, queue), r.join(owner, queue)
	watches := r.watch(s, left, closed)
	r.leave(owner, left)
	r.fires(watches[0], "the node has left", gone...)
	require.NoError(r, owner.Close(r.ctx))
	r.fires(watches[1], "the session of the node was closed", gone...)
	require.Empty(r, r.list(s, queue))
}

func deletedOwn(r *run) {
	s, queue := r.connect(), r.name()
	node, next := r.join(s, queue), r.join(s, queue)
	watches := r.watch(s, node, next)
	r.leave(s, node)
	r.fires(watches[0], "the session itself has removed the node", gone...)
	r.waits(watches[1], "the node is there")
}

func deletedOwnRemoved(r *run) {
	s, other, queue := r.connect(), r.connect(), r.name()
	node := r.join(s, queue)
	w := r.watchOne(s, node)
	r.remove(other, node)
	r.fires(w, "another has removed the node", notDeleted...)
}

func deletedOwnSession(r *run) {
	for _, end := range []func(s driver.Session){
		func(s driver.Session) { require.NoError(r, s.Close(r.ctx)) },
		r.Expire,
	} {
		if end == nil {
			r.Log("not proved for an expired session: it needs Options.Expire")
			continue
		}
		s, queue := r.connect(), r.name()
		var nodes []driver.Located
		for range 20 {
			nodes = append(nodes, r.join(s, queue))
		}
		watches := r.watch(s, nodes...)
		end(s)
		for _, w := range watches {
			r.fires(w, "the session of the node has ended", notDeleted...)
		}
	}
}
