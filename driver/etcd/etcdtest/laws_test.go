package etcdtest

// This file runs the laws of drivers on both versions of etcd.

import (
	"context"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
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

// connector returns a connector to the cluster, with changes to the configuration.
func (c *Cluster) connector(t testing.TB, changes ...func(*etcd.Config)) *etcd.Connector {
	t.Helper()
	cfg := etcd.Config{Endpoints: c.Endpoints(), TTL: ttl}
	for _, change := range changes {
		change(&cfg)
	}
	connector, err := etcd.NewConnector(cfg)
	require.NoError(t, err)
	return connector
}

// withTTL and the others are changes to a configuration.
func withTTL(d time.Duration) func(*etcd.Config) { return func(c *etcd.Config) { c.TTL = d } }

func toMember(i int) func(*etcd.Config) {
	return func(c *etcd.Config) { c.Endpoints = c.Endpoints[i : i+1] }
}

// open opens a pool, closed when the test ends.
func open(t testing.TB, connector *etcd.Connector, opts ...lockpool.Option) *lockpool.Pool {
	t.Helper()
	p, err := lockpool.OpenConnector(connector, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// onEach runs a test on each version of etcd: the newest, and the installed one.
func onEach(t *testing.T, test func(t *testing.T, version Option)) {
	t.Run("newest", func(t *testing.T) {
		t.Parallel()
		test(t, func(*config) {})
	})
	t.Run("installed", func(t *testing.T) {
		t.Parallel()
		test(t, Installed)
	})
}

// The laws count goroutines, so nothing runs beside them.
func TestLaws(t *testing.T)            { laws(t) }
func TestLawsOfInstalled(t *testing.T) { laws(t, Installed) }

func laws(t *testing.T, version ...Option) {
	c := Start(t, 1, version...)
	t.Log("etcd", c.Version())
	drivertest.Run(t, c.connector(t), c.options(t))
}

// options returns the possible faults of a cluster.
func (c *Cluster) options(t *testing.T) drivertest.Options {
	return drivertest.Options{
		Timeout: ttl,
		Expire: func(s driver.Session) {
			id, err := strconv.ParseInt(s.Info().ID, 16, 64)
			require.NoError(t, err)
			_, err = c.admin.Revoke(t.Context(), clientv3.LeaseID(id))
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

// A Mutex of etcd's own package and a lock exclude each other.
func TestMutexesOfOtherClients(t *testing.T) {
	t.Parallel()
	c := Start(t, 1)
	p := open(t, c.connector(t))
	client, err := clientv3.New(clientv3.Config{Endpoints: c.Endpoints(), Logger: zap.NewNop()})
	require.NoError(t, err)
	defer client.Close()
	session, err := concurrency.NewSession(client)
	require.NoError(t, err)
	defer session.Close()
	m := concurrency.NewMutex(session, "lockpool/a")

	l, err := p.Lock(t.Context(), "a")
	require.NoError(t, err)
	require.ErrorIs(t, m.TryLock(t.Context()), concurrency.ErrLocked)
	locked := make(chan error, 1)
	go func() { locked <- m.Lock(t.Context()) }() // ends with the release
	require.Eventually(t, func() bool {
		queue, err := p.Queue(t.Context(), "a")
		return err == nil && len(queue.Contenders) == 2
	}, ttl, time.Millisecond)
	require.NoError(t, l.Unlock(t.Context()))
	require.NoError(t, <-locked)
	_, err = p.TryLock(t.Context(), "a")
	require.ErrorIs(t, err, lockpool.ErrLocked)
	soon, cancel := context.WithTimeout(t.Context(), ttl)
	defer cancel()
	require.NoError(t, p.Revoke(soon, "a"), "a Mutex does not look for requests")
	require.NoError(t, m.Unlock(t.Context()))
	l, err = p.Lock(t.Context(), "a")
	require.NoError(t, err)
	require.NoError(t, l.Unlock(t.Context()))
}
