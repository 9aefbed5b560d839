//go:build linux

// Package campaign injects random faults into a cluster of three servers and its clients, and
// checks that locks keep their guarantees. The commands testing/lab/torture (ZooKeeper) and
// driver/etcd/etcdtest/torture (etcd) are what an [Engine] adds to it.
//
// Several client processes contend for a few locks, of all kinds, while servers and clients
// are killed, paused and partitioned, as drawn from a seed. The clients record when they
// believe that they hold a lock, and their accesses to a register that is fenced by the lock's
// token. It is a violation if a lock had more holders at once than its kind allows, if a token
// did not grow, if a register was not linearizable, if a call was told of a deadlock that there
// was not, or not told of one, if a holder did not notice a revocation request, if a node of a
// contender is left, or if a call did not return in time. The last line of the output is
//
//	violations=0 leaked_nodes=0 stuck_waiters=0
//
// if there is no violation. Faults happen only to processes and connections of this machine;
// nothing leaves it.
package campaign

import (
	"context"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/lab/simulate/workload"
)

// Engine is a service that keeps locks.
type Engine struct {
	// Start starts a cluster, and returns when it serves. ctx bounds the start.
	Start func(ctx context.Context) (Cluster, error)
	// Open opens a pool, in the process of a client.
	Open func(c Client, opts ...lockpool.Option) (*lockpool.Pool, error)
	// Faults are those that other services do not have.
	Faults []Fault
}

// Cluster is as many servers as [Members] says. Members have numbers from 0.
type Cluster interface {
	// Addr returns a member's address, or another name for it.
	Addr(member int) string
	// Leader waits until one member leads.
	Leader(ctx context.Context) (member int, err error)
	// Kill kills a member, and Restart starts it again. Restart may wait for other members
	// that are started at the same time.
	Kill(member int) error
	Restart(member int) error
	// Pause stops a member, and Resume has it go on.
	Pause(member int) error
	Resume(member int) error
	// Isolate cuts a member off from the others, but not from clients. Heal undoes that.
	Isolate(member int) error
	Heal() error
	// Link starts a proxy in front of a member, for one client. It calls connected when
	// that has connected.
	Link(member int, connected func()) (Link, error)
	// Look adds to the record what clients have left at the servers although they have
	// ended, and what else only the servers know.
	Look(ctx context.Context, c workload.Config, rec *workload.Record) error
	// Close stops all members.
	Close() error
}

// Link is a proxy between one client and one member.
type Link interface {
	// Addr returns the address for the client.
	Addr() string
	// Reset closes all connections. What they hold is lost.
	Reset()
	// HalfOpen closes the connections to the member, and keeps those to the client open, on
	// which nothing happens any more.
	HalfOpen()
	// Hold keeps requests or replies, or both, until Heal has them pass.
	Hold(requests, replies bool)
	Heal()
	Close() error
}
