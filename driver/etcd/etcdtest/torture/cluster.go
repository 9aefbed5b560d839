//go:build linux

package main

// This file has the cluster of a campaign: one process for each member.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/lockpool/lockpool/driver/etcd/etcdtest"
	"github.com/lockpool/lockpool/testing/lab/simulate/workload"
	"github.com/lockpool/lockpool/testing/lab/torture/campaign"
)

// Sessions last six election timeouts, as six ticks of ZooKeeper.
const (
	heartbeat = campaign.Tick / 10
	election  = campaign.Tick

	readyTimeout = time.Minute
	askTimeout   = 10 * time.Second // for a request when there is no fault of servers
)

// cluster is the members, each in a separate process and behind a proxy able to cut the
// member off.
type cluster struct {
	dir     string
	members []*member
	ends    *ends
}

type member struct {
	name, dir, host string
	id              uint64
	peers           *etcdtest.Proxy // what the other members connect to
	admin           *clientv3.Client
	process         *exec.Cmd
	paused          workload.Instant // when stopped as leader, or Never
}

func (m *member) client() string { return m.host + ":2379" }
func (m *member) peer() string   { return m.host + ":2380" }

func start(ctx context.Context) (campaign.Cluster, error) {
	dir, err := os.MkdirTemp("", "torture")
	if err != nil {
		return nil, err
	}
	c := &cluster{dir: dir, ends: newEnds()}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *cluster) start(ctx context.Context) error {
	for i := range campaign.Members {
		// No other program has this loopback address, so the ports are free, and stay so.
		m := &member{
			name: fmt.Sprint("m", i), dir: filepath.Join(c.dir, strconv.Itoa(i)),
			host: fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254)),
		}
		c.members = append(c.members, m)
		var err error
		if m.peers, err = etcdtest.NewProxy(m.peer(), nil); err != nil {
			return err
		}
		if m.admin, err = clientv3.New(clientv3.Config{Endpoints: []string{m.client()}, Logger: zap.NewNop()}); err != nil {
			return err
		}
		if err := os.Mkdir(m.dir, 0o700); err != nil {
			return err
		}
	}
	errs := make([]error, len(c.members))
	var starting sync.WaitGroup
	for i := range c.members {
		starting.Go(func() { errs[i] = c.Restart(i) })
	}
	starting.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, m := range c.members {
		status, err := m.admin.Status(ctx, m.client())
		if err != nil {
			return err
		}
		m.id = status.Header.MemberId
		c.ends.watch(m.admin)
	}
	return nil
}

// memberEnv has the process be a member. The value is the member's arguments, in lines.
const memberEnv = "LOCKPOOL_TORTURE_MEMBER"

// runMember has the process be a member until the input ends, if started as a member.
func runMember() {
	args := strings.Split(os.Getenv(memberEnv), "\n")
	if len(args) < 2 {
		return
	}
	e := embed.NewConfig()
	e.LogLevel, e.LogOutputs = "error", []string{"stderr"}
	e.UnsafeNoFsync = true // the data outlasts the process, and need not outlast the machine
	e.TickMs, e.ElectionMs = uint(heartbeat.Milliseconds()), uint(election.Milliseconds())
	e.Name, e.Dir, e.InitialCluster = args[0], args[1], args[2]
	e.ListenPeerUrls, e.AdvertisePeerUrls = urls(args[3]), urls(args[4])
	e.ListenClientUrls, e.AdvertiseClientUrls = urls(args[5]), urls(args[5])
	if _, err := embed.StartEtcd(e); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

func urls(text string) []url.URL {
	u, err := url.Parse(text)
	if err != nil {
		panic(err) // an argument of ours
	}
	return []url.URL{*u}
}

// command returns the command to run a member.
func (c *cluster) command(m *member) (*exec.Cmd, error) {
	var initial []string
	for _, m := range c.members {
		initial = append(initial, m.name+"=http://"+m.peers.Addr())
	}
	args := []string{
		m.name, filepath.Join(m.dir, "data"), strings.Join(initial, ","), "http://" + m.peer(), "http://" + m.peers.Addr(), "http://" + m.client(),
	}
	if !*installed {
		exe, err := os.Executable()
		if err != nil {
			return nil, err
		}
		cmd := exec.Command(exe)
		cmd.Env = append(os.Environ(), memberEnv+"="+strings.Join(args, "\n"))
		return cmd, nil
	}
	return exec.Command("etcd", "--name", args[0], "--data-dir", args[1], "--initial-cluster", args[2],
		"--listen-peer-urls", args[3], "--initial-advertise-peer-urls", args[4], "--listen-client-urls", args[5], "--advertise-client-urls", args[5],
		"--heartbeat-interval", fmt.Sprint(heartbeat.Milliseconds()), "--election-timeout", fmt.Sprint(election.Milliseconds()),
		"--logger", "zap", "--log-level", "error"), nil
}

// Restart starts a member, and returns when the member knows who leads.
func (c *cluster) Restart(i int) error {
	m := c.members[i]
	cmd, err := c.command(m)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(m.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if _, err := cmd.StdinPipe(); err != nil { // closed by Wait
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	m.process = cmd
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	for {
		status, err := m.status(ctx)
		if err == nil && status.Leader != 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			text, _ := os.ReadFile(log.Name())
			return fmt.Errorf("etcd member %s is not ready: %w\n%s", m.name, err, text)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// status asks one member for the member's status, with a short wait.
func (m *member) status(ctx context.Context) (*clientv3.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, election)
	defer cancel()
	return m.admin.Status(ctx, m.client())
}

// Leader implements campaign.Cluster.
func (c *cluster) Leader(ctx context.Context) (int, error) {
	for {
		leader, term := -1, uint64(0)
		for i, m := range c.members {
			status, err := m.status(ctx)
			if err == nil && status.Leader == m.id && status.RaftTerm > term {
				leader, term = i, status.RaftTerm
			}
		}
		if leader >= 0 {
			return leader, nil
		}
		select {
		case <-ctx.Done():
			return -1, fmt.Errorf("no member leads: %w", ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Addr implements campaign.Cluster.
func (c *cluster) Addr(i int) string { return c.members[i].client() }

// Kill implements campaign.Cluster.
func (c *cluster) Kill(i int) error {
	p := c.members[i].process
	err := p.Process.Kill()
	_ = p.Wait() // it was killed
	return err
}

// Pause implements campaign.Cluster.
func (c *cluster) Pause(i int) error {
	m := c.members[i]
	if status, err := m.status(context.Background()); err == nil && status.Leader == m.id {
		m.paused = campaign.Now()
	}
	return m.process.Process.Signal(syscall.SIGSTOP)
}

// Resume implements campaign.Cluster.
func (c *cluster) Resume(i int) error {
	m := c.members[i]
	if m.paused != workload.Never && campaign.Now().Since(m.paused) > campaign.Timeout {
		c.ends.staleLeader()
	}
	m.paused = workload.Never
	return m.process.Process.Signal(syscall.SIGCONT)
}

// Isolate implements campaign.Cluster. A follower cut off still passes keep-alives of
// leases on: members do not say who they are in passing them on.
func (c *cluster) Isolate(i int) error {
	for n, m := range c.members {
		if n == i {
			m.peers.Cut()
		} else {
			m.peers.CutFrom(strconv.FormatUint(c.members[i].id, 16), true)
		}
	}
	return nil
}

// Heal implements campaign.Cluster.
func (c *cluster) Heal() error {
	for _, m := range c.members {
		m.peers.Heal()
		for _, from := range c.members {
			m.peers.CutFrom(strconv.FormatUint(from.id, 16), false)
		}
	}
	return nil
}

// Link implements campaign.Cluster.
func (c *cluster) Link(i int, connected func()) (campaign.Link, error) {
	p, err := etcdtest.NewProxy(c.Addr(i), connected)
	return link{p}, err
}

type link struct{ *etcdtest.Proxy }

func (l link) Reset() { l.Break() }

func (l link) Close() error {
	l.Proxy.Close()
	return nil
}

// Look implements campaign.Cluster.
func (c *cluster) Look(ctx context.Context, _ workload.Config, rec *workload.Record) (err error) {
	c.ends.record(rec)
	rec.Leaked, err = c.leaked(ctx)
	return err
}

// leaked returns everything left: nothing stays but the records of runs, and there are none
// here.
func (c *cluster) leaked(ctx context.Context) (leaked []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	keys, err := c.members[0].admin.Get(ctx, prefix+"/", clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	for _, kv := range keys.Kvs {
		leaked = append(leaked, fmt.Sprintf("%s, created at revision %d with lease %x, with data %q", kv.Key, kv.CreateRevision, kv.Lease, kv.Value))
	}
	leases, err := c.members[0].admin.Leases(ctx)
	if err != nil {
		return nil, err
	}
	for _, l := range leases.Leases {
		leaked = append(leaked, fmt.Sprintf("lease %x", l.ID))
	}
	return leaked, nil
}

// Close implements campaign.Cluster.
func (c *cluster) Close() error {
	c.ends.close()
	for i, m := range c.members {
		if m.process != nil && m.process.ProcessState == nil {
			_ = c.Kill(i)
		}
		if m.peers != nil {
			m.peers.Close()
		}
		if m.admin != nil {
			_ = m.admin.Close()
		}
	}
	return os.RemoveAll(c.dir)
}
