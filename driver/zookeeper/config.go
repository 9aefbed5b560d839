package zookeeper

// This file has Config: the settings of the connections to an ensemble.

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool/driver"
)

const (
	// DefaultSessionTimeout is long enough for sessions to survive the election of a new
	// leader. In return, the locks of a crashed process stay held for as long.
	DefaultSessionTimeout = 15 * time.Second

	// DefaultMaxPacket is ZooKeeper's own default (jute.maxbuffer), enough for
	// a queue of about 19,000 contenders.
	DefaultMaxPacket = 1 << 20
)

// Config configures the connections to an ensemble. Only Servers is required;
// zero values mean the defaults.
//
// A Config holds secrets. Every format omits them.
type Config struct {
	// Servers are host:port addresses. Names are resolved for every connection, and each
	// address of a name is tried; if a name cannot be resolved, the last working address is
	// used. The port defaults to 2181.
	Servers []string

	// Chroot is the path of the node above all locks, such as "/locks". It is created on
	// demand. The default is the root.
	Chroot string

	// Layout names the nodes of locks. The default is LayoutCurator.
	Layout Layout

	// SessionTimeout is requested from the server. By default a server grants between 2 and
	// 20 ticks. The locks of a crashed process stay held for the timeout. A session without
	// answers ends after about half of the timeout, so that its locks end before others can
	// acquire them. The default is DefaultSessionTimeout.
	SessionTimeout time.Duration

	// MaxPacket is the size in bytes of the largest accepted reply. A longer listing of a
	// queue is an error. The default is DefaultMaxPacket.
	MaxPacket int

	// Digest, if set, is the user for authentication with ZooKeeper's digest scheme. Only
	// this user then has access to the nodes created, unless ACL is set.
	Digest Digest

	// ACL is given to every node created. By default nodes are open to the world or, with
	// Digest, to this user only.
	ACL []zk.ACL

	// Dial, if set, opens the connections, instead of a net.Dialer over TCP: through a
	// proxy, an SSH tunnel, or in memory. Dial is given an element of Servers, not
	// resolved, and must return when ctx ends. A connection must buffer 12 KiB not yet read
	// by the server without making the writer wait (net.Pipe does not).
	Dial func(ctx context.Context, address string) (net.Conn, error)

	// TLS, if set, encrypts all connections. The server's name is taken from
	// Servers unless set here.
	TLS *tls.Config

	// Logger receives messages for operators, and at debug level the messages of the
	// ZooKeeper client. The handler is called on a separate goroutine, in order; while 1000
	// records are waiting for a slow handler, further records are dropped. The default is
	// slog.Default().
	Logger *slog.Logger
}

// Digest is a user and password for ZooKeeper's digest scheme. The password is omitted
// however a Digest is formatted.
type Digest struct {
	User     string
	Password string
}

// Format implements fmt.Formatter for every verb.
func (d Digest) Format(f fmt.State, _ rune) {
	if d != (Digest{}) {
		fmt.Fprintf(f, "%s:(hidden)", d.User)
	}
}

// MarshalText keeps the password out of JSON and logs.
func (d Digest) MarshalText() ([]byte, error) { return fmt.Append(nil, d), nil }

// Format implements fmt.Formatter for every verb. It prints the connect string without
// secrets.
func (c Config) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "%s%s?session_timeout=%s", strings.Join(c.Servers, ","), c.Chroot, c.SessionTimeout)
}

// MarshalText keeps secrets out of JSON and logs.
func (c Config) MarshalText() ([]byte, error) { return fmt.Append(nil, c), nil }

// normalized returns a checked copy with the defaults filled in.
func (c Config) normalized() (Config, error) {
	c.Servers = slices.Clone(c.Servers)
	c.ACL = slices.Clone(c.ACL)
	c.Chroot = strings.TrimSuffix(c.Chroot, "/")
	c.SessionTimeout = cmp.Or(c.SessionTimeout, DefaultSessionTimeout)
	c.Layout = cmp.Or(c.Layout, LayoutCurator)
	c.MaxPacket = cmp.Or(c.MaxPacket, DefaultMaxPacket)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	if c.TLS != nil {
		c.TLS = c.TLS.Clone()
	}
	if len(c.ACL) == 0 {
		c.ACL = zk.WorldACL(zk.PermAll)
		if c.Digest != (Digest{}) {
			c.ACL = zk.AuthACL(zk.PermAll)
		}
	}
	for i, server := range c.Servers {
		address, err := parseServer(server)
		if err != nil {
			return Config{}, err
		}
		c.Servers[i] = address
	}
	if err := c.check(); err != nil {
		return Config{}, fmt.Errorf("zookeeper: %w", err)
	}
	return c, nil
}

// check returns an error for the first invalid field.
func (c Config) check() error {
	switch {
	case len(c.Servers) == 0:
		return errors.New("no servers given; expected host:port")
	case c.Chroot != "" && c.Chroot[0] != '/':
		return fmt.Errorf("chroot %q does not begin with a slash", c.Chroot)
	case c.SessionTimeout < time.Millisecond || c.SessionTimeout > 24*time.Hour:
		return fmt.Errorf("session timeout %s is not between 1ms and 24h", c.SessionTimeout)
	case c.MaxPacket < 1<<10 || c.MaxPacket > 1<<30:
		return fmt.Errorf("max packet of %d bytes is not between 1 KiB and 1 GiB", c.MaxPacket)
	case (c.Digest.User == "") != (c.Digest.Password == ""):
		return errors.New("digest needs both a user and a password")
	case strings.Contains(c.Digest.User, ":"):
		return errors.New("the digest user contains a colon")
	}
	if most := 509; len(c.Chroot) > most {
		return fmt.Errorf("chroot %q is longer than %d bytes", c.Chroot, most)
	}
	if c.Chroot != "" {
		within := "a" + c.Chroot + "/a" // the first and the last part may be any, unlike those of a lock's name
		if err := cmp.Or(driver.CheckName(within), checkCharacters(c.Chroot)); err != nil {
			return fmt.Errorf("chroot %q: %w", c.Chroot, err)
		}
	}
	if _, ok := layouts[c.Layout]; !ok {
		return unknownLayout(c.Layout)
	}
	return nil
}
