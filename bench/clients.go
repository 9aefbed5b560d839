package main

import (
	"context"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
)

// client is a client library on one or more connections.
type client interface {
	// worker returns a lock on path for one goroutine. Workers on the same path
	// exclude each other, except those of the floor.
	worker(path string) worker
	close()
}

type worker interface {
	lock() error
	unlock() error
}

const sessionTimeout = 30 * time.Second

// open opens the client of that kind: floor, zklock or lockpool.
func open(kind, server string, conns int) (client, error) {
	if kind == "lockpool" {
		connector, err := zookeeper.NewConnector(zookeeper.Config{Servers: []string{server}, SessionTimeout: sessionTimeout})
		if err != nil {
			return nil, err
		}
		pool, err := lockpool.OpenConnector(connector, lockpool.WithMaxSessions(conns))
		return poolClient{pool}, err
	}
	c := &connClient{floor: kind == "floor"}
	for range conns {
		conn, events, err := zk.Connect([]string{server}, sessionTimeout, zk.WithLogInfo(false))
		if err != nil {
			return nil, err
		}
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
	return c, nil
}

// connClient is a go-zookeeper client: its Lock, or the floor, a bare create and
// delete.
type connClient struct {
	conns []*zk.Conn
	next  int
	floor bool
}

func (c *connClient) worker(path string) worker {
	conn := c.conns[c.next%len(c.conns)]
	c.next++
	if c.floor {
		if _, err := conn.Create(path, nil, 0, zk.WorldACL(zk.PermAll)); err != zk.ErrNodeExists {
			check(err)
		}
		return &floorWorker{conn: conn, path: path + "/_c_00000000-0000-0000-0000-000000000000-lock-"}
	}
	return zkWorker{zk.NewLock(conn, path, zk.WorldACL(zk.PermAll))}
}

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
	w.node, err = w.conn.Create(w.path, nil, zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll))
	return err
}

func (w *floorWorker) unlock() error { return w.conn.Delete(w.node, -1) }

type poolClient struct{ *lockpool.Pool }

func (c poolClient) worker(path string) worker {
	return &poolWorker{handle: must(c.Handle(context.Background())), name: path[1:]}
}

func (c poolClient) close() { check(c.Close()) }

type poolWorker struct {
	handle *lockpool.Handle
	name   string
	held   *lockpool.Lock
}

func (w *poolWorker) lock() (err error) {
	w.held, err = w.handle.Lock(context.Background(), w.name)
	return err
}

func (w *poolWorker) unlock() error { return w.held.Unlock(context.Background()) }
