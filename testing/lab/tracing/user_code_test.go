package tracing

// This file tests slow and panicking user code: the functions and handlers of a pool. Locks
// are released nevertheless.

import (
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
)

func TestPanicOfMetricNameLeavesNoLockHeld(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.open(lockpool.WithMeterProvider(b.newMeter()),
		lockpool.WithMetricName(func(name string) string { return strings.Split(name, "/")[1] })) // panics: there is no such part
	b.Unlock(b.lock(b.Ctx, p, "a"))
	l, err := b.silentPool().TryLock(b.Ctx, "a")
	require.NoError(t, err)
	b.Unlock(l)
}

// A session that ends while a call takes a kept lock there does not fail the call.
func TestKeptLockIsLostDuringTheCall(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var during atomic.Pointer[func()]
	p := b.open(lockpool.WithLocalTurns(1000), lockpool.WithKeptLocks(0, time.Hour), lockpool.WithMeterProvider(b.newMeter()), lockpool.WithMetricName(func(name string) string {
		if f := during.Swap(nil); f != nil {
			(*f)()
		}
		return name
	}))
	b.Unlock(b.lock(b.Ctx, p, "a"))
	b.Unlock(b.lock(b.Ctx, p, "a"))
	require.Equal(t, 1, p.Stats().Kept)
	expire := func() {
		b.expire(b.session("a", b.Children("a")[0]))
		b.Until(func() bool { return p.Stats().OpenSessions == 0 }, "the pool knows")
	}
	during.Store(&expire)
	l := b.lock(b.Ctx, p, "a")
	require.EqualValues(t, 1, p.Stats().KeptTurns)
	require.Nil(t, during.Load())
	b.Unlock(l)
}

// blockingHandler blocks in warnings about locks: receive from in, then send to out.
type blockingHandler struct {
	locktest.OnLog
	in, out chan struct{}
}

func newBlockingHandler() blockingHandler {
	in, out := make(chan struct{}, 10), make(chan struct{})
	return blockingHandler{func(r slog.Record) {
		if r.Message == longWaitMessage || r.Message == lostMessage {
			in <- struct{}{}
			<-out
		}
	}, in, out}
}

func TestCloseWaitsForARunningHandler(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	h := newBlockingHandler()
	p := b.open(lockpool.WithLongWait(time.Millisecond), lockpool.WithLogger(slog.New(h)))
	b.lock(b.Ctx, p, "a")
	b.start(b.Ctx, p, "a")
	<-h.in
	closed := make(chan error, 1)
	go func() { closed <- p.Close() }()
	select {
	case <-closed:
		require.Fail(t, "Close has returned before the handler")
	case <-time.After(300 * time.Millisecond): // Close must not have returned
	}
	close(h.out)
	require.NoError(t, <-closed)
}

// A lock whose node is no longer readable for the holder is released before the loss is
// logged.
func TestSlowHandlerDoesNotDelayTheReleaseOfALostLock(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	h := newBlockingHandler()
	p := b.open(lockpool.WithLogger(slog.New(h)))
	l := b.lock(b.Ctx, p, "a")
	_, err := b.Admin.SetACL(b.Chroot+"/a/"+b.Children("a")[0], zk.WorldACL(zk.PermWrite|zk.PermDelete|zk.PermAdmin|zk.PermCreate), -1)
	require.NoError(t, err)
	verified := make(chan error, 1)
	go func() { verified <- l.Verify(b.Ctx) }()
	<-h.in
	b.awaitQueue("a", 0)
	close(h.out)
	require.ErrorIs(t, <-verified, lockpool.ErrLockLost)
}
