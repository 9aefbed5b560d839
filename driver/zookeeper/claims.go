package zookeeper

// This file keeps creates and deletes of plain locks' nodes apart within a process.

import (
	"runtime"
	"sync"
	"time"
	"weak"
)

// claims keeps creates and deletes of plain locks' nodes at one path apart, across all
// sessions of this process: no create is sent while a delete is on the way, so that the
// delete cannot hit a new node.
type claims struct {
	mu                 sync.Mutex
	creating, deleting int
	granted            int64         // successful creates
	changed            chan struct{} // closed when creating or deleting decreases; nil without a waiter
}

// claimRegistry has the claims of each path as a weak.Pointer: they exist for as long
// as a call or a held node (plainNode.claims) refers to them.
type claimRegistry struct{ byPath sync.Map }

// processClaims are the claims of all connectors, because two connectors may connect to the
// same ensemble by different addresses. A connector with a Config.Dial has separate claims:
// goroutines in different bubbles of testing/synctest must not wait for each other.
var processClaims claimRegistry

// on returns the claims of a path.
func (r *claimRegistry) on(path string) *claims {
	for {
		found, ok := r.byPath.Load(path)
		if !ok {
			c := new(claims)
			p := weak.Make(c)
			if found, ok = r.byPath.LoadOrStore(path, p); !ok {
				runtime.AddCleanup(c, func(path string) { r.byPath.CompareAndDelete(path, p) }, path)
				return c
			}
		}
		if c := found.(weak.Pointer[claims]).Value(); c != nil {
			return c
		}
		r.byPath.CompareAndDelete(path, found) // the cleanup is about to
	}
}

// maxClaimWait bounds the wait for another session, whose server may not answer.
const maxClaimWait = 100 * time.Millisecond

// create waits until no delete is on the way, but not for long, and registers a create. It
// returns the value of turn after the success of this create and no other: replies may be
// seen in a different order than the server's.
func (c *claims) create() (turn int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.awaitZero(&c.deleting)
	c.creating++
	return c.granted + 1
}

// created unregisters a create.
func (c *claims) created(success bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if success {
		c.granted++
	}
	c.creating--
	c.wake()
}

// delete registers a delete, and waits until no create is on the way. It reports false
// after too long a wait.
func (c *claims) delete() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deleting++ // first, so that no create begins
	return c.awaitZero(&c.creating)
}

// deleted unregisters a delete.
func (c *claims) deleted() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deleting--
	c.wake()
}

// turn is the number of successful creates.
func (c *claims) turn() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.granted
}

// awaitZero waits for at most maxClaimWait, without c.mu, until *n is zero. It is
// called with c.mu held.
func (c *claims) awaitZero(n *int) bool {
	if *n == 0 {
		return true
	}
	late := time.NewTimer(maxClaimWait)
	defer late.Stop()
	for *n > 0 {
		if c.changed == nil {
			c.changed = make(chan struct{})
		}
		changed := c.changed
		c.mu.Unlock()
		select {
		case <-changed:
			c.mu.Lock()
		case <-late.C:
			c.mu.Lock()
			return *n == 0
		}
	}
	return true
}

func (c *claims) wake() {
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}
