//go:build linux

// Package campaign injects random faults into a cluster of three servers and its clients,
// and checks the guarantees of locks. The commands testing/lab/torture (ZooKeeper) and
// driver/etcd/etcdtest/torture (etcd) add an [Engine] each.
//
// Several client processes contend for a few locks, of all kinds, while servers and clients
// are killed, paused and partitioned, as drawn from a seed. The clients record when they
// believe they hold a lock, and with which token. The violations are: more holders of a lock
// at once than allowed by the kind, a token that did not grow, an unfounded report of a
// deadlock, or none of a real one, a revocation request unnoticed by the holder, a leftover
// node of a contender, and a call that did not return in time. The last line of the output is
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

// Engine is a service for locks.
type Engine struct {
	// Start starts a cluster, and returns when the cluster serves. ctx bounds the start.
	Start func(ctx context.Context) (Cluster, error)
	// Open opens a pool, in the process of a client.
	Open func(c Client, opts ...lockpool.Option) (*lockpool.Pool, error)
	// Faults are the faults of this service only.
	Faults []Fault
}

// Cluster is as many servers as [Members] says. Members have numbers from 0.
type Cluster interface {
	// Addr returns a member's address, or another name.
	Addr(member int) string
	// Leader waits until one member leads.
	Leader(ctx context.Context) (member int, err error)
	// Kill kills a member, and Restart starts the member again. Restart may wait for other
	// members started at the same time.
	Kill(member int) error
	Restart(member int) error
	// Pause stops a member, and Resume has the member go on.
	Pause(member int) error
	Resume(member int) error
	// Isolate cuts a member off from the others, but not from clients. Heal undoes this.
	Isolate(member int) error
	Heal() error
	// Link starts a proxy in front of a member, for one client. It calls connected when the
	// client has connected.
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
	// HalfOpen closes the connections to the member, and keeps connections to the client
	// open, with nothing happening there any more.
	HalfOpen()
	// Hold keeps requests or replies, or both, until Heal has them pass.
	Hold(requests, replies bool)
	Heal()
	Close() error
}
