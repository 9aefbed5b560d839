package lockpool

// This file plays the queue of the calls of one process, without a pool.

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/zktest/bubble"
)

// queueTest is a queue for one lock, in virtual time.
type queueTest struct {
	*testing.T
	localQueues
	began time.Time
}

func playQueue(t *testing.T, play func(q *queueTest)) {
	bubble.Parallel(t)
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(bubble.Enter())
		play(&queueTest{T: t, localQueues: localQueues{most: 4}, began: time.Now()})
	})
}

// join adds a call, one after the other, and returns it.
func (q *queueTest) join(shared bool) *localWaiter {
	q.began = q.began.Add(1)
	w := &localWaiter{shared: shared, began: q.began}
	q.localQueues.join("a", w)
	return w
}

func (q *queueTest) reader() *localWaiter { return q.join(true) }
func (q *queueTest) writer() *localWaiter { return q.join(false) }

// grant grants the lock to a delegate, which has the first turn.
func (q *queueTest) grant(w *localWaiter) *turns {
	require.Same(q, w, w.queue.delegate)
	t := &turns{queue: w.queue, all: &q.localQueues, tenancy: &tenancy{name: "a"}, retired: new(atomic.Bool), holders: 1, shared: w.shared, share: localTime}
	q.change(t, t.begin)
	return t
}

// has requires that the calls have these turns, and the others wait.
func (q *queueTest) has(t *turns, turn int, waiters ...*localWaiter) {
	q.Helper()
	for i, w := range waiters {
		select {
		case <-w.done:
			require.Same(q, t, w.turns)
			require.Equal(q, turn+i, w.turn)
		default:
			require.Fail(q, "no turn", "waiter %d", i)
		}
	}
}

func (q *queueTest) wait(waiters ...*localWaiter) {
	q.Helper()
	for i, w := range waiters {
		w.queue.all.mu.Lock() // turns also end by a timer
		waits := w.element != nil
		w.queue.all.mu.Unlock()
		require.True(q, waits, "waiter %d", i)
	}
}

func TestWritersHaveTurnsInTheirOrder(t *testing.T) {
	playQueue(t, func(q *queueTest) {
		first, second, third := q.writer(), q.writer(), q.writer()
		turns := q.grant(first)
		q.wait(second, third)
		require.Equal(t, notYet, q.leave(turns, time.Time{}, nothing), "it would pass the lock on")
		require.Equal(t, stays, q.leave(turns, time.Time{}, isWatched))
		q.has(turns, 1, second)
		q.wait(third)
		require.Equal(t, stays, q.leave(turns, time.Time{}, isWatched))
		q.has(turns, 2, third)
		require.Equal(t, gaveBack, q.leave(turns, time.Time{}, nothing))
		require.Empty(t, q.byName)
	})
}

func TestReadersHaveTurnsTogether(t *testing.T) {
	playQueue(t, func(q *queueTest) {
		first, second, writer, third := q.reader(), q.reader(), q.writer(), q.reader()
		turns := q.grant(first)
		q.has(turns, 1, second)
		require.Same(t, writer, writer.queue.delegate, "readers have the lock for long")
		q.wait(third)
		require.Nil(t, q.giveUp(third))
		q.resign(writer)
		q.has(turns, 2, q.reader())
	})
}

func TestTurnsAreBoundedInNumber(t *testing.T) {
	playQueue(t, func(q *queueTest) {
		turns := q.grant(q.writer())
		for turn := range 3 {
			w := q.writer()
			require.Equal(t, stays, q.leave(turns, time.Time{}, isWatched))
			q.has(turns, turn+1, w)
		}
		next := q.writer()
		require.Same(t, next, next.queue.delegate)
		require.Equal(t, gaveBack, q.leave(turns, time.Time{}, nothing))
		q.grant(next)
	})
}

func TestTurnsAreBoundedInTime(t *testing.T) {
	playQueue(t, func(q *queueTest) {
		q.grant(q.writer())
		next, last := q.writer(), q.writer()
		time.Sleep(localTime - 1)
		synctest.Wait()
		q.wait(next)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.Same(t, next, next.queue.delegate, "although the holder keeps the lock")
		q.wait(last)
	})
}

// Nor do readers join others for longer.
func TestReadersJoinForABoundedTime(t *testing.T) {
	playQueue(t, func(q *queueTest) {
		turns := q.grant(q.reader())
		q.has(turns, 1, q.reader())
		time.Sleep(localTime)
		late := q.reader()
		require.Same(t, late, late.queue.delegate)
	})
}

func TestNoTurnsAfterARevocationOrDuringADowngrade(t *testing.T) {
	playQueue(t, func(q *queueTest) {
		turns := q.grant(q.writer())
		reader := q.reader()
		require.Same(t, reader, reader.queue.delegate)
		q.resign(reader)
		q.change(turns, func() { turns.frozen, turns.shared = true, true })
		reader = q.reader()
		require.Same(t, reader, reader.queue.delegate)
		q.resign(reader)
		q.change(turns, func() { turns.frozen = false })
		q.has(turns, 1, q.reader())
		q.change(turns, func() { turns.stopped = true })
		reader = q.reader()
		require.Same(t, reader, reader.queue.delegate)
	})
}

func TestThePlaceOfADelegate(t *testing.T) {
	playQueue(t, func(q *queueTest) {
		first, second, writer := q.reader(), q.reader(), q.writer()
		at := &place{session: new(session)}
		require.True(t, q.passPlace(first, at))
		require.Same(t, at, second.place)
		require.False(t, q.passPlace(first, at), "it has none")
		require.False(t, q.passPlace(second, at), "a writer cannot use it")
		q.resign(second)
		require.Same(t, writer, writer.queue.delegate)
		handle := &localWaiter{hasSlot: true, began: q.began.Add(1)}
		waits, _, _ := q.localQueues.join("a", handle)
		require.True(t, waits, "a delegate that has waited is not replaced")
		q.resign(writer)
		require.Same(t, handle, handle.queue.delegate)
	})
}

func TestADelegateWithoutAHandleIsReplaced(t *testing.T) {
	playQueue(t, func(q *queueTest) {
		first, other := q.writer(), &localWaiter{hasSlot: true}
		waits, _, _ := q.localQueues.join("a", other)
		require.False(t, waits)
		require.True(t, first.alone)
		require.Same(t, other, other.queue.delegate)
	})
}

func TestTriesAndRevocations(t *testing.T) {
	playQueue(t, func(q *queueTest) {
		require.False(t, q.wouldOvertake("a", false))
		turns := q.grant(q.reader())
		require.False(t, q.wouldOvertake("a", false), "only a holder is there")
		q.change(turns, func() { turns.shared = false })
		reader, revocable := q.writer(), q.writer()
		reader.shared, revocable.revocable = true, true
		require.True(t, q.wouldOvertake("a", true))
		q.revoke("a", func(*localWaiter) bool { return true })
		require.True(t, reader.revoked)
		<-revocable.done
		require.ErrorIs(t, revocable.err, ErrRevoked)
		require.False(t, q.wouldOvertake("a", true), "readers do not overtake a reader")
		require.True(t, q.wouldOvertake("a", false))
	})
}

// A call that queues again has the place of its request.
func TestCallsQueueByTheTimeOfTheirRequest(t *testing.T) {
	playQueue(t, func(q *queueTest) {
		turns := q.grant(q.writer())
		early := &localWaiter{began: q.began}
		late := q.writer()
		q.localQueues.join("a", early)
		require.Equal(t, stays, q.leave(turns, time.Time{}, isWatched))
		q.has(turns, 1, early)
		q.wait(late)
		require.Same(t, turns, q.giveUp(early), "it has a turn by now")
	})
}
