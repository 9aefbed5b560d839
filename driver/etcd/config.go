package etcd

// This file has the configuration of a connector.

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/lockpool/lockpool/driver"
)

// Config says how to connect to etcd.
type Config struct {
	// Endpoints are the addresses of members for clients, as host:port, or as host if the
	// port is 2379. They are tried in random order.
	Endpoints []string

	// Prefix is put before the names of all keys, with a slash after it. The default is
	// "lockpool".
	Prefix string

	// TTL is the session timeout: after so much silence, the servers remove the keys of a
	// session. TTL is a whole number of seconds from 2 to 300; the default is 15. Servers
	// may wait longer.
	TTL time.Duration

	// TLS is the configuration for connections, or nil for connections without TLS.
	TLS *tls.Config

	// Username and Password authenticate the sessions, if required by the servers.
	Username, Password string

	// Dial, if not nil, opens connections. The context ends after a quarter of the TTL.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}

const (
	defaultPort   = "2379"
	defaultPrefix = "lockpool"
	defaultTTL    = 15 * time.Second
	minTTL        = 2 * time.Second
	maxTTL        = 300 * time.Second // above, a lease may lose what has been prolonged: see lease
)

// Format implements fmt.Formatter for every verb, without the password.
func (c Config) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "etcd %s/%s", strings.Join(c.Endpoints, ","), c.Prefix)
}

// MarshalText keeps the password out of JSON and logs.
func (c Config) MarshalText() ([]byte, error) { return fmt.Append(nil, c), nil }

// ParseDSN parses a connect string: host1:2379,host2:2379/prefix?ttl=15s. The ports, the
// prefix and the parameter may be missing. Credentials and TLS need a Config.
func ParseDSN(dsn string) (Config, error) {
	rest, query, _ := strings.Cut(dsn, "?")
	if strings.Contains(rest, "@") {
		return Config{}, errors.New("etcd: a connect string has no place for credentials: use Config.Username and Config.Password")
	}
	hosts, prefix, hasPrefix := strings.Cut(rest, "/")
	if strings.Contains(rest, "://") {
		return Config{}, errors.New("etcd: a connect string begins with host:port, without a scheme; TLS needs Config.TLS")
	}
	cfg := Config{Endpoints: strings.Split(hosts, ",")}
	if hasPrefix {
		if cfg.Prefix = prefix; prefix == "" {
			return Config{}, errors.New("etcd: the prefix after the slash is empty")
		}
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return Config{}, errors.New("etcd: the parameters after ? cannot be parsed")
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		v := values[name]
		switch {
		case name != "ttl":
			return Config{}, fmt.Errorf("etcd: unknown parameter %q; there is only ttl, and all else needs a Config", name)
		case len(v) != 1:
			return Config{}, errors.New("etcd: ttl is given more than once")
		}
		if cfg.TTL, err = time.ParseDuration(v[0]); err != nil {
			return Config{}, fmt.Errorf("etcd: ttl=%q is no duration such as 15s", v[0])
		}
		if cfg.TTL == 0 {
			return Config{}, errTTL(0)
		}
	}
	err = cfg.check()
	return cfg, err
}

func errTTL(d time.Duration) error {
	return fmt.Errorf("etcd: the session timeout %v is not a whole number of seconds from %v to %v", d, minTTL, maxTTL)
}

// check checks and completes the configuration.
func (c *Config) check() error {
	if c.Prefix == "" {
		c.Prefix = defaultPrefix
	}
	if c.TTL == 0 {
		c.TTL = defaultTTL
	}
	switch {
	case len(c.Endpoints) == 0:
		return errors.New("etcd: there is no endpoint: give at least one host:port")
	case c.TTL < minTTL || c.TTL > maxTTL || c.TTL%time.Second != 0:
		return errTTL(c.TTL)
	case (c.Username == "") != (c.Password == ""):
		return errors.New("etcd: a user needs both a name and a password")
	}
	var endpoints []string
	for _, e := range c.Endpoints {
		host, port, err := net.SplitHostPort(e)
		if err != nil {
			host, port, err = net.SplitHostPort(e + ":" + defaultPort)
		}
		n, bad := strconv.ParseUint(port, 10, 16)
		if err != nil || host == "" || strings.ContainsFunc(host, unicode.IsSpace) || bad != nil || n == 0 {
			return fmt.Errorf("etcd: the endpoint %q is not host or host:port", e)
		}
		if e = net.JoinHostPort(host, port); !slices.Contains(endpoints, e) {
			endpoints = append(endpoints, e)
		}
	}
	c.Endpoints = endpoints
	if err := driver.CheckName(c.Prefix + "/lock"); err != nil {
		return fmt.Errorf("etcd: the prefix %q is not possible: %w", c.Prefix, err)
	}
	return nil
}

func init() { driver.Register("etcd", etcdDriver{}) }

type etcdDriver struct{}

// OpenConnector implements driver.Driver.
func (etcdDriver) OpenConnector(dsn string) (driver.Connector, error) {
	cfg, err := ParseDSN(dsn)
	if err != nil {
		return nil, err
	}
	return NewConnector(cfg)
}

// Connector opens sessions with one configuration.
type Connector struct {
	cfg    func() Config // a function: no format can print the password
	prefix string        // with a slash at the end
}

// NewConnector returns a connector. It sends nothing.
func NewConnector(cfg Config) (*Connector, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	return &Connector{func() Config { return cfg }, cfg.Prefix + "/"}, nil
}

// DriverName implements driver.Connector.
func (*Connector) DriverName() string { return "etcd" }
