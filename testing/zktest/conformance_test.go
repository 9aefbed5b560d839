package zktest_test

// This file has the conformance checks: what runs on which servers.

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lockpool/lockpool/testing/zktest"
)

// addressed is a server, embedded or real.
type addressed interface{ Addr() string }

// restartable is a server with Stop, and Start with the same state.
type restartable interface {
	addressed
	Stop(ctx context.Context) error
	Start(ctx context.Context) error
}

// serverKind is a kind of server to be checked.
type serverKind struct {
	name  string
	start func(t testing.TB, opts ...zktest.CommonOption) restartable
}

var serverKinds = []serverKind{
	{"real", func(t testing.TB, opts ...zktest.CommonOption) restartable {
		// A slow disk would make sessions expire late.
		own := []zktest.RealOption{zktest.Properties(map[string]string{"forceSync": "no"})}
		for _, opt := range opts {
			own = append(own, opt)
		}
		return zktest.StartReal(t, own...)
	}},
	{"embedded", func(t testing.TB, opts ...zktest.CommonOption) restartable {
		var own []zktest.Option
		for _, opt := range opts {
			own = append(own, opt)
		}
		return zktest.Start(t, own...)
	}},
}

const tick = 500 * time.Millisecond

// serverGroup says which checks share a server with which options.
type serverGroup int

const (
	shared    serverGroup = iota // runs in parallel with other checks
	waiting                      // runs in parallel with other waiting checks; the server deletes containers
	exclusive                    // runs alone, to count zxids
	strict                       // runs alone; the server allows less
)

var serverGroups = []struct {
	group   serverGroup
	name    string
	options []zktest.CommonOption
}{
	{waiting, "waiting", []zktest.CommonOption{
		zktest.ExtendedTypes(), zktest.MaxClientConns(0), zktest.ContainerInterval(time.Second),
	}},
	{exclusive, "exclusive", quietOptions},
	{strict, "strict", []zktest.CommonOption{
		zktest.SessionTimeouts(time.Second, 10*time.Second), zktest.ContainerInterval(time.Hour),
		zktest.FourLetterWords("srvr", "conf"), // needed by the launcher of real servers
	}},
	{shared, "shared", quietOptions},
}

// quietOptions are the options of servers without changes of their own.
var quietOptions = []zktest.CommonOption{
	zktest.ExtendedTypes(), zktest.MaxClientConns(0), zktest.ContainerInterval(time.Hour),
}

// check is a guarantee of all kinds of servers. The checks have what random scripts do not
// compare (see TestDifferential): handshakes, time, bounds, concurrent clients, and ZooKeeper's own nodes.
type check struct {
	number int // below 101, as in the reference list of checks
	title  string
	group  serverGroup
	run    func(t *testing.T, s checkEnv)
}

var checks = slices.Concat(
	sessionChecks, timeChecks, treeChecks, wireChecks, fourLetterChecks,
)

// checkEnv is the environment of a check.
type checkEnv struct {
	kind serverKind
	addr string
	root string // a node of this check
}

// open returns a connection with a session of a long timeout, closed at the end of the
// check: a later check counts zxids.
func (s checkEnv) open(t *testing.T) *client {
	t.Helper()
	c := open(t, s.addr, longTimeout)
	t.Cleanup(func() {
		if again := connect(t, s.addr, c.credentials()); again.welcome.Session != 0 {
			again.must(closeSession())
		}
	})
	return c
}

// path returns the path of a child of the root.
func (s checkEnv) path(name string) string { return s.root + "/" + name }

// start starts a server for this check alone.
func (s checkEnv) start(t *testing.T, opts ...zktest.CommonOption) restartable {
	t.Helper()
	return s.kind.start(t, opts...)
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for _, kind := range serverKinds {
		for _, g := range serverGroups {
			t.Run(kind.name+"/"+g.name, func(t *testing.T) {
				t.Parallel()
				runGroup(t, kind, g.group, kind.start(t, g.options...).Addr())
			})
		}
	}
}

func runGroup(t *testing.T, kind serverKind, group serverGroup, addr string) {
	var waits sync.WaitGroup
	defer waits.Wait()
	for _, c := range checks {
		switch {
		case c.group != group:
		case group == waiting:
			// All at once: t.Parallel would limit them to the number of CPUs.
			waits.Go(func() { c.runOn(t, kind, addr) })
		default:
			c.runOn(t, kind, addr)
		}
	}
}

// runOn runs the check as a subtest.
func (c check) runOn(t *testing.T, kind serverKind, addr string) {
	t.Run(fmt.Sprintf("%02d %s", c.number, c.title), func(t *testing.T) {
		if c.group == shared {
			t.Parallel()
		}
		s := checkEnv{kind: kind, addr: addr, root: fmt.Sprintf("/check-%d", c.number)}
		creator := s.open(t)
		creator.must(create(s.root, nil, persistent))
		creator.must(closeSession())
		creator.waitEnd()
		c.run(t, s)
	})
}
