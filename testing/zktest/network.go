package zktest

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Direction is which way the bytes of a connection go, seen from the server.
type Direction int

const (
	Both     Direction = iota
	Inbound            // from clients to the server
	Outbound           // from the server to clients
)

// network holds the lines of a server or proxy and the faults of connections.
// Its exported methods are those of [Server] and [Proxy].
type network struct {
	received, sent atomic.Int64 // packets

	mu         sync.Mutex
	healed     sync.Cond // a partition has gone, or a line is dead
	clients    []*clientConn
	partitions []partition
	throttles  []throttle
	frozen     bool // all are held up, both ways
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

func (n *network) init() { n.healed.L = &n.mu }

// Partition holds up what goes over connections in a direction until Heal:
// nothing is lost, nothing is closed, and sessions go on expiring. New
// connections that the selector means hang, too; a session's new connection is
// recognized by its first packet.
func (n *network) Partition(sel Selector, dir Direction) {
	if dir != Both && dir != Inbound && dir != Outbound {
		panic("zktest: Partition: the direction is Both, Inbound or Outbound")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.partitions = append(n.partitions, partition{sel, dir})
}

// Heal ends all partitions. What was held up arrives.
func (n *network) Heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.partitions = nil
	n.healed.Broadcast()
}

// freeze holds up everything, independently of partitions.
func (n *network) freeze(frozen bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.frozen = frozen
	n.healed.Broadcast()
}

// Cut ends connections now (FIN). Their sessions live on.
func (n *network) Cut(sel Selector) { n.cut(sel, fin) }

// Reset ends connections now (RST). Their sessions live on.
func (n *network) Reset(sel Selector) { n.cut(sel, rst) }

func (n *network) cut(sel Selector, how cutMode) {
	for _, c := range n.selected(sel) {
		c.cut(how)
	}
}

// Deafen lets what clients send vanish, also the end of the connection, while
// they go on receiving: their sessions expire. It lasts as long as the
// connection.
func (n *network) Deafen(sel Selector) {
	for _, c := range n.selected(sel) {
		c.blackhole(true, false)
	}
}

// Throttle writes to connections, also to later ones, in pieces of at most so
// many bytes, with a pause after each. 0 bytes end it.
func (n *network) Throttle(sel Selector, bytes int, pause time.Duration) {
	if bytes < 0 || pause < 0 {
		panic("zktest: Throttle: bytes and pause are not negative")
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

// await waits until no partition holds up the line, or it is dead.
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
	return n.frozen || slices.ContainsFunc(n.partitions, func(p partition) bool {
		return (p.dir == Both || p.dir == dir) && p.sel.selects(c.origin())
	})
}

// changed wakes who waits for a partition's end, because a line has changed.
func (n *network) wake() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.healed.Broadcast()
}

func (n *network) add(c *clientConn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.clients = append(n.clients, c)
}

func (n *network) remove(c *clientConn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.clients = slices.DeleteFunc(n.clients, func(other *clientConn) bool { return other == c })
}
