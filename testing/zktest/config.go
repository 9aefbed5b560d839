package zktest

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"
)

// Option changes how the embedded server is started.
type Option interface{ embedded(*config) error }

// CommonOption is for both the embedded server and real ones.
type CommonOption interface {
	Option
	RealOption
}

type option func(*config) error

func (o option) embedded(c *config) error { return o(c) }

// both is an option that real servers have under another name.
type commonOption struct {
	option
	realOption
}

func property(key, value string) realOption {
	return func(c *realConfig) { c.properties[key] = value }
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// config holds what options set. Its zero durations are filled in afterwards.
type config struct {
	addr                   string
	members                int
	tick                   time.Duration
	minTimeout, maxTimeout time.Duration
	maxClientConns         int
	maxFrame               int
	containerInterval      time.Duration
	extendedTypes          bool
	strictExistsACL        bool
	whitelist              map[string]bool // nil: all
	super                  identity
	manualClock            bool
	seed                   uint64
	firstZxid              int64
	log                    *slog.Logger
}

func newConfig(opts []Option) (config, error) {
	c := config{
		members:           1,
		tick:              500 * time.Millisecond,
		maxTimeout:        40 * time.Second,
		maxClientConns:    60,
		maxFrame:          0xfffff,
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
		return c, fmt.Errorf("zktest: the least session timeout, %v, is above the largest, %v: change SessionTimeouts or TickTime", c.minTimeout, c.maxTimeout)
	}
	return c, nil
}

// Addr lets the server listen on an address of this machine's loopback
// interface, such as 127.0.0.1:2181, rather than on a free port. Other
// addresses are refused: this server is not for other machines.
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
			return fmt.Errorf("the address %q has no port from 0 (any) to 65535", addr)
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
			return fmt.Errorf("a tick takes at least 1 ms, not %v", d)
		}
		return nil
	}, property("tickTime", milliseconds(d))}
}

// Members gives the server n addresses instead of one, to clients the servers
// of an ensemble. See [Server.Lag] for what tells them apart.
func Members(n int) Option {
	return option(func(c *config) error {
		if n < 1 {
			return fmt.Errorf("there can not be %d members", n)
		}
		c.members = n
		return nil
	})
}

// SessionTimeouts sets the bounds of what clients can negotiate. The default
// is 2 ticks to 40 s.
func SessionTimeouts(least, largest time.Duration) CommonOption {
	return commonOption{func(c *config) error {
		if least <= 0 {
			return fmt.Errorf("the least session timeout must be positive, not %v", least)
		}
		c.minTimeout, c.maxTimeout = least, largest
		return nil
	}, func(c *realConfig) {
		c.properties["minSessionTimeout"], c.properties["maxSessionTimeout"] = milliseconds(least), milliseconds(largest)
	}}
}

// MaxClientConns sets how many connections there can be from one client
// address, 0 for any number. The default is ZooKeeper's, 60. What is above it
// is closed as soon as it is accepted.
func MaxClientConns(n int) CommonOption {
	return commonOption{func(c *config) error {
		if n < 0 {
			return fmt.Errorf("there can not be %d connections", n)
		}
		c.maxClientConns = n
		return nil
	}, property("maxClientCnxns", strconv.Itoa(n))}
}

// MaxFrame sets the length in bytes of the largest packet that the server
// takes: ZooKeeper's jute.maxbuffer, by default 1,048,575.
func MaxFrame(bytes int) Option {
	return option(func(c *config) error {
		if bytes < 64 {
			return fmt.Errorf("with packets of at most %d bytes nobody can connect: use 64 or more", bytes)
		}
		c.maxFrame = bytes
		return nil
	})
}

// ContainerInterval sets how often empty containers and outdated TTL nodes are
// looked for. The default is ZooKeeper's minute. See also
// [Server.ReapContainers].
func ContainerInterval(d time.Duration) CommonOption {
	return commonOption{func(c *config) error {
		if d <= 0 {
			return fmt.Errorf("the container interval must be positive, not %v", d)
		}
		c.containerInterval = d
		return nil
	}, JVMFlags("-Dznode.container.checkIntervalMs="+milliseconds(d), "-Dznode.container.maxPerMinute=60000").(realOption)}
}

// ExtendedTypes allows TTL nodes, which ZooKeeper does not by default.
func ExtendedTypes() CommonOption {
	return commonOption{func(c *config) error { c.extendedTypes = true; return nil }, property("extendedTypesEnabled", "true")}
}

// StrictExistsACL makes exists need the permission READ, as since ZooKeeper
// 3.8.4.
func StrictExistsACL() Option {
	return option(func(c *config) error { c.strictExistsACL = true; return nil })
}

// SuperUser lets whoever authenticates with these credentials, "user:password",
// by the scheme digest do everything, whatever the ACLs say: what ZooKeeper has
// its superDigest for. The default is nobody.
func SuperUser(credentials string) CommonOption {
	super := digest(credentials)
	return commonOption{func(c *config) error {
		if user, password, _ := strings.Cut(credentials, ":"); user == "" || password == "" {
			return errors.New("the credentials of the super user are not user:password")
		}
		c.super = super
		return nil
	}, JVMFlags("-Dzookeeper.DigestAuthenticationProvider.superDigest=" + super.id).(realOption)}
}

// FourLetterWords allows only these commands. The default is all of them;
// ZooKeeper's is srvr.
func FourLetterWords(words ...string) CommonOption {
	return commonOption{func(c *config) error {
		c.whitelist = map[string]bool{}
		for _, w := range words {
			if _, ok := fourLetterCommands[w]; !ok {
				return fmt.Errorf("there is no four letter word %q", w)
			}
			c.whitelist[w] = true
		}
		return nil
	}, property("4lw.commands.whitelist", strings.Join(words, ","))}
}

// ManualClock stops the server's clock: it moves only by [Server.Advance], so
// that a session's end takes no time in a test. Clients' own clocks run on. A
// session whose client is there expires, too, when the clock is moved past its
// timeout in one go.
func ManualClock() Option {
	return option(func(c *config) error { c.manualClock = true; return nil })
}

// Seed sets the order in which children are listed. Like a real server, this one
// keeps to an order as long as no child comes or goes. The default is 1.
func Seed(seed uint64) Option {
	return option(func(c *config) error { c.seed = seed; return nil })
}

// FirstZxid sets the zxid that the server starts with. The default is 0.
func FirstZxid(zxid int64) Option {
	return option(func(c *config) error {
		if zxid < 0 {
			return errors.New("a zxid is not negative")
		}
		c.firstZxid = zxid
		return nil
	})
}

// Logger sets where the server logs that it is there, and that it is not for
// production. The default is [slog.Default] for Run, and
// nothing for Start.
func Logger(log *slog.Logger) Option {
	return option(func(c *config) error {
		if log == nil {
			return errors.New("the Logger is nil")
		}
		c.log = log
		return nil
	})
}
