package main

// This file has the clients to compare, and the network between them and the server.

import (
	"context"
	"io"
	"log"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
)

// The clients.
const (
	floor  = "floor"    // a bare create and delete with go-zookeeper's client
	zkLock = "zk.Lock"  // go-zookeeper's Lock
	ours   = "lockpool" // with the defaults
	off    = "off"      // lockpool without local turns
	keeps  = "keeps"    // lockpool that keeps locks
)

// options are the options of the clients with lockpool.
var options = map[string][]lockpool.Option{
	ours: nil, off: {lockpool.WithLocalTurns(0)}, keeps: {lockpool.WithKeptLocks(200_000, time.Hour)},
}

// client is a client library on one or more connections.
type client interface {
	// worker returns a lock on path for one goroutine. Workers on the same path exclude
	// each other, except the floor's.
	worker(path string) worker
	close()
}

type worker interface {
	lock() error
	unlock() error
}

const sessionTimeout = 30 * time.Second

// open opens a client of the kind, with at most conns connections.
func open(kind string, n *network, conns int) client {
	if _, pool := options[kind]; pool {
		return openPool(kind, n, sessionTimeout, lockpool.WithMaxSessions(conns))
	}
	return openConns(kind, n, conns)
}

func openPool(kind string, n *network, timeout time.Duration, opts ...lockpool.Option) poolClient {
	opts = append(opts, options[kind]...)
	connector := must(zookeeper.NewConnector(zookeeper.Config{
		Servers: strings.Split(*server, ","), SessionTimeout: timeout, Dial: n.dial, Logger: slog.New(slog.DiscardHandler),
	}))
	return poolClient{must(lockpool.OpenConnector(connector, opts...))}
}

// openConns opens a connClient. The connections are then established.
func openConns(kind string, n *network, conns int) *connClient {
	c := &connClient{floor: kind == floor}
	for range conns {
		conn, events, err := zk.Connect(strings.Split(*server, ","), sessionTimeout, zk.WithLogger(log.New(io.Discard, "", 0)),
			zk.WithDialer(func(_, address string, timeout time.Duration) (net.Conn, error) {
				ctx, cancel := context.WithTimeout(context.Background(), timeout)
				defer cancel()
				return n.dial(ctx, address)
			}))
		check(err)
		for e := range events {
			if e.State == zk.StateHasSession {
				break
			}
		}
		go func() { // ends with the connection
			for range events {
			}
		}()
		c.conns = append(c.conns, conn)
	}
	return c
}

// connClient is a go-zookeeper client: the Lock, or the floor.
type connClient struct {
	conns []*zk.Conn
	next  int
	floor bool
}

func (c *connClient) worker(path string) worker {
	conn := c.conns[c.next%len(c.conns)]
	c.next++
	if c.floor {
		if _, err := conn.Create(path, nil, 0, worldACL); err != zk.ErrNodeExists {
			check(err)
		}
		return &floorWorker{conn: conn, path: path + contenderName}
	}
	return zkWorker{zk.NewLock(conn, path, worldACL)}
}

var worldACL = zk.WorldACL(zk.PermAll)

func (c *connClient) close() {
	for _, conn := range c.conns {
		conn.Close()
	}
}

type zkWorker struct{ *zk.Lock }

func (w zkWorker) lock() error   { return w.Lock.Lock() }
func (w zkWorker) unlock() error { return w.Unlock() }

// floorWorker does only what every lock needs: one write to acquire and one to
// release.
type floorWorker struct {
	conn       *zk.Conn
	path, node string
}

func (w *floorWorker) lock() (err error) {
	w.node, err = w.conn.Create(w.path, nil, zk.FlagEphemeral|zk.FlagSequence, worldACL)
	return err
}

func (w *floorWorker) unlock() error { return w.conn.Delete(w.node, -1) }

type poolClient struct{ *lockpool.Pool }

func (c poolClient) worker(path string) worker { return &poolWorker{pool: c.Pool, name: path[1:]} }

func (c poolClient) close() { check(c.Close()) }

type poolWorker struct {
	pool *lockpool.Pool
	name string
	held *lockpool.Lock
}

func (w *poolWorker) lock() (err error) {
	w.held, err = w.pool.Lock(context.Background(), w.name)
	return err
}

func (w *poolWorker) unlock() error { return w.held.Unlock(context.Background()) }

// network is how a client reaches the server. It counts the packets from there.
type network struct {
	delay    time.Duration // of everything, in each direction
	received atomic.Int64  // bytes
	traffic  *traffic      // nil if requests are not counted
}

func (n *network) dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if n.traffic != nil {
		return &trafficConn{Conn: conn, traffic: n.traffic}, nil
	}
	if n.delay > 0 {
		conn = distant(conn, n.delay)
	}
	return countingConn{conn, &n.received, new(atomic.Int64)}, nil
}

// countingConn counts bytes.
type countingConn struct {
	net.Conn
	received, sent *atomic.Int64
}

func (c countingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.received.Add(int64(n))
	return n, err
}

func (c countingConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.sent.Add(int64(n))
	return n, err
}

// distant returns the near end of a slow line to conn: everything takes some time, in each
// direction.
func distant(conn net.Conn, delay time.Duration) net.Conn {
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	defer listener.Close()
	near := must(net.Dial("tcp", listener.Addr().String()))
	far := must(listener.Accept())
	go carry(conn, far, delay) // both end with either end of the line
	go carry(far, conn, delay)
	return near
}

// carry writes to the one connection what comes from the other, later.
func carry(to io.WriteCloser, from io.ReadCloser, delay time.Duration) {
	type packet struct {
		data []byte
		due  time.Time
	}
	line := make(chan packet, 1<<10) // more packets than are ever on their way at once
	go func() {                      // ends with carry
		defer to.Close()
		defer from.Close()
		for p := range line {
			time.Sleep(time.Until(p.due))
			if _, err := to.Write(p.data); err != nil {
				break
			}
		}
		for range line {
		}
	}()
	defer close(line)
	for {
		data := make([]byte, 32<<10)
		n, err := from.Read(data)
		if err != nil {
			return
		}
		line <- packet{data[:n], time.Now().Add(delay)}
	}
}
