package main

import (
	"context"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
)

// kind is one of the locks that are compared.
type kind struct {
	name  string
	short string // in paths
	open  func(context.Context, config) (contender, error)
}

var kinds = []kind{
	{"all waiters watch the children", "children", openChildren},
	{"all waiters watch one node", "onenode", openOneNode},
	{"go-zookeeper's Lock", "zklock", openZKLock},
	{"lockpool", "lockpool", openPool},
}

// config holds the settings that the contenders for one lock share.
type config struct {
	server   string
	path     string
	maxReply int // size of the longest reply that a contender must be able to read
	waiters  *waiters
}

// contender contends for a lock on a session of its own. After close, lock and
// unlock return; some implementations also return when ctx ends.
type contender interface {
	lock(ctx context.Context) error
	unlock(ctx context.Context) error
	close() error
}

// herding is a contender whose release wakes all the others.
type herding interface {
	contender
	// awaitOthers returns when n others wait again, behind this contender.
	awaitOthers(ctx context.Context, n int) error
}

// session is a session of go-zookeeper.
type session struct {
	*zk.Conn
	over chan struct{} // closed when the client's goroutines have ended
}

func connect(ctx context.Context, c config) (session, error) {
	conn, events, err := zk.Connect([]string{c.server}, sessionTimeout, zk.WithLogInfo(false),
		zk.WithMaxBufferSize(c.maxReply), zk.WithMaxConnBufferSize(4<<10)) // the default is 1.5 MiB each
	if err != nil {
		return session{}, err
	}
	s := session{conn, make(chan struct{})}
	established := make(chan struct{})
	go func() { // ends with the client
		for e := range events {
			if e.State == zk.StateHasSession {
				close(established)
				break
			}
		}
		for range events {
		}
		close(s.over)
	}()
	select {
	case <-established:
		return s, nil
	case <-ctx.Done():
		_ = s.close()
		return session{}, fmt.Errorf("connecting to %s: %w", c.server, context.Cause(ctx))
	}
}

func (s session) close() error {
	s.Close()
	<-s.over
	return nil
}

// await waits until a watch fires.
func await(ctx context.Context, watch <-chan zk.Event) error {
	select {
	case e := <-watch:
		return e.Err
	case <-ctx.Done():
		return ctx.Err()
	}
}

var worldACL = zk.WorldACL(zk.PermAll)

type zkLock struct {
	session
	*zk.Lock
}

func openZKLock(ctx context.Context, c config) (contender, error) {
	s, err := connect(ctx, c)
	return &zkLock{s, zk.NewLock(s.Conn, c.path, worldACL)}, err
}

func (z *zkLock) lock(context.Context) error   { return z.Lock.Lock() }
func (z *zkLock) unlock(context.Context) error { return z.Unlock() }

type poolLock struct {
	pool *lockpool.Pool
	name string
	held *lockpool.Lock
}

func openPool(_ context.Context, c config) (contender, error) {
	connector, err := zookeeper.NewConnector(zookeeper.Config{
		Servers: []string{c.server}, SessionTimeout: sessionTimeout, MaxPacket: c.maxReply,
	})
	if err != nil {
		return nil, err
	}
	pool, err := lockpool.OpenConnector(connector, lockpool.WithMaxSessions(1))
	return &poolLock{pool: pool, name: c.path[1:]}, err
}

func (p *poolLock) lock(ctx context.Context) (err error) {
	p.held, err = p.pool.Lock(ctx, p.name)
	return err
}

func (p *poolLock) unlock(ctx context.Context) error { return p.held.Unlock(ctx) }
func (p *poolLock) close() error                     { return p.pool.Close() }
