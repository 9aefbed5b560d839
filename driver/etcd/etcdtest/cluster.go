// Package etcdtest starts etcd servers for tests. It is a module of its own, because the
// servers have dependencies that the driver has not.
package etcdtest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
)

// Cluster is an etcd cluster in this process. Its members listen on loopback addresses,
// behind proxies that can cut them off.
type Cluster struct {
	members []*member
}

type member struct {
	server  *embed.Etcd
	clients *Proxy // what clients connect to, behind which is
	relay   *Relay
}

// Start starts a cluster, which stops when the test ends.
func Start(t testing.TB, members int) *Cluster {
	t.Helper()
	c, err := run(t.TempDir(), members)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.stop)
	return c
}

func run(dir string, members int) (c *Cluster, err error) {
	c = &Cluster{}
	configs := make([]*embed.Config, members)
	var initial []string
	for i := range configs {
		cfg := embed.NewConfig()
		cfg.Name, cfg.Dir = fmt.Sprint("m", i), filepath.Join(dir, fmt.Sprint(i))
		cfg.LogLevel, cfg.LogOutputs = "fatal", []string{"/dev/null"}
		cfg.UnsafeNoFsync = true // the data is thrown away
		configs[i] = cfg
	}
	addresses, err := freeAddresses(2 * members)
	if err != nil {
		return nil, err
	}
	for i, cfg := range configs {
		m := &member{}
		client, peer := addresses[2*i], addresses[2*i+1]
		if m.relay, err = newRelay(client); err != nil {
			return nil, err
		}
		if m.clients, err = newProxy(m.relay.Addr()); err != nil {
			return nil, err
		}
		cfg.ListenClientUrls, cfg.AdvertiseClientUrls = urls(client), urls(m.clients.Addr())
		cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = urls(peer), urls(peer)
		initial = append(initial, cfg.Name+"=http://"+peer)
		c.members = append(c.members, m)
	}
	var starting sync.WaitGroup
	errs := make([]error, members)
	for i, cfg := range configs {
		cfg.InitialCluster = strings.Join(initial, ",")
		starting.Go(func() {
			if c.members[i].server, errs[i] = embed.StartEtcd(cfg); errs[i] != nil {
				return
			}
			select {
			case <-c.members[i].server.Server.ReadyNotify():
			case <-time.After(time.Minute):
				errs[i] = context.DeadlineExceeded
			}
		})
	}
	starting.Wait()
	for _, err := range errs {
		if err != nil {
			c.stop()
			return nil, fmt.Errorf("etcdtest: starting a cluster of %d: %w", members, err)
		}
	}
	return c, nil
}

func urls(address string) []url.URL { return []url.URL{{Scheme: "http", Host: address}} }

func (c *Cluster) stop() {
	for _, m := range c.members {
		m.clients.Close()
		m.relay.Close()
	}
	for _, m := range c.members {
		if m.server != nil {
			m.server.Close()
		}
	}
}

func freeAddresses(n int) (all []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		all = append(all, l.Addr().String())
	}
	return all, nil
}

// Clients returns the proxy between clients and a member.
func (c *Cluster) Clients(member int) *Proxy { return c.members[member].clients }

// SetFault has a function decide about every message between clients and members, or none
// if it is nil.
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
// called. It still passes keep-alives of leases on, which servers do not send in the way of
// all else.
func (c *Cluster) Isolate(member int) (heal func()) {
	cut := func(how func(s *etcdserver.EtcdServer, other types.ID)) {
		one := c.members[member].server.Server
		for i, m := range c.members {
			if other := m.server.Server; i != member {
				how(one, other.MemberID())
				how(other, one.MemberID())
			}
		}
	}
	cut((*etcdserver.EtcdServer).CutPeer)
	return func() { cut((*etcdserver.EtcdServer).MendPeer) }
}

// Leader returns the number of the member that leads, or -1.
func (c *Cluster) Leader() int {
	for i, m := range c.members {
		if m.server.Server.Leader() == m.server.Server.MemberID() {
			return i
		}
	}
	return -1
}

// Endpoints returns the addresses of the members for clients.
func (c *Cluster) Endpoints() (all []string) {
	for _, m := range c.members {
		all = append(all, m.clients.Addr())
	}
	return all
}

// serveFor has the process run a cluster of that many members, if the variable is set, write
// its endpoints, and stop when its input ends.
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

// StartProcess starts a cluster in a process of its own, which is this program again, and
// returns its endpoints. The process stops when the test ends, or this one.
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
