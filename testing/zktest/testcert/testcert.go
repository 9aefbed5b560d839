// Package testcert issues certificates for the servers and clients of tests.
package testcert

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Authority issues certificates, all trusting each other.
type Authority struct {
	key  *ecdsa.PrivateKey
	root *x509.Certificate
}

// New returns an authority with the name.
func New(name string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := certificate(name)
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	root, err := x509.ParseCertificate(der)
	return &Authority{key, root}, err
}

func certificate(name string) *x509.Certificate {
	return &x509.Certificate{
		Subject:   pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature,
	}
}

// issue issues a certificate.
func (a *Authority) issue(template *x509.Certificate, uses ...x509.ExtKeyUsage) (tls.Certificate, error) {
	template.ExtKeyUsage = uses
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.root, &key.PublicKey, a.key)
	return tls.Certificate{Certificate: [][]byte{der, a.root.Raw}, PrivateKey: key}, err
}

// Client returns the configuration of a client trusting the servers, with a certificate.
func (a *Authority) Client() (*tls.Config, error) {
	own, err := a.issue(certificate("client"), x509.ExtKeyUsageClientAuth)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(a.root)
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{own}}, nil
}

// WriteServer writes two files into dir, in PEM: the key and the certificate of a server at
// the addresses, and the root trusted by the server.
func (a *Authority) WriteServer(dir string, addresses ...string) (ownFile, rootFile string, err error) {
	template := certificate(addresses[0])
	template.DNSNames = []string{"localhost"}
	for _, address := range addresses {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(address))
	}
	// etcd's servers are clients of themselves.
	own, err := a.issue(template, x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth)
	if err != nil {
		return "", "", err
	}
	key, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	if err != nil {
		return "", "", err
	}
	keyStore := append(block("PRIVATE KEY", key), block("CERTIFICATE", own.Certificate[0])...)
	ownFile, rootFile = filepath.Join(dir, "server.pem"), filepath.Join(dir, "root.pem")
	return ownFile, rootFile, errors.Join(
		os.WriteFile(ownFile, keyStore, 0o600),
		os.WriteFile(rootFile, block("CERTIFICATE", a.root.Raw), 0o600))
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
