package zookeeper

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
)

const (
	defaultPort = "2181"

	// DefaultSessionTimeout is long enough for sessions to survive the election of a
	// new leader. In return, the locks of a crashed process stay held for as long.
	DefaultSessionTimeout = 15 * time.Second

	// DefaultMaxPacket is ZooKeeper's own default (jute.maxbuffer), enough for
	// a queue of about 19,000 contenders.
	DefaultMaxPacket = 1 << 20
)

// Config configures the connections to an ensemble. Only Servers is required;
// zero values mean the defaults.
//
// A Config holds secrets. They are left out however it is formatted.
type Config struct {
	// Servers are host:port addresses. Names are resolved for every connection,
	// and each address of a name is tried; if a name cannot be resolved, the
	// address that last worked is used. The port defaults to 2181.
	Servers []string

	// Chroot is the path of the node that contains all locks, such as "/locks". It
	// is created on demand. The default is the root.
	Chroot string

	// Layout names the nodes of locks. The default is LayoutCurator.
	Layout Layout

	// SessionTimeout is requested from the server, which by default keeps it
	// between 2 and 20 of its ticks. It is how long the locks of a crashed process
	// stay held. The default is DefaultSessionTimeout.
	SessionTimeout time.Duration

	// MaxPacket is the size in bytes of the largest reply that is accepted. A longer
	// listing of a queue is an error. The default is DefaultMaxPacket.
	MaxPacket int

	// Digest, if set, is the user for authentication with ZooKeeper's digest scheme.
	// Then only that user has access to the nodes created, unless ACL is set.
	Digest Digest

	// ACL is given to every node created. The default is open to the world, or
	// with Digest to that user only.
	ACL []zk.ACL

	// TLS, if set, encrypts all connections. The server's name is taken from
	// Servers unless set here.
	TLS *tls.Config

	// Logger receives messages for operators, and at debug level those of the
	// ZooKeeper client. Its handler is called on a goroutine of its own, in order;
	// if it is so slow that 1000 records wait, further ones are left out.
	// The default is slog.Default().
	Logger *slog.Logger
}

// Digest is a user and password for ZooKeeper's digest scheme. The password is left
// out however a Digest is formatted.
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

// Format implements fmt.Formatter for every verb. It prints the connect string
// without its secrets.
func (c Config) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "%s%s?session_timeout=%s", strings.Join(c.Servers, ","), c.Chroot, c.SessionTimeout)
}

// MarshalText keeps secrets out of JSON and logs.
func (c Config) MarshalText() ([]byte, error) { return fmt.Append(nil, c), nil }

// ParseDSN parses ZooKeeper's connect string with parameters:
//
//	host1:2181,host2:2181,[::1]:2181/chroot?session_timeout=10s
//
// Ports default to 2181. The parameters, percent-encoded, are:
//
//	session_timeout  requested from the server; a duration such as 10s (default 15s)
//	layout           curator (default), curator-rw, kazoo or kazoo-rw; see [Layout]
//	max_packet       size of the largest reply accepted, in bytes (default 1048576)
//	digest           user:password for digest authentication
//
// An error names the part that is wrong, and contains no password.
func ParseDSN(dsn string) (Config, error) {
	address, query, _ := strings.Cut(dsn, "?")
	hosts, chroot, rooted := strings.Cut(address, "/")
	if rooted {
		chroot = "/" + chroot
	}
	// Errors repeat nothing that may be part of a password, even if it is in the
	// wrong place or not percent-encoded.
	if at := strings.Index(dsn, "@"); at >= 0 && (at < len(address) || !strings.Contains(dsn[:at], "digest")) {
		return Config{}, errors.New(`zookeeper: "@" in the connect string: give credentials as ?digest=user:password`)
	}
	if strings.ContainsAny(hosts, "=&") || strings.Contains(chroot, "digest=") {
		return Config{}, errors.New(`zookeeper: parameters without a "?" before them: host1,host2/chroot?digest=user:password`)
	}
	if scheme, _, ok := strings.Cut(address, "://"); ok {
		return Config{}, fmt.Errorf("zookeeper: the connect string starts with the hosts, without %q", scheme+"://")
	}
	cfg := Config{Servers: strings.Split(hosts, ","), Chroot: chroot}
	seen := map[string]bool{}
	for parameter := range strings.SplitSeq(query, "&") {
		if parameter == "" {
			continue
		}
		key, raw, assigned := strings.Cut(parameter, "=")
		if known := slices.Contains(parameters, key); !known && seen["digest"] {
			return Config{}, errors.New(`zookeeper: the text after digest is not a parameter: in a password write & as %26 and % as %25`)
		} else if !known && !assigned {
			return Config{}, errors.New(`zookeeper: a parameter without "=": parameters are of the form name=value&name=value`)
		} else if !known {
			return Config{}, fmt.Errorf("zookeeper: unknown parameter %q; known are %s", safeToShow(key), strings.Join(parameters, ", "))
		}
		// PathUnescape, not QueryUnescape: a plus in a password is a plus.
		value, err := url.PathUnescape(raw)
		if err != nil {
			return Config{}, fmt.Errorf("zookeeper: parameter %q is not percent-encoded properly", key)
		}
		if seen[key] {
			return Config{}, fmt.Errorf("zookeeper: parameter %q is given twice", key)
		}
		if err := cfg.set(key, value); err != nil {
			if seen["digest"] { // the value may be the end of a password
				err = fmt.Errorf("zookeeper: the value of %s is not valid; if it belongs to a password, write & as %%26", key)
			}
			return Config{}, err
		}
		seen[key] = true
	}
	return cfg.normalized()
}

// parameters are the names of the parameters of a connect string.
var parameters = []string{"digest", "layout", "max_packet", "session_timeout"}

// safeToShow returns the beginning of s that looks like a name or a number. The rest
// may be another parameter, with a secret, that was not separated properly.
func safeToShow(s string) string {
	end := strings.IndexFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '.' || r == '_')
	})
	if end < 0 {
		return s
	}
	return s[:end] + "..."
}

func (c *Config) set(key, value string) error {
	switch key {
	case "session_timeout":
		d, err := time.ParseDuration(value)
		if err != nil || d <= 0 {
			return fmt.Errorf("zookeeper: session_timeout %q is not a positive duration such as 10s", safeToShow(value))
		}
		c.SessionTimeout = d
	case "layout":
		c.Layout = Layout(value)
		if _, ok := layouts[c.Layout]; !ok && value != "" {
			return unknownLayout(c.Layout)
		}
	case "max_packet":
		n, err := strconv.Atoi(value)
		if err != nil || n <= 0 {
			return fmt.Errorf("zookeeper: max_packet %q is not a positive number of bytes", safeToShow(value))
		}
		c.MaxPacket = n
	case "digest":
		user, password, ok := strings.Cut(value, ":")
		if !ok {
			return errors.New("zookeeper: digest is not of the form user:password")
		}
		c.Digest = Digest{user, password}
		if user == "" || password == "" {
			return errors.New("zookeeper: digest needs both a user and a password, user:password")
		}
	}
	return nil
}

func unknownLayout(l Layout) error {
	return fmt.Errorf("zookeeper: unknown layout %q; known are curator, curator-rw, kazoo and kazoo-rw", safeToShow(string(l)))
}

// normalized returns a checked copy with the defaults filled in.
func (c Config) normalized() (Config, error) {
	c.Servers = slices.Clone(c.Servers)
	c.ACL = slices.Clone(c.ACL)
	if len(c.Servers) == 0 {
		return Config{}, errors.New("zookeeper: no servers given; expected host:port")
	}
	for i, server := range c.Servers {
		address, err := parseServer(server)
		if err != nil {
			return Config{}, err
		}
		c.Servers[i] = address
	}
	c.Chroot = strings.TrimSuffix(c.Chroot, "/")
	if c.Chroot != "" {
		if !strings.HasPrefix(c.Chroot, "/") {
			return Config{}, fmt.Errorf("zookeeper: chroot %q does not begin with a slash", c.Chroot)
		}
		if err := checkPath(c.Chroot[1:]); err != nil {
			return Config{}, fmt.Errorf("zookeeper: chroot %q: %w", c.Chroot, err)
		}
	}
	if c.SessionTimeout == 0 {
		c.SessionTimeout = DefaultSessionTimeout
	}
	if c.SessionTimeout < time.Millisecond || c.SessionTimeout > 24*time.Hour {
		return Config{}, fmt.Errorf("zookeeper: session timeout %s is not between 1ms and 24h", c.SessionTimeout)
	}
	if c.Layout == "" {
		c.Layout = LayoutCurator
	}
	if _, ok := layouts[c.Layout]; !ok {
		return Config{}, unknownLayout(c.Layout)
	}
	if c.MaxPacket == 0 {
		c.MaxPacket = DefaultMaxPacket
	}
	if c.MaxPacket < 1<<10 || c.MaxPacket > 1<<30 {
		return Config{}, fmt.Errorf("zookeeper: max packet of %d bytes is not between 1 KiB and 1 GiB", c.MaxPacket)
	}
	if (c.Digest.User == "") != (c.Digest.Password == "") {
		return Config{}, errors.New("zookeeper: digest needs both a user and a password")
	}
	if strings.Contains(c.Digest.User, ":") {
		return Config{}, errors.New("zookeeper: the digest user contains a colon")
	}
	if len(c.ACL) == 0 {
		c.ACL = zk.WorldACL(zk.PermAll)
		if c.Digest != (Digest{}) {
			c.ACL = zk.AuthACL(zk.PermAll)
		}
	}
	if c.TLS != nil {
		c.TLS = c.TLS.Clone()
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, nil
}

// parseServer returns server as host:port, with an IPv6 address in brackets.
func parseServer(server string) (string, error) {
	malformed := func(why string) (string, error) {
		return "", fmt.Errorf("zookeeper: malformed host %q: %s", server, why)
	}
	if strings.Contains(server, "@") {
		// The text before it may be a password: do not repeat it.
		return "", errors.New(`zookeeper: malformed host: "@" in it`)
	}
	if strings.ContainsAny(server, " \t\r\n") {
		return malformed("white space in it")
	}
	host, port := server, defaultPort
	if i := strings.LastIndexByte(server, ':'); i > strings.LastIndexByte(server, ']') {
		host, port = server[:i], server[i+1:]
	}
	if strings.Contains(host, ":") && !strings.HasPrefix(host, "[") {
		return malformed("an IPv6 address is written [address] or [address]:port")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return malformed("the port is not a number from 1 to 65535")
	}
	bracketed := strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]")
	if bracketed {
		host = host[1 : len(host)-1]
	}
	if host == "" {
		return malformed("the name is empty")
	}
	switch ip := net.ParseIP(host); {
	case ip != nil && (ip.To4() == nil || !bracketed):
	case bracketed:
		return malformed("the text in brackets is not an IPv6 address")
	case strings.ContainsFunc(host, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '.' || r == '_')
	}):
		return malformed("a name has only letters, digits, dots, hyphens and underscores")
	}
	return net.JoinHostPort(host, port), nil
}
