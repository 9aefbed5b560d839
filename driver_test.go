package lockpool_test

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
	"github.com/lockpool/lockpool/testing/zktest"
)

func TestEmptyQueuesAreRemovedByTheServer(t *testing.T) {
	t.Parallel()
	own := startServer(t, zktest.ContainerInterval(300*time.Millisecond))
	b := newBenchOn(t, own.Addr())
	p := b.pool()
	for range 3 { // and are made again
		b.unlock(b.lock(p, "a/b"))
		b.until(func() bool {
			exists, _, err := b.admin.Exists(b.chroot)
			require.NoError(t, err)
			return !exists
		}, "the queue and its parents are containers")
	}
}

func TestQueueThatKeepsBeingRemovedIsStillExclusive(t *testing.T) {
	t.Parallel()
	own := startServer(t, zktest.ContainerInterval(time.Millisecond))
	b := newBenchOn(t, own.Addr())
	p, other := b.pool(), b.pool()
	inside := make(chan struct{}, 1)
	done := make(chan struct{})
	for _, pool := range []*lockpool.Pool{p, other} {
		go func() {
			defer func() { done <- struct{}{} }()
			for range 300 {
				l, err := pool.Lock(b.ctx, "a/b")
				if err != nil {
					t.Error(err)
					return
				}
				select {
				case inside <- struct{}{}:
				default:
					t.Error("two inside")
				}
				<-inside
				if err := l.Unlock(b.ctx); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	<-done
	<-done
}

func TestIPv6AndNamesAreDialled(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	_, port, err := net.SplitHostPort(server.Addr())
	require.NoError(t, err)
	l, err := net.Listen("tcp", "[::1]:0")
	require.NoError(t, err, "the machine has IPv6 on its loopback")
	zktest.StartProxy(t, server.Addr()).Serve(l)
	for _, dsn := range []string{"localhost:" + port, l.Addr().String()} {
		p, err := lockpool.Open("zookeeper", dsn+"/ip?session_timeout=5s")
		require.NoError(t, err)
		require.NoError(t, p.Ping(ctx), dsn)
		require.NoError(t, p.Close())
	}
}

// The first server that gives a session is good enough.
func TestDeadServersInTheListAreSkipped(t *testing.T) {
	t.Parallel()
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, dead.Close())
	for range 5 { // the first to be tried is drawn by chance
		p, err := lockpool.Open("zookeeper", dead.Addr().String()+","+server.Addr()+","+dead.Addr().String()+"?session_timeout=5s")
		require.NoError(t, err)
		require.NoError(t, p.Ping(testContext(t)))
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
	b := newBench(t)
	// The embedded server has no TLS, so the proxy ends the encryption.
	zktest.StartProxy(t, b.addr).Serve(tls.NewListener(l, &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{certificate}, PrivateKey: key}},
	}))
	roots := x509.NewCertPool()
	root, err := x509.ParseCertificate(certificate)
	require.NoError(t, err)
	roots.AddCert(root)
	cfg := b.config()
	cfg.Servers = []string{"localhost:" + port}
	cfg.TLS = &tls.Config{RootCAs: roots}
	p := b.poolWith(cfg)
	held := b.lock(p, "a")
	require.Len(t, b.children("a"), 1)
	b.unlock(held)

	cfg.TLS = &tls.Config{RootCAs: x509.NewCertPool()}
	_, err = b.poolWith(cfg).Lock(expiring(t, time.Second), "a")
	require.ErrorContains(t, err, "certificate", "the error says that it is not trusted")
	require.NotErrorIs(t, err, context.DeadlineExceeded, "at once")
}

// ZooKeeper's own TLS, with client certificates and without.
func TestTLSOfZooKeeper(t *testing.T) {
	t.Parallel()
	for _, auth := range []tls.ClientAuthType{tls.NoClientCert, tls.RequireAndVerifyClientCert} {
		t.Run(auth.String(), func(t *testing.T) {
			t.Parallel()
			own := zktest.StartReal(t, zktest.TLS(auth))
			b := newBenchOn(t, own.Addr())
			cfg := b.config()
			cfg.Servers, cfg.TLS, cfg.SessionTimeout = []string{own.SecureAddr()}, own.ClientTLS(), 30*time.Second
			if auth == tls.NoClientCert {
				cfg.TLS.Certificates = nil
			}
			p := b.poolWith(cfg)
			held := b.lock(p, "a")
			require.Len(t, b.children("a"), 1)
			w := b.wait(p, "a", 2)

			// The locks outlive a restart, and are let go of over a new connection.
			require.NoError(t, own.Stop(b.ctx))
			require.NoError(t, own.Start(b.ctx))
			require.NoError(t, held.Verify(b.ctx))
			b.stillWaits(w)
			b.unlock(held)
			b.unlock(b.granted(w))
			b.unlock(b.lock(p, "a"))

			strange := cfg
			strange.TLS = &tls.Config{RootCAs: x509.NewCertPool()}
			_, err := b.poolWith(strange).Lock(expiring(t, time.Second), "a")
			require.ErrorContains(t, err, "certificate signed by unknown authority")
			if auth == tls.RequireAndVerifyClientCert {
				unknown := cfg
				unknown.TLS = own.ClientTLS()
				unknown.TLS.Certificates = nil
				_, err := b.poolWith(unknown).Lock(expiring(t, time.Second), "a")
				require.ErrorContains(t, err, "TLS: ")
				require.ErrorContains(t, err, "certificate", "it says what is missing")
			}
		})
	}
}

// The number after our own last one tells that nobody joined, unless the queue
// was removed and made again meanwhile: then the count began anew.
func TestNextNumberInAnotherQueueIsNoProofOfBeingAlone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	s := b.session(p)
	const turns = 30
	for range turns { // by now the listing is spared
		l, err := s.Lock(b.ctx, "a")
		require.NoError(t, err)
		b.unlock(l)
	}
	require.NoError(t, b.admin.Delete(b.chroot+"/a", -1))
	world := zk.WorldACL(zk.PermAll)
	_, err := b.admin.Create(b.chroot+"/a", nil, 0, world)
	require.NoError(t, err)
	for range turns { // as many in the new queue
		_, err = b.admin.Create(b.chroot+"/a/x-lock-", nil, zk.FlagEphemeral|zk.FlagSequence, world)
		require.NoError(t, err)
	}
	_, err = s.TryLock(b.ctx, "a") // gets the number after that of its last node
	require.ErrorIs(t, err, lockpool.ErrLocked)
	for _, child := range b.children("a") {
		require.NoError(t, b.admin.Delete(b.chroot+"/a/"+child, -1))
	}
	require.NoError(t, s.Close(b.ctx))
}

// Nor is a number that is not the next.
func TestRivalBetweenTwoOfOurLocksIsSeen(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	s, rival := b.session(b.pool()), b.session(b.pool())
	for range 5 {
		for range 30 {
			l, err := s.Lock(b.ctx, "a")
			require.NoError(t, err)
			b.unlock(l)
		}
		l, err := rival.Lock(b.ctx, "a")
		require.NoError(t, err)
		_, err = s.TryLock(b.ctx, "a")
		require.ErrorIs(t, err, lockpool.ErrLocked)
		b.unlock(l)
	}
	require.NoError(t, s.Close(b.ctx))
	require.NoError(t, rival.Close(b.ctx))
}

// An uncontended lock costs one request to take and one to give back.
func TestLockOfOneProcessCostsTwoRequests(t *testing.T) {
	t.Parallel()
	own := startServer(t)
	b := newBenchOn(t, own.Addr())
	cfg := b.config()
	cfg.SessionTimeout = 10 * time.Second
	s := b.session(b.poolWith(cfg))
	turn := func() {
		l, err := s.Lock(b.ctx, "a")
		require.NoError(t, err)
		b.unlock(l)
	}
	for range 30 {
		turn()
	}
	before := b.stat(own, "zk_packets_received")
	for range 1000 {
		turn()
	}
	require.InDelta(t, 2000, b.stat(own, "zk_packets_received")-before, 50)
	require.NoError(t, s.Close(b.ctx))
}
