package tracing

import (
	"bytes"
	"context"
	"runtime/pprof"
	rtrace "runtime/trace"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
)

// The tests here are not parallel: profiles are the process's.

// stacks returns how many entries a profile has, and their stacks.
func stacks(t *testing.T, profile string) (int, string) {
	p := pprof.Lookup(profile)
	require.NotNil(t, p)
	var text bytes.Buffer
	require.NoError(t, p.WriteTo(&text, 1))
	return p.Count(), text.String()
}

func holdOfTheProfile(b *bench, p *lockpool.Pool, name string) *lockpool.Lock {
	return b.lock(b.ctx, p, name)
}

func waitOfTheProfile(ctx context.Context, p *lockpool.Pool) error {
	_, err := p.Lock(ctx, "a")
	return err
}

func TestProfilesShowWhoHoldsAndWhoWaits(t *testing.T) {
	b := newBench(t)
	p := b.pool(lockpool.WithProfiles())
	none := func(why string) {
		t.Helper()
		for _, name := range []string{"lockpool.held", "lockpool.waiting"} {
			b.until(func() bool { return pprof.Lookup(name).Count() == 0 }, "nothing is in %s after %s", name, why)
		}
	}
	wait := func(timeout time.Duration) <-chan error {
		done := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(b.ctx, timeout)
			defer cancel()
			done <- waitOfTheProfile(ctx, p)
		}()
		b.until(func() bool { return p.Stats().Waiting == 1 && pprof.Lookup("lockpool.waiting").Count() == 1 }, "a waiter")
		return done
	}

	l := holdOfTheProfile(b, p, "a")
	n, text := stacks(t, "lockpool.held")
	require.Equal(t, 1, n)
	require.Contains(t, text, "tracing.holdOfTheProfile")
	done := wait(300 * time.Millisecond)
	n, text = stacks(t, "lockpool.waiting")
	require.Equal(t, 1, n)
	require.Contains(t, text, "tracing.waitOfTheProfile")
	require.ErrorIs(t, <-done, context.DeadlineExceeded)
	require.Zero(t, pprof.Lookup("lockpool.waiting").Count())
	b.unlock(l)
	none("unlock and timeout")

	l = holdOfTheProfile(b, p, "a")
	require.NoError(t, p.Do(l.Context(b.ctx), "a", func(context.Context) error { return nil }))
	require.Equal(t, 1, pprof.Lookup("lockpool.held").Count(), "entering again is no other hold")
	b.expire(b.session("a", b.queue("a")[0]))
	<-l.Lost()
	none("a loss")
	require.ErrorIs(t, l.Unlock(b.ctx), lockpool.ErrLockLost)

	s, err := p.Handle(b.ctx)
	require.NoError(t, err)
	_, err = s.Lock(b.ctx, "c")
	require.NoError(t, err)
	require.NoError(t, s.Close(b.ctx))
	none("the end of a session")

	holdOfTheProfile(b, p, "a")
	done = wait(patience)
	require.NoError(t, p.Close())
	require.ErrorIs(t, <-done, lockpool.ErrPoolClosed)
	none("Close")

	p = b.pool()
	l = holdOfTheProfile(b, p, "a")
	none("a pool without profiles")
	b.unlock(l)
}

func TestWaitIsARegionOfTheExecutionTracer(t *testing.T) {
	b := newBench(t)
	p := b.silentPool()
	traced := func(contended bool) string {
		var trace bytes.Buffer
		require.NoError(t, rtrace.Start(&trace))
		defer rtrace.Stop()
		l := b.lock(b.ctx, p, "a")
		if contended {
			w := b.start(b.ctx, p, "a")
			b.until(func() bool { return p.Stats().Waiting == 1 }, "a waiter")
			b.unlock(l)
			l = b.granted(w)
		}
		b.unlock(l)
		rtrace.Stop()
		return trace.String()
	}
	require.NotContains(t, traced(false), waitName)
	require.Contains(t, traced(true), waitName)
}
