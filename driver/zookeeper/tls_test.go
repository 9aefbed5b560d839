package zookeeper_test

// This file has tests of encrypted connections.

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

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
			_, err := b.PoolWith(strange).Lock(b.Ctx, "a")
			require.ErrorContains(t, err, "certificate signed by unknown authority")
			require.NotErrorIs(t, err, context.DeadlineExceeded, "at once")
			if auth == tls.RequireAndVerifyClientCert {
				unknown := cfg
				unknown.TLS = own.ClientTLS()
				unknown.TLS.Certificates = nil
				_, err := b.PoolWith(unknown).Lock(b.Ctx, "a")
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
		_, err := connector(t, zookeeper.Config{
			Servers: []string{tlsServer.Listener.Addr().String()}, TLS: &tls.Config{RootCAs: roots, ServerName: "example.com"},
			SessionTimeout: 2 * time.Minute, // of which a handshake may take an eighth: the machine may be busy
		}).Connect(locktest.Context(t))
		require.ErrorIs(t, err, driver.ErrPermanent)
		require.ErrorContains(t, err, "the client's Certificates")
	}
}
