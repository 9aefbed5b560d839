package tracing

// This file tests the log messages.

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
)

// logBuffer collects log records as JSON.
type logBuffer struct{ locktest.Log }

func (l *logBuffer) option() lockpool.Option {
	return lockpool.WithLogger(slog.New(slog.NewJSONHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug})))
}

// lines returns the records, without the time and the given attributes: they differ every
// time but must be there.
func (l *logBuffer) lines(t testing.TB, without ...string) (lines []map[string]any) {
	for line := range strings.Lines(l.String()) {
		var fields map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &fields))
		for _, key := range append(without, "time") {
			require.Contains(t, fields, key)
			delete(fields, key)
		}
		lines = append(lines, fields)
	}
	return lines
}

func TestLongWaitIsLoggedOnceWithTheHolder(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	log := new(logBuffer)
	p := b.pool(log.option(), lockpool.WithLongWait(50*time.Millisecond))
	others := b.peer(lockpool.WithOwner("billing"))
	b.Unlock(b.lock(b.Ctx, p, "a")) // without a wait
	holder := b.lock(b.Ctx, others.Pool, "a")
	begin := time.Now()
	w := b.enqueue(b.Ctx, p, 2)
	node := w.predecessor()
	b.Until(func() bool { return len(log.lines(t)) > 0 }, "the wait is logged")
	require.GreaterOrEqual(t, time.Since(begin), 50*time.Millisecond)
	_, err := b.Admin.Set(b.Chroot+"/a/"+node, []byte(`{"pid":7,"host":"h"}`), -1) // the waiter looks and waits again
	require.NoError(t, err)
	time.Sleep(100 * time.Millisecond) // the wait must not be logged again
	b.Unlock(holder)
	b.Unlock(w.Granted())
	require.Equal(t, []map[string]any{{
		"level": "WARN", "msg": longWaitMessage, "lock": "a", "kind": "mutex",
		"behind": node, "behind_owner": "billing, " + thisProcess, "holder": node, "holder_owner": "billing, " + thisProcess,
	}}, log.lines(t, "waited", "holder_at"))
	require.Contains(t, log.lines(t)[0]["holder_at"], "log_test.go:")
}

// The warning names the holder; only the first of the waiters waits for the holder
// directly.
func TestManyLongWaitsForALockAreLoggedOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	log := new(logBuffer)
	p := b.pool(log.option(), lockpool.WithLongWait(time.Second))
	others := b.peer(lockpool.WithOwner("billing"))
	holder := b.lock(b.Ctx, others.Pool, "a")
	waiters := []*waiter{b.enqueue(b.Ctx, others.Pool, 2)}
	head := waiters[0].predecessor()
	for i := range 5 {
		waiters = append(waiters, b.enqueue(b.Ctx, p, i+3))
	}
	b.Until(func() bool { return len(log.lines(t, "waited")) > 0 }, "a wait is logged")
	line := log.lines(t, "waited")[0]
	require.Equal(t, head, line["holder"])
	require.Equal(t, "billing, "+thisProcess, line["holder_owner"])
	require.NotEqual(t, head, line["behind"])
	b.Unlock(holder)
	for _, w := range waiters {
		b.Unlock(w.Granted())
	}
	require.Len(t, log.lines(t, "waited"), 1)
}

// The machine's lateness would be a long wait.
func TestShortWaitIsNotLogged(t *testing.T) { locktest.Bubble(t, shortWaitIsNotLogged) }

func shortWaitIsNotLogged(t *testing.T) {
	b := newBench(t)
	log := new(logBuffer)
	p := b.pool(log.option(), lockpool.WithLongWait(time.Second))
	begin := time.Now()
	holder := b.lock(b.Ctx, p, "a")
	w := b.start(b.Ctx, p, "a")
	b.AwaitWaiting(p, 1)
	b.Unlock(holder)
	b.Unlock(w.Granted())
	time.Sleep(time.Second + 100*time.Millisecond - time.Since(begin)) // a leftover timer would have fired
	require.Empty(t, log.lines(t))
}

// The waits must begin before their contexts end.
func TestWaitForALockOfTheParentGoroutineIsLogged(t *testing.T) {
	locktest.Bubble(t, waitForALockOfTheParentGoroutineIsLogged)
}

func waitForALockOfTheParentGoroutineIsLogged(t *testing.T) {
	b := newBench(t)
	log := new(logBuffer)
	p := b.pool(log.option())
	child := func(ctx context.Context, name string, timeout time.Duration) error {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- p.Do(ctx, name, func(context.Context) error { return nil }) }()
		return <-done
	}
	other := b.lock(b.Ctx, p, "other")
	require.NoError(t, p.Do(b.Ctx, "a", func(ctx context.Context) error {
		require.NoError(t, child(ctx, "b", locktest.Patience), "the lock is free")
		require.ErrorIs(t, child(ctx, "other", 200*time.Millisecond), context.DeadlineExceeded, "another holder has it")
		require.NoError(t, p.Do(ctx, "a", func(context.Context) error { return nil }), "a reentry")
		require.Empty(t, log.lines(t))
		require.ErrorIs(t, child(ctx, "a", 200*time.Millisecond), context.DeadlineExceeded)
		return nil
	}))
	b.Unlock(other)
	require.Equal(t, []map[string]any{{"level": "WARN", "msg": selfDeadlockMessage, "lock": "a"}}, log.lines(t))
}

func TestLockingLogsNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	log := new(logBuffer)
	b.exerciseLocking(b.pool(log.option(), lockpool.WithHoldSpans()))
	require.Empty(t, log.lines(t))
}

// The span of a wait predicts the wait from what the pool has seen of the lock.
func TestWaitIsPredicted(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	others := b.silentPool()
	for range 20 {
		l := b.lock(b.Ctx, p, "a")
		time.Sleep(20 * time.Millisecond)
		b.Unlock(l)
	}
	holder := b.lock(b.Ctx, others, "a")
	w := b.enqueue(b.Ctx, p, 2)
	b.Until(func() bool { return p.Stats().Waiting == 1 }, "the second waits")
	b.Unlock(holder)
	b.Unlock(w.Granted())
	var predicted []float64
	for _, s := range b.recorder.Ended() {
		for _, a := range s.Attributes() {
			if a.Key == "lockpool.lock.queue.predicted_wait" {
				require.Equal(t, waitName, s.Name())
				predicted = append(predicted, a.Value.AsFloat64())
			}
		}
	}
	require.Len(t, predicted, 1)
	require.GreaterOrEqual(t, predicted[0], 0.02)
	require.Less(t, predicted[0], 5., "on a busy machine")
}
