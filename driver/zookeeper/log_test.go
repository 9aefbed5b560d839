package zookeeper_test

// This file tests what a session logs, and that a slow logger delays no lock.

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// gatedLog is a log that blocks until the gate is closed.
type gatedLog struct {
	locktest.Log
	gate chan struct{}
}

func (l *gatedLog) Write(p []byte) (int, error) {
	<-l.gate
	return l.Log.Write(p)
}

// A slow log handler delays neither the goroutine that reads the server's replies
// nor a caller of Lock.
func TestSlowLoggerDelaysNoLock(t *testing.T) {
	locktest.Once(t)
	locktest.Bubble(t, func(t *testing.T) {
		b, proxy := locktest.NewBehindProxy(t)
		log := gatedLog{gate: make(chan struct{})}
		cfg := b.Config()
		cfg.SessionTimeout = time.Hour // which the server changes, and that is logged
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		p := b.PoolWith(cfg)
		b.Unlock(b.Lock(p, "a"))
		proxy.Cut(zktest.Selector{})
		b.Unlock(b.Lock(p, "a"))
		require.NoError(t, proxy.RefuseConnections())
		proxy.Cut(zktest.Selector{})
		time.Sleep(time.Second) // an outage long enough to be logged
		require.NoError(t, proxy.AcceptConnections())
		b.Unlock(b.Lock(p, "a"))
		require.Empty(t, log.String())
		close(log.gate)
		require.NoError(t, p.Close())
		require.NotContains(t, log.String(), "records were dropped", "the log overflowed")
		for _, what := range []string{"changed the session timeout", "no connection to ZooKeeper", "connected to ZooKeeper"} {
			require.Equal(t, 1, strings.Count(log.String(), what), what)
		}
	})
}

// An outage is logged once, within about a second and with its cause, and so is its
// end.
func TestOutageIsLoggedOnce(t *testing.T) {
	locktest.Once(t)
	locktest.Bubble(t, func(t *testing.T) {
		b, proxy := locktest.NewBehindProxy(t)
		var log locktest.Log
		outages := func() int { return strings.Count(log.String(), "no connection to ZooKeeper") }
		cfg := b.Config()
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		require.NoError(t, proxy.RefuseConnections())
		p := b.PoolWith(cfg)
		start := time.Now()
		done := make(chan error, 1)
		go func() { done <- p.Ping(b.Ctx) }()
		b.Until(func() bool { return outages() > 0 }, "the outage is logged")
		require.WithinDuration(t, start.Add(time.Second), time.Now(), 500*time.Millisecond)
		require.Regexp(t, `level=WARN .*no connection to ZooKeeper.*`+proxy.Addr()+`.*connection refused`, log.String())
		time.Sleep(2 * time.Second) // the outage goes on
		require.Equal(t, 1, outages())
		require.NotContains(t, log.String(), "connected to ZooKeeper")
		require.NoError(t, proxy.AcceptConnections())
		require.NoError(t, <-done)
		b.Until(func() bool { return strings.Contains(log.String(), `connected to ZooKeeper" server=`+proxy.Addr()) }, "the end of the outage is logged")

		require.NoError(t, proxy.RefuseConnections())
		proxy.Cut(zktest.Selector{})
		b.Until(func() bool { return outages() == 2 }, "the next outage is logged")
		require.NoError(t, proxy.AcceptConnections())
		require.NoError(t, p.Ping(b.Ctx))

		require.NoError(t, p.Close())
		require.NoError(t, proxy.HangConnections())
		p = b.PoolWith(cfg)
		_, err := p.Lock(locktest.Timeout(t, 1500*time.Millisecond), "a")
		require.Error(t, err)
		require.Equal(t, 3, outages())
		require.Contains(t, log.String()[strings.LastIndex(log.String(), "no connection"):], "answer")
	})
}
