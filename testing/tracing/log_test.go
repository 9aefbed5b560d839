package tracing

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
)

func TestLongWaitIsLoggedOnceWithTheHolder(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	log := new(logged)
	p := b.pool(log.option(), lockpool.WithLongWait(50*time.Millisecond))
	others := b.stranger(lockpool.WithOwner("billing"))
	b.unlock(b.lock(b.ctx, p, "a")) // no wait
	holder := b.lock(b.ctx, others.Pool, "a")
	asked := time.Now()
	w := b.start(b.ctx, p, "a")
	node := b.queued("a", 2)[0]
	b.until(func() bool { return len(log.lines(t)) > 0 }, "it is logged")
	require.GreaterOrEqual(t, time.Since(asked), 50*time.Millisecond)
	_, err := b.admin.Set(b.chroot+"/a/"+node, []byte(`{"pid":7,"host":"h"}`), -1) // it looks, and waits again
	require.NoError(t, err)
	time.Sleep(100 * time.Millisecond) // of nothing happening: it is logged once
	b.unlock(holder)
	b.unlock(b.granted(w))
	require.Equal(t, []map[string]any{{
		"level": "WARN", "msg": "lockpool: a lock is waited for long", "lock": "a", "kind": "mutex",
		"behind": node, "whose": "billing, " + process, "holder": node, "holder_whose": "billing, " + process,
	}}, log.lines(t, "waited"))
}

// Of many that wait for one lock, one tells, and names the holder, which none but
// the first waits behind.
func TestManyLongWaitsForOneLockAreOneWarning(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	log := new(logged)
	p := b.pool(log.option(), lockpool.WithLongWait(time.Second))
	others := b.stranger(lockpool.WithOwner("billing"))
	holder := b.lock(b.ctx, others.Pool, "a")
	between := b.start(b.ctx, others.Pool, "a")
	queue := b.queued("a", 2)
	var waiters []*waiter
	for i := range 5 {
		waiters = append(waiters, b.start(b.ctx, p, "a"))
		b.queued("a", i+3)
	}
	b.until(func() bool { return len(log.lines(t, "waited")) > 0 }, "it is logged")
	line := log.lines(t, "waited")[0]
	require.Equal(t, queue[0], line["holder"])
	require.Equal(t, "billing, "+process, line["holder_whose"])
	require.NotEqual(t, queue[0], line["behind"])
	b.unlock(holder)
	for _, w := range append([]*waiter{between}, waiters...) {
		b.unlock(b.granted(w))
	}
	require.Len(t, log.lines(t, "waited"), 1)
}

func TestWaitThatIsShortIsNotLogged(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	log := new(logged)
	p := b.pool(log.option(), lockpool.WithLongWait(time.Second))
	asked := time.Now()
	holder := b.lock(b.ctx, p, "a")
	w := b.start(b.ctx, p, "a")
	b.until(func() bool { return p.Stats().Waiting == 1 }, "a waiter")
	b.unlock(holder)
	b.unlock(b.granted(w))
	time.Sleep(time.Second + 100*time.Millisecond - time.Since(asked)) // a timer that was left would have fired
	require.Empty(t, log.lines(t))
}

const suspicion = "lockpool: a goroutine waits for a lock that the holder in its context has on another goroutine; " +
	"if that one waits for this one, both wait forever"

func TestGoroutineThatWaitsForItsParentIsSuspected(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	log := new(logged)
	p := b.pool(log.option())
	child := func(ctx context.Context, name string) error {
		ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- p.Do(ctx, name, func(context.Context) error { return nil }) }()
		return <-done
	}
	other := b.lock(b.ctx, p, "other")
	require.NoError(t, p.Do(b.ctx, "a", func(ctx context.Context) error {
		require.NoError(t, child(ctx, "b"), "free")
		require.ErrorIs(t, child(ctx, "other"), context.DeadlineExceeded, "another holder's")
		require.NoError(t, p.Do(ctx, "a", func(context.Context) error { return nil }), "entered again")
		require.Empty(t, log.lines(t))
		require.ErrorIs(t, child(ctx, "a"), context.DeadlineExceeded)
		return nil
	}))
	b.unlock(other)
	require.Equal(t, []map[string]any{{"level": "WARN", "msg": suspicion, "lock": "a"}}, log.lines(t))
}

func TestLockingWritesNoLog(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	log := new(logged)
	b.locking(b.pool(log.option(), lockpool.WithHoldSpans()))
	require.Empty(t, log.lines(t))
}
