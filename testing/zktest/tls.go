package zktest

// This file has TLS of real servers.

import (
	"crypto/tls"
	"fmt"

	"github.com/lockpool/lockpool/testing/zktest/testcert"
)

// TLS makes real servers also serve TLS, on a separate port (see
// [RealServer.SecureAddr]), with certificates created for them.
// [RealServer.ClientTLS] returns the configuration for clients.
//
// clients is the policy for client certificates: [tls.NoClientCert],
// [tls.VerifyClientCertIfGiven] or [tls.RequireAndVerifyClientCert], in ZooKeeper's
// ssl.clientAuth none, want and need.
//
// TLS needs Netty, which is part of an Apache ZooKeeper distribution. With
// Debian's zookeeper package, also install libnetty-java.
func TLS(clients tls.ClientAuthType) RealOption {
	return realOption(func(c *realConfig) {
		auth := map[tls.ClientAuthType]string{
			tls.NoClientCert: "none", tls.VerifyClientCertIfGiven: "want", tls.RequireAndVerifyClientCert: "need",
		}[clients]
		if auth == "" {
			c.err = fmt.Errorf("ZooKeeper does not support the client authentication %v;"+
				" use tls.NoClientCert, tls.VerifyClientCertIfGiven or tls.RequireAndVerifyClientCert", clients)
		}
		c.secure = true
		c.properties["ssl.clientAuth"] = auth
	})
}

// SecureAddr returns the address for clients with TLS, 127.0.0.1:port unless the server is
// [Separated], or "" without the option [TLS]. A restart does not change the address.
func (s *RealServer) SecureAddr() string {
	if s.secure == nil {
		return ""
	}
	return s.secure.addr()
}

// ClientTLS returns the configuration of a client of SecureAddr, trusting the server, with
// a certificate trusted by the server. (Set Certificates to nil for a client without a
// certificate.) The configuration works for all servers of an ensemble, and is nil without
// the option [TLS].
func (s *RealServer) ClientTLS() *tls.Config { return s.clientTLS.Clone() }

// writeCertificates writes the certificates for a server at host into dir and returns the
// lines of zoo.cfg naming them.
func writeCertificates(ca *testcert.Authority, dir, host string) (lines map[string]string, err error) {
	keyFile, trustFile, err := ca.WriteServer(dir, host)
	return map[string]string{
		"serverCnxnFactory":       "org.apache.zookeeper.server.NettyServerCnxnFactory",
		"ssl.keyStore.location":   escape(keyFile),
		"ssl.trustStore.location": escape(trustFile),
	}, err
}
