package main

// This file opens a pool from the flags and the environment.

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
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
	"github.com/lockpool/lockpool/driver/zookeeper"
)

// connection is the flags for reaching the service.
type connection struct {
	driver, server  string
	credentialsFile string
	sessionTimeout  time.Duration
	tls             bool
	ca, cert, key   string
	serverName      string

	log io.Writer // of warnings; nil is stderr
}

func (c *connection) register(flags *pflag.FlagSet) {
	flags.StringVar(&c.driver, "driver", "zookeeper", "driver of the service: "+strings.Join(driver.Drivers(), ", "))
	flags.StringVar(&c.server, "server", "", "connect `string`, such as zk1:2181,zk2:2181/locks (default $LOCKPOOL_SERVER)")
	flags.StringVar(&c.credentialsFile, "credentials-file", "", "`file` with user:password (default: the text in $LOCKPOOL_CREDENTIALS)")
	flags.DurationVar(&c.sessionTimeout, "session-timeout", 0, "time after which a crashed holder's locks come free (default 15s)")
	flags.BoolVar(&c.tls, "tls", false, "connect with TLS; implied by the other --tls flags")
	flags.StringVar(&c.ca, "tls-ca", "", "PEM `file` of the authorities that servers must be certified by (default: the system's)")
	flags.StringVar(&c.cert, "tls-cert", "", "PEM `file` of the client's certificate")
	flags.StringVar(&c.key, "tls-key", "", "PEM `file` of its private key")
	flags.StringVar(&c.serverName, "tls-server-name", "", "`name` in the servers' certificate (default: that in the connect string)")
}

// open returns a pool for the flags, connected on first use. The pool's warnings go to
// c.log.
func (c *connection) open(opts ...lockpool.Option) (*lockpool.Pool, error) {
	cfg, err := c.config()
	if err != nil {
		return nil, &failure{misuse, err}
	}
	connector, err := zookeeper.NewConnector(cfg)
	if err != nil {
		return nil, &failure{misuse, err}
	}
	return lockpool.OpenConnector(connector, append([]lockpool.Option{lockpool.WithLogger(cfg.Logger)}, opts...)...)
}

// visit is open for commands without locks, reporting errors themselves.
func (c *connection) visit() (*lockpool.Pool, error) {
	c.log = io.Discard
	return c.open(lockpool.WithMaxSessions(1))
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

// config returns the configuration of the ZooKeeper driver, the only one there is.
func (c *connection) config() (cfg zookeeper.Config, err error) {
	if c.driver != "zookeeper" {
		return cfg, fmt.Errorf("there is no driver %q; use --driver with one of: %s", c.driver, strings.Join(driver.Drivers(), ", "))
	}
	server := c.server
	switch {
	case strings.Contains(server, "digest=") || strings.Contains(server, "@"):
		return cfg, fmt.Errorf("--server contains a password, which other users of this machine can read in the list of processes; write user:password into a file for --credentials-file, or into LOCKPOOL_CREDENTIALS")
	case server == "":
		server = os.Getenv("LOCKPOOL_SERVER")
	}
	if server == "" {
		return cfg, fmt.Errorf("no server is given; set --server or LOCKPOOL_SERVER, for example to zk1:2181,zk2:2181/locks")
	}
	if cfg, err = zookeeper.ParseDSN(server); err != nil {
		return cfg, err
	}
	if c.sessionTimeout != 0 {
		cfg.SessionTimeout = c.sessionTimeout
	}
	if credentials, err := c.credentials(); err != nil {
		return cfg, err
	} else if credentials != (zookeeper.Digest{}) {
		cfg.Digest = credentials
		cfg.ACL = nil // the user's, unlike the ACL chosen by ParseDSN
	}
	cfg.TLS, err = c.tlsConfig()
	log := c.log
	if log == nil {
		log = os.Stderr
	}
	cfg.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	return cfg, err
}

// credentials returns the credentials from the file or the environment, if any. Errors do
// not repeat them.
func (c *connection) credentials() (d zookeeper.Digest, err error) {
	text, from := []byte(os.Getenv("LOCKPOOL_CREDENTIALS")), "LOCKPOOL_CREDENTIALS"
	if c.credentialsFile != "" {
		from = c.credentialsFile
		if text, err = os.ReadFile(from); err != nil {
			return d, err
		}
	} else if len(text) == 0 {
		return d, nil
	}
	user, password, ok := bytes.Cut(bytes.TrimRight(text, "\r\n"), []byte(":"))
	if !ok || len(user) == 0 || len(password) == 0 || bytes.ContainsAny(password, "\r\n") {
		return d, fmt.Errorf("%s does not contain user:password in one line", from)
	}
	return zookeeper.Digest{User: string(user), Password: string(password)}, nil
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
