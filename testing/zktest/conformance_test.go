package zktest_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockpool/lockpool/testing/zktest"
)

// target is a server as the checks see it.
type target interface{ Addr() string }

// runningTarget is a server that can be stopped, and started again with its
// state.
type runningTarget interface {
	target
	Stop(ctx context.Context) error
	Start(ctx context.Context) error
}

// targetKind is a kind of server that is to give the answers of the checks.
type targetKind struct {
	name  string
	start func(t testing.TB, cfg targetConfig) runningTarget
}

// targetConfig has what differs among the servers of the checks.
type targetConfig struct {
	tick                   time.Duration
	minTimeout, maxTimeout time.Duration // of sessions
	maxClientConns         int           // of one address, 0 for no limit
	extendedTypes          bool          // nodes with a TTL
	containerInterval      time.Duration // between two searches for unused containers
	words                  string        // the four letter words it answers to; "*" for all
}

var targetKinds = []targetKind{
	{"real", startReal},
	{"embedded", startEmbedded},
}

func startReal(t testing.TB, cfg targetConfig) runningTarget {
	millis := func(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
	return zktest.StartReal(t,
		zktest.TickTime(cfg.tick),
		zktest.Properties(map[string]string{
			"minSessionTimeout":      millis(cfg.minTimeout),
			"maxSessionTimeout":      millis(cfg.maxTimeout),
			"maxClientCnxns":         strconv.Itoa(cfg.maxClientConns),
			"extendedTypesEnabled":   strconv.FormatBool(cfg.extendedTypes),
			"4lw.commands.whitelist": cfg.words,
		}),
		zktest.JVMFlags("-Dznode.container.checkIntervalMs="+millis(cfg.containerInterval)))
}

func startEmbedded(t testing.TB, cfg targetConfig) runningTarget {
	opts := []zktest.Option{
		zktest.TickTime(cfg.tick),
		zktest.SessionTimeouts(cfg.minTimeout, cfg.maxTimeout),
		zktest.MaxClientConns(cfg.maxClientConns),
		zktest.ContainerInterval(cfg.containerInterval),
	}
	if cfg.extendedTypes {
		opts = append(opts, zktest.ExtendedTypes())
	}
	if cfg.words != "*" {
		opts = append(opts, zktest.FourLetterWords(strings.Split(cfg.words, ",")...))
	}
	return zktest.Start(t, opts...)
}

const tick = 500 * time.Millisecond

// place says on which server a check runs.
type place int

const (
	shared    place = iota // together with other checks, and containers are deleted
	exclusive              // one after the other, so that they can count zxids
	strict                 // one after the other, with little allowed
)

var places = []struct {
	place  place
	name   string
	config targetConfig
}{
	{exclusive, "exclusive", exclusiveConfig},
	{strict, "strict", targetConfig{
		tick: tick, minTimeout: time.Second, maxTimeout: 10 * time.Second,
		containerInterval: time.Hour, words: "srvr,conf", // with less a real server's launcher is blind
	}},
	{shared, "shared", targetConfig{
		tick: tick, minTimeout: 2 * tick, maxTimeout: 40 * time.Second,
		extendedTypes: true, containerInterval: time.Second, words: "*",
	}},
}

// exclusiveConfig lets the server do nothing of its own accord.
var exclusiveConfig = targetConfig{
	tick: tick, minTimeout: 2 * tick, maxTimeout: 40 * time.Second,
	extendedTypes: true, containerInterval: time.Hour, words: "*",
}

// check is something that all kinds of servers do alike.
type check struct {
	number int // from 101 on: not in the list the first ones come from
	title  string
	place  place
	run    func(t *testing.T, s suite)
}

var checks = slices.Concat(
	sessionChecks, timeChecks, treeChecks, multiChecks, watchChecks, accessChecks, wireChecks, wordChecks,
)

// suite is what a check has to work with.
type suite struct {
	kind targetKind
	addr string
	root string // a node of its own
}

// open returns a connection with a session that does not expire.
func (s suite) open(t *testing.T) *client {
	t.Helper()
	return open(t, s.addr, longTimeout)
}

// path returns the path of a child of the root.
func (s suite) path(name string) string { return s.root + "/" + name }

// start starts a server for this check alone.
func (s suite) start(t *testing.T, cfg targetConfig) runningTarget {
	t.Helper()
	return s.kind.start(t, cfg)
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for _, kind := range targetKinds {
		for _, p := range places {
			t.Run(kind.name+"/"+p.name, func(t *testing.T) {
				t.Parallel()
				server := kind.start(t, p.config)
				for _, c := range checks {
					if c.place != p.place {
						continue
					}
					t.Run(fmt.Sprintf("%02d %s", c.number, c.title), func(t *testing.T) {
						if p.place == shared {
							t.Parallel()
						}
						s := suite{kind: kind, addr: server.Addr(), root: fmt.Sprintf("/check-%d", c.number)}
						maker := s.open(t)
						maker.must(create(s.root, nil, persistent))
						maker.must(closeSession())
						maker.end()
						c.run(t, s)
					})
				}
			})
		}
	}
}
