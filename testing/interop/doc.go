// Package interop tests that lockpool, Curator, kazoo and go-zookeeper exclude each other
// on one lock of a real ZooKeeper server. The other clients are the real libraries,
// unmodified; Curator and kazoo run in separate processes. There are only tests here.
package interop
