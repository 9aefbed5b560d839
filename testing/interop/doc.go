// Package interop tests that lockpool, Curator, kazoo and go-zookeeper heed each
// other on one lock of one real ZooKeeper server, each of them as it is and in a
// process of its own. It holds no code.
package interop
