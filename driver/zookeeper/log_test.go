package zookeeper_test

// This file tests what a session logs, and that a slow logger delays no lock.

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// logLine is one record of a log.
type logLine struct {
	level slog.Level
	text  string
	at    time.Time
}

// logHandler is a slog.Handler that blocks until its gate is closed.
type logHandler struct {
	gate    chan struct{}
	mu      *sync.Mutex
	records *[]logLine
}

func newLogHandler() logHandler {
	return logHandler{make(chan struct{}), new(sync.Mutex), new([]logLine)}
}

func (l logHandler) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

func (l logHandler) Handle(_ context.Context, r slog.Record) error {
	<-l.gate
	text := r.Message
	r.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
	l.mu.Lock()
	defer l.mu.Unlock()
	*l.records = append(*l.records, logLine{r.Level, text, r.Time})
	return nil
}

func (l logHandler) WithAttrs([]slog.Attr) slog.Handler { return l }

func (l logHandler) WithGroup(string) slog.Handler { return l }

// about returns the records that contain the text.
func (l logHandler) about(text string) (found []logLine) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range *l.records {
		if strings.Contains(r.text, text) {
			found = append(found, r)
		}
	}
	return found
}

// A slow log handler delays neither the goroutine that reads the server's replies
// nor a caller of Lock.
func TestSlowLoggerDelaysNoLock(t *testing.T) {
	locktest.Slow(t, func(t *testing.T) {
		b, proxy := locktest.NewBehindProxy(t)
		log := newLogHandler()
		cfg := b.Config()
		cfg.SessionTimeout = time.Hour // which the server changes, and that is logged
		cfg.Logger = slog.New(log)
		p := b.PoolWith(cfg)
		b.Unlock(b.Lock(p, "a"))
		proxy.Cut(zktest.Selector{})
		b.Unlock(b.Lock(p, "a"))
		require.NoError(t, proxy.RefuseConnections())
		proxy.Cut(zktest.Selector{})
		time.Sleep(time.Second) // an outage long enough to be logged
		require.NoError(t, proxy.AcceptConnections())
		b.Unlock(b.Lock(p, "a"))
		require.Empty(t, log.about(""))
		close(log.gate)
		require.NoError(t, p.Close())
		require.Empty(t, log.about("left out"), "the log overflowed")
		require.Len(t, log.about("changed the session timeout"), 1)
		require.Len(t, log.about("no connection to ZooKeeper"), 1)
		require.Len(t, log.about("connected to ZooKeeper"), 1)
	})
}

// An outage is logged once, within about a second and with its cause, and so is its
// end.
func TestOutageIsLoggedOnce(t *testing.T) {
	locktest.Timed(t, func(t *testing.T) {
		b, proxy := locktest.NewBehindProxy(t)
		log := newLogHandler()
		close(log.gate)
		cfg := b.Config()
		cfg.Logger = slog.New(log)
		require.NoError(t, proxy.RefuseConnections())
		p := b.PoolWith(cfg)
		start := time.Now()
		done := make(chan error, 1)
		go func() { done <- p.Ping(b.Ctx) }()
		b.Until(func() bool { return len(log.about("no connection")) > 0 }, "the outage is logged")
		first := log.about("no connection")[0]
		require.WithinDuration(t, start.Add(time.Second), first.at, 500*time.Millisecond)
		require.Equal(t, slog.LevelWarn, first.level)
		require.Contains(t, first.text, proxy.Addr())
		require.Contains(t, first.text, "connection refused")
		time.Sleep(2 * time.Second) // the outage goes on
		require.Len(t, log.about("no connection"), 1)
		require.Empty(t, log.about("connected to"))
		require.NoError(t, proxy.AcceptConnections())
		require.NoError(t, <-done)
		b.Until(func() bool { return len(log.about("connected to ZooKeeper server="+proxy.Addr())) == 1 }, "the end of the outage is logged")

		require.NoError(t, proxy.RefuseConnections())
		proxy.Cut(zktest.Selector{})
		b.Until(func() bool { return len(log.about("no connection")) == 2 }, "the next outage is logged")
		require.NoError(t, proxy.AcceptConnections())
		require.NoError(t, p.Ping(b.Ctx))

		require.NoError(t, p.Close())
		require.NoError(t, proxy.HangConnections())
		p = b.PoolWith(cfg)
		_, err := p.Lock(locktest.Timeout(t, 1500*time.Millisecond), "a")
		require.Error(t, err)
		require.Len(t, log.about("no connection"), 3)
		require.Contains(t, log.about("no connection")[2].text, "answer")
	})
}
