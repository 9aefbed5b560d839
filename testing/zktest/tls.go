package zktest

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"
)

// TLS makes real servers also serve TLS, on a separate port (see
// [RealServer.SecureAddr]), with certificates created for them.
// [RealServer.ClientTLS] returns the configuration for clients.
//
// clients is the policy for client certificates: [tls.NoClientCert],
// [tls.VerifyClientCertIfGiven] or [tls.RequireAndVerifyClientCert], which are
// none, want and need as ZooKeeper's ssl.clientAuth.
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

// SecureAddr returns the address for clients with TLS, 127.0.0.1:port unless the
// server is [Separated], or "" without the option [TLS]. A restart does not change
// it.
func (s *RealServer) SecureAddr() string {
	if s.secure == nil {
		return ""
	}
	return s.secure.addr()
}

// ClientTLS returns the configuration of a client of SecureAddr: it trusts the
// server and has a certificate that the server trusts. (Set Certificates to nil
// for a client without one.) It works for all servers of an ensemble. It is nil
// without the option [TLS].
func (s *RealServer) ClientTLS() *tls.Config { return s.clientTLS.Clone() }

// authority issues certificates for the servers and clients of one start.
type authority struct {
	key  *ecdsa.PrivateKey
	root *x509.Certificate
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := certificate("zktest")
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	root, err := x509.ParseCertificate(der)
	return &authority{key, root}, err
}

func certificate(name string) *x509.Certificate {
	return &x509.Certificate{
		Subject:   pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature,
	}
}

// issue issues a certificate for servers or for clients.
func (a *authority) issue(template *x509.Certificate, use x509.ExtKeyUsage) (tls.Certificate, error) {
	template.ExtKeyUsage = []x509.ExtKeyUsage{use}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.root, &key.PublicKey, a.key)
	return tls.Certificate{Certificate: [][]byte{der, a.root.Raw}, PrivateKey: key}, err
}

// client returns the configuration of a client.
func (a *authority) client() (*tls.Config, error) {
	own, err := a.issue(certificate("client"), x509.ExtKeyUsageClientAuth)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(a.root)
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{own}}, nil
}

// write writes the certificates for a server at host into dir and returns the
// lines of zoo.cfg that name them.
func (a *authority) write(dir, host string) (lines map[string]string, err error) {
	template := certificate(host)
	template.DNSNames = []string{"localhost"}
	template.IPAddresses = []net.IP{net.ParseIP(host)}
	own, err := a.issue(template, x509.ExtKeyUsageServerAuth)
	if err != nil {
		return nil, err
	}
	key, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	if err != nil {
		return nil, err
	}
	var keyStore, trustStore bytes.Buffer
	err = errors.Join(
		pem.Encode(&keyStore, &pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		pem.Encode(&keyStore, &pem.Block{Type: "CERTIFICATE", Bytes: own.Certificate[0]}),
		pem.Encode(&trustStore, &pem.Block{Type: "CERTIFICATE", Bytes: a.root.Raw}),
	)
	keyFile, trustFile := filepath.Join(dir, "server.pem"), filepath.Join(dir, "root.pem")
	return map[string]string{
			"serverCnxnFactory":       "org.apache.zookeeper.server.NettyServerCnxnFactory",
			"ssl.keyStore.location":   keyFile,
			"ssl.trustStore.location": trustFile,
		}, errors.Join(err,
			os.WriteFile(keyFile, keyStore.Bytes(), 0o600),
			os.WriteFile(trustFile, trustStore.Bytes(), 0o600))
}
