package tracing

// This file tests the profiles, and the regions of the execution tracer.

import (
	"bytes"
	"context"
	"runtime/pprof"
	rtrace "runtime/trace"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
)

// The tests here are not parallel, because profiles belong to the process.

// stacks returns the number of a profile's entries, and their stacks.
func stacks(t *testing.T, profile string) (int, string) {
	p := pprof.Lookup(profile)
	require.NotNil(t, p)
	var text bytes.Buffer
	require.NoError(t, p.WriteTo(&text, 1))
	return p.Count(), text.String()
}

func lockInProfile(b *bench, p *lockpool.Pool, name string) *lockpool.Lock {
	return b.lock(b.Ctx, p, name)
}

func waitInProfile(ctx context.Context, p *lockpool.Pool) error {
	_, err := p.Lock(ctx, "a")
	return err
}

func TestProfilesShowHoldersAndWaiters(t *testing.T) {
	b := newBench(t)
	p := b.pool(lockpool.WithProfiles())
	awaitEmpty := func(why string) {
		t.Helper()
		for _, name := range []string{"lockpool.held", "lockpool.waiting"} {
			b.Until(func() bool { return pprof.Lookup(name).Count() == 0 }, "%s is empty after %s", name, why)
		}
	}
	wait := func(ctx context.Context) <-chan error {
		done := make(chan error, 1)
		go func() { done <- waitInProfile(ctx, p) }() // ends with ctx at the latest
		b.Until(func() bool { return p.Stats().Waiting == 1 && pprof.Lookup("lockpool.waiting").Count() == 1 }, "a waiter")
		return done
	}

	l := lockInProfile(b, p, "a")
	n, text := stacks(t, "lockpool.held")
	require.Equal(t, 1, n)
	require.Contains(t, text, "tracing.lockInProfile")
	timeout := b.endable(b.Ctx)
	done := wait(timeout)
	n, text = stacks(t, "lockpool.waiting")
	require.Equal(t, 1, n)
	require.Contains(t, text, "tracing.waitInProfile")
	timeout.end(context.DeadlineExceeded)
	require.ErrorIs(t, <-done, context.DeadlineExceeded)
	require.Zero(t, pprof.Lookup("lockpool.waiting").Count())
	b.Unlock(l)
	awaitEmpty("unlock and timeout")

	l = lockInProfile(b, p, "a")
	require.NoError(t, p.Do(l.Context(b.Ctx), "a", func(context.Context) error { return nil }))
	require.Equal(t, 1, pprof.Lookup("lockpool.held").Count(), "a reentry is no second hold")
	b.expire(b.session("a", b.Children("a")[0]))
	<-l.Lost()
	awaitEmpty("a loss")
	require.ErrorIs(t, l.Unlock(b.Ctx), lockpool.ErrLockLost)

	h, err := p.Handle(b.Ctx)
	require.NoError(t, err)
	_, err = h.Lock(b.Ctx, "c")
	require.NoError(t, err)
	require.NoError(t, h.Close(b.Ctx))
	awaitEmpty("the end of a handle")

	lockInProfile(b, p, "a")
	done = wait(b.Ctx)
	require.NoError(t, p.Close())
	require.ErrorIs(t, <-done, lockpool.ErrPoolClosed)
	awaitEmpty("Close")

	p = b.pool()
	l = lockInProfile(b, p, "a")
	awaitEmpty("a pool without profiles")
	b.Unlock(l)
}

func TestWaitIsARegionOfTheExecutionTracer(t *testing.T) {
	b := newBench(t)
	p := b.silentPool()
	traced := func(contended bool) string {
		var trace bytes.Buffer
		require.NoError(t, rtrace.Start(&trace))
		defer rtrace.Stop()
		l := b.lock(b.Ctx, p, "a")
		if contended {
			w := b.start(b.Ctx, p, "a")
			b.AwaitWaiting(p, 1)
			b.Unlock(l)
			l = w.Granted()
		}
		b.Unlock(l)
		rtrace.Stop()
		return trace.String()
	}
	require.NotContains(t, traced(false), waitName)
	require.Contains(t, traced(true), waitName)
}
