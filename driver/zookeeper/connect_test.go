package zookeeper_test

// This file has tests of the way to a session: servers that refuse, are silent or are others.

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// listen serves connections on a port of its own until the test ends. It calls
// serve with the number of the connection, from 1, and closes the connection when
// serve returns.
func listen(t testing.TB, serve func(n int, conn net.Conn)) (addr string, accepted *atomic.Int32) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	accepted = new(atomic.Int32)
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	var serving sync.WaitGroup
	serving.Go(func() { // ends with l
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			n := int(accepted.Add(1))
			mu.Lock()
			open[conn] = true
			mu.Unlock()
			serving.Go(func() { // ends with the connection
				serve(n, conn)
				conn.Close()
				mu.Lock()
				delete(open, conn)
				mu.Unlock()
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for conn := range open {
			conn.Close()
		}
		mu.Unlock()
		serving.Wait()
	})
	return l.Addr().String(), accepted
}

// relay forwards a connection to the server until reply, which gets the answer to
// the handshake, returns false, or either side hangs up.
func relay(conn net.Conn, addr string, reply func(hello []byte) bool) {
	back, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer back.Close()
	done := make(chan struct{})
	go func() { // ends with conn
		_, _ = io.Copy(back, conn)
		back.Close()
		close(done)
	}()
	hello := make([]byte, 4)
	if _, err := io.ReadFull(back, hello); err == nil {
		hello = append(hello, make([]byte, binary.BigEndian.Uint32(hello))...)
		if _, err := io.ReadFull(back, hello[4:]); err == nil && reply(hello) {
			_, _ = io.Copy(conn, back)
		}
	}
	conn.Close()
	<-done
}

// hello returns the answer to a handshake: a session with a timeout.
func hello(timeout int32, session int64) []byte {
	var b []byte
	b = binary.BigEndian.AppendUint32(b, 37)
	b = binary.BigEndian.AppendUint32(b, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(timeout))
	b = binary.BigEndian.AppendUint64(b, uint64(session))
	b = binary.BigEndian.AppendUint32(b, 16)
	return append(b, make([]byte, 17)...)
}

// handshake reads a client's handshake.
func handshake(conn net.Conn) error {
	_, err := io.ReadFull(conn, make([]byte, 4+44))
	return err
}

// resettingRelay is a relay to the bench's server that can reset every connection right
// after the handshake.
type resettingRelay struct {
	on     atomic.Bool
	broken atomic.Int32
}

func (r *resettingRelay) start(t testing.TB, to string) (addr string) {
	addr, _ = listen(t, func(_ int, conn net.Conn) {
		relay(conn, to, func(hello []byte) bool {
			_, _ = conn.Write(hello)
			if !r.on.Load() {
				return true
			}
			_ = conn.(*net.TCPConn).SetLinger(0) // sends a reset
			r.broken.Add(1)
			return false
		})
	})
	return addr
}

// If the client knew the credentials, it would block forever when it fails to write
// them.
func TestResetBeforeTheCredentialsNeverBlocks(t *testing.T) {
	t.Parallel()
	b, proxy := locktest.NewBehindProxy(t)
	var relay resettingRelay
	cfg := b.Config()
	cfg.Servers = []string{relay.start(t, b.Addr)}
	cfg.SessionTimeout = 20 * time.Second
	cfg.Digest = zookeeper.Digest{User: "lockpool", Password: "s3cret"}
	for range 5 {
		p := b.PoolWith(cfg)
		l := b.Lock(p, "a")
		relay.broken.Store(0)
		relay.on.Store(true)
		proxy.Cut(zktest.Selector{})
		b.Until(func() bool { return relay.broken.Load() >= 4 }, "connections are reset")
		relay.on.Store(false)
		b.Unlock(l)
		require.NoError(t, p.Close())
	}
	require.NoError(t, b.Admin.AddAuth("digest", []byte("lockpool:s3cret"))) // lets the admin look for nodes that are left
}

// Refused credentials are an error of the session being opened, at once, and leave
// no session open.
func TestRefusedCredentialsAreAnError(t *testing.T) {
	t.Parallel()
	b, proxy := locktest.NewBehindProxy(t)
	f := proxy.Inject(zktest.Rule{
		Match: zktest.Match{Ops: []zktest.Op{zktest.OpAuth}}, Times: zktest.Always, Do: zktest.FailWith(zktest.ErrAuthFailed),
	})
	cfg := b.Config()
	cfg.SessionTimeout = 40 * time.Second // an eighth for the server to answer
	cfg.Digest = zookeeper.Digest{User: "lockpool", Password: "s3cret"}
	_, err := connector(t, cfg).Connect(b.Ctx)
	require.ErrorIs(t, err, driver.ErrPermanent)
	require.ErrorContains(t, err, "authenticate lockpool:(hidden): "+proxy.Addr()+" refuses the credentials")
	require.NotContains(t, err.Error(), "s3cret")
	b.Until(func() bool { return f.Fired() > 0 }, "the refusal is counted")
	require.Equal(t, 1, f.Fired())
}

func TestReconnectionBacksOffFromBreakingConnections(t *testing.T) {
	locktest.Once(t)
	locktest.Bubble(t, func(t *testing.T) {
		b, proxy := locktest.NewBehindProxy(t)
		p := b.PoolWithTimeout(20 * time.Second)
		l := b.Lock(p, "a")
		broken := proxy.Inject(zktest.Rule{
			Match: zktest.Match{Ops: []zktest.Op{zktest.OpConnect}}, Times: zktest.Always, Do: zktest.ResetAfterReply(),
		})
		proxy.Cut(zktest.Selector{})
		time.Sleep(2 * time.Second) // the duration of the fault
		require.Less(t, broken.Fired(), 20)
		require.Greater(t, broken.Fired(), 3)
		broken.Remove()
		b.Unlock(l)

		// After a connection that lasted, the next one is made at once.
		time.Sleep(3 * time.Second) // longer than the longest pause
		l = b.Lock(p, "a")
		began := time.Now()
		proxy.Cut(zktest.Selector{})
		b.Unlock(l)
		require.Less(t, time.Since(began), 100*time.Millisecond, "the reconnection")
	})
}

// roomy returns the timeout, or a longer one on real servers, where a machine may be busy.
func roomy(timeout time.Duration) time.Duration {
	if locktest.Embedded() {
		return timeout
	}
	return 3 * timeout
}

// A server that is slow to open sessions is awaited, and keeps no sessions of
// callers that have given up.
func TestSlowServerOpensASession(t *testing.T) {
	for name, slow := range map[string]zktest.Action{
		"0.6 s until the answer": zktest.DelayReply(600 * time.Millisecond),
		"3 s until the answer":   zktest.DelayReply(3 * time.Second),
		"2 s before it begins":   zktest.DelayApply(2 * time.Second),
	} {
		t.Run(name, func(t *testing.T) {
			locktest.Slow(t, func(t *testing.T) {
				own := locktest.StartServer(t)
				b := locktest.NewOn(t, own)
				proxy := b.Proxy()
				proxy.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpConnect}}, Times: zktest.Always, Do: slow})
				p := b.PoolWithTimeout(roomy(4 * time.Second))
				b.Unlock(b.Lock(p, "a"))
				awaitSessions(b, own, 2)
				impatient := b.PoolWithTimeout(roomy(4 * time.Second))
				_, err := impatient.Lock(locktest.Timeout(t, 100*time.Millisecond), "a")
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.NoError(t, impatient.Close())
			})
		})
	}
}

// A session whose caller has given up is closed even if the reply that names it
// comes in two parts, of which one is late.
func TestSessionWithAPartlyLateReplyIsClosed(t *testing.T) {
	t.Parallel()
	ctx, giveUp := context.WithCancel(locktest.Context(t))
	gaveUp, asked := make(chan struct{}), make(chan int32, 1)
	addr, _ := listen(t, func(_ int, conn net.Conn) {
		if handshake(conn) != nil {
			return
		}
		answer := hello(4000, 1)
		_, _ = conn.Write(answer[:10])
		giveUp()
		<-gaveUp
		_, _ = conn.Write(answer[10:])
		op := int32(11)
		for packet := make([]byte, 12); op == 11; { // a ping may come first
			_, _ = io.ReadFull(conn, packet)
			op = int32(binary.BigEndian.Uint32(packet[8:]))
		}
		asked <- op
	})
	_, err := connector(t, zookeeper.Config{Servers: []string{addr}}).Connect(ctx)
	close(gaveUp)
	require.ErrorIs(t, err, context.Canceled)
	select {
	case op := <-asked:
		require.EqualValues(t, -11, op, "to close the session")
	case <-time.After(locktest.Patience):
		t.Error("no request to close the session")
	}
}

// A reconnection may take longer than an eighth of the timeout, which a server is
// given first.
func TestSlowReconnectionKeepsTheLock(t *testing.T) {
	locktest.Slow(t, func(t *testing.T) {
		b, proxy := locktest.NewBehindProxy(t)
		timeout := roomy(4 * time.Second)
		p := b.PoolWithTimeout(timeout)
		for range 2 {
			l := b.Lock(p, "a")
			slow := proxy.Inject(zktest.Rule{
				Match: zktest.Match{Ops: []zktest.Op{zktest.OpConnect}}, Times: zktest.Always, Do: zktest.DelayReply(timeout / 6),
			})
			proxy.Cut(zktest.Selector{})
			require.NoError(t, l.Verify(b.Ctx))
			slow.Remove()
			b.Unlock(l)
		}
	})
}

// A server that starts again refuses connections at first, and may not answer the first
// handshake after that.
func TestSwallowedHandshakeIsRepeatedSoonAfterRefusals(t *testing.T) {
	locktest.Timed(t, func(t *testing.T) {
		b, proxy := locktest.NewBehindProxy(t)
		p := b.PoolWithTimeout(8 * time.Second)
		l := b.Lock(p, "a")
		require.NoError(t, proxy.RefuseConnections())
		proxy.Cut(zktest.Selector{})
		time.Sleep(time.Second) // the length of the fault
		proxy.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpConnect}}, Do: zktest.HoldReply()})
		clock := locktest.StartClock()
		require.NoError(t, proxy.AcceptConnections())
		require.NoError(t, l.Verify(b.Ctx))
		clock.Took(t, time.Second, 4500*time.Millisecond, "reconnecting") // one second, and the pauses before and after it
		b.Unlock(l)
	})
}

// awaitSessions waits until the server has n sessions, the bench's included.
func awaitSessions(b *locktest.Bench, of locktest.Server, n int) {
	b.Helper()
	b.Until(func() bool { return b.Stat(of, "zk_global_sessions") == n }, "%d sessions at the server", n)
}

func TestShortSessionTimeoutStillConnects(t *testing.T) {
	t.Parallel()
	b := locktest.NewOn(t, locktest.StartServer(t, zktest.TickTime(2*time.Second)))
	b.Proxy().Inject(zktest.Rule{
		Match: zktest.Match{Where: func(zktest.Request) bool { return true }}, Times: zktest.Always, Do: zktest.DelayReply(200 * time.Millisecond), // longer than the client would wait
	})
	b.Unlock(b.Lock(b.PoolWithTimeout(20*time.Millisecond), "a"))
}

func TestUselessSessionTimeoutIsAnError(t *testing.T) {
	locktest.Once(t)
	t.Parallel()
	for _, timeout := range []int32{0, -1, -1 << 31, 1, 50} {
		addr, _ := listen(t, func(_ int, conn net.Conn) {
			if handshake(conn) == nil {
				_, _ = conn.Write(hello(timeout, 1))
				_, _ = io.Copy(io.Discard, conn)
			}
		})
		_, err := connector(t, zookeeper.Config{Servers: []string{addr}}).Connect(locktest.Context(t))
		require.ErrorIs(t, err, driver.ErrPermanent)
		require.ErrorContains(t, err, addr+" grants a session timeout of "+(time.Duration(timeout)*time.Millisecond).String())
		require.ErrorContains(t, err, "tickTime")
	}
}

// Replies of other protocols are recognized, and their lengths are not trusted.
func TestOtherProtocolsAreRecognized(t *testing.T) { // measures memory, so not parallel
	locktest.Once(t)
	says := func(text string) string {
		addr, _ := listen(t, func(_ int, conn net.Conn) {
			_, _ = io.WriteString(conn, text)
			_, _ = io.Copy(io.Discard, conn)
		})
		return addr
	}
	for _, c := range []struct{ addr, complaint string }{
		{says("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"), "looks like HTTP"},
		{says("SSH-2.0-OpenSSH_9.2p1 Debian\r\n"), "looks like SSH"},
		{says("-ERR unknown command\r\n"), "looks like Redis"},
		{says("\x15\x03\x01\x00\x02\x02\x46"), "looks like TLS; set Config.TLS"},
		{says("220 mail ESMTP\r\n"), "220 mail ESMTP"},
		{says("\x7f\xff\xff\xff\x00\x00"), "is not a ZooKeeper server"},
		{says("\xff\xff\xff\xff\x00\x00"), "is not a ZooKeeper server"},
		{says("\x00\x00\x00\x00\x00\x00"), "is not a ZooKeeper server"},
		{says(string(hello(4000, 1)[:20]) + "\x7f\x00\x00\x00" + string(make([]byte, 17))), "is not a ZooKeeper server"},
	} {
		before := zookeeper.Allocated()
		_, err := connector(t, zookeeper.Config{Servers: []string{c.addr}}).Connect(locktest.Context(t))
		require.ErrorIs(t, err, driver.ErrPermanent)
		require.ErrorContains(t, err, c.complaint)
		require.ErrorContains(t, err, c.addr)
		require.Less(t, zookeeper.Allocated()-before, uint64(8<<20), "bytes, for %s", c.complaint)
	}
}

// The reset may hit the client's write or its read.
func TestResetBeforeTheHandshakeIsNotPermanent(t *testing.T) {
	t.Parallel()
	addr, _ := listen(t, func(_ int, conn net.Conn) { _ = conn.(*net.TCPConn).SetLinger(0) })
	c := connector(t, zookeeper.Config{Servers: []string{addr}})
	for range 100 {
		_, err := c.Connect(locktest.Context(t))
		require.ErrorIs(t, err, driver.ErrUnavailable)
		require.NotErrorIs(t, err, driver.ErrPermanent)
		require.NotContains(t, err.Error(), "PANIC")
	}
}

// A silent server does not look like the end of the caller's context.
func TestErrorNamesASilentServer(t *testing.T) {
	locktest.Once(t)
	t.Parallel()
	addr, accepted := listen(t, func(_ int, conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	connector, err := zookeeper.NewConnector(zookeeper.Config{Servers: []string{addr}, SessionTimeout: 4 * time.Second})
	require.NoError(t, err)
	_, err = connector.Connect(context.Background())
	require.ErrorIs(t, err, driver.ErrUnavailable)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, addr+" accepted the connection, but did not answer within 1s")
	require.Equal(t, "unavailable", (&lockpool.LockError{Err: err}).ErrorType())
	require.Eventually(t, func() bool { return accepted.Load() == 1 }, locktest.Patience, time.Millisecond) // by the kernel at once
	require.NoError(t, connector.Close())
}

// Callers that wait for a lock or for a connection wait until their contexts end.
func TestWaitersSurviveALongOutage(t *testing.T) {
	locktest.Slow(t, func(t *testing.T) {
		b, proxy := locktest.NewBehindProxy(t)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		holder, p := b.PoolWithTimeout(2*time.Second), b.PoolWithTimeout(2*time.Second)
		held := b.Lock(holder, "a")
		waiting := make(chan error, 1)
		go func() { waiting <- p.Do(ctx, "a", func(context.Context) error { return nil }) }()
		b.AwaitQueue("a", 2)
		require.NoError(t, proxy.RefuseConnections())
		proxy.Cut(zktest.Selector{})
		<-held.Lost()
		fresh := b.PoolWithTimeout(2 * time.Second)
		connecting := make(chan error, 1)
		go func() { connecting <- fresh.Ping(ctx) }()
		select {
		case err := <-waiting:
			require.Fail(t, "the waiter has given up", "%v", err)
		case err := <-connecting:
			require.Fail(t, "the caller without a connection has given up", "%v", err)
		case <-time.After(16 * time.Second): // the outage
		}
		require.NoError(t, proxy.AcceptConnections())
		require.NoError(t, <-connecting)
		require.NoError(t, <-waiting)
		require.ErrorIs(t, held.Unlock(ctx), lockpool.ErrLockLost)
	})
}

func TestTimeoutWithoutAConnectionReportsTheCause(t *testing.T) {
	locktest.Once(t)
	t.Parallel()
	silent, _ := listen(t, func(_ int, conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	refusing := zktest.StartProxy(t, locktest.Shared().Addr()) // keeps its port
	require.NoError(t, refusing.RefuseConnections())
	p, err := lockpool.Open("zookeeper", silent)
	require.NoError(t, err)
	_, err = p.Lock(locktest.Timeout(t, 100*time.Millisecond), "a")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "no session yet, no server has answered")
	require.NoError(t, p.Close())
	for addr, why := range map[string]string{
		silent:                 silent + " accepted the connection, but did not answer within 1s",
		refusing.Addr():        "connection refused",
		"nowhere.invalid:2181": "nowhere.invalid",
	} {
		p, err := lockpool.Open("zookeeper", addr+"?session_timeout=4s")
		require.NoError(t, err)
		_, err = p.Lock(locktest.Timeout(t, 3*time.Second), "a")
		require.ErrorIs(t, err, context.DeadlineExceeded, "of the caller's context")
		require.ErrorIs(t, err, lockpool.ErrUnavailable)
		require.ErrorContains(t, err, why)
		_, err = p.Lock(locktest.Timeout(t, 10*time.Millisecond), "a")
		require.ErrorContains(t, err, why, "later callers get the cause as well")
		require.NoError(t, p.Close())
	}
}

// A permanent error ends the wait at once, unless the server has worked before.
func TestPermanentErrorEndsTheFirstWait(t *testing.T) {
	t.Parallel()
	b, proxy := locktest.NewBehindProxy(t)
	var foreign atomic.Bool
	foreign.Store(true)
	addr, accepted := listen(t, func(_ int, conn net.Conn) {
		if foreign.Load() {
			_, _ = io.WriteString(conn, "SSH-2.0-x\r\n")
			return
		}
		relay(conn, b.Addr, func(hello []byte) bool {
			_, err := conn.Write(hello)
			return err == nil
		})
	})
	cfg := b.Config()
	cfg.Servers = []string{addr}
	cfg.SessionTimeout = time.Second
	p := b.PoolWith(cfg)
	_, err := p.Lock(b.Ctx, "a")
	require.ErrorContains(t, err, "SSH")
	require.NotErrorIs(t, err, context.DeadlineExceeded)

	cfg.TLS = &tls.Config{RootCAs: x509.NewCertPool()}
	_, err = b.PoolWith(cfg).Lock(b.Ctx, "a")
	require.ErrorContains(t, err, "first record does not look like a TLS handshake")

	foreign.Store(false)
	l := b.Lock(p, "a")
	foreign.Store(true)
	proxy.Cut(zktest.Selector{})
	b.AwaitLoss(l)
	got := make(chan error, 1)
	before := accepted.Load()
	go func() { got <- p.Ping(b.Ctx) }()
	b.Until(func() bool { return accepted.Load() >= before+3 }, "further attempts")
	select {
	case err := <-got:
		require.Fail(t, "the caller has given up", "%v", err)
	default:
	}
	foreign.Store(false)
	require.NoError(t, <-got)
	b.AwaitQueue("a", 0) // the server has expired the session
}

func TestConnectionAttemptsEndWithTheLastWaiter(t *testing.T) {
	locktest.Once(t)
	t.Parallel()
	addr, accepted := listen(t, func(_ int, conn net.Conn) { _ = handshake(conn) })
	p, err := lockpool.Open("zookeeper", addr)
	require.NoError(t, err)
	for range 3 {
		ctx, giveUp := context.WithCancel(locktest.Context(t))
		got, before := make(chan error, 1), accepted.Load()
		go func() { _, err := p.Lock(ctx, "a"); got <- err }()
		require.Eventually(t, func() bool { return accepted.Load() >= before+3 }, locktest.Patience, time.Millisecond, "attempts fail")
		giveUp()
		require.ErrorContains(t, <-got, "closed the connection without an answer")
	}
	n := -1
	for int(accepted.Load()) != n {
		n = int(accepted.Load())
		time.Sleep(1500 * time.Millisecond) // longer than the longest pause
	}
	got := make(chan error, 1)
	go func() { got <- p.Ping(context.Background()) }()
	for int(accepted.Load()) == n {
		time.Sleep(time.Millisecond)
	}
	require.NoError(t, p.Close())
	require.ErrorIs(t, <-got, lockpool.ErrPoolClosed)
}

// Several goroutines learn at once that a pool is closed. Whichever is first, the waiters
// for a session are told so, and Close waits for what an attempt has left behind.
func TestCloseDuringAConnectIsReportedAsSuch(t *testing.T) {
	locktest.Once(t)
	t.Parallel()
	closing, _ := listen(t, func(_ int, conn net.Conn) { _ = handshake(conn) })
	for range 50 {
		var dials atomic.Int32
		p := locktest.Open(t, connector(t, zookeeper.Config{
			Servers: []string{"first", "second"},
			Dial: func(ctx context.Context, _ string) (net.Conn, error) {
				if dials.Add(1) == 1 {
					return new(net.Dialer).DialContext(ctx, "tcp", closing)
				}
				<-ctx.Done()
				return nil, ctx.Err()
			},
		}))
		ping, lock := make(chan error, 1), make(chan error, 1)
		go func() { ping <- p.Ping(t.Context()) }()
		go func() {
			_, err := p.Lock(t.Context(), "a")
			lock <- err
		}()
		time.Sleep(2 * time.Millisecond) // a channel would hide a race of Close with the attempt
		require.NoError(t, p.Close())
		require.ErrorIs(t, <-ping, lockpool.ErrPoolClosed)
		require.ErrorIs(t, <-lock, lockpool.ErrPoolClosed)
	}
}

// Host names and IPv6 addresses are dialed, and servers that are down are skipped.
func TestServersAreDialed(t *testing.T) {
	t.Parallel()
	working := locktest.Shared().Addr()
	_, port, err := net.SplitHostPort(working)
	require.NoError(t, err)
	v6, err := net.Listen("tcp", "[::1]:0")
	require.NoError(t, err, "this test needs IPv6 on the loopback")
	zktest.StartProxy(t, working).Serve(v6)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	dead := l.Addr().String()
	for _, servers := range append(slices.Repeat([]string{dead + "," + working + "," + dead}, 5), "localhost:"+port, v6.Addr().String()) { // the first server is chosen at random
		p, err := lockpool.Open("zookeeper", servers+"/ip?session_timeout=5s")
		require.NoError(t, err)
		require.NoError(t, p.Ping(locktest.Context(t)), servers)
		require.NoError(t, p.Close())
	}
}

// The server accepts no more connections from one address.
func TestFullServerIsATemporaryError(t *testing.T) {
	t.Parallel()
	own := locktest.StartServer(t, zktest.MaxClientConns(2))
	b := locktest.NewOn(t, own) // the first connection
	second := locktest.Dial(t, own.Addr())
	ctx, giveUp := context.WithCancel(b.Ctx)
	var dials atomic.Int32
	cfg := b.Config()
	cfg.Dial = func(ctx context.Context, address string) (net.Conn, error) {
		if dials.Add(1) == 2 { // the first attempt has failed
			giveUp()
		}
		return new(net.Dialer).DialContext(ctx, "tcp", address)
	}
	p := b.PoolWith(cfg)
	_, err := p.Lock(ctx, "a")
	require.ErrorContains(t, err, "no session")
	require.ErrorContains(t, err, own.Addr())
	second.Close()
	b.Unlock(b.Lock(p, "a"))
}

func TestDialerThatReturnsNoConnectionIsAnError(t *testing.T) {
	t.Parallel()
	ctx, giveUp := context.WithCancel(locktest.Context(t))
	var dials atomic.Int32
	pool := locktest.Open(t, connector(t, zookeeper.Config{
		Servers: []string{"zk1"},
		Dial: func(context.Context, string) (net.Conn, error) {
			if dials.Add(1) == 2 { // the first attempt has failed
				giveUp()
			}
			return nil, nil
		},
	}))
	err := pool.Ping(ctx)
	require.ErrorIs(t, err, lockpool.ErrUnavailable)
	require.ErrorContains(t, err, "zk1:2181: Config.Dial returned neither a connection nor an error")
}
