//go:build unix

package main

// This file tests how the command connects: errors, help, credentials and TLS.

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestErrorsAreOneLineThatSaysWhatToDo(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte("no credentials\n"), 0o600))
	for _, test := range []struct {
		args string
		env  string
		says string
	}{
		{"run", "", "lockpool run --help"},
		{"nonsense", "", "lockpool --help"},
		{"run --nonsense", "", "lockpool --help"},
		{"run name true", "", "--"},
		{"run --shared --permits 1/2 name -- true", "", "permits shared"},
		{"run --permits 2/1 name -- true", "", "such as 1/3"},
		{"run --grace 5s name -- true", "", "raise --session-timeout"},
		{"run --timeout -1s name -- true", "", "negative"},
		{"run --max-hold -1s name -- true", "", "negative"},
		{"run name -- true", "LOCKPOOL_SERVER=", "set --server or LOCKPOOL_SERVER"},
		{"run --server consul://host name -- true", "", "zookeeper:// (or no scheme) and etcd://"},
		{"run --server etcd:///locks name -- true", "", "is not host or host:port"},
		{"run --server etcd://host --session-timeout 1500ms name -- true", "", "whole number of seconds"},
		{"run name -- true", "LOCKPOOL_SERVER=etcd://me:secret@host", "--credentials-file"},
		{"run --server zk1?digest=me:secret name -- true", "", "--credentials-file"},
		{"run --server me:secret@zk1 name -- true", "", "--credentials-file"},
		{"run --credentials-file " + file + " name -- true", "", "user:password"},
		{"run --credentials-file /nonexistent name -- true", "", "no such file"},
		{"run name -- true", "LOCKPOOL_CREDENTIALS=secret", "user:password"},
		{"run --tls-ca " + file + " name -- true", "", "no certificate"},
		{"run --tls-cert " + file + " name -- true", "", "--tls-key"},
		{"run a//b -- true", "", "invalid lock name"},
	} {
		t.Run(test.args+test.env, func(t *testing.T) {
			p := s.command(strings.Fields(test.args)...)
			p.Env = append(p.Env, test.env)
			require.Equal(t, 118, p.start().code())
			text := p.stderr.String()
			require.Contains(t, text, test.says)
			require.Equal(t, 1, strings.Count(text, "\n"), text)
			require.NotContains(t, text, "secret")
			require.Empty(t, p.stdout.String())
		})
	}
}

func TestHelpManualAndCompletion(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	help := s.prints("run", "--help")
	require.Contains(t, help, "--exit-lost")
	require.NotContains(t, help, "guard")
	require.Regexp(t, `^lockpool version \S+\n$`, s.prints("--version"))

	dir := filepath.Join(t.TempDir(), "man1")
	s.prints("man", dir)
	page, err := os.ReadFile(filepath.Join(dir, "lockpool-run.1"))
	require.NoError(t, err)
	require.Contains(t, string(page), "LOCKPOOL_TOKEN")

	require.Contains(t, s.prints("completion", "bash"), "__start_lockpool")
	s.contend(s.Dial())
	completed := func(args ...string) string {
		stdout, _ := s.run(0, append([]string{"__complete"}, args...)...)
		return stdout
	}
	require.Equal(t, "orders/42\n:4\n", completed("break", "or"))
	require.Equal(t, "orders/42\n:4\n", completed("show", "orders/"))
	require.Equal(t, ":4\n", completed("run", "--server", "127.0.0.1:1", "or"))
}

func TestCredentialsProtectTheLock(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	file := filepath.Join(t.TempDir(), "credentials")
	require.NoError(t, os.WriteFile(file, []byte("me:secret\n"), 0o600))
	require.NoError(t, s.Admin.AddAuth("digest", []byte("me:secret")))
	s.holder("--credentials-file", file, "job")
	acl, _, err := s.Admin.GetACL(s.Chroot + "/job/" + s.Children("job")[0])
	require.NoError(t, err)
	require.Equal(t, "digest", acl[0].Scheme)

	// Another user may not even see the queue.
	s.says(119, "LOCKPOOL_CREDENTIALS", "run", "--try", "job", "--", "true")
	s.env = append(s.env, "LOCKPOOL_CREDENTIALS=me:secret")
	s.run(116, "run", "--try", "job", "--", "true")
}

func TestTLS(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return path
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"zk.example"},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	cert, private := write("cert.pem", "CERTIFICATE", der), write("key.pem", "PRIVATE KEY", keyDER)

	// A server with TLS, demanding a client certificate: a tunnel to the other one.
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: pool,
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() { // ends with the listener
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", s.Addr)
			if err != nil {
				_ = client.Close()
				continue
			}
			go func() { _, _ = io.Copy(server, client); _ = server.Close() }() // both end with the connection
			go func() { _, _ = io.Copy(client, server); _ = client.Close() }()
		}
	}()
	server := "--server=" + listener.Addr().String() + s.Chroot
	options := []string{server, "--tls-ca", cert, "--tls-cert", cert, "--tls-key", private, "--tls-server-name", "zk.example"}
	require.Equal(t, "hi\n", s.prints(slices.Concat([]string{"run"}, options, []string{"job", "--", "echo", "hi"})...))
	require.Contains(t, s.prints(append([]string{"doctor"}, options...)...), "standalone", "the answer to srvr")
	s.says(119, "certificate", "run", server, "--tls", "--timeout", "5s", "job", "--", "echo", "hi")
}
