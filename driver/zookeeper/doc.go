// Package zookeeper is the lockpool driver for Apache ZooKeeper, on the client
// github.com/go-zookeeper/zk. Importing it registers the driver "zookeeper":
//
//	import _ "github.com/lockpool/lockpool/driver/zookeeper"
//
//	pool, err := lockpool.Open("zookeeper", "zk1:2181,zk2:2181,zk3:2181/locks?session_timeout=10s")
//
// [ParseDSN] describes the connect string. Settings unfit for a string, such as TLS, are
// fields of [Config]; pass the Config to [NewConnector], and the connector to
// lockpool.OpenConnector.
//
// # Nodes
//
// A lock is a container node under the chroot, created on demand; ZooKeeper removes the
// container some time after the last contender has left. A contender is an ephemeral
// sequential child named as by Apache Curator, _c_<uuid>-lock-<number>, so that Curator's
// InterProcessMutex and the Lock of the Go client join the same queue, and all exclude each
// other. The node of a reader is named _c_<uuid>-rlock-<number>; both clients wait for
// readers as well. [Layout] describes the names for other clients.
//
// # The client's part
//
// The client opens and closes the session. The client's connection is one end of a
// net.Pipe. A relay at the other end passes the client's packets to a server and back, on a
// connection shared with the session's own requests: the own requests have contexts, creates
// with a lost reply are found, and watches do not leak. The relay answers the client's pings,
// because the proofs of the lease keep the session, and lets no other session through. The
// client is given neither credentials nor a server to dial once the session is over.
package zookeeper
