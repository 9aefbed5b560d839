package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/lockpool/lockpool/testing/zktest"
)

// sessionTimeout is so long that sessions send nothing by themselves during a
// count: go-zookeeper sends a ping every third of it, and lockpool renews its
// lease every twelfth, which is two hours.
const sessionTimeout = 24 * time.Hour

// server is a ZooKeeper server with access to its counters.
type server struct {
	running
	queries int64  // how often the counters were read
	each    counts // what one query adds to the counters
}

// running is the common interface of the embedded server and a real one.
type running interface {
	io.Closer
	Addr() string
	Command(ctx context.Context, word string) (string, error)
	Stat(ctx context.Context, key string) (int64, error)
}

// start starts a server without limits on the number of sessions from one address
// and on their timeout.
func start(ctx context.Context, kind string) (s *server, err error) {
	noLimit, longTimeouts := zktest.MaxClientConns(0), zktest.SessionTimeouts(time.Second, sessionTimeout)
	var zk running
	if kind == "real" {
		zk, err = zktest.RunReal(ctx, noLimit, longTimeouts, zktest.JVMFlags("-Xmx1g"))
	} else {
		zk, err = zktest.Run(ctx, noLimit, longTimeouts, zktest.Logger(slog.New(slog.DiscardHandler)))
	}
	if err != nil {
		return nil, err
	}
	s = &server{running: zk}
	if err := s.calibrate(ctx); err != nil {
		return nil, errors.Join(err, zk.Close())
	}
	return s, nil
}

// calibrate measures what one query adds to the counters while there are no
// clients.
func (s *server) calibrate(ctx context.Context) error {
	first, err := s.counts(ctx)
	if err != nil {
		return err
	}
	second, err := s.counts(ctx)
	s.each = counts{received: second.received - first.received, sent: second.sent - first.sent}
	return err
}

// counts are a server's packet counters.
type counts struct{ received, sent int64 }

// counts reads the counters, without the packets of the queries themselves. It
// does not use mntr, because a real server counts a longer answer as more packets.
func (s *server) counts(ctx context.Context) (c counts, err error) {
	answer, err := s.Command(ctx, "srvr")
	if err != nil {
		return c, err
	}
	s.queries++
	for key, value := range map[string]*int64{"Received: ": &c.received, "Sent: ": &c.sent} {
		_, line, _ := strings.Cut(answer, key)
		line, _, _ = strings.Cut(line, "\n")
		if *value, err = strconv.ParseInt(line, 10, 64); err != nil {
			return c, fmt.Errorf("%s does not report %q: %w", s.Addr(), key, err)
		}
	}
	c.received -= s.queries * s.each.received
	c.sent -= s.queries * s.each.sent
	return c, nil
}

// watched returns when at least n watches are set.
func (s *server) watched(ctx context.Context, n int) error {
	for {
		watches, err := s.Stat(ctx, "zk_watch_count")
		if err != nil || watches >= int64(n) {
			return err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("waiting for %d watches, of which %d are set: %w", n, watches, context.Cause(ctx))
		}
	}
}

// steady returns the counts once they have stopped changing: every request has
// then been answered, and no client is about to send another. It waits longer than
// lockpool delays the watch on the node of a held lock.
func (s *server) steady(ctx context.Context) (counts, error) {
	var last counts
	for same := 0; ; {
		c, err := s.counts(ctx)
		if err != nil {
			return c, err
		}
		if same++; c != last {
			same, last = 0, c
		}
		if same == 5 {
			return c, nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return c, fmt.Errorf("waiting for the server to be idle: %w", context.Cause(ctx))
		}
	}
}
