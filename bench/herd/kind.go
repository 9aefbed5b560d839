package main

import (
	"context"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
)

// kind is a lock that takes part.
type kind struct {
	name  string
	short string // in paths
	open  func(context.Context, place) (contender, error)
}

var kinds = []kind{
	{"everybody watches the list", "children", openChildren},
	{"everybody watches one node", "onenode", openOneNode},
	{"go-zookeeper's Lock", "zklock", openZKLock},
	{"lockpool", "lockpool", openPool},
}

// place is where a lock is, and who waits for it.
type place struct {
	server   string
	path     string
	maxReply int // the longest answer that a contender must be able to read
	herd     *herd
}

// contender is one who waits for a lock, with a session of its own. lock and
// unlock return when ctx ends, or after close.
type contender interface {
	lock(ctx context.Context) error
	unlock(ctx context.Context) error
	close() error
}

// stampeding is a contender whose release wakes all the others.
type stampeding interface {
	// settled returns when so many others wait again, behind this one.
	settled(ctx context.Context, others int) error
}

// session is a connection of go-zookeeper.
type session struct {
	*zk.Conn
	over chan struct{} // closed when the client has ended
}

func connect(ctx context.Context, at place) (session, error) {
	conn, events, err := zk.Connect([]string{at.server}, sessionTimeout, zk.WithLogInfo(false),
		zk.WithMaxBufferSize(at.maxReply), zk.WithMaxConnBufferSize(4<<10)) // 1.5 MiB each by default
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
		return session{}, fmt.Errorf("connecting to %s: %w", at.server, context.Cause(ctx))
	}
}

func (s session) close() error {
	s.Close()
	<-s.over
	return nil
}

var anybody = zk.WorldACL(zk.PermAll)

type zkLock struct {
	session
	l *zk.Lock
}

func openZKLock(ctx context.Context, at place) (contender, error) {
	s, err := connect(ctx, at)
	return &zkLock{s, zk.NewLock(s.Conn, at.path, anybody)}, err
}

func (z *zkLock) lock(context.Context) error   { return z.l.Lock() }
func (z *zkLock) unlock(context.Context) error { return z.l.Unlock() }

type poolLock struct {
	pool *lockpool.Pool
	name string
	held *lockpool.Lock
}

func openPool(_ context.Context, at place) (contender, error) {
	connector, err := zookeeper.NewConnector(zookeeper.Config{
		Servers: []string{at.server}, SessionTimeout: sessionTimeout, MaxPacket: at.maxReply,
	})
	if err != nil {
		return nil, err
	}
	pool, err := lockpool.OpenConnector(connector, lockpool.WithMaxSessions(1))
	return &poolLock{pool: pool, name: at.path[1:]}, err
}

func (p *poolLock) lock(ctx context.Context) (err error) {
	p.held, err = p.pool.Lock(ctx, p.name)
	return err
}

func (p *poolLock) unlock(ctx context.Context) error { return p.held.Unlock(ctx) }
func (p *poolLock) close() error                     { return p.pool.Close() }
