package zookeeper_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"log"
	"math/big"
	"net"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

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
	locktest.Once(t)
	t.Parallel()
	for _, auth := range []tls.ClientAuthType{tls.NoClientCert, tls.RequireAndVerifyClientCert} {
		t.Run(auth.String(), func(t *testing.T) {
			t.Parallel()
			own := zktest.StartReal(t, zktest.TLS(auth))
			b := locktest.NewOn(t, own).AtService()
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

// With TLS 1.3, a server reports a missing client certificate only after the
// handshake.
func TestMissingClientCertificateIsAnError(t *testing.T) {
	t.Parallel()
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		tlsServer := httptest.NewUnstartedServer(nil)
		tlsServer.Config.ErrorLog = log.New(io.Discard, "", 0)
		tlsServer.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, MaxVersion: version}
		tlsServer.StartTLS()
		defer tlsServer.Close()
		roots := x509.NewCertPool()
		roots.AddCert(tlsServer.Certificate())
		connector, err := zookeeper.NewConnector(zookeeper.Config{
			Servers: []string{tlsServer.Listener.Addr().String()}, TLS: &tls.Config{RootCAs: roots, ServerName: "example.com"},
		})
		require.NoError(t, err)
		_, err = connector.Connect(locktest.Context(t))
		require.ErrorIs(t, err, driver.ErrPermanent)
		require.ErrorContains(t, err, "the client's Certificates")
		require.NoError(t, connector.Close())
	}
}
