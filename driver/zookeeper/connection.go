package zookeeper

// This file has the session's ID and link, and the outcome of handshakes.

import (
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/lockpool/lockpool/driver"
)

// connection is what the servers have told a session about itself, and the link to one of
// them.
type connection struct {
	mu      sync.Mutex
	id      int64         // of the session; 0 before there is one
	timeout time.Duration // negotiated
	link    *link         // the latest one; nil before the first
	secret  func() []byte // what a handshake says of the session: timeout, ID and password; set before the first link
	peer    string        // the server's address
	keeper  bool          // the server is ClickHouse Keeper
}

func (c *connection) info() (id int64, peer string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.id, c.peer
}

// current returns the latest link, or nil.
func (c *connection) current() *link {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.link
}

// attach makes l the current connection.
func (c *connection) attach(l *link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.link, c.peer = l, l.to.server
}

// onHandshake is called with the server's answer to a handshake begun at began. An ID of 0
// says that the session has expired.
func (s *session) onHandshake(id int64, timeout, began time.Duration) error {
	first, same, err := s.negotiate(id, timeout, began)
	if err != nil {
		return err
	}
	if first && timeout < twoTicks {
		s.warnShortTimeout.Do(func() {
			s.cfg.Logger.Warn("lockpool: the ZooKeeper session timeout is short: make sure that tickTime is at most half of it "+
				"(that is, that minSessionTimeout was not lowered), or a lock may not end in time", "timeout", timeout)
		})
	}
	switch {
	case id == 0:
		s.setGone()
		s.end(s.expiry.explain(driver.ErrExpired))
		return driver.ErrExpired
	case !same:
		s.setGone()
		s.end(errReplaced)
		return errReplaced
	case first && timeout != s.cfg.SessionTimeout:
		s.cfg.Logger.Warn("lockpool: the ZooKeeper server changed the session timeout",
			"asked", s.cfg.SessionTimeout, "granted", timeout)
	}
	return nil
}

// negotiate records the answer to a handshake. first reports whether the handshake opened
// the session, and same whether the answer is for this session.
func (s *session) negotiate(id int64, timeout, began time.Duration) (first, same bool, err error) {
	c := &s.connection
	c.mu.Lock()
	defer c.mu.Unlock()
	first = c.id == 0
	if first && s.isOver() || c.id == id && s.mustNotDial() { // too late to prolong the lease
		return first, false, net.ErrClosed
	}
	if first {
		c.id = id
	}
	same = c.id == id
	if same && !first || first && id != 0 {
		c.timeout = timeout
		s.expiry.lease.established(began, timeout, first)
		select {
		case s.expiry.leaseChanged <- struct{}{}:
		default: // awaitEnd has not seen the last one yet
		}
	}
	return first, same, nil
}

// errReplaced is the error of a handshake for another session.
var errReplaced = fmt.Errorf("%w: the server opened another session", driver.ErrExpired)

// twoTicks is the shortest timeout granted by a server with ZooKeeper's usual tickTime of
// two seconds, and the shortest tolerated by the lease.
const twoTicks = 4 * time.Second
