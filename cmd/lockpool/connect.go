package main

// This file opens a pool from the flags and the environment.

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/driver/etcd"
	"github.com/lockpool/lockpool/driver/zookeeper"
)

// connection is the flags for reaching the service.
type connection struct {
	server          string
	credentialsFile string
	sessionTimeout  time.Duration
	tls             bool
	ca, cert, key   string
	serverName      string

	log io.Writer // of warnings; nil is stderr
}

func (c *connection) register(flags *pflag.FlagSet) {
	flags.StringVar(&c.server, "server", "", "connect `string`, such as zk1:2181,zk2:2181/locks or etcd://host1:2379,host2:2379/locks (default $LOCKPOOL_SERVER)")
	flags.StringVar(&c.credentialsFile, "credentials-file", "", "`file` with user:password (default: the text in $LOCKPOOL_CREDENTIALS)")
	flags.DurationVar(&c.sessionTimeout, "session-timeout", 0, "time after which a crashed holder's locks come free (default 15s)")
	flags.BoolVar(&c.tls, "tls", false, "connect with TLS; implied by the other --tls flags")
	flags.StringVar(&c.ca, "tls-ca", "", "PEM `file` of the authorities that servers must be certified by (default: the system's)")
	flags.StringVar(&c.cert, "tls-cert", "", "PEM `file` of the client's certificate")
	flags.StringVar(&c.key, "tls-key", "", "PEM `file` of its private key")
	flags.StringVar(&c.serverName, "tls-server-name", "", "`name` in the servers' certificate (default: that in the connect string)")
}

// visit returns a pool, connected on first use, for commands without locks, which report
// errors themselves.
func (c *connection) visit() (*lockpool.Pool, error) {
	c.log = io.Discard
	s, err := c.service()
	if err != nil {
		return nil, err
	}
	return s.open(lockpool.WithMaxSessions(1))
}

// open returns a pool, connected on first use, with warnings for the service's logger.
func (s *service) open(opts ...lockpool.Option) (*lockpool.Pool, error) {
	return lockpool.OpenConnector(s.connector, append([]lockpool.Option{lockpool.WithLogger(s.logger)}, opts...)...)
}

// complete completes the name of a lock in the shell. Without an answer from the service, there
// is no completion.
func (c *connection) complete(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	pool, err := c.visit()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer pool.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	names, _ := pool.List(ctx, begun[:max(0, strings.LastIndexByte(begun, '/'))])
	return slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, begun) }), cobra.ShellCompDirectiveNoFileComp
}

// service is what a connect string names.
type service struct {
	connector driver.Connector
	timeout   time.Duration // of sessions
	logger    *slog.Logger
	examine   func(context.Context) report
	addresses func(context.Context) map[string]string // of clients, by session; nil if servers cannot tell
}

// service returns the service of the connect string. Nothing is sent.
func (c *connection) service() (*service, error) {
	s, err := c.parse()
	if err != nil {
		return nil, &failure{misuse, err}
	}
	return s, nil
}

func (c *connection) parse() (*service, error) {
	server := c.server
	switch {
	case strings.Contains(server, "digest=") || strings.Contains(server, "@"):
		return nil, errors.New("--server contains a password, which other users of this machine can read in the list of processes; write user:password into a file for --credentials-file, or into LOCKPOOL_CREDENTIALS")
	case server == "":
		server = os.Getenv("LOCKPOOL_SERVER")
	}
	if server == "" {
		return nil, errors.New("no server is given; set --server or LOCKPOOL_SERVER, for example to zk1:2181,zk2:2181/locks")
	}
	user, password, err := c.credentials()
	if err != nil {
		return nil, err
	}
	tls, err := c.tlsConfig()
	if err != nil {
		return nil, err
	}
	s := &service{logger: slog.New(slog.NewTextHandler(cmp.Or[io.Writer](c.log, os.Stderr), &slog.HandlerOptions{Level: slog.LevelWarn}))}
	if scheme, rest, ok := strings.Cut(server, "://"); ok && scheme == "etcd" {
		err = s.onEtcd(rest, c.sessionTimeout, user, password, tls)
	} else if ok && scheme != "zookeeper" {
		err = fmt.Errorf("the connect string begins with %q; there are zookeeper:// (or no scheme) and etcd://", scheme+"://")
	} else {
		err = s.onZooKeeper(strings.TrimPrefix(server, "zookeeper://"), c.sessionTimeout, user, password, tls)
	}
	return s, err
}

func (s *service) onZooKeeper(server string, timeout time.Duration, user, password string, tls *tls.Config) error {
	cfg, err := zookeeper.ParseDSN(server)
	if err != nil {
		return err
	}
	cfg.SessionTimeout, cfg.TLS, cfg.Logger = cmp.Or(timeout, cfg.SessionTimeout), tls, s.logger
	if user != "" {
		cfg.Digest = zookeeper.Digest{User: user, Password: password}
		cfg.ACL = nil // the user's, unlike the ACL chosen by ParseDSN
	}
	s.timeout = cfg.SessionTimeout
	s.examine = func(ctx context.Context) report { return examine(ctx, cfg) }
	s.addresses = func(ctx context.Context) map[string]string { return addressesOf(ctx, cfg) }
	s.connector, err = zookeeper.NewConnector(cfg)
	return err
}

func (s *service) onEtcd(server string, timeout time.Duration, user, password string, tls *tls.Config) error {
	if strings.Contains(server, "@") {
		return errors.New("the connect string contains a password; write user:password into a file for --credentials-file, or into LOCKPOOL_CREDENTIALS")
	}
	cfg, err := etcd.ParseDSN(server)
	if err != nil {
		return err
	}
	cfg.TTL, cfg.TLS, cfg.Username, cfg.Password = cmp.Or(timeout, cfg.TTL), tls, user, password
	s.timeout = cfg.TTL
	s.examine = func(ctx context.Context) report { return examineEtcd(ctx, cfg) }
	s.connector, err = etcd.NewConnector(cfg)
	return err
}

// credentials returns the credentials from the file or the environment, if any. Errors do
// not repeat them.
func (c *connection) credentials() (user, password string, err error) {
	text, from := []byte(os.Getenv("LOCKPOOL_CREDENTIALS")), "LOCKPOOL_CREDENTIALS"
	if c.credentialsFile != "" {
		from = c.credentialsFile
		if text, err = os.ReadFile(from); err != nil {
			return "", "", err
		}
	} else if len(text) == 0 {
		return "", "", nil
	}
	before, after, ok := bytes.Cut(bytes.TrimRight(text, "\r\n"), []byte(":"))
	if !ok || len(before) == 0 || len(after) == 0 || bytes.ContainsAny(after, "\r\n") {
		return "", "", fmt.Errorf("%s does not contain user:password in one line", from)
	}
	return string(before), string(after), nil
}

func (c *connection) tlsConfig() (*tls.Config, error) {
	if !c.tls && c.ca == "" && c.cert == "" && c.key == "" && c.serverName == "" {
		return nil, nil
	}
	cfg := &tls.Config{ServerName: c.serverName}
	if c.ca != "" {
		pem, err := os.ReadFile(c.ca)
		if err != nil {
			return nil, fmt.Errorf("--tls-ca: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--tls-ca: %s contains no certificate in PEM form", c.ca)
		}
	}
	if (c.cert == "") != (c.key == "") {
		return nil, fmt.Errorf("--tls-cert and --tls-key are given together, or not at all")
	}
	if c.cert != "" {
		pair, err := tls.LoadX509KeyPair(c.cert, c.key)
		if err != nil {
			return nil, fmt.Errorf("--tls-cert and --tls-key: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}
