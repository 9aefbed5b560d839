// Package zookeeper is the lockpool driver for Apache ZooKeeper, on the client
// github.com/go-zookeeper/zk. Importing it registers the driver "zookeeper":
//
//	import _ "github.com/lockpool/lockpool/driver/zookeeper"
//
//	pool, err := lockpool.Open("zookeeper", "zk1:2181,zk2:2181,zk3:2181/locks?session_timeout=10s")
//
// [ParseDSN] describes the connect string. What does not fit into a string,
// such as TLS, is set in a [Config] and opened with [NewConnector] and
// lockpool.OpenConnector.
//
// # What is stored
//
// A lock is a container node under the chroot, made on demand; ZooKeeper
// removes it some time after its last contender has left. A contender is an
// ephemeral sequential child named as Apache Curator names it,
// _c_<uuid>-lock-<number>, so that Curator's InterProcessMutex and the Lock of
// the Go client stand in the same queue and respect each other. Who shares the
// lock is called _c_<uuid>-rlock-<number>, which those two wait for as well.
//
// # What is handled here
//
// The client is used for its protocol. What a lock can not live with is handled
// in this package: a session that silently becomes another one, calls without a
// context, creates whose reply is lost, watches that leak, and secrets in
// messages. Each is explained where it is handled.
package zookeeper
