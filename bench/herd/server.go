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

// sessionTimeout is so long that the sessions send nothing of their own while
// we count: go-zookeeper a ping every third of it, lockpool a proof of life
// every twelfth, which is two hours.
const sessionTimeout = 24 * time.Hour

// server is a ZooKeeper that tells what it has counted.
type server struct {
	running
	asked int64  // how often we have asked
	each  counts // what one question adds to what it counts
}

// running is what the embedded server and a real one have in common.
type running interface {
	io.Closer
	Addr() string
	Command(ctx context.Context, word string) (string, error)
	Stat(ctx context.Context, key string) (int64, error)
}

// start starts a server that takes as many sessions from one address as come,
// for as long as they like.
func start(ctx context.Context, kind string) (s *server, err error) {
	anyNumber, forLong := zktest.MaxClientConns(0), zktest.SessionTimeouts(time.Second, sessionTimeout)
	var zk running
	if kind == "real" {
		// It is counted and not timed, so it need not wait for the disk.
		zk, err = zktest.RunReal(ctx, anyNumber, forLong, zktest.JVMFlags("-Xmx1g"),
			zktest.Properties(map[string]string{"forceSync": "no"}))
	} else {
		zk, err = zktest.Run(ctx, anyNumber, forLong, zktest.Logger(slog.New(slog.DiscardHandler)))
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

// calibrate finds out, while nobody else is there, what one question adds.
func (s *server) calibrate(ctx context.Context) error {
	first, err := s.counts(ctx)
	if err != nil {
		return err
	}
	second, err := s.counts(ctx)
	s.each = counts{received: second.received - first.received, sent: second.sent - first.sent}
	return err
}

// counts are what a server has counted since it was started.
type counts struct{ received, sent int64 }

// counts asks the server, and leaves out the questions. (Not with mntr: a real
// server counts its answer as more packets the longer it gets.)
func (s *server) counts(ctx context.Context) (c counts, err error) {
	answer, err := s.Command(ctx, "srvr")
	if err != nil {
		return c, err
	}
	s.asked++
	for key, value := range map[string]*int64{"Received: ": &c.received, "Sent: ": &c.sent} {
		_, line, _ := strings.Cut(answer, key)
		line, _, _ = strings.Cut(line, "\n")
		if *value, err = strconv.ParseInt(line, 10, 64); err != nil {
			return c, fmt.Errorf("%s does not tell %q: %w", s.Addr(), key, err)
		}
	}
	c.received -= s.asked * s.each.received
	c.sent -= s.asked * s.each.sent
	return c, nil
}

// watched returns when so many watches are set, at least.
func (s *server) watched(ctx context.Context, watches int) error {
	for {
		n, err := s.Stat(ctx, "zk_watch_count")
		if err != nil || n >= int64(watches) {
			return err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("waiting for %d watches, of which %d are set: %w", watches, n, context.Cause(ctx))
		}
	}
}

// steady returns what the server has counted when that has not changed for a
// while: every request is answered then, and nobody is about to ask more. The
// while is longer than lockpool takes to watch the node of a lock that is held.
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
			return c, fmt.Errorf("waiting for silence: %w", context.Cause(ctx))
		}
	}
}
