package zookeeper_test

// This file proves the laws of package driver, for each layout, and on followers that are
// behind.

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/driver/drivertest"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

var everyLayout = []zookeeper.Layout{
	zookeeper.LayoutCurator, zookeeper.LayoutCuratorRW, zookeeper.LayoutKazoo, zookeeper.LayoutKazooRW,
}

// The driver keeps the laws of package driver, whatever the names of nodes.
func TestLaws(t *testing.T) {
	layouts := everyLayout
	if !locktest.Embedded() {
		layouts = layouts[:1] // for a minute
	}
	for _, layout := range layouts {
		t.Run(fmt.Sprint(layout), func(t *testing.T) {
			if locktest.Embedded() {
				drivertest.RunInBubbles(t, func(t *testing.T) (driver.Connector, drivertest.Options) {
					return contract(t, layout, zktest.StartBubble(t, zktest.Members(5)))
				})
				return
			}
			b := locktest.New(t)
			p := b.Proxy()
			cfg := b.Config()
			cfg.Layout = layout
			drivertest.Run(t, connector(t, cfg), faults(t, p, b.Chroot))
		})
	}
}

// It keeps them in an ensemble whose followers are behind the leader.
func TestLawsWithSlowFollowers(t *testing.T) {
	locktest.Once(t)
	drivertest.RunInBubbles(t, func(t *testing.T) (driver.Connector, drivertest.Options) {
		s := zktest.StartBubble(t, zktest.Members(5))
		for member := range s.Members() {
			if member+1 != s.Leader() {
				require.NoError(t, s.SlowMember(member+1, time.Duration(1+member)*time.Millisecond))
			}
		}
		return contract(t, zookeeper.LayoutCurator, s)
	})
}

// It keeps them on ClickHouse Keeper, where a session ends with its connection.
func TestLawsOnKeeper(t *testing.T) {
	locktest.Once(t)
	drivertest.RunInBubbles(t, func(t *testing.T) (driver.Connector, drivertest.Options) {
		c, options := contract(t, zookeeper.LayoutCurator, zktest.StartBubble(t, zktest.Members(5), zktest.Keeper()))
		options.LoseReply, options.Lag = nil, nil // they break the connection
		options.Expire = nil                      // a client learns only that the connection has ended
		return c, options
	})
}

func contract(t *testing.T, layout zookeeper.Layout, s *zktest.Server) (driver.Connector, drivertest.Options) {
	const chroot = "/locks"
	c := connector(t, zookeeper.Config{Servers: s.Members(), Dial: s.Dial, Chroot: chroot, Layout: layout, SessionTimeout: timeout})
	options := faults(t, s, chroot)
	options.Remove = func(queue string, node driver.Node) {
		path := chroot + "/" + queue
		if node.Kind != driver.Plain {
			path += "/" + node.Name
		}
		require.NoError(t, s.Delete(path))
	}
	options.Lag = func(session driver.Session) (move func()) { return lag(t, s, idOf(t, session)) }
	return c, options
}

// lag has a follower without clients lag, to which move moves a session.
func lag(t *testing.T, s *zktest.Server, session int64) (move func()) {
	behind := 0
	var others []int
	for i := range s.Members() {
		used := slices.ContainsFunc(s.State().Conns, func(c zktest.Conn) bool { return c.Member == i+1 })
		if member := i + 1; behind != 0 || used || member == s.Leader() {
			others = append(others, member)
		} else {
			behind = member
		}
	}
	require.NotZero(t, behind, "each follower has clients")
	require.NoError(t, s.Lag(behind))
	return func() {
		require.NoError(t, s.RefuseConnections(others...))
		s.Cut(zktest.Selector{Session: session})
		time.AfterFunc(time.Second, func() { _ = s.AcceptConnections(others...) })
	}
}

const timeout = 5 * time.Second

func connector(t *testing.T, cfg zookeeper.Config) driver.Connector {
	c, err := zookeeper.NewConnector(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// idOf returns the ID of a session. The bugs of package drivertest are planted in a program with
// this file alone, which has no access to the session's type.
func idOf(t *testing.T, session driver.Session) int64 {
	id, err := strconv.ParseUint(session.Info().ID, 0, 64)
	require.NoError(t, err)
	return int64(id)
}

// faults returns the ways to cause what the laws are about.
func faults(t *testing.T, s zktest.FaultInjector, chroot string) drivertest.Options {
	of := func(session driver.Session) zktest.Selector {
		return zktest.Selector{Session: idOf(t, session)}
	}
	var lost *zktest.Fault
	return drivertest.Options{
		Timeout: timeout,
		Expire:  func(session driver.Session) { require.NoError(t, s.ExpireSession(of(session).Session)) },
		Pause: func(session driver.Session) (resume func()) {
			s.Partition(of(session), zktest.Both)
			return s.Heal
		},
		LoseReply: func(session driver.Session) {
			if lost != nil {
				lost.Remove() // if the last call sent nothing
			}
			lost = s.Inject(zktest.Rule{Match: zktest.Match{Selector: of(session), Prefix: chroot + "/"}, Do: zktest.DropAfterApply()})
		},
		LoseEvent: func(session driver.Session) {
			s.Inject(zktest.Rule{Match: zktest.Match{Selector: of(session), Ops: []zktest.Op{zktest.OpEvent}}, Do: zktest.Swallow()})
		},
		Refuse: func(session driver.Session) (allow func()) {
			f := s.Inject(zktest.Rule{
				Match: zktest.Match{Selector: of(session), Ops: []zktest.Op{zktest.OpDelete, zktest.OpMulti}, Prefix: chroot + "/"},
				Times: zktest.Always, Do: zktest.FailWith(zktest.ErrNoAuth),
			})
			return f.Remove
		},
	}
}
