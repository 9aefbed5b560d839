package etcdtest

// This file starts members: in this process, and as processes of the installed command.

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
)

// startEmbedded starts a member in this process.
func startEmbedded(c *Cluster, m *member, cfg config) (stop func(), err error) {
	e := embed.NewConfig()
	e.Name, e.Dir = m.name, filepath.Join(m.dir, "data")
	e.LogLevel, e.LogOutputs = "fatal", []string{"/dev/null"}
	e.UnsafeNoFsync = true // the data is thrown away
	e.AuthTokenTTL = uint(cfg.tokenTTL / time.Second)
	e.BcryptCost = 4 // with the race detector, each step doubles a long time
	e.InitialCluster = c.initial()
	e.ListenPeerUrls, e.AdvertisePeerUrls = urls("http", m.peer), urls("http", m.peers.Addr())
	e.ListenClientUrls, e.AdvertiseClientUrls = urls("http", m.client), urls("http", m.clients.Addr())
	if cfg.tls != nil {
		e.ListenClientUrls, e.AdvertiseClientUrls = urls("https", m.client), urls("https", m.clients.Addr())
		own, root, err := cfg.tls.WriteServer(m.dir, m.host, "127.0.0.1")
		if err != nil {
			return nil, err
		}
		e.ClientTLSInfo = transport.TLSInfo{CertFile: own, KeyFile: own}
		if cfg.clientCerts {
			e.ClientTLSInfo.ClientCertAuth, e.ClientTLSInfo.TrustedCAFile = true, root
		}
	}
	server, err := embed.StartEtcd(e)
	if err != nil {
		return nil, err
	}
	return server.Close, nil
}

func urls(scheme, address string) []url.URL { return []url.URL{{Scheme: scheme, Host: address}} }

// guardScript runs a command until the script's input ends: when stop is called, or with
// the end of the starting process, for any reason.
const guardScript = `trap '' HUP INT QUIT TERM
"$@" </dev/null &
read -r line
kill -9 $!
wait $! 2>/dev/null`

// startInstalled starts a member as a process.
func startInstalled(c *Cluster, m *member, cfg config) (stop func(), err error) {
	etcd, err := exec.LookPath("etcd")
	if err != nil {
		return nil, fmt.Errorf("%w; make deps installs it", err)
	}
	args := []string{
		"-c", guardScript, "sh", etcd,
		"--name", m.name, "--data-dir", filepath.Join(m.dir, "data"), "--initial-cluster", c.initial(),
		"--listen-peer-urls", "http://" + m.peer, "--initial-advertise-peer-urls", "http://" + m.peers.Addr(),
		"--auth-token-ttl", fmt.Sprint(int(cfg.tokenTTL / time.Second)), "--logger", "zap", "--log-level", "error",
	}
	scheme := "http://"
	if cfg.tls != nil {
		scheme = "https://"
		own, root, err := cfg.tls.WriteServer(m.dir, m.host, "127.0.0.1")
		if err != nil {
			return nil, err
		}
		args = append(args, "--cert-file", own, "--key-file", own)
		if cfg.clientCerts {
			args = append(args, "--client-cert-auth", "--trusted-ca-file", root)
		}
	}
	args = append(args, "--listen-client-urls", scheme+m.client, "--advertise-client-urls", scheme+m.clients.Addr())
	out, err := os.Create(m.log())
	if err != nil {
		return nil, err
	}
	defer out.Close()
	server := exec.Command("sh", args...)
	server.Stdout, server.Stderr = out, out
	in, err := server.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := server.Start(); err != nil {
		return nil, errors.Join(err, in.Close())
	}
	return func() {
		_ = in.Close()
		_ = server.Wait() // killed
	}, nil
}
