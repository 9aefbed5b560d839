package zookeeper

// This file has what is different if the servers are ClickHouse Keeper.

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/go-zookeeper/zk"
)

// Keeper speaks ZooKeeper's protocol, but does not resume sessions: a client that connects
// again gets another session, and nothing can be done about the old session before the
// timeout. So a session ends with its connection. Older versions close the connection when
// asked for a container, so directories are ordinary nodes, and sessions remove empty ones.
//
// The lease holds: each write, and each sync, is an entry of the log, which a majority has, and
// with which each server puts off the end of the session. But the servers measure by the wall
// clock: setting a server's clock forward may end a session before the lease.
//
// (Read in ClickHouse's KeeperTCPHandler, KeeperStorage and SessionExpiryQueue.)

// rejectedByKeeper is the version of the protocol named by a Keeper without a leader.
const rejectedByKeeper = 42

var (
	errKeeperConnection = errors.New("the connection has ended, and ClickHouse Keeper resumes no session")
	errNotClosed        = fmt.Errorf("%w: the session's nodes stay until the timeout, because ClickHouse Keeper closes a session only on the session's connection", errors.ErrUnsupported)
)

// recognizeKeeper examines a new session: only Keeper gives a session no password.
func (s *session) recognizeKeeper(response []byte) {
	const password = 24 // follows length, version, timeout, ID, and the password's length
	if len(bytes.Trim(response[password:], "\x00")) > 0 {
		return
	}
	s.connection.mu.Lock()
	defer s.connection.mu.Unlock()
	s.connection.keeper = true
	s.directories.noContainers.Store(true)
	s.warnKeeper.Do(func() {
		s.cfg.Logger.Warn("lockpool: the servers are ClickHouse Keeper: a session, with its locks, is lost with its connection, " +
			"and also if a server's clock is set forward")
	})
}

func (c *connection) isKeepers() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.keeper
}

// connectionEnded ends a session that cannot be resumed. Keeper answers the end of a session by
// closing the connection.
func (s *session) connectionEnded(l *link, cause error) {
	if !s.connection.isKeepers() {
		return
	}
	if l.closing.Load() && errors.Is(cause, io.EOF) {
		s.setGone()
	}
	s.end(fmt.Errorf("%w: %w", errKeeperConnection, cause))
}

// removeDirectories removes, once in a while, the empty directories in which the session has
// had nodes.
func (s *session) removeDirectories() {
	defer s.calls.done()
	for s.sleep(time.Minute) {
		for _, dir := range s.directories.queues() {
			if s.removeDirectory(dir) {
				s.directories.forget(dir)
			}
		}
	}
}

// removeDirectory removes a directory and the directories above, as far as they are empty. It
// reports whether the first is gone.
//
// By the time of a removal, the name may be of a plain lock's node. So a marker is created in the
// directory, which no plain lock's node can have, and removed together with the directory.
func (s *session) removeDirectory(dir string) (gone bool) {
	for ; len(dir) > max(1, len(s.cfg.Chroot)); dir = parent(dir) {
		q := existsRequest(dir)
		err := s.requests.do(q)
		exists := err == nil
		if !exists && err != zk.ErrNoNode || exists && q.stat.NumChildren > 0 {
			break
		}
		marker := dir + "/removing"
		if exists {
			err = s.requests.Create(marker, nil, zk.FlagEphemeral, s.cfg.ACL)
		}
		if err != nil && isRefused(err) && err != zk.ErrNoNode {
			break
		}
		if exists && err == nil {
			err = s.requests.Multi(&zk.DeleteRequest{Path: marker, Version: -1}, &zk.DeleteRequest{Path: dir, Version: -1})
		}
		if err != nil && err != zk.ErrNoNode {
			_ = s.removeOne(marker, false) // also after a create with an unclear answer
			break
		}
		gone = true
	}
	return gone
}
