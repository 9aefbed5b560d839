package main

// This file has the scenario of many idle sessions of an ensemble.

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockpool/lockpool/testing/zktest"
)

var fleetSize = flag.Int("fleet", 1000, "how many `sessions` the row fleet has")

// fleet opens sessions of three servers. All are idle for the duration of a turn, at least for a
// session timeout; then the leader dies; then a tenth lock at once.
func fleet(kind string) []float64 {
	defer func(before string) { *server = before }(*server)
	ensemble := must(zktest.RunRealEnsemble(context.Background(), 3, zktest.TickTime(2*time.Second),
		zktest.Properties(map[string]string{"maxClientCnxns": "0"}), zktest.JVMFlags("-Xmx1g", "-Dznode.container.checkIntervalMs=1000")))
	defer ensemble.Close()
	*server = ensemble.ConnectString()
	n := &network{traffic: &traffic{}}
	workers := make([]worker, *fleetSize)
	clients := make([]client, *fleetSize)
	defer atOnce(*fleetSize, func(i int) { clients[i].close() })
	atOnce(*fleetSize, func(i int) {
		clients[i] = open(kind, n, 1)
		workers[i] = clients[i].worker(fmt.Sprint("/bench-", i))
		check(workers[i].lock())
		check(workers[i].unlock())
	})
	time.Sleep(sessionTimeout) // until all are idle, and the servers have removed the names

	t, before, idle := n.traffic, n.traffic.now(), max(*duration, sessionTimeout)
	time.Sleep(idle)
	perTimeout := float64(idle) / float64(sessionTimeout) * float64(*fleetSize)
	figures := []float64{(t.now().requests - before.requests) / perTimeout, (t.now().writes - before.writes) / perTimeout}

	leader, before := must(ensemble.Leader(context.Background())), t.now()
	began := time.Now()
	check(leader.Kill())
	for t.now().connections > float64(*fleetSize)/2 {
		time.Sleep(time.Millisecond)
	}
	for t.now().connections < float64(*fleetSize) {
		time.Sleep(time.Millisecond)
	}
	figures = append(figures, time.Since(began).Seconds(),
		(t.now().attempts-before.attempts)/float64(*fleetSize), (t.now().writes-before.writes)/float64(*fleetSize))

	tenth := max(*fleetSize/10, 1)
	began, before = time.Now(), t.now()
	atOnce(tenth, func(i int) { check(workers[i].lock()) })
	return append(figures, time.Since(began).Seconds(), (t.now().writes-before.writes)/float64(tenth))
}

// atOnce calls do for each number below count, for a hundred at a time.
func atOnce(count int, do func(i int)) {
	var ended sync.WaitGroup
	room := make(chan struct{}, 100)
	for i := range count {
		room <- struct{}{}
		ended.Go(func() { do(i); <-room })
	}
	ended.Wait()
}

// traffic counts what many connections send.
type traffic struct {
	requests, writes atomic.Int64 // that a server has accepted
	attempts         atomic.Int64 // to open or to continue a session
	connections      atomic.Int64 // that a server has accepted
}

type trafficCounts struct{ requests, writes, attempts, connections float64 }

func (t *traffic) now() trafficCounts {
	return trafficCounts{
		float64(t.requests.Load()), float64(t.writes.Load()), float64(t.attempts.Load()), float64(t.connections.Load()),
	}
}

// trafficConn is a connection whose requests are counted.
type trafficConn struct {
	net.Conn
	*traffic
	asked    bool // for a session
	unread   []byte
	accepted atomic.Bool
	closed   sync.Once
}

var allWrites = append([]zktest.Op{zktest.OpDelete, zktest.OpSetData, zktest.OpMulti, zktest.OpCloseSession}, zktest.Creates...)

func (c *trafficConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.unread = append(c.unread, p[:n]...)
	for len(c.unread) >= 4 {
		end := 4 + int(binary.BigEndian.Uint32(c.unread)) // a length, and a request
		if len(c.unread) < end {
			break
		}
		switch {
		case !c.asked:
			c.asked = true
			c.attempts.Add(1)
		case slices.Contains(allWrites, zktest.Op(int32(binary.BigEndian.Uint32(c.unread[8:])))): // after the length and the xid
			c.writes.Add(1)
			fallthrough
		default:
			c.requests.Add(1)
		}
		c.unread = c.unread[end:]
	}
	return n, err
}

func (c *trafficConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && !c.accepted.Swap(true) { // a server without a leader closes the connection
		c.connections.Add(1)
		c.requests.Add(1)
		c.writes.Add(1)
	}
	return n, err
}

func (c *trafficConn) Close() error {
	c.closed.Do(func() {
		if c.accepted.Load() {
			c.connections.Add(-1)
		}
	})
	return c.Conn.Close()
}
