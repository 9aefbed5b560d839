package zktest

// This file has the options of embedded servers.

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"
)

// maxMembers is how many members an ensemble can have.
const maxMembers = 15

// Option is an option of the embedded server.
type Option interface{ embedded(*config) error }

// CommonOption is an option of both embedded and real servers.
type CommonOption interface {
	Option
	RealOption
}

type option func(*config) error

func (o option) embedded(c *config) error { return o(c) }

// commonOption is a CommonOption: an option for each kind of server.
type commonOption struct {
	option
	realOption
}

func property(key, value string) realOption {
	return func(c *realConfig) { c.properties[key] = value }
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// config holds the options of an embedded server.
type config struct {
	addr                   string
	inMemory               bool
	members                int
	tick                   time.Duration
	minTimeout, maxTimeout time.Duration // minTimeout 0 becomes 2 ticks
	maxClientConns         int
	containerInterval      time.Duration
	extendedTypes          bool
	keeper                 bool            // differ as ClickHouse Keeper does
	whitelist              map[string]bool // of four letter commands; nil allows all
	super                  identity
	seed                   uint64
	log                    *slog.Logger
}

func newConfig(opts []Option) (config, error) {
	c := config{
		members:           1,
		tick:              500 * time.Millisecond,
		maxTimeout:        40 * time.Second,
		maxClientConns:    60,
		containerInterval: time.Minute,
		seed:              1,
		log:               slog.Default(),
	}
	for _, opt := range opts {
		if opt == nil {
			return c, errors.New("zktest: a nil Option was given")
		}
		if err := opt.embedded(&c); err != nil {
			return c, fmt.Errorf("zktest: %w", err)
		}
	}
	if c.minTimeout == 0 {
		c.minTimeout = 2 * c.tick
	}
	if c.minTimeout > c.maxTimeout {
		return c, fmt.Errorf("zktest: the minimum session timeout, %v, exceeds the maximum, %v: change SessionTimeouts or TickTime", c.minTimeout, c.maxTimeout)
	}
	return c, nil
}

// Addr makes the server listen on an address of the loopback interface, such as
// 127.0.0.1:2181, instead of a free port. Other addresses are an error: other
// machines must not reach this server.
func Addr(addr string) Option {
	return option(func(c *config) error {
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			return fmt.Errorf("the address %q is not host:port: %w", addr, err)
		}
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return fmt.Errorf("the address %q is not on the loopback interface: use 127.0.0.1:%s", addr, port)
		}
		if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
			return fmt.Errorf("the port of the address %q is not between 0 (any) and 65535", addr)
		}
		c.addr = addr
		return nil
	})
}

// TickTime sets ZooKeeper's tick, in whole milliseconds. The default is 500 ms.
// Unless [SessionTimeouts] says otherwise, servers grant session timeouts from
// 2 ticks to 40 s.
func TickTime(d time.Duration) CommonOption {
	return commonOption{func(c *config) error {
		if c.tick = d.Truncate(time.Millisecond); c.tick <= 0 {
			return fmt.Errorf("the tick %v is shorter than 1 ms", d)
		}
		return nil
	}, property("tickTime", milliseconds(d))}
}

// Members makes the server an ensemble of n members, each with a separate address. The last
// member leads at first. Without faults, all members have applied a write when the client
// gets the reply.
func Members(n int) Option {
	return option(func(c *config) error {
		if n < 1 {
			return fmt.Errorf("the number of members is %d, not positive", n)
		}
		if n > maxMembers {
			return fmt.Errorf("the number of members is %d: at most %d are possible", n, maxMembers)
		}
		c.members = n
		return nil
	})
}

// SessionTimeouts sets the bounds of the negotiable session timeouts. The default is 2
// ticks to 40 s.
func SessionTimeouts(minimum, maximum time.Duration) CommonOption {
	return commonOption{func(c *config) error {
		if minimum <= 0 {
			return fmt.Errorf("the minimum session timeout is %v, not positive", minimum)
		}
		c.minTimeout, c.maxTimeout = minimum, maximum
		return nil
	}, func(c *realConfig) {
		c.properties["minSessionTimeout"], c.properties["maxSessionTimeout"] = milliseconds(minimum), milliseconds(maximum)
	}}
}

// MaxClientConns limits the number of connections from one client address; 0
// means no limit. The default is ZooKeeper's, 60. Connections above the limit are
// closed as soon as they are accepted.
func MaxClientConns(n int) CommonOption {
	return commonOption{func(c *config) error {
		if n < 0 {
			return fmt.Errorf("the limit of connections is negative: %d", n)
		}
		c.maxClientConns = n
		return nil
	}, property("maxClientCnxns", strconv.Itoa(n))}
}

// ContainerInterval sets how often the server deletes empty containers and
// expired TTL nodes. The default is ZooKeeper's, a minute. See also
// [Server.ReapContainers].
func ContainerInterval(d time.Duration) CommonOption {
	return commonOption{func(c *config) error {
		if d <= 0 {
			return fmt.Errorf("the container interval is %v, not positive", d)
		}
		c.containerInterval = d
		return nil
	}, JVMFlags("-Dznode.container.checkIntervalMs="+milliseconds(d), "-Dznode.container.maxPerMinute=60000").(realOption)}
}

// ExtendedTypes allows TTL nodes, which ZooKeeper refuses by default.
func ExtendedTypes() CommonOption {
	return commonOption{func(c *config) error { c.extendedTypes = true; return nil }, property("extendedTypesEnabled", "true")}
}

// SuperUser sets the credentials, "user:password", of the super user: a client
// authenticated with them by the scheme digest has all permissions, regardless of ACLs,
// like ZooKeeper's superDigest. By default there is no super user.
func SuperUser(credentials string) CommonOption {
	super := digest(credentials)
	return commonOption{func(c *config) error {
		if user, password, _ := strings.Cut(credentials, ":"); user == "" || password == "" {
			return errors.New("the credentials of the super user do not have the form user:password")
		}
		c.super = super
		return nil
	}, JVMFlags("-Dzookeeper.DigestAuthenticationProvider.superDigest=" + super.id).(realOption)}
}

// FourLetterWords allows only the given four letter commands. By default all are allowed;
// ZooKeeper's own default is srvr. Real servers need conf and srvr.
func FourLetterWords(words ...string) CommonOption {
	return commonOption{func(c *config) error {
		c.whitelist = map[string]bool{}
		for _, w := range words {
			if _, ok := fourLetterCommands[w]; !ok {
				return fmt.Errorf("there is no four letter command %q", w)
			}
			c.whitelist[w] = true
		}
		return nil
	}, property("4lw.commands.whitelist", strings.Join(words, ","))}
}

// Seed determines the order in which children are listed. As on a real server,
// the order does not change while no child is created or deleted. The default is
// 1.
func Seed(seed uint64) Option {
	return option(func(c *config) error { c.seed = seed; return nil })
}

// Logger sets the logger. The server logs only its start, with a warning not to
// use it in production. The default is [slog.Default] for Run, and no logger for
// Start.
func Logger(log *slog.Logger) Option {
	return option(func(c *config) error {
		if log == nil {
			return errors.New("the Logger is nil")
		}
		c.log = log
		return nil
	})
}
