package zktest

// This file has servers and proxies in bubbles of testing/synctest.

import (
	"errors"
	"testing"
)

// InMemory makes a server without a port: clients connect with [Server.Dial]. Such a server
// works in a bubble of testing/synctest, where time passes when all goroutines wait.
func InMemory() Option {
	return option(func(c *config) error {
		c.inMemory = true
		return nil
	})
}

// StartBubble is [Start] with [InMemory], for a test in a bubble of testing/synctest:
//
//	synctest.Test(t, func(t *testing.T) {
//		server := zktest.StartBubble(t)
//		...
//	})
//
// The server uses the clock of the bubble, so session timeouts and deadlines of an hour
// pass in no time. With the race detector, the program uses one processor as long as such a
// server runs: on more, timers in bubbles can crash the detector (golang/go#78156).
func StartBubble(t testing.TB, opts ...Option) *Server {
	t.Helper()
	return Start(t, append([]Option{InMemory()}, opts...)...)
}

// errBubble is the error of a server that would wait for the network in a bubble. Such a
// wait keeps the bubble's time from passing.
var errBubble = errors.New("a server with a port cannot work in a bubble of testing/synctest, because time would stand still: use StartBubble, or the option InMemory, and Server.Dial")
