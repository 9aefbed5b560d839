// Package etcd is lockpool's driver for etcd.
//
//	pool, err := lockpool.Open("etcd", "host1:2379,host2:2379/locks?ttl=15s")
//
// A session is a lease, and a contender is a key of this lease. Contenders are ordered by
// the revisions of the creation of their keys, and these revisions are also the fencing
// tokens. Keys are named as by the Mutex of go.etcd.io/etcd/client/v3/concurrency: a Mutex
// whose prefix is the connector's prefix and the name of a lock excludes the lock, and the
// lock excludes the Mutex. Waiters watch single keys.
//
// A session talks to one member at a time, and knows from the answers of a majority until
// when the lease certainly lives (see the type lease). If the member falls silent, the
// session goes to another one and keeps the lease.
package etcd
