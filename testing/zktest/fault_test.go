//go:build unix

package zktest_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/big"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/zktest"
)

const (
	shortTimeout = 2 * time.Second        // of a session that is to expire
	quietTime    = 100 * time.Millisecond // in which what must not come would have come
)

// ownAddress is an embedded server as seen through its first address. The
// second is for who looks on. So it is like a proxy, which has but one.
type ownAddress struct{ *zktest.Server }

func (s ownAddress) Inject(r zktest.Rule) *zktest.Fault {
	r.Selector = first(r.Selector)
	return s.Server.Inject(r)
}
func (s ownAddress) HalfOpen(sel zktest.Selector) { s.Server.HalfOpen(first(sel)) }
func (s ownAddress) Partition(sel zktest.Selector, d zktest.Direction) {
	s.Server.Partition(first(sel), d)
}
func (s ownAddress) Cut(sel zktest.Selector)    { s.Server.Cut(first(sel)) }
func (s ownAddress) Reset(sel zktest.Selector)  { s.Server.Reset(first(sel)) }
func (s ownAddress) Deafen(sel zktest.Selector) { s.Server.Deafen(first(sel)) }
func (s ownAddress) Throttle(sel zktest.Selector, bytes int, pause time.Duration) {
	s.Server.Throttle(first(sel), bytes, pause)
}
func (s ownAddress) RefuseConnections(...int) error { return s.Server.RefuseConnections(1) }
func (s ownAddress) RejectConnections(...int) error { return s.Server.RejectConnections(1) }
func (s ownAddress) HangConnections(...int) error   { return s.Server.HangConnections(1) }
func (s ownAddress) AcceptConnections(...int) error { return s.Server.AcceptConnections(1) }

// first restricts a selector to the first address.
func first(sel zktest.Selector) zktest.Selector {
	if sel.Member == 0 {
		sel.Member = 1
	} else {
		sel.Member++ // no such address, as at a proxy
	}
	return sel
}

// TestFaults plays every fault with a real server behind a proxy, with an
// embedded one behind a proxy, and with the embedded server's own faults.
func TestFaults(t *testing.T) {
	t.Parallel()
	real, embedded := zktest.StartReal(t, zktest.MaxClientConns(0)), zktest.Start(t, zktest.MaxClientConns(0))
	run := func(kind, name string, test func(*faultTest), start func(testing.TB) (f zktest.FaultInjector, target string)) {
		t.Run(kind+"/"+name, func(t *testing.T) {
			t.Parallel()
			f, target := start(t)
			p := &faultTest{T: t, root: "/" + strings.ReplaceAll(name, " ", "-"), target: target, faulty: f}
			p.direct = open(t, p.target, longTimeout)
			require.Zero(t, p.direct.do(create(p.root, nil, persistent)).Err)
			test(p)
		})
	}
	behindProxy := func(server target) func(testing.TB) (zktest.FaultInjector, string) {
		return func(t testing.TB) (zktest.FaultInjector, string) {
			return zktest.StartProxy(t, server.Addr()), server.Addr()
		}
	}
	for name, test := range faultTests {
		run("real", name, test, behindProxy(real))
		run("embedded behind a proxy", name, test, behindProxy(embedded))
		run("embedded", name, test, func(t testing.TB) (zktest.FaultInjector, string) {
			s := zktest.Start(t, zktest.Members(2))
			return ownAddress{s}, s.Members()[1]
		})
	}
	for name, test := range proxyTests {
		run("real", name, test, behindProxy(real))
		run("embedded behind a proxy", name, test, behindProxy(embedded))
	}
}

var faultTests = map[string]func(*faultTest){
	"everything goes through":                          everythingGoesThrough,
	"a request is dropped":                             requestIsDropped,
	"a reply is dropped":                               replyIsDropped,
	"a reply is truncated":                             replyIsTruncated,
	"an event comes before the reply that is dropped":  eventComesBeforeTheDroppedReply,
	"nothing is carried out behind a dropped reply":    nothingIsCarriedOutBehindADroppedReply,
	"a request is held":                                requestIsHeld,
	"a request is delayed":                             requestIsDelayed,
	"a reply is held":                                  replyIsHeld,
	"a reply is delayed":                               replyIsDelayed,
	"a reply is followed by a reset":                   replyIsFollowedByAReset,
	"an odd timeout is granted":                        oddTimeoutIsGranted,
	"an event is swallowed":                            eventIsSwallowed,
	"a ping is held":                                   pingIsHeld,
	"a request fails in its turn":                      requestFailsInItsTurn,
	"a request fails on an idle connection":            requestFailsOnAnIdleConnection,
	"a handshake fails":                                handshakeFails,
	"a session expires before a request":               sessionExpiresBeforeARequest,
	"a session expires after a request":                sessionExpiresAfterARequest,
	"a connection freezes":                             connectionFreezes,
	"a hook is called":                                 hookIsCalled,
	"auth is told from other requests":                 authIsToldFromOthers,
	"a handshake is answered to nobody":                handshakeIsAnsweredToNobody,
	"a session expires when told":                      sessionExpiresWhenTold,
	"a session without a connection expires when told": sessionWithoutAConnectionExpiresWhenTold,
	"a client cannot come back from expiry":            clientCannotComeBackFromExpiry,
	"a partition inbound":                              partitionInbound,
	"a partition outbound":                             partitionOutbound,
	"a partition of a session":                         partitionOfASession,
	"a partition keeps the end of a connection":        partitionKeepsTheEnd,
	"connections are cut":                              connectionsAreCut,
	"the server is deaf":                               serverIsDeaf,
	"the way is slow":                                  wayIsSlow,
	"a connection is half open":                        connectionIsHalfOpen,
	"connections are refused":                          connectionsAreRefused,
	"four letter words go through":                     wordsGoThrough,
	"orderly ends go through":                          orderlyEndsGoThrough,
	"a client finds its node again":                    clientFindsItsNodeAgain,
	"a request is counted besides its fault":           requestIsCountedBesidesItsFault,
}

// proxyTests are about what only a proxy has.
var proxyTests = map[string]func(*faultTest){
	"all sessions expire when told": allSessionsExpireWhenTold,
	"closing ends everything":       closingEndsEverything,
	"TLS ends at the proxy":         tlsEndsAtTheProxy,
}

// faultTest is a test with something faulty of its own.
type faultTest struct {
	*testing.T
	faulty zktest.FaultInjector
	target string  // an address of the server without faults
	direct *client // is connected to it
	root   string  // a node of this test
}

func (p *faultTest) path(name string) string { return p.root + "/" + name }

func (p *faultTest) open(timeout time.Duration) *client {
	p.Helper()
	return open(p, p.faulty.Addr(), timeout)
}

// firstConn selects the first connection that the test made where the faults
// are.
func (p *faultTest) firstConn() zktest.Selector {
	if p.proxied() {
		return zktest.Selector{Conn: 1}
	}
	return zktest.Selector{Conn: 2} // the first of all is to the other address
}

func (p *faultTest) proxied() bool {
	_, ok := p.faulty.(*zktest.Proxy)
	return ok
}

func (p *faultTest) ctx() context.Context {
	ctx, cancel := context.WithTimeout(p.Context(), readPatience)
	p.Cleanup(cancel)
	return ctx
}

func (p *faultTest) await(f *zktest.Fault) {
	p.Helper()
	require.NoError(p, f.Wait(p.ctx()))
}

// on is a rule for the next request on a node.
func (p *faultTest) on(name string, do zktest.Action) *zktest.Fault {
	return p.faulty.Inject(zktest.Rule{Match: zktest.Match{Prefix: p.path(name)}, Do: do})
}

// owner returns the session that has made an ephemeral node, 0 if there is no
// such node.
func (p *faultTest) owner(name string) int64 {
	p.Helper()
	r := p.direct.do(exists(p.path(name), false))
	if r.Err == errNoNode {
		return 0
	}
	require.Zero(p, r.Err)
	return r.Stat.Owner
}

// stays checks that a connection is open and that nothing comes.
func (p *faultTest) stays(c *client) {
	p.Helper()
	require.NoError(p, c.conn.SetReadDeadline(time.Now().Add(quietTime)))
	n, err := c.conn.Read(make([]byte, 1))
	require.Zero(p, n, "something came")
	require.ErrorIs(p, err, os.ErrDeadlineExceeded, "instead of silence")
}

// served reports whether the server has a connection with that session.
func (p *faultTest) served(session int64) bool {
	p.Helper()
	return strings.Contains(word(p, p.target, "cons"), fmt.Sprintf("sid=0x%x,", session))
}

// expired checks that a session is over, to the server and through the proxy.
func (p *faultTest) expired(h handshake) {
	p.Helper()
	for _, addr := range []string{p.target, p.faulty.Addr()} {
		c := connect(p, addr, h)
		require.Zero(p, c.welcome.Session)
		c.end()
	}
}

func everythingGoesThrough(p *faultTest) {
	c := p.open(longTimeout)
	require.Equal(p, longTimeout, c.welcome.Timeout)
	require.Zero(p, c.do(create(p.path("a"), []byte("x"), persistent)).Err)
	require.Equal(p, errNodeExists, c.do(create(p.path("a"), nil, persistent)).Err)
	r := c.do(getData(p.path("a"), true))
	require.Equal(p, "x", string(r.Data))
	require.Zero(p, p.direct.do(setData(p.path("a"), []byte("y"), anyVersion)).Err)
	require.Equal(p, event{nodeDataChanged, p.path("a")}, c.event())
	require.Zero(p, c.do(ping()).Err)
	require.Equal(p, []result{{Op: opCreate, Path: p.path("b")}}, c.do(multi(create(p.path("b"), nil, ephemeral))).Ops)
	require.Equal(p, c.welcome.Session, p.owner("b"))

	// A reply above 1 MiB, which the server sends and does not take.
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

	// A packet that is too large for the server.
	c.write(binary.BigEndian.AppendUint32(nil, 2<<20))
	_, _ = c.conn.Write(make([]byte, 2<<20)) // may be cut off
	c.end()
	short := connect(p, p.faulty.Addr(), handshake{Timeout: longTimeout, Short: true})
	require.Equal(p, 36, short.welcome.Size)
}

// cuts are the ends of a connection and how a client sees them.
var cuts = []struct {
	before, after zktest.Action
	err           error
}{
	{zktest.DropBeforeApply(), zktest.DropAfterApply(), io.EOF},
	{zktest.ResetBeforeApply(), zktest.ResetAfterApply(), syscall.ECONNRESET},
}

// ends checks how a connection ends, and that nothing comes before.
func (p *faultTest) ends(c *client, how error) {
	p.Helper()
	require.NoError(p, c.conn.SetReadDeadline(time.Now().Add(readPatience)))
	n, err := c.conn.Read(make([]byte, 1))
	require.Zero(p, n)
	require.ErrorIs(p, err, how)
}

func requestIsDropped(p *faultTest) {
	for _, cut := range cuts {
		c := p.open(longTimeout)
		f := p.on("a", cut.before)
		c.send(create(p.path("a"), nil, ephemeral))
		p.ends(c, cut.err)
		p.await(f)
		require.Equal(p, 1, f.Fired())
		poll(p, "the server has the connection", func() bool { return !p.served(c.welcome.Session) })
		again := c.reattach()
		require.Zero(p, p.owner("a"))
		require.Zero(p, again.do(create(p.path("a"), nil, ephemeral)).Err, "the rule is used up")
		require.Zero(p, again.do(remove(p.path("a"), anyVersion)).Err)
	}
}

func replyIsDropped(p *faultTest) {
	for _, cut := range cuts {
		c := p.open(longTimeout)
		require.Zero(p, p.direct.do(exists(p.path("a"), true)).Stat.Czxid)
		f := p.on("a", cut.after)
		c.send(create(p.path("a"), nil, ephemeral))
		p.ends(c, cut.err)
		p.await(f)
		require.Equal(p, event{nodeCreated, p.path("a")}, p.direct.event(), "to others")
		require.Equal(p, c.welcome.Session, p.owner("a"))
		again := c.reattach()
		require.Equal(p, c.welcome.Session, p.owner("a"))
		require.Zero(p, again.do(remove(p.path("a"), anyVersion)).Err)
	}
}

func replyIsTruncated(p *faultTest) {
	for _, n := range []int{0, 3, 4, 10, 1000} {
		c := p.open(longTimeout)
		name := fmt.Sprint(n)
		f := p.on(name, zktest.TruncateReply(n))
		c.send(create(p.path(name), nil, ephemeral))
		require.NoError(p, c.conn.SetReadDeadline(time.Now().Add(readPatience)))
		got, err := io.ReadAll(c.conn)
		require.NoError(p, err)
		require.Len(p, got, min(n, 4+16+4+len(p.path(name))))
		p.await(f)
		require.Equal(p, c.welcome.Session, p.owner(name))
	}
}

func eventComesBeforeTheDroppedReply(p *faultTest) {
	c := p.open(longTimeout)
	c.do(exists(p.path("a"), true))
	p.on("a", zktest.DropAfterApply())
	c.send(create(p.path("a"), nil, persistent))
	require.Equal(p, event{nodeCreated, p.path("a")}, c.event())
	c.end()
}

func nothingIsCarriedOutBehindADroppedReply(p *faultTest) {
	c := p.open(longTimeout)
	f := p.on("b", zktest.DropAfterApply())
	c.send(create(p.path("a"), nil, ephemeral), create(p.path("b"), nil, ephemeral), create(p.path("c"), nil, ephemeral))
	require.Equal(p, p.path("a"), c.reply().Path)
	c.end()
	p.await(f)
	c.reattach()
	require.Zero(p, p.owner("c"))
	require.NotZero(p, p.owner("b"))
}

func requestIsHeld(p *faultTest) {
	c, other := p.open(longTimeout), p.open(longTimeout)
	f := p.on("a", zktest.HoldApply())
	c.send(create(p.path("x"), nil, persistent), create(p.path("a"), nil, persistent), create(p.path("b"), nil, persistent))
	require.Equal(p, p.path("x"), c.reply().Path, "what comes before is answered")
	p.await(f)
	require.Zero(p, other.do(create(p.path("c"), nil, persistent)).Err)
	require.Equal(p, []string{"c", "x"}, slices.Sorted(slices.Values(p.direct.do(getChildren(p.root, false)).Names)))
	f.Release()
	require.Equal(p, p.path("a"), c.reply().Path)
	require.Equal(p, p.path("b"), c.reply().Path)
	require.Equal(p, 1, f.Fired())

	// Nothing is left of what is held when the connection ends.
	f = p.on("d", zktest.HoldApply())
	c.send(create(p.path("d"), nil, persistent))
	p.await(f)
	p.faulty.Cut(p.firstConn())
	c.end()
	c.reattach()
	f.Release()
	require.Equal(p, errNoNode, p.direct.do(exists(p.path("d"), false)).Err)
}

func requestIsDelayed(p *faultTest) {
	c := p.open(longTimeout)
	f := p.on("a", zktest.DelayApply(quietTime))
	begin := time.Now()
	c.send(create(p.path("a"), nil, persistent))
	p.await(f)
	zxid := p.direct.do(create(p.path("b"), nil, persistent)).Zxid
	require.Greater(p, c.reply().Zxid, zxid, "others overtake")
	require.GreaterOrEqual(p, time.Since(begin), quietTime)
}

func replyIsHeld(p *faultTest) {
	c, other := p.open(longTimeout), p.open(longTimeout)
	c.do(exists(p.path("b"), true))
	f := p.on("a", zktest.HoldReply())
	c.send(create(p.path("a"), nil, ephemeral), ping())
	p.await(f)
	require.Equal(p, c.welcome.Session, p.owner("a"), "carried out")
	require.Zero(p, p.direct.do(create(p.path("b"), nil, persistent)).Err)
	require.Zero(p, other.do(getData(p.path("b"), false)).Err, "others go on")
	p.stays(c)
	f.Release()
	r := c.reply()
	require.Equal(p, p.path("a"), r.Path)
	require.Empty(p, r.Events, "the event came later")
	require.Equal(p, xidPing, c.reply().Xid)
	poll(p, "no event", func() bool { c.do(ping()); return len(c.events) > 0 })
	require.Equal(p, []event{{nodeCreated, p.path("b")}}, c.events)
}

func replyIsDelayed(p *faultTest) {
	c := p.open(longTimeout)
	f := p.on("a", zktest.DelayReply(quietTime))
	begin := time.Now()
	c.send(create(p.path("a"), nil, ephemeral), getData(p.path("a"), false))
	p.await(f)
	require.Equal(p, c.welcome.Session, p.owner("a"))
	require.Equal(p, p.path("a"), c.reply().Path)
	require.Zero(p, c.reply().Err)
	require.GreaterOrEqual(p, time.Since(begin), quietTime)
}

func pingIsHeld(p *faultTest) {
	c := p.open(longTimeout)
	f := p.faulty.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpPing}}, Do: zktest.HoldReply()})
	c.write(frame(encoder{}.int(77).int(opPing))) // is answered as -2 whatever its xid
	c.send(exists(p.root, false))
	p.await(f)
	p.stays(c)
	f.Release()
	packet, err := c.packet()
	require.NoError(p, err)
	require.Equal(p, xidPing, (&decoder{p, packet}).int())
	require.Zero(p, c.reply().Err)
}

// The handshake, too: what the client says next finds nobody.
func replyIsFollowedByAReset(p *faultTest) {
	ends := func(c *client, f *zktest.Fault) {
		p.await(f)
		_, err := c.conn.Write(ping().withXid(1).frame())
		require.Error(p, err, "what is written behind a reset")
	}
	c := p.open(longTimeout)
	f := p.on("a", zktest.ResetAfterReply())
	require.Equal(p, p.path("a"), c.do(create(p.path("a"), nil, ephemeral)).Path)
	ends(c, f)
	c.reattach()
	require.Equal(p, c.welcome.Session, p.owner("a"))

	f = p.faulty.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpConnect}}, Do: zktest.ResetAfterReply()})
	c = p.open(longTimeout)
	ends(c, f)
	c.reattach().must(ping())
}

func oddTimeoutIsGranted(p *faultTest) {
	connecting := zktest.Match{Ops: []zktest.Op{zktest.OpConnect}}
	for _, odd := range []time.Duration{0, -time.Millisecond, math.MinInt32 * time.Millisecond, math.MaxInt32 * time.Millisecond} {
		for _, short := range []bool{false, true} {
			f := p.faulty.Inject(zktest.Rule{Match: connecting, Do: zktest.GrantTimeout(odd)})
			c := connect(p, p.faulty.Addr(), handshake{Timeout: longTimeout, Short: short})
			require.Equal(p, odd, c.welcome.Timeout)
			require.NotZero(p, c.welcome.Session)
			p.await(f)
			c.must(ping())
			h := c.credentials()
			h.Timeout = longTimeout
			require.Equal(p, longTimeout, connect(p, p.faulty.Addr(), h).welcome.Timeout)
		}
	}
	p.faulty.Inject(zktest.Rule{Match: connecting, Do: zktest.GrantTimeout(time.Second)})
	require.Zero(p, connect(p, p.faulty.Addr(), handshake{Session: 1, Timeout: longTimeout, Password: make([]byte, 16)}).welcome.Timeout)
}

func eventIsSwallowed(p *faultTest) {
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
	f := p.faulty.Inject(zktest.Rule{Match: children, Do: zktest.Swallow()})
	sent := p.faulty.Inject(zktest.Rule{Match: mine, Times: 2, Do: zktest.Pass()})
	p.direct.must(create(p.path("a"), nil, persistent))
	p.direct.must(setData(p.root, nil, anyVersion))
	p.await(f)
	p.await(sent)
	require.Equal(p, []event{{nodeDataChanged, p.root}}, c.arrived())
	require.Equal(p, []event{{nodeChildrenChanged, p.root}, {nodeDataChanged, p.root}}, other.arrived())

	// The watch is used up; the next one is told.
	p.direct.must(create(p.path("b"), nil, persistent))
	require.Empty(p, c.arrived())
	watch(c)
	p.direct.must(create(p.path("c"), nil, persistent))
	require.Equal(p, event{nodeChildrenChanged, p.root}, c.event())

	// Those that the server sends to who comes back, too.
	f = p.faulty.Inject(zktest.Rule{Match: mine, Do: zktest.Swallow()})
	c.must(setWatches(1, nil, nil, []string{p.root}))
	p.await(f)
	require.Empty(p, c.arrived())
	c.must(setWatches(1, nil, nil, []string{p.root}))
	require.Len(p, c.events, 3)
}

func requestFailsInItsTurn(p *faultTest) {
	c := p.open(longTimeout)
	f := p.faulty.Inject(zktest.Rule{
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
			require.Equal(p, int32(zktest.ErrThrottled), r[i].Err)
			if p.proxied() {
				require.Equal(p, r[0].Zxid, r[i].Zxid)
			} else { // a failed write takes a zxid, as in life
				require.Equal(p, r[0].Zxid+int64(i), r[i].Zxid)
			}
		}
		require.Equal(p, errNoNode, r[3].Err, "not carried out")
		require.Equal(p, int32(zktest.ErrThrottled), r[4].Err)
		require.Zero(p, r[5].Err)
	}
	require.Equal(p, 60, f.Fired())
	f.Remove()
	require.Zero(p, c.do(create(p.path("b"), nil, persistent)).Err)
}

func requestFailsOnAnIdleConnection(p *faultTest) {
	seen := p.direct.do(setData(p.root, nil, anyVersion)).Zxid
	c := connect(p, p.faulty.Addr(), handshake{LastZxid: seen, Timeout: longTimeout})
	f := p.on("", zktest.FailWith(zktest.ErrConnectionLoss))
	r := c.do(getData(p.root+"/", false))
	require.Equal(p, int32(zktest.ErrConnectionLoss), r.Err)
	require.GreaterOrEqual(p, r.Zxid, seen, "not below what the client knows")
	p.await(f)
}

func handshakeFails(p *faultTest) {
	for _, short := range []bool{false, true} {
		f := p.faulty.Inject(zktest.Rule{
			Match: zktest.Match{Ops: []zktest.Op{zktest.OpConnect}}, Do: zktest.FailWith(zktest.ErrSessionExpired),
		})
		c := connect(p, p.faulty.Addr(), handshake{Timeout: longTimeout, Short: short})
		require.Zero(p, c.welcome.Session)
		require.Zero(p, c.welcome.Timeout)
		c.end()
		p.await(f)
	}
}

func sessionExpiresBeforeARequest(p *faultTest) {
	c := p.open(longTimeout)
	require.Zero(p, c.do(create(p.path("a"), nil, ephemeral)).Err)
	f := p.on("b", zktest.ExpireBeforeApply())
	c.send(create(p.path("b"), nil, persistent))
	c.end()
	p.expired(c.credentials())
	p.await(f)
	require.Empty(p, p.direct.do(getChildren(p.root, false)).Names)
}

func sessionExpiresAfterARequest(p *faultTest) {
	c := p.open(longTimeout)
	f := p.on("b", zktest.ExpireAfterApply())
	c.send(create(p.path("a"), nil, ephemeral), create(p.path("b"), nil, persistent), create(p.path("c"), nil, persistent))
	require.Equal(p, p.path("a"), c.reply().Path)
	c.end()
	p.expired(c.credentials())
	p.await(f)
	require.Equal(p, []string{"b"}, p.direct.do(getChildren(p.root, false)).Names)
}

func connectionFreezes(p *faultTest) {
	for _, timeout := range []time.Duration{longTimeout, shortTimeout} {
		c := p.open(timeout)
		require.Zero(p, c.do(create(p.path("a"), nil, ephemeral)).Err)
		f := p.on("b", zktest.Freeze())
		c.send(create(p.path("b"), nil, persistent))
		p.await(f)
		c.send(create(p.path("c"), nil, persistent))
		if timeout == longTimeout {
			p.stays(c)
			require.True(p, p.served(c.welcome.Session), "the server has the connection")
			require.Zero(p, c.reattach().do(remove(p.path("a"), anyVersion)).Err, "and the session")
			continue
		}
		poll(p, "the session does not expire", func() bool { return p.owner("a") == 0 })
		p.stays(c)
		require.Empty(p, p.direct.do(getChildren(p.root, false)).Names)
	}
}

func hookIsCalled(p *faultTest) {
	c := p.open(longTimeout)
	require.Zero(p, c.do(create(p.path("a"), nil, persistent)).Err)
	var seen zktest.Request
	f := p.on("a", zktest.Call(func(r zktest.Request) {
		seen = r
		p.direct.do(remove(p.path("a"), anyVersion))
	}))
	require.Equal(p, errNoNode, c.do(getData(p.path("a"), false).withXid(77)).Err)
	p.await(f)
	require.Equal(p, zktest.Request{
		Conn: p.firstConn().Conn, Member: 1, Session: c.welcome.Session, Xid: 77, Op: zktest.OpGetData, Paths: []string{p.path("a")},
	}, seen)
	require.Equal(p, 1, f.Fired())
}

// Only the replies to auth come when they like. Their xids are the clients'
// choice: -4 or one like those of other requests.
func authIsToldFromOthers(p *faultTest) {
	c := p.open(longTimeout)
	for range 20 {
		held := p.on("a", zktest.HoldReply())
		hit := p.faulty.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpAuth}}, Times: 2, Do: zktest.Pass()})
		failed := p.on("x", zktest.FailWith(zktest.ErrSystem))
		c.send(setData(p.root, nil, anyVersion), auth("digest", "a:b"), setData(p.root, nil, anyVersion),
			exists(p.path("x"), false), auth("digest", "c:d").withXid(xidAuth), exists(p.path("a"), false))
		p.await(held)
		p.await(hit)
		p.await(failed)
		held.Release()
		var order []int32
		for range 6 {
			if r := c.reply(); r.Op != opAuth {
				order = append(order, r.Err)
			}
		}
		require.Equal(p, []int32{0, 0, int32(zktest.ErrSystem), errNoNode}, order)
	}
}

func handshakeIsAnsweredToNobody(p *faultTest) {
	connecting := zktest.Match{Ops: []zktest.Op{zktest.OpConnect}}
	before := p.faulty.Inject(zktest.Rule{Match: connecting, Do: zktest.DropBeforeApply()})
	c := dial(p, p.faulty.Addr())
	c.write(handshake{Timeout: longTimeout}.frame())
	c.end()
	p.await(before)

	// A session that only the server and the proxy know of.
	after := p.faulty.Inject(zktest.Rule{Match: connecting, Do: zktest.ExpireAfterApply()})
	c = dial(p, p.faulty.Addr())
	c.write(handshake{Timeout: longTimeout}.frame())
	c.end()
	p.await(after)

	// The client's session goes on, with the next connection.
	c = p.open(longTimeout)
	id := c.welcome.Session
	p.faulty.Inject(zktest.Rule{
		Match: zktest.Match{Selector: zktest.Selector{Session: id}, Ops: []zktest.Op{zktest.OpConnect}},
		Do:    zktest.DropAfterApply(),
	})
	lost := dial(p, p.faulty.Addr())
	lost.write(c.credentials().frame())
	lost.end()
	c.end() // the server has taken the session from it
	c.reattach()
}

func sessionExpiresWhenTold(p *faultTest) {
	c, other := p.open(longTimeout), p.open(longTimeout)
	require.Zero(p, c.do(create(p.path("a"), nil, ephemeral)).Err)
	p.owner("a")
	require.Zero(p, p.direct.do(exists(p.path("a"), true)).Err)
	require.NoError(p, p.faulty.ExpireSession(c.welcome.Session))
	require.Equal(p, event{nodeDeleted, p.path("a")}, p.direct.event())
	c.end()
	p.expired(c.credentials())
	require.Error(p, p.faulty.ExpireSession(c.welcome.Session), "there is no such session now")
	require.Zero(p, other.do(ping()).Err)
	if !p.proxied() {
		return
	}
	require.ErrorContains(p, p.faulty.ExpireSession(p.direct.welcome.Session), "no session", "the proxy knows nothing of it")

	// One that is over already, the proxy does not know how.
	h := other.credentials()
	require.Zero(p, other.do(closeSession()).Err)
	other.end()
	require.NoError(p, p.faulty.ExpireSession(h.Session))
}

func sessionWithoutAConnectionExpiresWhenTold(p *faultTest) {
	c := p.open(longTimeout)
	require.Zero(p, c.do(create(p.path("a"), nil, ephemeral)).Err)
	p.faulty.HalfOpen(zktest.Selector{Session: c.welcome.Session})
	require.NoError(p, p.faulty.ExpireSession(c.welcome.Session))
	require.Zero(p, p.owner("a"))
	p.stays(c)
	p.expired(c.credentials())
}

func allSessionsExpireWhenTold(p *faultTest) {
	proxy := p.faulty.(*zktest.Proxy)
	a, b := p.open(longTimeout), p.open(longTimeout)
	a.cut()
	require.NoError(p, proxy.ExpireAll())
	b.end()
	p.expired(a.credentials())
	p.expired(b.credentials())
	require.Zero(p, p.direct.do(ping()).Err, "a session of somebody else")
	require.NoError(p, proxy.ExpireAll())
}

// However fast the client is.
func clientCannotComeBackFromExpiry(p *faultTest) {
	for i := range 50 {
		c := p.open(longTimeout)
		f := p.on("a", []zktest.Action{zktest.ExpireBeforeApply(), zktest.ExpireAfterApply()}[i%2])
		c.send(create(p.path("a"), nil, ephemeral))
		c.end()
		next := connect(p, p.faulty.Addr(), c.credentials())
		require.Zero(p, next.welcome.Session, "the old session again")
		next.end()
		p.await(f)
		require.Zero(p, p.owner("a"))
	}
}

type mute struct{}

func (mute) Printf(string, ...any) {}

func partitionInbound(p *faultTest) {
	c := p.open(longTimeout)
	c.do(exists(p.path("b"), true))
	p.faulty.Partition(zktest.Selector{}, zktest.Inbound)
	c.send(create(p.path("a"), nil, persistent), create(p.path("c"), nil, persistent))
	require.Zero(p, p.direct.do(create(p.path("b"), nil, persistent)).Err)
	require.Equal(p, event{nodeCreated, p.path("b")}, c.event(), "the other way is open")
	late := dial(p, p.faulty.Addr())
	late.write(handshake{Timeout: longTimeout}.frame())
	p.stays(late)
	p.stays(c)
	require.Equal(p, []string{"b"}, p.direct.do(getChildren(p.root, false)).Names)
	p.faulty.Heal()
	require.Equal(p, p.path("a"), c.reply().Path)
	require.Equal(p, p.path("c"), c.reply().Path)
	_, err := late.packet()
	require.NoError(p, err)
}

func partitionOutbound(p *faultTest) {
	c, short := p.open(longTimeout), p.open(shortTimeout)
	c.do(exists(p.path("b"), true))
	short.do(create(p.path("c"), nil, ephemeral))
	p.faulty.Partition(zktest.Selector{}, zktest.Outbound)
	c.send(create(p.path("a"), nil, ephemeral))
	short.send(getData(p.root, false))
	poll(p, "the request does not arrive", func() bool { return p.owner("a") != 0 })
	require.Zero(p, p.direct.do(create(p.path("b"), nil, persistent)).Err)
	poll(p, "the session does not expire", func() bool { return p.owner("c") == 0 })
	p.stays(c)
	p.stays(short)
	p.faulty.Heal() // what was held up comes
	require.Equal(p, p.path("a"), c.reply().Path)
	require.Equal(p, event{nodeCreated, p.path("b")}, c.event())
	require.Zero(p, c.do(ping()).Err)
	require.Zero(p, short.reply().Err)
	short.end()
}

func partitionOfASession(p *faultTest) {
	c, other := p.open(longTimeout), p.open(longTimeout)
	p.faulty.Partition(zktest.Selector{Session: c.welcome.Session}, zktest.Both)
	c.send(create(p.path("a"), nil, persistent))
	require.Zero(p, other.do(create(p.path("b"), nil, persistent)).Err)
	again := dial(p, p.faulty.Addr())
	again.write(c.credentials().frame())
	p.stays(again)
	require.Equal(p, []string{"b"}, p.direct.do(getChildren(p.root, false)).Names)
	require.True(p, p.served(c.welcome.Session), "nobody has taken the session over")
	p.faulty.Heal()
	_, err := again.packet()
	require.NoError(p, err)
	for {
		if _, err := c.tryReply(); err != nil { // taken over, before or after its reply
			break
		}
	}
}

func partitionKeepsTheEnd(p *faultTest) {
	c := p.open(longTimeout)
	p.faulty.Partition(zktest.Selector{}, zktest.Inbound)
	c.send(create(p.path("a"), nil, ephemeral))
	c.cut()
	require.Zero(p, p.owner("a"))
	require.True(p, p.served(c.welcome.Session))
	p.faulty.Heal()
	poll(p, "the request is lost", func() bool { return p.owner("a") == c.welcome.Session })
	poll(p, "the end is lost", func() bool { return !p.served(c.welcome.Session) })
}

func connectionsAreCut(p *faultTest) {
	a, b, c := p.open(longTimeout), p.open(longTimeout), p.open(longTimeout)
	p.faulty.Cut(p.firstConn())
	p.ends(a, io.EOF)
	p.faulty.Reset(zktest.Selector{Session: b.welcome.Session})
	p.ends(b, syscall.ECONNRESET)
	require.Zero(p, c.do(ping()).Err)
	for _, cut := range []*client{a, b} {
		poll(p, "the server has the connection", func() bool { return !p.served(cut.welcome.Session) })
		cut.reattach()
	}
	p.faulty.Cut(zktest.Selector{Member: 2})
	require.Zero(p, c.do(ping()).Err)
	p.faulty.Cut(zktest.Selector{})
	c.end()
}

func serverIsDeaf(p *faultTest) {
	c, short := p.open(longTimeout), p.open(shortTimeout)
	c.do(exists(p.path("b"), true))
	require.Zero(p, short.do(create(p.path("a"), nil, ephemeral)).Err)
	p.faulty.Deafen(zktest.Selector{})
	c.send(create(p.path("c"), nil, persistent))
	require.Zero(p, p.direct.do(create(p.path("b"), nil, persistent)).Err)
	require.Equal(p, event{nodeCreated, p.path("b")}, c.event())
	short.send(ping())
	poll(p, "the session does not expire", func() bool { return p.owner("a") == 0 })
	short.end()
	require.Equal(p, []string{"b"}, p.direct.do(getChildren(p.root, false)).Names)

	// Not even the end of the connection is heard.
	c.cut()
	p.stays(p.open(longTimeout))
	require.True(p, p.served(c.welcome.Session))
}

func wayIsSlow(p *faultTest) {
	c := p.open(longTimeout)
	p.faulty.Throttle(p.firstConn(), 1, time.Microsecond)
	r := c.pipeline(create(p.path("a"), []byte("x"), persistent), getData(p.path("a"), false), ping())
	require.Equal(p, "x", string(r[1].Data))
	p.faulty.Throttle(p.firstConn(), 0, 0)
	require.Zero(p, c.do(ping()).Err)
}

func connectionIsHalfOpen(p *faultTest) {
	c := p.open(longTimeout)
	require.Zero(p, c.do(create(p.path("a"), nil, ephemeral)).Err)
	require.Zero(p, c.do(getData(p.root, true)).Err)
	p.faulty.HalfOpen(p.firstConn())
	poll(p, "the server has the connection", func() bool { return !p.served(c.welcome.Session) })
	poll(p, "the server has the watch", func() bool { return !strings.Contains(word(p, p.target, "wchp"), p.root+"\n") })
	c.send(create(p.path("b"), nil, persistent), ping())
	p.stays(c)
	require.Zero(p, c.reattach().do(remove(p.path("a"), anyVersion)).Err, "the session lives")
	p.stays(c)

	c = p.open(shortTimeout)
	require.Zero(p, c.do(create(p.path("a"), nil, ephemeral)).Err)
	p.faulty.HalfOpen(zktest.Selector{})
	poll(p, "the session does not expire", func() bool { return p.owner("a") == 0 })
	p.stays(c)
	require.Empty(p, p.direct.do(getChildren(p.root, false)).Names)
}

func connectionsAreRefused(p *faultTest) {
	c := p.open(longTimeout)
	require.NoError(p, p.faulty.RefuseConnections())
	_, err := net.Dial("tcp", p.faulty.Addr())
	require.ErrorIs(p, err, syscall.ECONNREFUSED)
	require.NoError(p, p.faulty.RejectConnections())
	dial(p, p.faulty.Addr()).end()
	require.NoError(p, p.faulty.HangConnections())
	hung := dial(p, p.faulty.Addr())
	hung.write(handshake{Timeout: longTimeout}.frame())
	p.stays(hung)
	require.Zero(p, c.do(ping()).Err, "open connections stay")
	require.NoError(p, p.faulty.AcceptConnections())
	require.Zero(p, p.open(longTimeout).do(ping()).Err)
	p.stays(hung)
}

func wordsGoThrough(p *faultTest) {
	require.Equal(p, "imok", word(p, p.faulty.Addr(), "ruok"))
	require.Equal(p, "rw", word(p, p.faulty.Addr(), "isro"))
	require.Contains(p, word(p, p.faulty.Addr(), "mntr"), "zk_server_state\tstandalone\n")
	require.Empty(p, word(p, p.faulty.Addr(), "what"))
	require.Empty(p, word(p, p.faulty.Addr(), "\xff\xff\xff\xff"))
	c := dial(p, p.faulty.Addr())
	c.write([]byte("ru"))
	c.write([]byte("ok\n"))
	require.NoError(p, c.conn.(*net.TCPConn).CloseWrite())
	require.NoError(p, c.conn.SetReadDeadline(time.Now().Add(readPatience)))
	answer, err := io.ReadAll(c.conn)
	require.NoError(p, err)
	require.Equal(p, "imok", string(answer))
}

func orderlyEndsGoThrough(p *faultTest) {
	// The server ends it, behind its last reply.
	c := p.open(longTimeout)
	require.Zero(p, c.do(create(p.path("a"), nil, ephemeral)).Err)
	require.Zero(p, c.do(exists(p.path("a"), true)).Err)
	r := c.do(closeSession())
	require.Zero(p, r.Err)
	require.Equal(p, []event{{nodeDeleted, p.path("a")}}, r.Events)
	p.ends(c, io.EOF)
	p.expired(c.credentials())

	// The client ends it, behind its last request.
	c = p.open(longTimeout)
	c.send(create(p.path("b"), nil, ephemeral))
	c.cut()
	poll(p, "the last request is lost", func() bool { return p.owner("b") == c.welcome.Session })
	poll(p, "the server has the connection", func() bool { return !p.served(c.welcome.Session) })

	// Half a packet is nothing.
	c = p.open(longTimeout)
	c.write([]byte{0, 0, 0, 100, 0})
	require.NoError(p, c.conn.(*net.TCPConn).CloseWrite())
	c.end()

	// A held reply is delivered before the end that comes behind it, also to a
	// client that has said its last.
	c = p.open(longTimeout)
	f := p.on("c", zktest.HoldReply())
	c.send(create(p.path("c"), nil, persistent), closeSession())
	p.await(f)
	poll(p, "the session is not closed", func() bool { return !p.served(c.welcome.Session) })
	require.NoError(p, c.conn.(*net.TCPConn).CloseWrite())
	p.stays(c)
	f.Release()
	require.Equal(p, p.path("c"), c.reply().Path)
	require.Equal(p, opCloseSession, c.reply().Op)
	c.end()
}

func closingEndsEverything(p *faultTest) {
	proxy := p.faulty.(*zktest.Proxy)
	a, b := p.open(longTimeout), p.open(longTimeout)
	apply, reply := p.on("a", zktest.HoldApply()), p.on("b", zktest.HoldReply())
	a.send(create(p.path("a"), nil, persistent))
	b.send(create(p.path("b"), nil, persistent))
	p.await(apply)
	p.await(reply)
	frozen := p.open(longTimeout)
	proxy.HalfOpen(zktest.Selector{Session: frozen.welcome.Session})
	proxy.Partition(zktest.Selector{}, zktest.Both)
	hung := dial(p, proxy.Addr())
	require.NoError(p, proxy.Close())
	require.NoError(p, proxy.Close())
	for _, c := range []*client{a, b, frozen, hung} {
		c.end()
	}
	_, err := net.Dial("tcp", proxy.Addr())
	require.ErrorIs(p, err, syscall.ECONNREFUSED)
	require.ErrorContains(p, p.on("c", zktest.Pass()).Wait(p.ctx()), "closed")
	require.ErrorContains(p, proxy.AcceptConnections(), "closed")
	require.ErrorContains(p, proxy.ExpireSession(a.welcome.Session), "closed")
	a = connect(p, p.target, a.credentials())
	require.NotZero(p, a.welcome.Session, "the session lives")
}

func tlsEndsAtTheProxy(p *faultTest) {
	proxy := p.faulty.(*zktest.Proxy)
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
	p.ends(c, io.EOF)
	require.Zero(p, p.owner("a"))
}

func requestIsCountedBesidesItsFault(p *faultTest) {
	c := p.open(longTimeout)
	before := p.on("a", zktest.Pass())
	failed := p.on("a", zktest.FailWith(zktest.ErrSystem))
	never := p.on("a", zktest.FailWith(zktest.ErrThrottled))
	after := p.on("a", zktest.Pass())
	c.fails(int32(zktest.ErrSystem), exists(p.path("a"), false))
	p.await(before)
	p.await(failed)
	p.await(after)
	require.Zero(p, never.Fired())
	never.Remove()

	// A session expires also at the handshake that asks for it.
	f := p.faulty.Inject(zktest.Rule{
		Match: zktest.Match{Selector: zktest.Selector{Session: c.welcome.Session}, Ops: []zktest.Op{zktest.OpConnect}},
		Do:    zktest.ExpireBeforeApply(),
	})
	lost := dial(p, p.faulty.Addr())
	lost.write(c.credentials().frame())
	lost.end()
	p.await(f)
	p.expired(c.credentials())
}

// The client is one that others use, for once.
func clientFindsItsNodeAgain(p *faultTest) {
	conn, _, err := zk.Connect([]string{p.faulty.Addr()}, longTimeout, zk.WithLogger(mute{}))
	require.NoError(p, err)
	defer conn.Close()
	f := p.on("a", zktest.DropAfterApply())
	_, err = conn.Create(p.path("a"), nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
	require.ErrorIs(p, err, zk.ErrConnectionClosed)
	p.await(f)
	var node *zk.Stat
	for range 10 { // while it has no connection, it says so in two ways
		if _, node, err = conn.Exists(p.path("a")); err == nil {
			break
		}
		require.Contains(p, []error{zk.ErrNoServer, zk.ErrConnectionClosed}, err)
	}
	require.NoError(p, err)
	require.Equal(p, conn.SessionID(), node.EphemeralOwner)
}

func TestProxyOfADeadServer(t *testing.T) {
	t.Parallel()
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := zktest.StartProxy(t, dead.Addr().String())
	require.NoError(t, dead.Close())
	dial(t, p.Addr()).end()
	_, err = zktest.RunProxy("nowhere")
	require.Error(t, err)
}

// A server that says nothing, or that dies, does to the proxy's clients what it
// does to its own.
func TestProxyOfAPausedServer(t *testing.T) {
	t.Parallel()
	server := zktest.StartReal(t)
	p := zktest.StartProxy(t, server.Addr())
	a, b, c := open(t, p.Addr(), longTimeout), open(t, p.Addr(), longTimeout), open(t, p.Addr(), longTimeout)

	// First a session that nobody knows of.
	orphan := p.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpConnect}}, Do: zktest.DropAfterApply()})
	lost := dial(t, p.Addr())
	lost.write(handshake{Timeout: longTimeout}.frame())
	lost.end()
	require.NoError(t, orphan.Wait(t.Context()))
	sessions, err := server.Stat(t.Context(), "zk_global_sessions")
	require.NoError(t, err)
	require.EqualValues(t, 4, sessions)

	require.NoError(t, server.Pause())
	f := p.Inject(zktest.Rule{Match: zktest.Match{Prefix: "/a"}, Do: zktest.DropAfterApply()})
	a.send(create("/a", nil, persistent))
	b.cut()
	late := dial(t, p.Addr())
	late.write(handshake{Timeout: longTimeout}.frame())
	require.NoError(t, server.Resume())
	_, err = late.packet()
	require.NoError(t, err)
	a.end()
	require.NoError(t, f.Wait(t.Context()))
	require.NoError(t, server.Kill())
	c.end()
	late.end()
	dial(t, p.Addr()).end()
	require.ErrorContains(t, p.ExpireSession(c.welcome.Session), "refused")
	require.NoError(t, server.Start(t.Context()))
	poll(t, "the session is lost", func() bool { return connect(t, p.Addr(), c.credentials()).welcome.Session != 0 })

	require.NoError(t, server.Pause())
	c = dial(t, p.Addr())
	c.write(handshake{Timeout: longTimeout}.frame())
	expired := make(chan error)
	go func() { expired <- p.ExpireSession(a.welcome.Session) }()
	require.NoError(t, p.Close())
	c.end()
	require.ErrorContains(t, <-expired, "")
}
