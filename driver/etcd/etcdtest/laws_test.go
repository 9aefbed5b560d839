package etcdtest

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/driver/drivertest"
	"github.com/lockpool/lockpool/driver/etcd"
)

const ttl = 5 * time.Second

func TestMain(m *testing.M) {
	Serve()
	os.Exit(m.Run())
}

func connector(t testing.TB, endpoints []string) *etcd.Connector {
	t.Helper()
	connector, err := etcd.NewConnector(etcd.Config{Endpoints: endpoints, TTL: ttl})
	require.NoError(t, err)
	return connector
}

func TestLaws(t *testing.T) {
	t.Run("another process", func(t *testing.T) {
		endpoints := StartProcess(t, 1) // goroutines are counted
		drivertest.Run(t, connector(t, endpoints), drivertest.Options{Timeout: ttl})
	})
	t.Run("faults", func(t *testing.T) {
		c := Start(t, 1)
		drivertest.Run(t, connector(t, c.Endpoints()), c.options(t))
	})
}

// options returns the faults that a cluster can cause.
func (c *Cluster) options(t *testing.T) drivertest.Options {
	admin, err := clientv3.New(clientv3.Config{Endpoints: []string{c.members[0].server.Clients[0].Addr().String()}, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, admin.Close()) })
	return drivertest.Options{
		Timeout: ttl,
		Expire: func(s driver.Session) {
			id, err := strconv.ParseInt(s.Info().ID, 16, 64)
			require.NoError(t, err)
			_, err = admin.Revoke(t.Context(), clientv3.LeaseID(id))
			require.NoError(t, err)
		},
		Pause: func(s driver.Session) (resume func()) { return c.Pause(s.Info().ID) },
		LoseReply: func(s driver.Session) {
			id, lost := s.Info().ID, false
			c.SetFault(func(m Message) Action {
				if m.Session != id || !m.Reply || m.IsProof() || m.Method == "Range" || m.Method == "Watch" || lost {
					return Pass
				}
				lost = true
				return Break
			})
		},
	}
}

func TestLock(t *testing.T) {
	c := Start(t, 1)
	open := func() *lockpool.Pool {
		p, err := lockpool.OpenConnector(connector(t, c.Endpoints()))
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
	first := token(t, l)
	began = time.Now()
	require.NoError(t, l.Unlock(t.Context()))
	l2 := <-granted
	t.Log(time.Since(began), token(t, l2))
	require.Greater(t, token(t, l2), first)
	time.Sleep(6 * time.Second)
	require.NoError(t, l2.Verify(t.Context()))
	require.NoError(t, l2.Unlock(t.Context()))
}

func token(t testing.TB, l *lockpool.Lock) int64 {
	token, err := l.Token(t.Context())
	require.NoError(t, err)
	return token
}
