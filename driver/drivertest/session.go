package drivertest

// This file has the laws of sessions.

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/testing/plays"
)

// forever is the lease of a session ended only by Close.
const forever = time.Duration(math.MaxInt64)

func leaseServed(r *run) {
	s, queue := r.connect(), r.name()
	node := r.join(s, queue)
	if s.Lease() == forever {
		r.Skip("a session ends only when it is closed: there is no lease to prove")
	}
	other := r.connect()
	least, slowest := forever, time.Duration(0)
	for end := time.Now().Add(2 * r.Timeout); time.Now().Before(end); r.nap() {
		asked := time.Now()
		require.NoError(r, other.Ping(r.ctx))
		slowest = max(slowest, time.Since(asked))
		lease := s.Lease()
		require.LessOrEqual(r, lease, r.Timeout, "the service may end the session after the session timeout")
		require.Positive(r, lease, "the service answers")
		least = min(least, lease)
	}
	shortest := r.Timeout * 2 / 5
	if !r.bubble {
		shortest = r.Timeout / 5 // when a renewal was late, and the calls of the other session were not
	}
	require.GreaterOrEqual(r, least+slowest, shortest, "much less than half of the session timeout, though the service answered within %v", slowest)
	require.NoError(r, s.Alive(r.ctx))
	require.NoError(r, s.Err())
	require.Equal(r, []driver.Node{node.Node}, r.list(s, queue))
}

func leaseEnds(r *run) {
	r.need("Pause", r.Pause != nil)
	r.endsInTime(r.connect())
}

func leaseAfterIdleness(r *run) {
	r.need("Pause", r.Pause != nil)
	s := r.connect()
	var used atomic.Bool
	offered[driver.Idler](r, s).IdleIf(func() bool { return !used.Load() })
	time.Sleep(3 * r.Timeout)
	require.NoError(r, s.Err(), "the service answers")
	used.Store(true)
	r.join(s, r.name())
	require.NoError(r, s.Alive(r.ctx))
	require.Positive(r, s.Lease())
	time.Sleep(r.Timeout / 2)
	require.GreaterOrEqual(r, s.Lease(), r.Timeout/4, "The lease is soon as long as ever.")
	r.endsInTime(s)
}

// endsInTime has a session without answers beside another one, where the nodes are seen to
// go.
func (r *run) endsInTime(s driver.Session) {
	r.Helper()
	rival, queue := r.connect(), r.name()
	nodes := []driver.Located{r.join(s, queue), r.join(s, queue)}
	if s.Lease() == forever {
		r.Skip("a session ends only when it is closed: there is no lease to prove")
	}
	watches := r.watch(rival, nodes...)
	own := r.watch(s, nodes...)
	r.pause(s)
	require.NoError(r, r.first(watches), "the service does not remove the nodes: is Options.Timeout right?")
	if rival.Err() != nil {
		r.Skip("not proved: Options.Pause has ended the other session as well")
	}
	require.True(r, plays.Closed(s.Done()), "the nodes are gone, and Done is not closed")
	require.Zero(r, s.Lease())
	require.ErrorIs(r, s.Err(), driver.ErrSessionLost)
	require.NotErrorIs(r, s.Err(), driver.ErrExpired, "the service has kept its promise")
	for _, w := range own {
		r.fires(w, "the session of the node has ended", notDeleted...)
	}
}

func leaseShortOutages(r *run) {
	r.need("Pause", r.Pause != nil)
	s, rival, queue := r.connect(), r.connect(), r.name()
	node := r.join(s, queue)
	w := r.watchOne(rival, node)
	for i := range 6 {
		resume := r.pause(s)
		time.Sleep(r.Timeout * time.Duration(1+i) / 20)
		resume()
		time.Sleep(r.Timeout / 10)
		if w.Fired() != 0 && rival.Err() == nil {
			listed, err := rival.List(r.ctx, queue)
			require.True(r, err != nil || len(listed) == 1 || plays.Closed(s.Done()), "the node is gone, and Done is not closed")
			return
		}
	}
}

// ended requires a session to be over in every respect.
func (r *run) ended(s driver.Session, on things, watches []*driver.Watch) {
	r.Helper()
	r.over(s)
	require.ErrorIs(r, s.Err(), driver.ErrSessionLost)
	require.Zero(r, s.Lease())
	for _, w := range watches {
		r.fires(w, "its session has ended, and nothing is known of the node", driver.Missing, driver.Interrupted, driver.Unnoticed)
	}
	for _, call := range calls(s) {
		require.ErrorIs(r, call.do(r.ctx, s, on), driver.ErrSessionLost, call.name)
	}
	require.ErrorIs(r, s.Leave(r.ctx, on.queue, on.own.Node), driver.ErrSessionLost, "Leave")
	require.ErrorIs(r, s.Alive(r.ctx), driver.ErrSessionLost, "Alive")
	if d, ok := s.(driver.Downgrader); ok {
		_, err := d.Downgrade(on.queue, on.own.Node, nil)
		require.ErrorIs(r, err, driver.ErrSessionLost, "Downgrade")
	}
}

// endSession ends a session with nodes and watches, and requires it to stay over.
func (r *run) endSession(end func(s driver.Session)) (ended driver.Session) {
	r.Helper()
	s, other := r.connect(), r.connect()
	require.NoError(r, s.Err())
	require.NoError(r, s.Alive(r.ctx))
	require.Positive(r, s.Lease())
	require.False(r, plays.Closed(s.Done()))
	require.NotEqual(r, s.Info().ID, other.Info().ID, "two sessions have the same Info.ID")
	on := r.newThings(s, other)
	watches := r.watch(s, on.own, on.other)
	if l, ok := s.(driver.Limiter); ok {
		name := r.name()
		require.NoError(r, l.SetLimit(r.ctx, name, 1))
		_, w, err := l.Limit(r.ctx, name, 0)
		require.NoError(r, err)
		watches = append(watches, w)
	}
	if f, ok := s.(driver.Follower); ok {
		followed, err := f.Follow(r.ctx, r.name(), func([]driver.Node) (int, bool) { return 0, false })
		require.NoError(r, err)
		watches = append(watches, followed.Watches...)
	}
	end(s)
	r.ended(s, on, watches)
	r.until("its nodes are gone", func() bool { return len(r.list(other, on.queue)) == 1 })
	again := r.connect()
	require.NotEqual(r, s.Info().ID, again.Info().ID, "two sessions have the same Info.ID")
	require.NoError(r, s.Close(r.ctx), "it may be called when the session is over")
	on.own = r.join(again, on.queue)
	for _, call := range calls(s) {
		require.ErrorIs(r, call.do(r.ctx, s, on), driver.ErrSessionLost, call.name)
	}
	require.Equal(r, []driver.Node{on.other.Node, on.own.Node}, r.list(other, on.queue))
	on.own, on.other = on.other, on.own
	r.unchanged(other, on)
	return s
}

func sessionClosed(r *run) {
	rival := r.connect()
	r.endSession(func(s driver.Session) {
		queue := r.name()
		w := r.watchOne(rival, r.join(s, queue))
		plays.Together(r, 2, func(i int) error {
			if i == 0 {
				return s.Close(r.ctx)
			}
			if err := r.first([]*driver.Watch{w}); err != nil {
				return err
			}
			if !plays.Closed(s.Done()) {
				return errors.New("a node is gone, and Done is not closed")
			}
			return nil
		})
	})
}

func sessionExpired(r *run) {
	r.need("Expire", r.Expire != nil)
	s := r.endSession(r.Expire)
	require.ErrorIs(r, s.Err(), driver.ErrExpired, "the lease had not run out")
}

func sessionExpiredInCalls(r *run) {
	r.need("Expire", r.Expire != nil)
	r.need("Pause", r.Pause != nil)
	s, other := r.connect(), r.connect()
	on := r.newThings(s, other)
	resume := r.pause(s)
	all := slices.DeleteFunc(calls(s), func(c call) bool { return c.name == "Watch" }) // may know without asking
	var waiting sync.WaitGroup
	errs := make([]error, len(all))
	for i, call := range all {
		waiting.Go(func() { errs[i] = call.do(r.ctx, s, on) })
	}
	r.nap()
	r.Expire(s)
	r.until("the session is over", func() bool { // by its own clock, if not told
		return plays.Closed(s.Done())
	})
	waiting.Wait()
	for i, call := range all {
		require.ErrorIs(r, errs[i], driver.ErrSessionLost, call.name)
	}
	resume()
	other = r.connect()
	r.until("its nodes are gone", func() bool { return !slices.Contains(r.list(other, on.queue), on.own.Node) })
	require.ErrorIs(r, s.Ping(r.ctx), driver.ErrSessionLost)
}

func answersTimeouts(r *run) {
	r.need("Pause", r.Pause != nil)
	s, other := r.connect(), r.connect()
	on := r.newThings(s, other)
	resume := r.pause(s)
	all := calls(s)
	plays.Together(r, len(all), func(i int) error {
		ctx, cancel := r.shortly()
		defer cancel()
		return expectNoAnswer(all[i], all[i].do(ctx, s, on))
	})
	resume()
	require.NoError(r, s.Alive(r.ctx))
	require.NoError(r, s.Err(), "timeouts end no session")
	require.Contains(r, r.list(s, on.queue), on.own.Node)
	require.NoError(r, s.Verify(r.ctx, on.own))
}

// expectNoAnswer returns an error unless err is the error of an unanswered call.
func expectNoAnswer(c call, err error) error {
	if c.name == "Watch" && err == nil { // of nodes already watched
		return nil
	}
	if err := expect(c.name+" while Options.Pause has stopped the session", err, context.DeadlineExceeded, driver.ErrUndecided); err != nil {
		return err
	}
	for _, answer := range []error{driver.ErrSessionLost, driver.ErrRemoved, driver.ErrKind, driver.ErrRecorded} {
		if errors.Is(err, answer) {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return nil
}

func answersLostReplies(r *run) {
	r.need("LoseReply", r.LoseReply != nil)
	s, other := r.connect(), r.connect()
	for _, call := range calls(s) {
		on := r.newThings(s, other)
		r.LoseReply(s)
		err := call.do(r.ctx, s, on)
		for _, answer := range []error{driver.ErrSessionLost, driver.ErrRemoved, driver.ErrKind, driver.ErrRecorded} {
			require.NotErrorIs(r, err, answer, call.name)
		}
		require.NoError(r, s.Alive(r.ctx), call.name)
		require.Contains(r, r.list(s, on.queue), on.own.Node, call.name)
		if err == nil && call.name == "Finish" {
			_, found, err := s.(driver.Recorder).Record(r.ctx, on.record.Name, on.record.Key)
			require.NoError(r, err)
			require.True(r, found)
		}
	}
}

func contextEnded(r *run) {
	s, other := r.connect(), r.connect()
	on := r.newThings(s, other)
	ended, cancel := context.WithCancel(r.ctx)
	cancel()
	for _, call := range calls(s) {
		require.ErrorIs(r, call.do(ended, s, on), context.Canceled, call.name)
	}
	_, err := r.connector.Connect(ended)
	require.ErrorIs(r, err, context.Canceled, "Connect")
	r.unchanged(s, on)
}

func contextBounds(r *run) {
	r.need("Pause", r.Pause != nil)
	s, other := r.connect(), r.connect()
	on := r.newThings(s, other)
	r.pause(s)
	begun := time.Now()
	require.NoError(r, s.Err())
	require.False(r, plays.Closed(s.Done()))
	s.Lease()
	s.Info()
	require.LessOrEqual(r, time.Since(begun), r.late(), "what has no context waits for nothing")
	all := append(calls(s), call{"Leave", func(ctx context.Context, s driver.Session, on things) error {
		return s.Leave(ctx, on.queue, on.own.Node)
	}})
	plays.Together(r, 3*len(all), func(i int) error {
		call := all[i%len(all)]
		ctx, cancel := r.shortly()
		defer cancel()
		err := call.do(ctx, s, on)
		ends, _ := ctx.Deadline()
		if late := time.Since(ends); late > r.late() {
			return fmt.Errorf("%s returned %v after the end of its context: %v", call.name, late, err)
		}
		return nil
	})
}

func closeLeavesNothing(r *run) {
	other := r.connect()
	r.watchOne(other, r.join(other, r.name()))
	before := r.settledGoroutines()
	s, queue, name := r.connect(), r.name(), r.name()
	for range 10 {
		r.watchOne(s, r.join(s, queue))
	}
	watch := r.watchOne(other, r.join(s, queue))
	if l, ok := s.(driver.PlainLocker); ok {
		_, _, err := l.TryCreate(r.ctx, name, nil)
		require.NoError(r, err)
	}
	require.NoError(r, s.Close(r.ctx))
	r.noneSince(before)
	require.Empty(r, r.list(other, queue), "nodes are left")
	r.fires(watch, "the session of the node was closed", gone...)
	if l, ok := other.(driver.PlainLocker); ok {
		_, created, err := l.TryCreate(r.ctx, name, nil)
		require.NoError(r, err)
		require.True(r, created, "the node of a plain lock is left")
	}
	require.NoError(r, s.Close(r.ctx), "it may be called again")
}

// closeEndedContext closes several sessions, because a driver may choose at random.
func closeEndedContext(r *run) {
	other := r.connect()
	r.watchOne(other, r.join(other, r.name()))
	before := r.settledGoroutines()
	ended, cancel := context.WithCancel(r.ctx)
	cancel()
	for range 10 {
		s := r.connect()
		r.watchOne(s, r.join(s, r.name()))
		_ = s.Close(ended)
		require.True(r, plays.Closed(s.Done()))
	}
	r.noneSince(before)
}

func closeDuringCalls(r *run) {
	other := r.connect()
	r.watchOne(other, r.join(other, r.name()))
	before := r.settledGoroutines()
	s := r.connect()
	on := r.newThings(s, other)
	var calling sync.WaitGroup
	begun := make(chan struct{}, 10)
	for range cap(begun) {
		calling.Go(func() { // ends with the session
			begun <- struct{}{}
			for {
				joined, err := s.Join(r.ctx, on.queue, driver.Request{Kind: driver.Exclusive})
				if err == nil {
					err = s.Leave(r.ctx, on.queue, joined.Node)
				}
				if err != nil {
					return
				}
			}
		})
	}
	for range cap(begun) {
		<-begun
	}
	require.NoError(r, s.Close(r.ctx))
	calling.Wait()
	r.noneSince(before)
	require.Equal(r, []driver.Node{on.other.Node}, r.list(other, on.queue), "nodes are left")
}

func closeDuringOutage(r *run) {
	r.need("Pause", r.Pause != nil)
	s, queue := r.connect(), r.name()
	r.join(s, queue)
	resume := r.pause(s)
	ctx, cancel := r.shortly()
	defer cancel()
	_ = s.Close(ctx)
	ends, _ := ctx.Deadline()
	require.Less(r, time.Since(ends), r.late()+time.Second, "the context bounds the wait for the service")
	require.True(r, plays.Closed(s.Done()))
	require.ErrorIs(r, s.Ping(r.ctx), driver.ErrSessionLost)
	resume()
	other := r.connect()
	r.until("its nodes are gone", func() bool { return len(r.list(other, queue)) == 0 })
}

// closeAfterOutage closes sessions not ended by a silent service: one whose lease has
// ended, and one closed in vain.
func closeAfterOutage(r *run) {
	r.need("Pause", r.Pause != nil)
	for _, vain := range []bool{false, true} {
		s, queue := r.connect(), r.name()
		r.join(s, queue)
		half := func() bool { return s.Lease() < r.Timeout*6/10 }
		for end := time.Now().Add(r.Timeout); !half() && time.Now().Before(end); r.nap() {
		}
		if !half() && !vain {
			continue // the service would end the session soon after the lease
		}
		resume, began := r.pause(s), time.Now()
		if vain {
			ctx, cancel := r.shortly()
			require.ErrorIs(r, s.Close(ctx), context.DeadlineExceeded)
			cancel()
		} else {
			r.over(s)
		}
		resume()
		err := s.Close(r.ctx)
		if errors.Is(err, errors.ErrUnsupported) {
			r.Skip("the service closes a session only on the session's connection")
		}
		require.NoError(r, err)
		other := r.connect()
		require.Empty(r, r.list(other, queue), "The session is closed.")
		require.Less(r, time.Since(began), r.Timeout*9/10, "until then the service itself does not end the session")
	}
}
