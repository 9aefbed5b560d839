package zookeeper

// This file registers the driver, and has the Connector.

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/znode"
)

func init() { driver.Register("zookeeper", zookeeperDriver{}) }

type zookeeperDriver struct{}

// OpenConnector implements driver.Driver.
func (zookeeperDriver) OpenConnector(dsn string) (driver.Connector, error) {
	cfg, err := ParseDSN(dsn)
	if err != nil {
		return nil, err
	}
	return NewConnector(cfg)
}

// Connector opens sessions on one ensemble. It implements driver.Connector.
type Connector struct{ settings }

// settings is a checked Config, and the state shared by the connector's sessions. The
// secrets are behind functions, out of reach of any formatting of a value.
type settings struct {
	cfg  Config // without secrets
	auth func() []byte
	tls  func() *tls.Config

	log    *asyncHandler // of cfg.Logger
	outage *outage

	lookup      func(ctx context.Context, host string) ([]net.IPAddr, error)
	lastGoodIP  *sync.Map     // by server: the last address to open a session
	openTimeout *atomic.Int64 // how long a server is given to open a session

	claims   *claimRegistry // of plain locks
	numbered *numbered      // below queues

	warnShortTimeout *sync.Once
	warnKeeper       *sync.Once

	abandoned *sync.WaitGroup // calls of Connect, and the sessions not returned by Connect, until closed
	giveUp    context.Context // ends when Close waits no longer for servers
	close     context.CancelFunc
}

// NewConnector checks and copies cfg. It never dials.
func NewConnector(cfg Config) (*Connector, error) {
	cfg, err := cfg.normalized()
	if err != nil {
		return nil, err
	}
	digest, tlsConfig := cfg.Digest, cfg.TLS
	cfg.Digest.Password, cfg.TLS = "", nil
	log := &asyncHandler{to: cfg.Logger.Handler()}
	cfg.Logger = slog.New(log)
	set := settings{
		cfg:              cfg,
		log:              log,
		outage:           newOutage(cfg),
		lookup:           net.DefaultResolver.LookupIPAddr,
		claims:           &processClaims,
		numbered:         newNumbered(),
		lastGoodIP:       new(sync.Map),
		openTimeout:      new(atomic.Int64),
		warnShortTimeout: new(sync.Once),
		warnKeeper:       new(sync.Once),
		abandoned:        new(sync.WaitGroup),
	}
	if cfg.Dial != nil {
		set.claims = new(claimRegistry)
	}
	set.openTimeout.Store(int64(set.minOpenTimeout()))
	set.giveUp, set.close = context.WithCancel(context.Background())
	if digest != (Digest{}) {
		set.auth = func() []byte { return []byte(digest.User + ":" + digest.Password) }
	}
	if tlsConfig != nil {
		set.tls = tlsConfig.Clone
	}
	return &Connector{set}, nil
}

// DriverName implements driver.Connector.
func (c *Connector) DriverName() string { return "zookeeper" }

// IsContender implements driver.Connector.
func (c *Connector) IsContender(node string) bool {
	plain := strings.HasPrefix(node, znode.ForeignPlainPrefix) || strings.HasPrefix(node, znode.GUIDPrefix) && len(node) == len(znode.GUIDPrefix)+znode.GUIDLength
	return (znode.IsContender(node) || plain) && !strings.Contains(node, "/")
}

// Connect implements driver.Connector. It tries every address of every server once, and
// fails with the last error if no server opens a session. A server has an eighth of the
// session timeout to answer, but at least a second; the time doubles after each Connect
// with an unanswered attempt, up to the whole timeout.
func (c *Connector) Connect(ctx context.Context) (driver.Session, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c.abandoned.Add(1) // what Connect leaves behind begins before Connect returns, or Close might not wait
	defer c.abandoned.Done()
	return connect(ctx, c.settings)
}

// Close waits until nothing is left running of sessions not established or established too
// late, for at most a few seconds. The pool calls Close when closed.
func (c *Connector) Close() error {
	const (
		closeTimeout = 500 * time.Millisecond
		logTimeout   = 2 * time.Second // for a slow handler
	)
	defer time.AfterFunc(closeTimeout, c.close).Stop()
	c.abandoned.Wait()
	c.close()
	c.outage.close()
	c.log.flush(logTimeout)
	return nil
}
