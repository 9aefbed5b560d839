// Package etcdtest starts etcd servers for tests: the newest in this process, and, as an
// old version, the installed command etcd. The package is a separate module, because the
// servers have dependencies beyond the driver's.
package etcdtest

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/lockpool/lockpool/testing/zktest/testcert"
)

// Cluster is an etcd cluster. The members listen on loopback addresses, behind proxies able
// to cut them off.
type Cluster struct {
	members   []*member
	admin     *clientv3.Client // past the proxies
	clientTLS *tls.Config
}

type member struct {
	name, dir, host string
	client, peer    string // the addresses of the member
	id              string // as members tell each other
	stop            func()

	peers   *Proxy // what other members connect to
	clients *Proxy // for clients, in front of the relay
	relay   *Relay // with TLS, there is none
}

// Option changes how a cluster is started.
type Option func(*config)

type config struct {
	installed   bool
	tls         *testcert.Authority
	clientCerts bool
	tokenTTL    time.Duration
}

// Installed has the members be processes of the installed command etcd (Debian's is 3.4),
// and not the newest etcd in this process.
func Installed(c *config) { c.installed = true }

// TLS has the members serve clients with TLS, and demand client certificates, too, if
// clientCertificates is true. See [Cluster.ClientTLS].
func TLS(clientCertificates bool) Option {
	return func(c *config) {
		var err error
		if c.tls, err = testcert.New("etcdtest"); err != nil {
			panic(err) // there is no randomness
		}
		c.clientCerts = clientCertificates
	}
}

// TokenTTL has the servers forget a user's token after d without use. d is a whole number
// of seconds.
func TokenTTL(d time.Duration) Option { return func(c *config) { c.tokenTTL = d } }

// Start starts a cluster, to be stopped when the test ends.
func Start(t testing.TB, members int, opts ...Option) *Cluster {
	t.Helper()
	c, err := run(t.TempDir(), members, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.stop)
	return c
}

func run(dir string, members int, opts ...Option) (c *Cluster, err error) {
	cfg := config{tokenTTL: 5 * time.Minute}
	for _, o := range opts {
		o(&cfg)
	}
	c = &Cluster{members: make([]*member, members)}
	defer func() {
		if err != nil {
			c.stop()
			err = fmt.Errorf("etcdtest: starting a cluster of %d: %w", members, err)
		}
	}()
	endpoints := make([]string, members)
	for i := range c.members {
		// No other program has this loopback address, so the ports are free, and stay so.
		host := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
		m := &member{name: fmt.Sprint("m", i), dir: filepath.Join(dir, fmt.Sprint(i)), host: host, client: host + ":2379", peer: host + ":2380", stop: func() {}}
		c.members[i], endpoints[i] = m, m.client
		if err := os.Mkdir(m.dir, 0o700); err != nil {
			return c, err
		}
		if m.peers, err = NewProxy(m.peer, nil); err != nil {
			return c, err
		}
		front := m.client
		if cfg.tls == nil {
			if m.relay, err = newRelay(m.client); err != nil {
				return c, err
			}
			front = m.relay.Addr()
		}
		if m.clients, err = NewProxy(front, nil); err != nil {
			return c, err
		}
	}
	if cfg.tls != nil {
		if c.clientTLS, err = cfg.tls.Client(); err != nil {
			return c, err
		}
	}
	if c.admin, err = clientv3.New(clientv3.Config{Endpoints: endpoints, TLS: c.clientTLS, Logger: zap.NewNop()}); err != nil {
		return c, err
	}
	start := startEmbedded
	if cfg.installed {
		start = startInstalled
	}
	var starting sync.WaitGroup
	errs := make([]error, members)
	for i, m := range c.members {
		starting.Go(func() {
			if m.stop, errs[i] = start(c, m, cfg); errs[i] != nil {
				m.stop = func() {}
				return
			}
			errs[i] = c.awaitReady(m)
		})
	}
	starting.Wait()
	return c, errors.Join(errs...)
}

// initial names all members, for each member.
func (c *Cluster) initial() string {
	all := make([]string, len(c.members))
	for i, m := range c.members {
		all[i] = m.name + "=http://" + m.peers.Addr()
	}
	return strings.Join(all, ",")
}

// awaitReady returns when a member knows who leads.
func (c *Cluster) awaitReady(m *member) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		status, err := c.admin.Status(ctx, m.client)
		if err == nil && status.Leader != 0 {
			m.id = strconv.FormatUint(status.Header.MemberId, 16)
			return nil
		}
		select {
		case <-ctx.Done():
			log, _ := os.ReadFile(m.log())
			return fmt.Errorf("%s is not ready: %w\n%s", m.name, err, log)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (m *member) log() string { return filepath.Join(m.dir, "log") }

func (c *Cluster) stop() {
	for _, m := range c.members {
		if m == nil {
			continue
		}
		for _, p := range []*Proxy{m.clients, m.peers} {
			if p != nil {
				p.Close()
			}
		}
		if m.relay != nil {
			m.relay.Close()
		}
	}
	if c.admin != nil {
		_ = c.admin.Close()
	}
	for _, m := range c.members {
		if m != nil {
			m.stop()
		}
	}
}

// ClientTLS returns the configuration of a client trusting the members, with a certificate
// trusted by them, or nil without TLS.
func (c *Cluster) ClientTLS() *tls.Config { return c.clientTLS.Clone() }

// Clients returns the proxy between clients and a member.
func (c *Cluster) Clients(member int) *Proxy { return c.members[member].clients }

// SetFault has a function decide about every message between clients and members, or none
// if fault is nil.
func (c *Cluster) SetFault(fault func(Message) Action) {
	for _, m := range c.members {
		m.relay.SetFault(fault)
	}
}

// Pause stops all messages of a session until resume is called. They are kept.
func (c *Cluster) Pause(session string) (resume func()) {
	var all []func()
	for _, m := range c.members {
		all = append(all, m.relay.Pause(session))
	}
	return func() {
		for _, resume := range all {
			resume()
		}
	}
}

// Isolate cuts a member off from the others, but not from its clients, until heal is
// called. The member still passes keep-alives of leases on, because servers do not send
// them in the same way as everything else.
func (c *Cluster) Isolate(member int) (heal func()) {
	one := c.members[member]
	set := func(cut bool) {
		for i, m := range c.members {
			if i == member {
				m.peers.Hold(cut, cut)
			} else {
				m.peers.CutFrom(one.id, cut)
			}
		}
	}
	set(true)
	return func() { set(false) }
}

// Leader returns the number of the leading member. It waits until all members agree, as
// they do some time after a member was healed.
func (c *Cluster) Leader(ctx context.Context) (member int, err error) {
	for {
		var leader, term uint64
		agree := true
		for i, m := range c.members {
			status, err := c.admin.Status(ctx, m.client)
			if err != nil {
				return -1, err
			}
			if i == 0 {
				leader, term = status.Leader, status.RaftTerm
			}
			agree = agree && status.Leader == leader && status.RaftTerm == term
			if status.Header.MemberId == leader {
				member = i
			}
		}
		if agree && leader != 0 {
			return member, nil
		}
		select {
		case <-ctx.Done():
			return -1, fmt.Errorf("the members do not agree on a leader: %w", ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Version returns the version of the servers.
func (c *Cluster) Version() string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	status, err := c.admin.Status(ctx, c.members[0].client)
	if err != nil {
		return err.Error()
	}
	return status.Version
}

// Endpoints returns the addresses of the members for clients.
func (c *Cluster) Endpoints() (all []string) {
	for _, m := range c.members {
		all = append(all, m.clients.Addr())
	}
	return all
}

// serveFor, if set, has the process run a cluster of the given number of members, write the
// endpoints, and stop when the input ends.
const serveFor = "LOCKPOOL_ETCDTEST_MEMBERS"

// Serve runs a cluster if another process has started this one with [StartProcess]. Call it
// in TestMain.
func Serve() {
	n, err := strconv.Atoi(os.Getenv(serveFor))
	if err != nil {
		return
	}
	dir, err := os.MkdirTemp("", "etcdtest")
	if err == nil {
		var c *Cluster
		if c, err = run(dir, n); err == nil {
			fmt.Println(strings.Join(c.Endpoints(), ","))
			_, _ = io.Copy(io.Discard, os.Stdin)
			c.stop()
		}
		_ = os.RemoveAll(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// StartProcess starts a cluster in another process, of this same program, and returns the
// endpoints. The process stops when the test ends, or this one.
func StartProcess(t testing.TB, members int) (endpoints []string) {
	t.Helper()
	server := exec.Command(os.Args[0])
	server.Env = append(os.Environ(), fmt.Sprint(serveFor, "=", members))
	server.Stderr = os.Stderr
	in, err := server.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		if err := server.Wait(); err != nil {
			t.Error(err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(line), ",")
}
