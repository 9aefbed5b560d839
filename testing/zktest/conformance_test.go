package zktest_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lockpool/lockpool/testing/zktest"
)

// target is a server as the checks see it.
type addressed interface{ Addr() string }

// runningTarget is a server that can be stopped, and started again with its
// state.
type restartable interface {
	addressed
	Stop(ctx context.Context) error
	Start(ctx context.Context) error
}

// targetKind is a kind of server that is to give the answers of the checks.
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

// place says on which server a check runs.
type serverGroup int

const (
	shared    serverGroup = iota // together with other checks
	waiting                      // together with other checks that wait; containers are deleted
	exclusive                    // one after the other, so that they can count zxids
	strict                       // one after the other, with little allowed
)

var serverGroups = []struct {
	place   serverGroup
	name    string
	options []zktest.CommonOption
}{
	{waiting, "waiting", []zktest.CommonOption{
		zktest.ExtendedTypes(), zktest.MaxClientConns(0), zktest.ContainerInterval(time.Second),
	}},
	{exclusive, "exclusive", quietOptions},
	{strict, "strict", []zktest.CommonOption{
		zktest.SessionTimeouts(time.Second, 10*time.Second), zktest.ContainerInterval(time.Hour),
		zktest.FourLetterWords("srvr", "conf"), // with less a real server's launcher is blind
	}},
	{shared, "shared", quietOptions},
}

// quiet servers do nothing of their own accord.
var quietOptions = []zktest.CommonOption{
	zktest.ExtendedTypes(), zktest.MaxClientConns(0), zktest.ContainerInterval(time.Hour),
}

// check is something that all kinds of servers do alike.
type check struct {
	number int // from 101 on: not in the list the first ones come from
	title  string
	group  serverGroup
	run    func(t *testing.T, s checkEnv)
}

var checks = slices.Concat(
	sessionChecks, timeChecks, treeChecks, multiChecks, watchChecks, accessChecks, wireChecks, fourLetterChecks,
)

// suite is what a check has to work with.
type checkEnv struct {
	kind serverKind
	addr string
	root string // a node of its own
}

// open returns a connection with a session that does not expire.
func (s checkEnv) open(t *testing.T) *client {
	t.Helper()
	return open(t, s.addr, longTimeout)
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
		for _, p := range serverGroups {
			t.Run(kind.name+"/"+p.name, func(t *testing.T) {
				t.Parallel()
				server := kind.start(t, p.options...)
				run := func(c check) {
					t.Run(fmt.Sprintf("%02d %s", c.number, c.title), func(t *testing.T) {
						if p.place == shared {
							t.Parallel()
						}
						s := checkEnv{kind: kind, addr: server.Addr(), root: fmt.Sprintf("/check-%d", c.number)}
						maker := s.open(t)
						maker.must(create(s.root, nil, persistent))
						maker.must(closeSession())
						maker.waitEnd()
						c.run(t, s)
					})
				}
				var waits sync.WaitGroup
				for _, c := range checks {
					switch {
					case c.group != p.place:
					case p.place == waiting:
						// All at once, which t.Parallel does not do on a small machine.
						waits.Go(func() { run(c) })
					default:
						run(c)
					}
				}
				waits.Wait()
			})
		}
	}
}
