package main

// This file tests the command serve without a browser.

import (
	"strings"

	"github.com/go-zookeeper/zk"
)

// serve starts lockpool serve, and returns the address of the page.
func (s *shell) serve(args ...string) string {
	s.Helper()
	p := s.start(append([]string{"serve", "--listen", "127.0.0.1:0"}, args...)...)
	s.Until(func() bool { return strings.HasSuffix(p.stdout.String(), "\n") }, "an address")
	return strings.TrimSpace(p.stdout.String())
}

// deadlock makes two processes wait for each other.
func (s *shell) deadlock(conn *zk.Conn) {
	one, two := s.contender(conn, "accounts/1", "transfer", 701), s.contender(conn, "accounts/2", "refund", 802)
	s.contender(conn, "accounts/2", "transfer", 701, "accounts/1", one)
	s.contender(conn, "accounts/1", "refund", 802, "accounts/2", two)
}
