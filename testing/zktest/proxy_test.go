//go:build unix

package zktest_test

import (
	"encoding/binary"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/zktest"
)

// What all faults have in common is in fault_test.go. Here is what a proxy has
// to go to some lengths for.

func TestProxyEndsSessions(t *testing.T) {
	t.Parallel()
	for kind, start := range map[string]func(testing.TB) target{
		"real":     func(t testing.TB) target { return zktest.StartReal(t, zktest.MaxClientConns(0)) },
		"embedded": func(t testing.TB) target { return zktest.Start(t, zktest.MaxClientConns(0)) },
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			server := start(t)
			proxy := zktest.StartProxy(t, server.Addr())
			p := &faultTest{T: t, root: "/a", target: server.Addr(), faulty: proxy, direct: open(t, server.Addr(), longTimeout)}
			require.Zero(t, p.direct.do(create(p.root, nil, persistent)).Err)
			newSessionExpires(p)
			clientHearsOfItAfterwards(p)
			clientIsAlreadyTrying(p, proxy)
		})
	}
}

// A request may be sent before the client, or the proxy, knows its session.
func newSessionExpires(p *faultTest) {
	for _, do := range []zktest.Action{zktest.ExpireBeforeApply(), zktest.ExpireAfterApply()} {
		c := dial(p, p.faulty.Addr())
		f := p.on("b", do)
		c.write(append(handshake{Timeout: longTimeout}.frame(),
			frame(append(encoder{}.int(1).int(opCreate), create(p.path("b"), nil, ephemeral).Body...))...))
		packet, err := c.packet()
		require.NoError(p, err)
		c.end()
		p.await(f)
		d := decoder{p, packet[8:]} // behind the protocol and the timeout
		p.expired(handshake{Timeout: longTimeout, Session: d.long(), Password: d.buffer()})
		require.Zero(p, p.owner("b"))
	}
}

// A client does not see the end of its connection before that of its session,
// or it might be in time to get it back, if not through the proxy.
func clientHearsOfItAfterwards(p *faultTest) {
	for range 50 {
		c := p.open(longTimeout)
		p.on("b", zktest.ExpireBeforeApply())
		c.send(create(p.path("b"), nil, ephemeral))
		c.end()
		next := connect(p, p.target, c.credentials())
		require.Zero(p, next.welcome.Session, "the old session again")
	}
}

// A session ends although its client tries to get it back, be it through the
// proxy or on another way.
func clientIsAlreadyTrying(p *faultTest, proxy *zktest.Proxy) {
	for i := range 20 {
		c := p.open(longTimeout)
		c.cut()
		done := make(chan error)
		go func() { done <- proxy.ExpireSession(c.welcome.Session) }()
		for over := false; !over; {
			again := dial(p, []string{proxy.Addr(), p.target}[i%2])
			again.write(c.credentials().frame())
			require.NoError(p, again.conn.SetReadDeadline(time.Now().Add(readPatience)))
			welcome := make([]byte, 41)
			_, err := io.ReadFull(again.conn, welcome)
			over = err == nil && binary.BigEndian.Uint32(welcome[8:]) == 0 // the timeout
			again.cut()
		}
		require.NoError(p, <-done)
		p.expired(c.credentials())
	}
}

// A connection becomes half open while nobody reads from it, because it is to
// be cut after a reply that does not come.
func TestProxyKeepsAHalfOpenConnectionThatItWouldCut(t *testing.T) {
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
	(&faultTest{T: t}).stays(c)
	require.Zero(t, f.Fired())
}
