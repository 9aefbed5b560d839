//go:build unix

package zktest

import (
	"crypto/tls"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTLSOfRealServers(t *testing.T) {
	requireEmptyTemp(t)
	for _, auth := range []tls.ClientAuthType{tls.NoClientCert, tls.VerifyClientCertIfGiven, tls.RequireAndVerifyClientCert} {
		t.Run(auth.String(), func(t *testing.T) {
			s := StartReal(t, TLS(auth))
			require.NotEqual(t, s.Addr(), s.SecureAddr())
			mode, err := s.Command(testContext(t), "isro")
			require.NoError(t, err)
			require.Equal(t, "rw", mode, "without encryption, too")
			stranger, err := newAuthority()
			require.NoError(t, err)
			strangers, err := stranger.client()
			require.NoError(t, err)

			known, nobody, other := s.ClientTLS(), s.ClientTLS(), s.ClientTLS()
			nobody.Certificates = nil
			other.Certificates = strangers.Certificates
			for range 2 {
				require.NoError(t, commandOverTLS(s, known))
				require.Equal(t, auth != tls.RequireAndVerifyClientCert, commandOverTLS(s, nobody) == nil)
				require.Equal(t, auth == tls.NoClientCert, commandOverTLS(s, other) == nil)
				require.ErrorContains(t, commandOverTLS(s, strangers), "unknown authority")
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

func TestTLSOfAnEnsemble(t *testing.T) {
	t.Parallel()
	e := StartRealEnsemble(t, 3, TLS(tls.RequireAndVerifyClientCert))
	for i := range e.Len() {
		require.NoError(t, commandOverTLS(e.Member(i), e.Member(0).ClientTLS()))
	}
}

// askSecurely gets an answer from a server, or an error.
func commandOverTLS(s *RealServer, cfg *tls.Config) error {
	conn, err := tls.Dial("tcp", s.SecureAddr(), cfg)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "ruok"); err != nil {
		return err
	}
	_, err = io.ReadFull(conn, make([]byte, 4)) // in TLS 1.3 the server's judgment comes only now
	return err
}
