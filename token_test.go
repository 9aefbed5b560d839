package lockpool_test

// This file tests fencing tokens.

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/locktest"
)

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
	require.NoError(t, own.Kill())
	require.NoError(t, own.Start(b.Ctx))
	turn()
}
