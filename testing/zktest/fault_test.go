//go:build unix

package zktest_test

// This file has the tests of faults, on embedded and on real servers.

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"io"
	"math/big"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/zktest"
)

const (
	shortTimeout = 2 * time.Second        // of a session meant to expire
	quietTime    = 100 * time.Millisecond // without packets, to conclude none will come
)

// injected selects the connections through the injector: those of a proxy, or of the first
// member of an embedded server. The test observes the server through the second member.
var injected = zktest.Selector{Member: 1}

// TestFaults injects every fault with a proxy in front of a real server, with a
// proxy in front of an embedded one, and with the embedded server itself.
func TestFaults(t *testing.T) {
	t.Parallel()
	real, embedded := zktest.StartReal(t, zktest.MaxClientConns(0)), zktest.Start(t, zktest.MaxClientConns(0))
	run := func(kind, name string, test func(*faultTest), start func(testing.TB) (f zktest.FaultInjector, target string)) {
		t.Run(kind+"/"+name, func(t *testing.T) {
			t.Parallel()
			f, target := start(t)
			p := &faultTest{T: t, root: "/" + strings.ReplaceAll(name, " ", "-"), target: target, injector: f}
			p.direct = open(t, p.target, longTimeout)
			require.Zero(t, p.direct.do(create(p.root, nil, persistent)).Err)
			test(p)
		})
	}
	behindProxy := func(server addressed) func(testing.TB) (zktest.FaultInjector, string) {
		return func(t testing.TB) (zktest.FaultInjector, string) {
			return zktest.StartProxy(t, server.Addr()), server.Addr()
		}
	}
	for name, test := range faultTests {
		run("real", name, test, behindProxy(real))
		run("embedded behind a proxy", name, test, behindProxy(embedded))
		run("embedded", name, test, func(t testing.TB) (zktest.FaultInjector, string) {
			s := zktest.Start(t, zktest.Members(2))
			return s, s.Members()[1]
		})
	}
	for name, test := range proxyTests {
		run("real", name, test, behindProxy(real))
		run("embedded behind a proxy", name, test, behindProxy(embedded))
	}
}

// faultTest is a test with a separate fault injector.
type faultTest struct {
	*testing.T
	injector zktest.FaultInjector
	target   string  // an address of the server without faults
	direct   *client // connected to target
	root     string  // a node of this test
}

func (p *faultTest) path(name string) string { return p.root + "/" + name }

func (p *faultTest) open(timeout time.Duration) *client {
	p.Helper()
	return open(p, p.injector.Addr(), timeout)
}

// firstConn selects the first connection of the test through the injector.
func (p *faultTest) firstConn() zktest.Selector {
	if p.proxied() {
		return zktest.Selector{Conn: 1}
	}
	return zktest.Selector{Conn: 2} // the first is the direct one
}

func (p *faultTest) proxied() bool {
	_, ok := p.injector.(*zktest.Proxy)
	return ok
}

func (p *faultTest) wait(f *zktest.Fault) {
	p.Helper()
	require.NoError(p, f.Wait(longContext(p)))
}

// injectAt injects a rule for the next request for a node.
func (p *faultTest) injectAt(name string, do zktest.Action) *zktest.Fault {
	return p.injector.Inject(zktest.Rule{Match: zktest.Match{Selector: injected, Prefix: p.path(name)}, Do: do})
}

// owner returns the session that owns an ephemeral node, or 0 if the node does
// not exist.
func (p *faultTest) owner(name string) int64 {
	p.Helper()
	r := p.direct.do(exists(p.path(name), false))
	if r.Err == zktest.ErrNoNode {
		return 0
	}
	require.Zero(p, r.Err)
	return r.Stat.EphemeralOwner
}

// hasConnection reports whether the server has a connection of the session.
func (p *faultTest) hasConnection(session int64) bool {
	p.Helper()
	if s, ok := p.injector.(*zktest.Server); ok { // cons of the target shows the connections of another member
		return slices.ContainsFunc(s.State().Sessions, func(ss zktest.Session) bool { return ss.ID == session && ss.Conn != 0 })
	}
	return strings.Contains(fourLetter(p, p.target, "cons"), fmt.Sprintf("sid=0x%x,", session))
}

// isWatched reports whether the server has a watch on the test's node.
func (p *faultTest) isWatched() bool {
	p.Helper()
	if s, ok := p.injector.(*zktest.Server); ok {
		return s.State().WatchesOf(p.root) > 0
	}
	return strings.Contains(fourLetter(p, p.target, "wchp"), p.root+"\n")
}

// waitDisconnected waits until the server has no connection of the client's
// session.
func (p *faultTest) waitDisconnected(c *client) {
	p.Helper()
	poll(p, "the connection ends at the server", func() bool { return !p.hasConnection(c.welcome.Session) })
}

// requireExpired checks that a session has ended, directly and through the
// injector.
func (p *faultTest) requireExpired(h handshake) {
	p.Helper()
	for _, addr := range []string{p.target, p.injector.Addr()} {
		c := connect(p, addr, h)
		require.Zero(p, c.welcome.Session)
		c.waitEnd()
	}
}

// cutKinds are the ways to cut a connection, and the client's errors.
var cutKinds = []struct {
	before, after zktest.Action
	err           error
}{
	{zktest.DropBeforeApply(), zktest.DropAfterApply(), io.EOF},
	{zktest.ResetBeforeApply(), zktest.ResetAfterApply(), syscall.ECONNRESET},
}

// requireEnd checks how a connection ends, with nothing received before.
func (p *faultTest) requireEnd(c *client, how error) {
	p.Helper()
	require.NoError(p, c.conn.SetReadDeadline(time.Now().Add(ioTimeout)))
	n, err := c.conn.Read(make([]byte, 1))
	require.Zero(p, n)
	require.ErrorIs(p, err, how)
}

var faultTests = map[string]func(*faultTest){
	"packets are forwarded": func(p *faultTest) {
		c := p.open(longTimeout)
		require.Equal(p, longTimeout, c.welcome.Timeout)
		require.Zero(p, c.do(create(p.path("a"), []byte("x"), persistent)).Err)
		require.Equal(p, zktest.ErrNodeExists, c.do(create(p.path("a"), nil, persistent)).Err)
		r := c.do(getData(p.path("a"), true))
		require.Equal(p, "x", string(r.Data))
		require.Zero(p, p.direct.do(setData(p.path("a"), []byte("y"), anyVersion)).Err)
		require.Equal(p, event{zktest.NodeDataChanged, p.path("a")}, c.event())
		require.Zero(p, c.do(ping()).Err)
		require.Equal(p, []result{{Op: zktest.OpCreate, Path: p.path("b")}}, c.do(multi(create(p.path("b"), nil, ephemeral))).Ops)
		require.Equal(p, c.welcome.Session, p.owner("b"))

		// A reply above 1 MiB: a server sends such packets but does not accept them.
		name := strings.Repeat("x", 1000)
		for i := range 12 {
			var ops []request
			for j := range 100 {
				ops = append(ops, create(p.path(fmt.Sprint(name, 100*i+j)), nil, persistent))
			}
			c.send(multi(ops...))
		}
		for range 12 {
			require.Len(p, c.reply().Ops, 100)
		}
		require.Len(p, c.do(getChildren(p.root, false)).Names, 1202)

		// A packet too large for the server.
		c.write(binary.BigEndian.AppendUint32(nil, 2<<20))
		_, _ = c.conn.Write(make([]byte, 2<<20)) // may be cut off
		c.waitEnd()
		short := connect(p, p.injector.Addr(), handshake{Timeout: longTimeout, Short: true})
		require.Equal(p, 36, short.welcome.Size)
	},
	"a request is dropped": func(p *faultTest) {
		for _, cut := range cutKinds {
			c := p.open(longTimeout)
			f := p.injectAt("a", cut.before)
			c.send(create(p.path("a"), nil, ephemeral))
			p.requireEnd(c, cut.err)
			p.wait(f)
			require.Equal(p, 1, f.Fired())
			p.waitDisconnected(c)
			again := c.reattach()
			require.Zero(p, p.owner("a"))
			require.Zero(p, again.do(create(p.path("a"), nil, ephemeral)).Err, "the rule is used up")
			require.Zero(p, again.do(remove(p.path("a"), anyVersion)).Err)
		}
	},
	"a reply is dropped": func(p *faultTest) {
		for _, cut := range cutKinds {
			c := p.open(longTimeout)
			require.Zero(p, p.direct.do(exists(p.path("a"), true)).Stat.Czxid)
			f := p.injectAt("a", cut.after)
			c.send(create(p.path("a"), nil, ephemeral))
			p.requireEnd(c, cut.err)
			p.wait(f)
			require.Equal(p, event{zktest.NodeCreated, p.path("a")}, p.direct.event(), "for another client")
			require.Equal(p, c.welcome.Session, p.owner("a"))
			again := c.reattach()
			require.Equal(p, c.welcome.Session, p.owner("a"))
			require.Zero(p, again.do(remove(p.path("a"), anyVersion)).Err)
		}
	},
	"a reply is truncated": func(p *faultTest) {
		for _, n := range []int{0, 3, 4, 10, 1000} {
			c := p.open(longTimeout)
			name := fmt.Sprint(n)
			f := p.injectAt(name, zktest.TruncateReply(n))
			c.send(create(p.path(name), nil, ephemeral))
			require.NoError(p, c.conn.SetReadDeadline(time.Now().Add(ioTimeout)))
			got, err := io.ReadAll(c.conn)
			require.NoError(p, err)
			require.Len(p, got, min(n, 4+16+4+len(p.path(name))))
			p.wait(f)
			require.Equal(p, c.welcome.Session, p.owner(name))
		}
	},
	"an event comes before the dropped reply": func(p *faultTest) {
		c := p.open(longTimeout)
		c.do(exists(p.path("a"), true))
		p.injectAt("a", zktest.DropAfterApply())
		c.send(create(p.path("a"), nil, persistent))
		require.Equal(p, event{zktest.NodeCreated, p.path("a")}, c.event())
		c.waitEnd()
	},
	"nothing is applied after a dropped reply": func(p *faultTest) {
		c := p.open(longTimeout)
		f := p.injectAt("b", zktest.DropAfterApply())
		c.send(create(p.path("a"), nil, ephemeral), create(p.path("b"), nil, ephemeral), create(p.path("c"), nil, ephemeral))
		require.Equal(p, p.path("a"), c.reply().Path)
		c.waitEnd()
		p.wait(f)
		c.reattach()
		require.Zero(p, p.owner("c"))
		require.NotZero(p, p.owner("b"))
	},
	"a request is held": func(p *faultTest) {
		c, other := p.open(longTimeout), p.open(longTimeout)
		f := p.injectAt("a", zktest.HoldApply())
		c.send(create(p.path("x"), nil, persistent), create(p.path("a"), nil, persistent), create(p.path("b"), nil, persistent))
		require.Equal(p, p.path("x"), c.reply().Path, "an earlier request is answered")
		p.wait(f)
		require.Zero(p, other.do(create(p.path("c"), nil, persistent)).Err)
		require.Equal(p, []string{"c", "x"}, slices.Sorted(slices.Values(p.direct.do(getChildren(p.root, false)).Names)))
		f.Release()
		require.Equal(p, p.path("a"), c.reply().Path)
		require.Equal(p, p.path("b"), c.reply().Path)
		require.Equal(p, 1, f.Fired())

		// A held request is dropped when the connection ends.
		f = p.injectAt("d", zktest.HoldApply())
		c.send(create(p.path("d"), nil, persistent))
		p.wait(f)
		p.injector.Cut(p.firstConn())
		c.waitEnd()
		c.reattach()
		f.Release()
		require.Equal(p, zktest.ErrNoNode, p.direct.do(exists(p.path("d"), false)).Err)
	},
	"a request is delayed": func(p *faultTest) {
		c := p.open(longTimeout)
		f := p.injectAt("a", zktest.DelayApply(quietTime))
		begin := time.Now()
		c.send(create(p.path("a"), nil, persistent))
		p.wait(f)
		zxid := p.direct.do(create(p.path("b"), nil, persistent)).Zxid
		late := time.Since(begin) >= quietTime // of the machine
		require.True(p, c.reply().Zxid > zxid || late, "requests of others overtake it")
		require.GreaterOrEqual(p, time.Since(begin), quietTime)
	},
	"a reply is held": func(p *faultTest) {
		c, other := p.open(longTimeout), p.open(longTimeout)
		c.do(exists(p.path("b"), true))
		f := p.injectAt("a", zktest.HoldReply())
		c.send(create(p.path("a"), nil, ephemeral), ping())
		p.wait(f)
		require.Equal(p, c.welcome.Session, p.owner("a"), "applied")
		require.Zero(p, p.direct.do(create(p.path("b"), nil, persistent)).Err)
		require.Zero(p, other.do(getData(p.path("b"), false)).Err, "other clients are not affected")
		c.silent(quietTime)
		f.Release()
		r := c.reply()
		require.Equal(p, p.path("a"), r.Path)
		require.Empty(p, r.Events, "the event was later")
		require.Equal(p, xidPing, c.reply().Xid)
		poll(p, "the event arrives", func() bool { c.do(ping()); return len(c.events) > 0 })
		require.Equal(p, []event{{zktest.NodeCreated, p.path("b")}}, c.events)
	},
	"a reply is delayed": func(p *faultTest) {
		c := p.open(longTimeout)
		f := p.injectAt("a", zktest.DelayReply(quietTime))
		begin := time.Now()
		c.send(create(p.path("a"), nil, ephemeral), getData(p.path("a"), false))
		p.wait(f)
		require.Equal(p, c.welcome.Session, p.owner("a"))
		require.Equal(p, p.path("a"), c.reply().Path)
		require.Zero(p, c.reply().Err)
		require.GreaterOrEqual(p, time.Since(begin), quietTime)
	},
	"a reply is followed by a reset": func(p *faultTest) {
		ends := func(c *client, f *zktest.Fault) {
			p.wait(f)
			_, err := c.conn.Write(ping().withXid(1).frame())
			require.Error(p, err, "a write after the reset")
		}
		c := p.open(longTimeout)
		f := p.injectAt("a", zktest.ResetAfterReply())
		require.Equal(p, p.path("a"), c.do(create(p.path("a"), nil, ephemeral)).Path)
		ends(c, f)
		c.reattach()
		require.Equal(p, c.welcome.Session, p.owner("a"))

		f = p.injector.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpConnect}}, Do: zktest.ResetAfterReply()})
		c = p.open(longTimeout)
		ends(c, f)
		c.reattach().must(ping())
	},
	"an event is swallowed": func(p *faultTest) {
		c, other := p.open(longTimeout), p.open(longTimeout)
		watch := func(c *client) {
			c.must(getData(p.root, true))
			c.must(getChildren(p.root, true))
		}
		watch(c)
		watch(other)
		events := []zktest.Op{zktest.OpEvent}
		mine := zktest.Match{Selector: zktest.Selector{Session: c.welcome.Session}, Ops: events, Prefix: p.root}
		children := mine
		children.Where = func(r zktest.Request) bool { return r.Event == zktest.NodeChildrenChanged }
		f := p.injector.Inject(zktest.Rule{Match: children, Do: zktest.Swallow()})
		sent := p.injector.Inject(zktest.Rule{Match: mine, Times: 2, Do: zktest.Pass()})
		p.direct.must(create(p.path("a"), nil, persistent))
		p.direct.must(setData(p.root, nil, anyVersion))
		p.wait(f)
		p.wait(sent)
		require.Equal(p, []event{{zktest.NodeDataChanged, p.root}}, c.newEvents())
		require.Equal(p, []event{{zktest.NodeChildrenChanged, p.root}, {zktest.NodeDataChanged, p.root}}, other.newEvents())

		// The swallowed event used up the watch; a new watch fires.
		p.direct.must(create(p.path("b"), nil, persistent))
		require.Empty(p, c.newEvents())
		watch(c)
		p.direct.must(create(p.path("c"), nil, persistent))
		require.Equal(p, event{zktest.NodeChildrenChanged, p.root}, c.event())

		// Events in reply to setWatches can be swallowed, too.
		f = p.injector.Inject(zktest.Rule{Match: mine, Do: zktest.Swallow()})
		c.must(setWatches(1, nil, nil, []string{p.root}))
		p.wait(f)
		require.Empty(p, c.newEvents())
		c.must(setWatches(1, nil, nil, []string{p.root}))
		require.Len(p, c.events, 3)
	},
	"a ping is held": func(p *faultTest) {
		c := p.open(longTimeout)
		f := p.injector.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpPing}}, Do: zktest.HoldReply()})
		c.write(frame(encoder{}.int(77).int(int32(zktest.OpPing)))) // the reply has the xid -2
		c.send(exists(p.root, false))
		p.wait(f)
		c.silent(quietTime)
		f.Release()
		packet, err := c.packet()
		require.NoError(p, err)
		require.Equal(p, xidPing, (&decoder{p, packet}).int())
		require.Zero(p, c.reply().Err)
	},
	"a request fails in order": func(p *faultTest) {
		c := p.open(longTimeout)
		f := p.injector.Inject(zktest.Rule{
			Match: zktest.Match{Ops: zktest.Creates, Prefix: p.path("b")},
			Times: zktest.Always,
			Do:    zktest.FailWith(zktest.ErrThrottled),
		})
		for range 20 {
			r := c.pipeline(
				create(p.path("a"), nil, persistent),
				create(p.path("b"), nil, persistent),
				create2(p.path("b"), nil, persistent),
				exists(p.path("b"), false),
				create(p.path("b"), nil, persistent),
				remove(p.path("a"), anyVersion),
			)
			require.Zero(p, r[0].Err)
			for _, i := range []int{1, 2} {
				require.Equal(p, zktest.ErrThrottled, r[i].Err)
				if p.proxied() {
					require.Equal(p, r[0].Zxid, r[i].Zxid)
				} else { // a failed write takes a zxid, as on a real server
					require.Equal(p, r[0].Zxid+int64(i), r[i].Zxid)
				}
			}
			require.Equal(p, zktest.ErrNoNode, r[3].Err, "not applied")
			require.Equal(p, zktest.ErrThrottled, r[4].Err)
			require.Zero(p, r[5].Err)
		}
		require.Equal(p, 60, f.Fired())
		f.Remove()
		require.Zero(p, c.do(create(p.path("b"), nil, persistent)).Err)
	},
	"a request fails on an idle connection": func(p *faultTest) {
		seen := p.direct.do(setData(p.root, nil, anyVersion)).Zxid
		c := connect(p, p.injector.Addr(), handshake{LastZxid: seen, Timeout: longTimeout})
		f := p.injectAt("", zktest.FailWith(zktest.ErrConnectionLoss))
		r := c.do(getData(p.root+"/", false))
		require.Equal(p, zktest.ErrConnectionLoss, r.Err)
		require.GreaterOrEqual(p, r.Zxid, seen, "not below the zxid that the client has seen")
		p.wait(f)
	},
	"a handshake fails": func(p *faultTest) {
		for _, short := range []bool{false, true} {
			f := p.injector.Inject(zktest.Rule{
				Match: zktest.Match{Ops: []zktest.Op{zktest.OpConnect}}, Do: zktest.FailWith(zktest.ErrSessionExpired),
			})
			c := connect(p, p.injector.Addr(), handshake{Timeout: longTimeout, Short: short})
			require.Zero(p, c.welcome.Session)
			require.Zero(p, c.welcome.Timeout)
			c.waitEnd()
			p.wait(f)
		}
	},
	"a session expires before a request": func(p *faultTest) {
		c := p.open(longTimeout)
		require.Zero(p, c.do(create(p.path("a"), nil, ephemeral)).Err)
		f := p.injectAt("b", zktest.ExpireBeforeApply())
		c.send(create(p.path("b"), nil, persistent))
		c.waitEnd()
		p.requireExpired(c.credentials())
		p.wait(f)
		require.Empty(p, p.direct.do(getChildren(p.root, false)).Names)
	},
	"a session expires after a request": func(p *faultTest) {
		c := p.open(longTimeout)
		f := p.injectAt("b", zktest.ExpireAfterApply())
		c.send(create(p.path("a"), nil, ephemeral), create(p.path("b"), nil, persistent), create(p.path("c"), nil, persistent))
		require.Equal(p, p.path("a"), c.reply().Path)
		c.waitEnd()
		p.requireExpired(c.credentials())
		p.wait(f)
		require.Equal(p, []string{"b"}, p.direct.do(getChildren(p.root, false)).Names)
	},
	"a connection freezes": func(p *faultTest) {
		for _, timeout := range []time.Duration{longTimeout, shortTimeout} {
			c := p.open(timeout)
			require.Zero(p, c.do(create(p.path("a"), nil, ephemeral)).Err)
			f := p.injectAt("b", zktest.Freeze())
			c.send(create(p.path("b"), nil, persistent))
			p.wait(f)
			c.send(create(p.path("c"), nil, persistent))
			if timeout == longTimeout {
				c.silent(quietTime)
				require.True(p, p.hasConnection(c.welcome.Session), "the server keeps the connection")
				require.Zero(p, c.reattach().do(remove(p.path("a"), anyVersion)).Err, "and the session")
				continue
			}
			poll(p, "the session expires", func() bool { return p.owner("a") == 0 })
			c.silent(quietTime)
			require.Empty(p, p.direct.do(getChildren(p.root, false)).Names)
		}
	},
	"a Call runs before the request": func(p *faultTest) {
		c := p.open(longTimeout)
		require.Zero(p, c.do(create(p.path("a"), nil, persistent)).Err)
		var seen zktest.Request
		f := p.injectAt("a", zktest.Call(func(r zktest.Request) {
			seen = r
			p.direct.do(remove(p.path("a"), anyVersion))
		}))
		require.Equal(p, zktest.ErrNoNode, c.do(getData(p.path("a"), false).withXid(77)).Err)
		p.wait(f)
		require.Equal(p, zktest.Request{
			Conn: p.firstConn().Conn, Member: 1, Session: c.welcome.Session, Xid: 77, Op: zktest.OpGetData, Paths: []string{p.path("a")},
		}, seen)
		require.Equal(p, 1, f.Fired())
	},
	// Only replies to auth may come out of order. Clients choose their xids: -4, or an xid
	// as of other requests.
	"replies to auth may overtake others": func(p *faultTest) {
		c := p.open(longTimeout)
		for range 20 {
			held := p.injectAt("a", zktest.HoldReply())
			hit := p.injector.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpAuth}}, Times: 2, Do: zktest.Pass()})
			failed := p.injectAt("x", zktest.FailWith(zktest.ErrSystem))
			c.send(setData(p.root, nil, anyVersion), auth("digest", "a:b"), setData(p.root, nil, anyVersion),
				exists(p.path("x"), false), auth("digest", "c:d").withXid(xidAuth), exists(p.path("a"), false))
			p.wait(held)
			p.wait(hit)
			p.wait(failed)
			held.Release()
			var order []zktest.Code
			for range 6 {
				if r := c.reply(); r.Op != zktest.OpAuth {
					order = append(order, r.Err)
				}
			}
			require.Equal(p, []zktest.Code{0, 0, zktest.ErrSystem, zktest.ErrNoNode}, order)
		}
	},
	"a handshake loses its reply": func(p *faultTest) {
		connecting := zktest.Match{Ops: []zktest.Op{zktest.OpConnect}}
		before := p.injector.Inject(zktest.Rule{Match: connecting, Do: zktest.DropBeforeApply()})
		greet(p, p.injector.Addr(), handshake{Timeout: longTimeout}).waitEnd()
		p.wait(before)

		// A session unknown to the client.
		after := p.injector.Inject(zktest.Rule{Match: connecting, Do: zktest.ExpireAfterApply()})
		greet(p, p.injector.Addr(), handshake{Timeout: longTimeout}).waitEnd()
		p.wait(after)

		// A reattachment: the session stays alive, and the client reattaches again.
		c := p.open(longTimeout)
		id := c.welcome.Session
		p.injector.Inject(zktest.Rule{
			Match: zktest.Match{Selector: zktest.Selector{Session: id}, Ops: []zktest.Op{zktest.OpConnect}},
			Do:    zktest.DropAfterApply(),
		})
		greet(p, p.injector.Addr(), c.credentials()).waitEnd()
		c.waitEnd() // another connection has attached to the session
		c.reattach()
	},
	"ExpireSession ends a session": func(p *faultTest) {
		c, other := p.open(longTimeout), p.open(longTimeout)
		require.Zero(p, c.do(create(p.path("a"), nil, ephemeral)).Err)
		p.owner("a")
		require.Zero(p, p.direct.do(exists(p.path("a"), true)).Err)
		require.NoError(p, p.injector.ExpireSession(c.welcome.Session))
		require.Equal(p, event{zktest.NodeDeleted, p.path("a")}, p.direct.event())
		c.waitEnd()
		p.requireExpired(c.credentials())
		require.ErrorContains(p, p.injector.ExpireSession(c.welcome.Session), "no session", "the session has ended")
		require.Zero(p, other.do(ping()).Err)
		if !p.proxied() {
			return
		}
		require.ErrorContains(p, p.injector.ExpireSession(p.direct.welcome.Session), "no session", "it was not opened through the proxy")

		// A session closed by its client, unknown to the proxy.
		h := other.credentials()
		require.Zero(p, other.do(closeSession()).Err)
		other.waitEnd()
		require.NoError(p, p.injector.ExpireSession(h.Session))
	},
	"ExpireSession ends a session without a connection": func(p *faultTest) {
		c := p.open(longTimeout)
		require.Zero(p, c.do(create(p.path("a"), nil, ephemeral)).Err)
		p.injector.HalfOpen(zktest.Selector{Session: c.welcome.Session})
		require.NoError(p, p.injector.ExpireSession(c.welcome.Session))
		require.Zero(p, p.owner("a"))
		c.silent(quietTime)
		p.requireExpired(c.credentials())
	},
	// A client cannot reattach to an expired session, however fast, nor past the proxy: the
	// client sees the end of the connection only after the end of the session.
	"an expired client cannot reattach": func(p *faultTest) {
		for i := range 50 {
			c := p.open(longTimeout)
			f := p.injectAt("a", []zktest.Action{zktest.ExpireBeforeApply(), zktest.ExpireAfterApply()}[i%2])
			c.send(create(p.path("a"), nil, ephemeral))
			c.waitEnd()
			next := connect(p, []string{p.injector.Addr(), p.target}[i/2%2], c.credentials())
			require.Zero(p, next.welcome.Session, "reattached to the old session")
			next.waitEnd()
			p.wait(f)
			require.Zero(p, p.owner("a"))
		}
	},
	"a partition inbound": func(p *faultTest) {
		c := p.open(longTimeout)
		c.do(exists(p.path("b"), true))
		p.injector.Partition(injected, zktest.Inbound)
		c.send(create(p.path("a"), nil, persistent), create(p.path("c"), nil, persistent))
		require.Zero(p, p.direct.do(create(p.path("b"), nil, persistent)).Err)
		require.Equal(p, event{zktest.NodeCreated, p.path("b")}, c.event(), "the other direction is open")
		late, word := greet(p, p.injector.Addr(), handshake{Timeout: longTimeout}), dial(p, p.injector.Addr())
		word.write([]byte("ruok"))
		late.silent(quietTime)
		word.silent(quietTime)
		c.silent(quietTime)
		require.Equal(p, []string{"b"}, p.direct.do(getChildren(p.root, false)).Names)
		p.injector.Heal()
		require.Equal(p, p.path("a"), c.reply().Path)
		require.Equal(p, p.path("c"), c.reply().Path)
		_, err := late.packet()
		require.NoError(p, err)
		require.NoError(p, word.conn.SetReadDeadline(time.Now().Add(ioTimeout)))
		answer, err := io.ReadAll(word.conn)
		require.NoError(p, err)
		require.Equal(p, "imok", string(answer))
	},
	"a partition outbound": func(p *faultTest) {
		c, short := p.open(longTimeout), p.open(shortTimeout)
		c.do(exists(p.path("b"), true))
		short.do(create(p.path("c"), nil, ephemeral))
		p.injector.Partition(injected, zktest.Outbound)
		c.send(create(p.path("a"), nil, ephemeral))
		short.send(getData(p.root, false))
		poll(p, "the request is applied", func() bool { return p.owner("a") != 0 })
		require.Zero(p, p.direct.do(create(p.path("b"), nil, persistent)).Err)
		poll(p, "the session expires", func() bool { return p.owner("c") == 0 })
		c.silent(quietTime)
		short.silent(quietTime)
		p.injector.Heal() // delivers what was held up
		require.Equal(p, p.path("a"), c.reply().Path)
		require.Equal(p, event{zktest.NodeCreated, p.path("b")}, c.event())
		require.Zero(p, c.do(ping()).Err)
		require.Zero(p, short.reply().Err)
		short.waitEnd()
	},
	"a partition of a session": func(p *faultTest) {
		c, other := p.open(longTimeout), p.open(longTimeout)
		p.injector.Partition(zktest.Selector{Session: c.welcome.Session}, zktest.Both)
		c.send(create(p.path("a"), nil, persistent))
		require.Zero(p, other.do(create(p.path("b"), nil, persistent)).Err)
		again := greet(p, p.injector.Addr(), c.credentials())
		again.silent(quietTime)
		require.Equal(p, []string{"b"}, p.direct.do(getChildren(p.root, false)).Names)
		require.True(p, p.hasConnection(c.welcome.Session), "the new connection has not attached")
		p.injector.Heal()
		_, err := again.packet()
		require.NoError(p, err)
		for {
			if _, err := c.tryReply(); err != nil { // ended by the new connection, before or after the reply
				break
			}
		}
	},
	"a partition delays the end of a connection": func(p *faultTest) {
		c := p.open(longTimeout)
		p.injector.Partition(injected, zktest.Inbound)
		c.send(create(p.path("a"), nil, ephemeral))
		c.cut()
		require.Zero(p, p.owner("a"))
		require.True(p, p.hasConnection(c.welcome.Session))
		p.injector.Heal()
		poll(p, "the request is applied", func() bool { return p.owner("a") == c.welcome.Session })
		p.waitDisconnected(c)
	},
	"connections are cut": func(p *faultTest) {
		a, b, c := p.open(longTimeout), p.open(longTimeout), p.open(longTimeout)
		p.injector.Cut(p.firstConn())
		p.requireEnd(a, io.EOF)
		p.injector.Reset(zktest.Selector{Session: b.welcome.Session})
		p.requireEnd(b, syscall.ECONNRESET)
		require.Zero(p, c.do(ping()).Err)
		for _, cut := range []*client{a, b} {
			p.waitDisconnected(cut)
			cut.reattach()
		}
		p.injector.Cut(zktest.Selector{Member: 3}) // selects nothing
		require.Zero(p, c.do(ping()).Err)
		p.injector.Cut(injected)
		c.waitEnd()
	},
	"a deafened server ignores its clients": func(p *faultTest) {
		c, short := p.open(longTimeout), p.open(shortTimeout)
		c.do(exists(p.path("b"), true))
		require.Zero(p, short.do(create(p.path("a"), nil, ephemeral)).Err)
		p.injector.Deafen(injected)
		c.send(create(p.path("c"), nil, persistent))
		require.Zero(p, p.direct.do(create(p.path("b"), nil, persistent)).Err)
		require.Equal(p, event{zktest.NodeCreated, p.path("b")}, c.event())
		short.send(ping())
		poll(p, "the session expires", func() bool { return p.owner("a") == 0 })
		short.waitEnd()
		require.Equal(p, []string{"b"}, p.direct.do(getChildren(p.root, false)).Names)

		// The server does not notice the end of the connection either.
		c.cut()
		p.open(longTimeout).silent(quietTime)
		require.True(p, p.hasConnection(c.welcome.Session))
	},
	"Throttle delivers everything": func(p *faultTest) {
		c := p.open(longTimeout)
		p.injector.Throttle(p.firstConn(), 1, time.Microsecond)
		r := c.pipeline(create(p.path("a"), []byte("x"), persistent), getData(p.path("a"), false), ping())
		require.Equal(p, "x", string(r[1].Data))
		p.injector.Throttle(p.firstConn(), 0, 0)
		require.Zero(p, c.do(ping()).Err)
	},
	"a connection is half open": func(p *faultTest) {
		c := p.open(longTimeout)
		require.Zero(p, c.do(create(p.path("a"), nil, ephemeral)).Err)
		require.Zero(p, c.do(getData(p.root, true)).Err)
		p.injector.HalfOpen(p.firstConn())
		p.waitDisconnected(c)
		poll(p, "the server removes the watch", func() bool { return !p.isWatched() })
		c.send(create(p.path("b"), nil, persistent), ping())
		c.silent(quietTime)
		require.Zero(p, c.reattach().do(remove(p.path("a"), anyVersion)).Err, "the session is alive")
		c.silent(quietTime)

		c = p.open(shortTimeout)
		require.Zero(p, c.do(create(p.path("a"), nil, ephemeral)).Err)
		p.injector.HalfOpen(injected)
		poll(p, "the session expires", func() bool { return p.owner("a") == 0 })
		c.silent(quietTime)
		require.Empty(p, p.direct.do(getChildren(p.root, false)).Names)
	},
	"a request counts before the reply can be seen": func(p *faultTest) {
		c := p.open(longTimeout)
		passed := p.injector.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpExists}}, Times: zktest.Always, Do: zktest.Pass()})
		failed := p.injector.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpExists}}, Times: zktest.Always, Do: zktest.FailWith(zktest.ErrNoAuth)})
		for i := range 1000 {
			c.fails(zktest.ErrNoAuth, exists(p.root, false))
			require.Equal(p, []int{i + 1, i + 1}, []int{passed.Fired(), failed.Fired()})
		}
	},
	"connections are refused": func(p *faultTest) {
		c := p.open(longTimeout)
		require.NoError(p, p.injector.RefuseConnections(1))
		_, err := net.Dial("tcp", p.injector.Addr())
		require.ErrorIs(p, err, syscall.ECONNREFUSED)
		require.NoError(p, p.injector.RejectConnections(1))
		dial(p, p.injector.Addr()).waitEnd()
		require.NoError(p, p.injector.HangConnections(1))
		hung := greet(p, p.injector.Addr(), handshake{Timeout: longTimeout})
		hung.silent(time.Second) // until it is accepted
		require.Zero(p, c.do(ping()).Err, "open connections stay open")
		require.NoError(p, p.injector.AcceptConnections(1))
		require.Zero(p, p.open(longTimeout).do(ping()).Err)
		hung.silent(quietTime)
	},
	"four letter commands are forwarded": func(p *faultTest) {
		require.Equal(p, "imok", fourLetter(p, p.injector.Addr(), "ruok"))
		require.Equal(p, "rw", fourLetter(p, p.injector.Addr(), "isro"))
		require.Contains(p, fourLetter(p, p.injector.Addr(), "mntr"), "\nzk_server_state\t")
		require.Empty(p, fourLetter(p, p.injector.Addr(), "what"))
		require.Empty(p, fourLetter(p, p.injector.Addr(), "\xff\xff\xff\xff"))
		c := dial(p, p.injector.Addr())
		c.write([]byte("ru"))
		c.write([]byte("ok\n"))
		require.NoError(p, c.conn.(*net.TCPConn).CloseWrite())
		require.NoError(p, c.conn.SetReadDeadline(time.Now().Add(ioTimeout)))
		answer, err := io.ReadAll(c.conn)
		require.NoError(p, err)
		require.Equal(p, "imok", string(answer))
	},
	"orderly ends are forwarded": func(p *faultTest) {
		// The server ends the connection after its last reply.
		c := p.open(longTimeout)
		require.Zero(p, c.do(create(p.path("a"), nil, ephemeral)).Err)
		require.Zero(p, c.do(exists(p.path("a"), true)).Err)
		r := c.do(closeSession())
		require.Zero(p, r.Err)
		require.Equal(p, []event{{zktest.NodeDeleted, p.path("a")}}, r.Events)
		p.requireEnd(c, io.EOF)
		p.requireExpired(c.credentials())

		// The client ends the connection after its last request.
		c = p.open(longTimeout)
		c.send(create(p.path("b"), nil, ephemeral))
		c.cut()
		poll(p, "the last request is applied", func() bool { return p.owner("b") == c.welcome.Session })
		p.waitDisconnected(c)

		// An incomplete packet is discarded.
		c = p.open(longTimeout)
		c.write([]byte{0, 0, 0, 100, 0})
		require.NoError(p, c.conn.(*net.TCPConn).CloseWrite())
		c.waitEnd()

		// A held reply is delivered before the end of the connection, even to a client with
		// the sending side closed.
		c = p.open(longTimeout)
		f := p.injectAt("c", zktest.HoldReply())
		c.send(create(p.path("c"), nil, persistent), closeSession())
		p.wait(f)
		p.waitDisconnected(c)
		require.NoError(p, c.conn.(*net.TCPConn).CloseWrite())
		c.silent(quietTime)
		f.Release()
		require.Equal(p, p.path("c"), c.reply().Path)
		require.Equal(p, zktest.OpCloseSession, c.reply().Op)
		c.waitEnd()
	},
	"Pass counts in addition to a fault": func(p *faultTest) {
		c := p.open(longTimeout)
		before := p.injectAt("a", zktest.Pass())
		failed := p.injectAt("a", zktest.FailWith(zktest.ErrSystem))
		never := p.injectAt("a", zktest.FailWith(zktest.ErrThrottled))
		after := p.injectAt("a", zktest.Pass())
		c.fails(zktest.ErrSystem, exists(p.path("a"), false))
		p.wait(before)
		p.wait(failed)
		p.wait(after)
		require.Zero(p, never.Fired())
		never.Remove()

		// A session also expires at a reattaching handshake.
		f := p.injector.Inject(zktest.Rule{
			Match: zktest.Match{Selector: zktest.Selector{Session: c.welcome.Session}, Ops: []zktest.Op{zktest.OpConnect}},
			Do:    zktest.ExpireBeforeApply(),
		})
		greet(p, p.injector.Addr(), c.credentials()).waitEnd()
		p.wait(f)
		p.requireExpired(c.credentials())
	},
}

// proxyTests are the tests for proxies only.
var proxyTests = map[string]func(*faultTest){
	"a session expires that neither the client nor the proxy knows yet": func(p *faultTest) {
		for _, do := range []zktest.Action{zktest.ExpireBeforeApply(), zktest.ExpireAfterApply()} {
			c := dial(p, p.injector.Addr())
			f := p.injectAt("b", do)
			c.write(append(handshake{Timeout: longTimeout}.frame(),
				frame(append(encoder{}.int(1).int(int32(zktest.OpCreate)), create(p.path("b"), nil, ephemeral).Body...))...))
			packet, err := c.packet()
			require.NoError(p, err)
			c.waitEnd()
			p.wait(f)
			d := decoder{p, packet[8:]} // after the protocol and the timeout
			p.requireExpired(handshake{Timeout: longTimeout, Session: d.long(), Password: d.buffer()})
			require.Zero(p, p.owner("b"))
		}
	},
	"a session ends while the client reattaches, through the proxy or directly": func(p *faultTest) {
		for i := range 20 {
			c := p.open(longTimeout)
			c.cut()
			done := make(chan error)
			go func() { done <- p.injector.ExpireSession(c.welcome.Session) }()
			for over := false; !over; {
				again := greet(p, []string{p.injector.Addr(), p.target}[i%2], c.credentials())
				require.NoError(p, again.conn.SetReadDeadline(time.Now().Add(ioTimeout)))
				welcome := make([]byte, 41)
				_, err := io.ReadFull(again.conn, welcome)
				over = err == nil && binary.BigEndian.Uint32(welcome[8:]) == 0 // the timeout
				again.cut()
			}
			require.NoError(p, <-done)
			p.requireExpired(c.credentials())
		}
	},
	"ExpireAll ends all sessions": func(p *faultTest) {
		proxy := p.injector.(*zktest.Proxy)
		a, b := p.open(longTimeout), p.open(longTimeout)
		a.cut()
		require.NoError(p, proxy.ExpireAll())
		b.waitEnd()
		p.requireExpired(a.credentials())
		p.requireExpired(b.credentials())
		require.Zero(p, p.direct.do(ping()).Err, "a session not opened through the proxy")
		require.NoError(p, proxy.ExpireAll())
	},
	"Close ends everything": func(p *faultTest) {
		proxy := p.injector.(*zktest.Proxy)
		a, b := p.open(longTimeout), p.open(longTimeout)
		apply, reply := p.injectAt("a", zktest.HoldApply()), p.injectAt("b", zktest.HoldReply())
		a.send(create(p.path("a"), nil, persistent))
		b.send(create(p.path("b"), nil, persistent))
		p.wait(apply)
		p.wait(reply)
		frozen := p.open(longTimeout)
		proxy.HalfOpen(zktest.Selector{Session: frozen.welcome.Session})
		proxy.Partition(zktest.Selector{}, zktest.Both)
		hung := dial(p, proxy.Addr())
		require.NoError(p, proxy.Close())
		require.NoError(p, proxy.Close())
		for _, c := range []*client{a, b, frozen, hung} {
			c.waitEnd()
		}
		_, err := net.Dial("tcp", proxy.Addr())
		require.ErrorIs(p, err, syscall.ECONNREFUSED)
		require.ErrorContains(p, p.injectAt("c", zktest.Pass()).Wait(longContext(p)), "closed")
		require.ErrorContains(p, proxy.AcceptConnections(), "closed")
		require.ErrorContains(p, proxy.ExpireSession(a.welcome.Session), "closed")
		a = connect(p, p.target, a.credentials())
		require.NotZero(p, a.welcome.Session, "the session is alive")
	},
	"TLS ends at the proxy": func(p *faultTest) {
		proxy := p.injector.(*zktest.Proxy)
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(p, err)
		template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
		certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
		require.NoError(p, err)
		l, err := net.Listen("tcp", "[::1]:0")
		require.NoError(p, err)
		proxy.Serve(tls.NewListener(l, &tls.Config{
			Certificates: []tls.Certificate{{Certificate: [][]byte{certificate}, PrivateKey: key}},
		}))
		conn, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true})
		require.NoError(p, err)
		p.Cleanup(func() { _ = conn.Close() })
		c := &client{t: p, conn: conn}
		c.write(handshake{Timeout: longTimeout}.frame())
		_, err = c.packet()
		require.NoError(p, err)
		require.Zero(p, c.do(create(p.path("a"), nil, ephemeral)).Err)
		require.Zero(p, c.do(closeSession()).Err)
		p.requireEnd(c, io.EOF)
		require.Zero(p, p.owner("a"))
	},
}

// HalfOpen wins over a pending DropAfterApply: the proxy has stopped reading from the
// client, to cut the connection after the reply, but keeps the connection open.
func TestProxyKeepsAHalfOpenConnectionOpen(t *testing.T) {
	t.Parallel()
	server := zktest.Start(t)
	proxy := zktest.StartProxy(t, server.Addr())
	c := open(t, proxy.Addr(), longTimeout)
	require.NoError(t, server.Pause())
	here := make(chan bool)
	f := proxy.Inject(zktest.Rule{
		Match: zktest.Match{Prefix: "/", Where: func(zktest.Request) bool { close(here); return true }},
		Do:    zktest.DropAfterApply(),
	})
	c.send(exists("/", false))
	<-here
	proxy.HalfOpen(zktest.Selector{})
	require.NoError(t, server.Resume())
	c.silent(quietTime)
	require.Zero(t, f.Fired())
}

func TestProxyOfADeadServer(t *testing.T) {
	t.Parallel()
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := zktest.StartProxy(t, dead.Addr().String())
	require.NoError(t, dead.Close())
	dial(t, p.Addr()).waitEnd()
	_, err = zktest.RunProxy("nowhere")
	require.Error(t, err)
}

// A paused or killed server affects the proxy's clients like direct clients.
func TestProxyOfAPausedServer(t *testing.T) {
	t.Parallel()
	server := zktest.StartReal(t)
	p := zktest.StartProxy(t, server.Addr())
	a, b, c := open(t, p.Addr(), longTimeout), open(t, p.Addr(), longTimeout), open(t, p.Addr(), longTimeout)

	// First a session unknown to any client.
	orphan := p.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpConnect}}, Do: zktest.DropAfterApply()})
	greet(t, p.Addr(), handshake{Timeout: longTimeout}).waitEnd()
	require.NoError(t, orphan.Wait(t.Context()))
	sessions, err := server.Stat(t.Context(), "zk_global_sessions")
	require.NoError(t, err)
	require.EqualValues(t, 4, sessions)

	require.NoError(t, server.Pause())
	f := p.Inject(zktest.Rule{Match: zktest.Match{Prefix: "/a"}, Do: zktest.DropAfterApply()})
	a.send(create("/a", nil, persistent))
	b.cut()
	late := greet(t, p.Addr(), handshake{Timeout: longTimeout})
	require.NoError(t, server.Resume())
	_, err = late.packet()
	require.NoError(t, err)
	a.waitEnd()
	require.NoError(t, f.Wait(t.Context()))
	require.NoError(t, server.Kill())
	c.waitEnd()
	late.waitEnd()
	dial(t, p.Addr()).waitEnd()
	require.ErrorContains(t, p.ExpireSession(c.welcome.Session), "refused")
	require.NoError(t, server.Start(t.Context()))
	poll(t, "the client reattaches", func() bool { return connect(t, p.Addr(), c.credentials()).welcome.Session != 0 })

	require.NoError(t, server.Pause())
	c = greet(t, p.Addr(), handshake{Timeout: longTimeout})
	expired := make(chan error)
	go func() { expired <- p.ExpireSession(a.welcome.Session) }()
	require.NoError(t, p.Close())
	c.waitEnd()
	require.ErrorContains(t, <-expired, "")
}
