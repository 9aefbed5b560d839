package zktest

// This file has the faults of connections: cuts, partitions, throttling.

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Direction is the direction of a connection's bytes, as seen by the server.
type Direction int

const (
	Both     Direction = iota
	Inbound            // from clients to the server
	Outbound           // from the server to clients
)

// network holds the connections of a server or proxy, and the faults of connections.
// [Server] and [Proxy] embed network for the exported methods.
type network struct {
	received, sent atomic.Int64 // packets

	setMode func(mode acceptMode, members []int) error

	mu         sync.Mutex
	healed     sync.Cond // a partition has ended, or a connection has changed
	clients    []*clientConn
	partitions []partition
	throttles  []throttle
	frozen     bool         // all connections are held up, in both directions
	stopped    map[int]bool // members whose connections are
}

type partition struct {
	sel Selector
	dir Direction
}

type throttle struct {
	sel   Selector
	bytes int
	delay time.Duration
}

func (n *network) init(setMode func(acceptMode, []int) error) {
	n.setMode = setMode
	n.healed.L = &n.mu
	n.stopped = map[int]bool{}
}

// RefuseConnections closes the ports of the given members, numbered from 1, or of all
// members if none are given: clients get ECONNREFUSED. Open connections stay open. A proxy
// has one address: the only member is 1.
func (n *network) RefuseConnections(members ...int) error { return n.setMode(refusing, members) }

// RejectConnections closes new connections as soon as they are accepted, for the same
// members as RefuseConnections.
func (n *network) RejectConnections(members ...int) error { return n.setMode(rejecting, members) }

// HangConnections accepts new connections and never answers them, for the same members as
// RefuseConnections.
func (n *network) HangConnections(members ...int) error { return n.setMode(hanging, members) }

// AcceptConnections ends the effect of RefuseConnections, RejectConnections and
// HangConnections on new connections. Stopped members stay closed.
func (n *network) AcceptConnections(members ...int) error { return n.setMode(accepting, members) }

// Partition holds up the packets of the selected connections in one direction until Heal:
// nothing is lost or closed, and sessions still expire. Later connections are held up, too;
// a session's new connection is recognized by the first packet.
func (n *network) Partition(sel Selector, dir Direction) {
	if dir != Both && dir != Inbound && dir != Outbound {
		panic("zktest: Partition: the direction must be Both, Inbound or Outbound")
	}
	n.update(func() { n.partitions = append(n.partitions, partition{sel, dir}) })
}

// Heal ends all partitions. The packets they held up are delivered.
func (n *network) Heal() { n.update(func() { n.partitions = nil }) }

// HealOnly ends one partition with the same selector and direction. Others go on.
func (n *network) HealOnly(sel Selector, dir Direction) {
	n.update(func() {
		if i := slices.Index(n.partitions, partition{sel, dir}); i >= 0 {
			n.partitions = slices.Delete(n.partitions, i, i+1)
		}
	})
}

// freeze holds up everything, independently of partitions.
func (n *network) freeze(frozen bool) { n.update(func() { n.frozen = frozen }) }

// Cut ends the selected connections now (FIN). Their sessions stay alive.
func (n *network) Cut(sel Selector) { n.cut(sel, fin) }

// Reset ends the selected connections now (RST). Their sessions stay alive.
func (n *network) Reset(sel Selector) { n.cut(sel, rst) }

func (n *network) cut(sel Selector, how cutMode) {
	for _, c := range n.selected(sel) {
		c.cut(how)
	}
}

// Deafen discards everything sent by the clients of the selected connections, even the end
// of the connection, while they still receive data: their sessions expire. A connection
// stays deaf to its end.
func (n *network) Deafen(sel Selector) {
	for _, c := range n.selected(sel) {
		c.blackhole(true, false)
	}
}

// Throttle writes to the selected connections, including later ones, in pieces of at most
// the given number of bytes, with a pause after each piece. With 0 bytes the selector's
// throttling ends.
func (n *network) Throttle(sel Selector, bytes int, pause time.Duration) {
	if bytes < 0 || pause < 0 {
		panic("zktest: Throttle: bytes and pause must not be negative")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.throttles = slices.DeleteFunc(n.throttles, func(t throttle) bool { return t.sel == sel })
	if bytes > 0 {
		n.throttles = append(n.throttles, throttle{sel, bytes, pause})
	}
}

func (n *network) throttleFor(c *clientConn) (bytes int, pause time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, t := range n.throttles {
		if t.sel.selects(c.origin()) {
			return t.bytes, t.delay
		}
	}
	return 0, 0
}

func (n *network) selected(sel Selector) (selected []*clientConn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.clients {
		if sel.selects(c.origin()) {
			selected = append(selected, c)
		}
	}
	return selected
}

// waitHealed waits until no partition holds up the connection, or the connection is closed.
func (n *network) waitHealed(c *clientConn, dir Direction) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for n.blocked(c, dir) {
		select {
		case <-c.done:
			return
		default:
		}
		n.healed.Wait()
	}
}

func (n *network) blocked(c *clientConn, dir Direction) bool {
	return n.frozen || n.stopped[c.member] || slices.ContainsFunc(n.partitions, func(p partition) bool {
		return (p.dir == Both || p.dir == dir) && p.sel.selects(c.origin())
	})
}

// thaw ends freeze and freezeMember.
func (n *network) thaw() { n.update(func() { n.frozen = false; clear(n.stopped) }) }

// freezeMember holds up everything of one member.
func (n *network) freezeMember(number int, frozen bool) {
	n.update(func() { n.stopped[number] = frozen })
}

// wake wakes the waiters of waitHealed, because a connection has changed.
func (n *network) wake() { n.update(func() {}) }

func (n *network) add(c *clientConn) { n.update(func() { n.clients = append(n.clients, c) }) }

func (n *network) remove(c *clientConn) {
	n.update(func() {
		n.clients = slices.DeleteFunc(n.clients, func(other *clientConn) bool { return other == c })
	})
}

// update makes a change and wakes the waiters of waitHealed.
func (n *network) update(change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change()
	n.healed.Broadcast()
}
