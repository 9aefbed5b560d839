package etcdtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/etcd"
)

func connector(t testing.TB, c *Cluster) *etcd.Connector {
	t.Helper()
	connector, err := etcd.NewConnector(etcd.Config{Endpoints: c.Endpoints(), TTL: 5 * time.Second})
	require.NoError(t, err)
	return connector
}

func TestLock(t *testing.T) {
	c := Start(t, 1)
	open := func() *lockpool.Pool {
		p, err := lockpool.OpenConnector(connector(t, c))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, p.Close()) })
		return p
	}
	a, b := open(), open()
	began := time.Now()
	l, err := a.Lock(t.Context(), "a/b")
	require.NoError(t, err)
	t.Log(time.Since(began), token(t, l))
	granted := make(chan *lockpool.Lock)
	go func() {
		l, err := b.Lock(t.Context(), "a/b")
		require.NoError(t, err)
		granted <- l
	}()
	time.Sleep(100 * time.Millisecond)
	began = time.Now()
	require.NoError(t, l.Unlock(t.Context()))
	l2 := <-granted
	t.Log(time.Since(began), token(t, l2))
	require.Greater(t, token(t, l2), token(t, l))
	time.Sleep(6 * time.Second)
	require.NoError(t, l2.Verify(t.Context()))
	require.NoError(t, l2.Unlock(t.Context()))
}

func token(t testing.TB, l *lockpool.Lock) int64 {
	token, err := l.Token(t.Context())
	require.NoError(t, err)
	return token
}
