package lockpool_test

// This file tests fencing tokens and Verify.

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

func TestVerifyAsksTheServer(t *testing.T) {
	t.Parallel()
	b, proxy := locktest.NewBehindProxy(t)
	p := b.Pool()
	l := b.Lock(p, "a")
	require.NoError(t, l.Verify(b.Ctx))
	f := proxy.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpMulti}}, Times: zktest.Always, Do: zktest.HoldReply()})
	ctx, cancel := context.WithTimeout(b.Ctx, 50*time.Millisecond)
	defer cancel()
	err := l.Verify(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, lockpool.ErrLockLost, "no answer is no loss")
	require.Equal(t, 1, l.Depth())
	f.Remove()
	f.Release()
	require.NoError(t, l.Verify(b.Ctx))
	b.Unlock(l)
	require.ErrorIs(t, l.Verify(b.Ctx), lockpool.ErrNotHeld)
	_, err = l.Token(b.Ctx)
	require.ErrorIs(t, err, lockpool.ErrNotHeld)
	require.ErrorContains(t, err, `lockpool: token of "a": not held`)
}

// A token also grows when the sequence of a queue starts again, and when the server does.
func TestTokenGrows(t *testing.T) {
	t.Parallel()
	own := locktest.StartServer(t)
	b := locktest.NewOn(t, own)
	p, last := b.Pool(), int64(0)
	turn := func() {
		t.Helper()
		l := b.Lock(p, "a")
		token := b.Token(l)
		require.Greater(t, token, last)
		last = token
		b.Unlock(l)
	}
	turn()
	for range 3 {
		require.NoError(t, b.Admin.Delete(b.Chroot+"/a", -1))
		turn()
	}
	for range 20 { // also without listings
		turn()
	}
	require.NoError(t, own.Kill())
	require.NoError(t, own.Start(b.Ctx))
	turn()
}
