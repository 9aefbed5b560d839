// Package etcd is lockpool's driver for etcd.
//
//	pool, err := lockpool.Open("etcd", "host1:2379,host2:2379/locks?ttl=15s")
//
// A session is a lease, a contender is a key of that lease, and contenders are ordered by
// the revision at which their keys were created, which is also their fencing token. Keys
// are those of the Mutex of go.etcd.io/etcd/client/v3/concurrency, so that a Mutex whose
// prefix is that of the connector and the name of a lock excludes the lock, and the lock
// excludes it. Waiters watch single keys.
//
// A session talks to one member at a time, and knows from the answers of a majority until
// when its lease certainly lives (see the type lease). If the member falls silent, it goes
// to another one and keeps its lease.
package etcd
