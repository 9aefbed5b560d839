//go:build unix

package zktest

// This file has the tests of TLS.

import (
	"crypto/tls"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/zktest/testcert"
)

func TestTLSOfRealServer(t *testing.T) {
	requireEmptyTemp(t)
	for _, auth := range []tls.ClientAuthType{tls.NoClientCert, tls.VerifyClientCertIfGiven, tls.RequireAndVerifyClientCert} {
		t.Run(auth.String(), func(t *testing.T) {
			s := StartReal(t, TLS(auth))
			require.NotEqual(t, s.Addr(), s.SecureAddr())
			mode, err := s.Command(testContext(t), "isro")
			require.NoError(t, err)
			require.Equal(t, "rw", mode, "over the port without TLS")
			otherCA, err := testcert.New("zktest") // of the same name, or clients would send no certificates
			require.NoError(t, err)
			untrusting, err := otherCA.Client()
			require.NoError(t, err)

			trusted, noCertificate, untrusted := s.ClientTLS(), s.ClientTLS(), s.ClientTLS()
			noCertificate.Certificates = nil
			untrusted.Certificates = untrusting.Certificates
			for range 2 {
				require.NoError(t, commandOverTLS(s, trusted))
				require.Equal(t, auth != tls.RequireAndVerifyClientCert, commandOverTLS(s, noCertificate) == nil)
				require.Equal(t, auth == tls.NoClientCert, commandOverTLS(s, untrusted) == nil)
				require.ErrorContains(t, commandOverTLS(s, untrusting), "unknown authority")
				require.NoError(t, s.Stop(testContext(t)))
				require.NoError(t, s.Start(testContext(t)))
			}
		})
	}
	_, err := RunReal(t.Context(), TLS(tls.RequireAnyClientCert))
	require.ErrorContains(t, err, "use tls.NoClientCert")
	s := StartReal(t)
	require.Empty(t, s.SecureAddr())
	require.Nil(t, s.ClientTLS())
}

func TestTLSOfRealEnsemble(t *testing.T) {
	t.Parallel()
	e := StartRealEnsemble(t, 3, TLS(tls.RequireAndVerifyClientCert))
	for i := range e.Len() {
		require.NoError(t, commandOverTLS(e.Member(i), e.Member(0).ClientTLS()))
	}
}

// commandOverTLS sends a four letter command to SecureAddr.
func commandOverTLS(s *RealServer, cfg *tls.Config) error {
	conn, err := tls.Dial("tcp", s.SecureAddr(), cfg)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "ruok"); err != nil {
		return err
	}
	_, err = io.ReadFull(conn, make([]byte, 4)) // in TLS 1.3 a rejected certificate is an error only now
	return err
}
