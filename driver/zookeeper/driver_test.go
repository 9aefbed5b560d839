package zookeeper_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/internal/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

func TestServerRemovesEmptyQueues(t *testing.T) {
	t.Parallel()
	own := locktest.StartServer(t, zktest.ContainerInterval(300*time.Millisecond))
	b := locktest.NewOn(t, own.Addr())
	p := b.Pool()
	for range 3 { // it is created again
		b.Unlock(b.Lock(p, "a/b"))
		b.Until(func() bool {
			exists, _, err := b.Admin.Exists(b.Chroot)
			require.NoError(t, err)
			return !exists
		}, "the queue and its parents are removed")
	}
}

func TestLockIsExclusiveWhileItsQueueIsRemoved(t *testing.T) {
	t.Parallel()
	own := locktest.StartServer(t, zktest.ContainerInterval(time.Millisecond))
	b := locktest.NewOn(t, own.Addr())
	p, other := b.Pool(), b.Pool()
	inside := make(chan struct{}, 1)
	done := make(chan struct{})
	for _, pool := range []*lockpool.Pool{p, other} {
		go func() {
			defer func() { done <- struct{}{} }()
			for range 300 {
				l, err := pool.Lock(b.Ctx, "a/b")
				if err != nil {
					t.Error(err)
					return
				}
				select {
				case inside <- struct{}{}:
				default:
					t.Error("two holders")
				}
				<-inside
				if err := l.Unlock(b.Ctx); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	<-done
	<-done
}

func TestIPv6AndHostNamesAreDialed(t *testing.T) {
	t.Parallel()
	ctx := locktest.Context(t)
	_, port, err := net.SplitHostPort(locktest.Shared().Addr())
	require.NoError(t, err)
	l, err := net.Listen("tcp", "[::1]:0")
	require.NoError(t, err, "this test needs IPv6 on the loopback")
	zktest.StartProxy(t, locktest.Shared().Addr()).Serve(l)
	for _, dsn := range []string{"localhost:" + port, l.Addr().String()} {
		p, err := lockpool.Open("zookeeper", dsn+"/ip?session_timeout=5s")
		require.NoError(t, err)
		require.NoError(t, p.Ping(ctx), dsn)
		require.NoError(t, p.Close())
	}
}

func TestDeadServersAreSkipped(t *testing.T) {
	t.Parallel()
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, dead.Close())
	for range 5 { // the first server is chosen at random
		p, err := lockpool.Open("zookeeper", dead.Addr().String()+","+locktest.Shared().Addr()+","+dead.Addr().String()+"?session_timeout=5s")
		require.NoError(t, err)
		require.NoError(t, p.Ping(locktest.Context(t)))
		require.NoError(t, p.Close())
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	b := locktest.New(t)
	// The embedded server has no TLS, so the proxy ends the encryption.
	zktest.StartProxy(t, b.Addr).Serve(tls.NewListener(l, &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{certificate}, PrivateKey: key}},
	}))
	roots := x509.NewCertPool()
	root, err := x509.ParseCertificate(certificate)
	require.NoError(t, err)
	roots.AddCert(root)
	cfg := b.Config()
	cfg.Servers = []string{"localhost:" + port}
	cfg.TLS = &tls.Config{RootCAs: roots}
	p := b.PoolWith(cfg)
	held := b.Lock(p, "a")
	require.Len(t, b.Children("a"), 1)
	b.Unlock(held)

	cfg.TLS = &tls.Config{RootCAs: x509.NewCertPool()}
	_, err = b.PoolWith(cfg).Lock(locktest.Timeout(t, time.Second), "a")
	require.ErrorContains(t, err, "certificate", "the error names the certificate")
	require.NotErrorIs(t, err, context.DeadlineExceeded, "at once")
}

// A real server's TLS, with and without client certificates.
func TestTLSOfARealServer(t *testing.T) {
	t.Parallel()
	for _, auth := range []tls.ClientAuthType{tls.NoClientCert, tls.RequireAndVerifyClientCert} {
		t.Run(auth.String(), func(t *testing.T) {
			t.Parallel()
			own := zktest.StartReal(t, zktest.TLS(auth))
			b := locktest.NewOn(t, own.Addr())
			cfg := b.Config()
			cfg.Servers, cfg.TLS, cfg.SessionTimeout = []string{own.SecureAddr()}, own.ClientTLS(), 30*time.Second
			if auth == tls.NoClientCert {
				cfg.TLS.Certificates = nil
			}
			p := b.PoolWith(cfg)
			held := b.Lock(p, "a")
			require.Len(t, b.Children("a"), 1)
			w := b.Enqueue(p, "a", 2)

			// The locks survive a restart, and are unlocked over a new connection.
			require.NoError(t, own.Stop(b.Ctx))
			require.NoError(t, own.Start(b.Ctx))
			require.NoError(t, held.Verify(b.Ctx))
			w.StillWaits()
			b.Unlock(held)
			b.Unlock(w.Granted())
			b.Unlock(b.Lock(p, "a"))

			strange := cfg
			strange.TLS = &tls.Config{RootCAs: x509.NewCertPool()}
			_, err := b.PoolWith(strange).Lock(locktest.Timeout(t, time.Second), "a")
			require.ErrorContains(t, err, "certificate signed by unknown authority")
			if auth == tls.RequireAndVerifyClientCert {
				unknown := cfg
				unknown.TLS = own.ClientTLS()
				unknown.TLS.Certificates = nil
				_, err := b.PoolWith(unknown).Lock(locktest.Timeout(t, time.Second), "a")
				require.ErrorContains(t, err, "TLS: ")
				require.ErrorContains(t, err, "certificate", "the error names the missing certificate")
			}
		})
	}
}

// The number after that of our last node proves that no contender joined, unless
// the queue was removed and created again: then the numbers started again.
func TestFastPathNoticesARecreatedQueue(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	h := b.Handle(p)
	const turns = 30
	for range turns { // until no listing is needed
		l := b.Lock(h, "a")
		b.Unlock(l)
	}
	require.NoError(t, b.Admin.Delete(b.Chroot+"/a", -1))
	world := zk.WorldACL(zk.PermAll)
	_, err := b.Admin.Create(b.Chroot+"/a", nil, 0, world)
	require.NoError(t, err)
	for range turns { // as many nodes in the new queue
		_, err = b.Admin.Create(b.Chroot+"/a/x-lock-", nil, zk.FlagEphemeral|zk.FlagSequence, world)
		require.NoError(t, err)
	}
	_, err = h.TryLock(b.Ctx, "a") // gets the number after that of its own last node
	require.ErrorIs(t, err, lockpool.ErrLocked)
	for _, child := range b.Children("a") {
		require.NoError(t, b.Admin.Delete(b.Chroot+"/a/"+child, -1))
	}
	require.NoError(t, h.Close(b.Ctx))
}

// A number that does not follow that of our last node proves nothing.
func TestFastPathNoticesARival(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	h, rival := b.Handle(b.Pool()), b.Handle(b.Pool())
	for range 5 {
		for range 30 {
			l := b.Lock(h, "a")
			b.Unlock(l)
		}
		l := b.Lock(rival, "a")
		_, err := h.TryLock(b.Ctx, "a")
		require.ErrorIs(t, err, lockpool.ErrLocked)
		b.Unlock(l)
	}
	require.NoError(t, h.Close(b.Ctx))
	require.NoError(t, rival.Close(b.Ctx))
}

// An uncontended lock costs one request to lock and one to unlock.
func TestUncontendedLockCostsTwoRequests(t *testing.T) {
	t.Parallel()
	own := locktest.StartServer(t)
	b := locktest.NewOn(t, own.Addr())
	h := b.Handle(b.PoolWithTimeout(10 * time.Second))
	turn := func() {
		l := b.Lock(h, "a")
		b.Unlock(l)
	}
	for range 30 {
		turn()
	}
	before := b.Stat(own, "zk_packets_received")
	for range 1000 {
		turn()
	}
	require.InDelta(t, 2000, b.Stat(own, "zk_packets_received")-before, 50)
	require.NoError(t, h.Close(b.Ctx))
}

// A listing over the limit breaks the connection every time. The error names the
// limit, and other locks of the session stay held.
func TestListingBeyondMaxPacketIsAnError(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	cfg := b.Config()
	cfg.MaxPacket = 64 << 10
	p := b.PoolWith(cfg, lockpool.WithMaxSessions(1))
	other := b.Lock(p, "other")
	b.Unlock(b.Lock(p, "a"))
	remove := b.CreateContenders("a", 2000)
	for range 3 {
		_, err := p.Lock(b.Ctx, "a")
		require.ErrorContains(t, err, "the listing of "+b.Chroot+"/a is longer than max_packet=65536 bytes")
		require.ErrorContains(t, err, "raise max_packet")
		require.Len(t, b.Children("a"), 2000, "a node of the pool is left")
	}
	remove()
	require.Equal(t, 1, other.Depth())
	b.Unlock(b.Lock(p, "a"))
	b.Unlock(other)
	require.Equal(t, 1, p.Stats().OpenSessions)
}

// The server accepts no more connections from one address.
func TestFullServerIsATemporaryError(t *testing.T) {
	t.Parallel()
	own := locktest.StartServer(t, zktest.MaxClientConns(2))
	b := locktest.NewOn(t, own.Addr()) // the first connection
	second := locktest.Dial(t, own.Addr())
	p := b.Pool()
	_, err := p.Lock(locktest.Timeout(t, 300*time.Millisecond), "a")
	require.ErrorContains(t, err, "no session")
	require.ErrorContains(t, err, own.Addr())
	second.Close()
	b.Unlock(b.Lock(p, "a"))
}
