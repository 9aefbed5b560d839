package main

// This file has the two clients that the benchmark compares, and the server's process.

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/etcd"
)

// session is what a process has: a session of etcd.
type session interface {
	// locker returns a lock for one goroutine.
	locker(name string) locker
	close()
}

type locker interface {
	lock(ctx context.Context) error
	unlock() error
}

type pool struct {
	*lockpool.Pool
	once sync.Once
}

func openPool(endpoint string) session {
	connector := must(etcd.NewConnector(etcd.Config{Endpoints: []string{endpoint}}))
	p := &pool{Pool: must(lockpool.OpenConnector(connector))}
	l := must(p.Lock(context.Background(), "warm")) // opens the session
	check(l.Unlock(context.Background()))
	return p
}

func (p *pool) locker(name string) locker { return &handle{of: p, name: name} }
func (p *pool) close()                    { p.once.Do(func() { check(p.Close()) }) }

type handle struct {
	of   *pool
	name string
	l    *lockpool.Lock
}

func (h *handle) lock(ctx context.Context) (err error) {
	h.l, err = h.of.Lock(ctx, h.name)
	return err
}

func (h *handle) unlock() error { return h.l.Unlock(context.Background()) }

// mutexes are the Mutexes of a session. Mutexes of one session and name do not exclude each
// other, so goroutines of one process take a local one first, as their programs must.
type mutexes struct {
	client *clientv3.Client
	own    *concurrency.Session
	once   sync.Once
	mu     sync.Mutex
	locals map[string]*sync.Mutex
}

func openMutex(endpoint string) session {
	client := must(clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()}))
	return &mutexes{client: client, own: must(concurrency.NewSession(client, concurrency.WithTTL(int(ttl/time.Second)))), locals: map[string]*sync.Mutex{}}
}

func (m *mutexes) locker(name string) locker {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.locals[name] == nil {
		m.locals[name] = &sync.Mutex{}
	}
	return &mutex{m.locals[name], concurrency.NewMutex(m.own, name)}
}

func (m *mutexes) close() {
	m.once.Do(func() {
		check(m.own.Close())
		check(m.client.Close())
	})
}

type mutex struct {
	local  *sync.Mutex
	remote *concurrency.Mutex
}

func (m *mutex) lock(ctx context.Context) error {
	m.local.Lock()
	if err := m.remote.Lock(ctx); err != nil {
		m.local.Unlock()
		return err
	}
	return nil
}

func (m *mutex) unlock() error {
	defer m.local.Unlock()
	return m.remote.Unlock(context.Background())
}

// serve runs a member until the input ends, and writes its address.
func serve() error {
	dir, err := os.MkdirTemp("", "etcdbench")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	cfg := embed.NewConfig()
	local := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.Dir, cfg.LogLevel, cfg.LogOutputs = dir, "fatal", []string{"/dev/null"}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls, cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = local, local, local, local
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	defer server.Close()
	<-server.Server.ReadyNotify()
	fmt.Println(server.Clients[0].Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
	return nil
}

// metric returns the sum of a metric of the member.
func metric(endpoint, name string) (n float64) {
	got := must(http.Get("http://" + endpoint + "/metrics"))
	defer func() { _ = got.Body.Close() }()
	lines := bufio.NewScanner(got.Body)
	for lines.Scan() {
		if line := lines.Text(); strings.HasPrefix(line, name+"{") || strings.HasPrefix(line, name+" ") {
			n += must(strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64))
		}
	}
	check(lines.Err())
	return n
}
