//go:build unix

package zktest_test

// This file has the tests of sessions ending behind a proxy.

import (
	"encoding/binary"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/zktest"
)

// fault_test.go tests the faults of servers and proxies. This file tests how a
// proxy ends sessions and connections.

func TestProxyEndsSessions(t *testing.T) {
	t.Parallel()
	for kind, start := range map[string]func(testing.TB) addressed{
		"real":     func(t testing.TB) addressed { return zktest.StartReal(t, zktest.MaxClientConns(0)) },
		"embedded": func(t testing.TB) addressed { return zktest.Start(t, zktest.MaxClientConns(0)) },
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			server := start(t)
			proxy := zktest.StartProxy(t, server.Addr())
			p := &faultTest{T: t, root: "/a", target: server.Addr(), injector: proxy, direct: open(t, server.Addr(), longTimeout)}
			require.Zero(t, p.direct.do(create(p.root, nil, persistent)).Err)
			newSessionExpires(p)
			clientReattachesDuringExpiry(p, proxy)
		})
	}
}

// A request may be sent before the client, or the proxy, knows the session.
func newSessionExpires(p *faultTest) {
	for _, do := range []zktest.Action{zktest.ExpireBeforeApply(), zktest.ExpireAfterApply()} {
		c := dial(p, p.injector.Addr())
		f := p.injectAt("b", do)
		c.write(append(handshake{Timeout: longTimeout}.frame(),
			frame(append(encoder{}.int(1).int(opCreate), create(p.path("b"), nil, ephemeral).Body...))...))
		packet, err := c.packet()
		require.NoError(p, err)
		c.waitEnd()
		p.wait(f)
		d := decoder{p, packet[8:]} // after the protocol and the timeout
		p.requireExpired(handshake{Timeout: longTimeout, Session: d.long(), Password: d.buffer()})
		require.Zero(p, p.owner("b"))
	}
}

// A session ends even while the client keeps reattaching, through the proxy or directly.
func clientReattachesDuringExpiry(p *faultTest, proxy *zktest.Proxy) {
	for i := range 20 {
		c := p.open(longTimeout)
		c.cut()
		done := make(chan error)
		go func() { done <- proxy.ExpireSession(c.welcome.Session) }()
		for over := false; !over; {
			again := greet(p, []string{proxy.Addr(), p.target}[i%2], c.credentials())
			require.NoError(p, again.conn.SetReadDeadline(time.Now().Add(ioTimeout)))
			welcome := make([]byte, 41)
			_, err := io.ReadFull(again.conn, welcome)
			over = err == nil && binary.BigEndian.Uint32(welcome[8:]) == 0 // the timeout
			again.cut()
		}
		require.NoError(p, <-done)
		p.requireExpired(c.credentials())
	}
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
