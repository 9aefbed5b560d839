// Package zktest starts ZooKeeper servers for tests and examples.
//
// [StartReal] and [StartRealEnsemble] run Apache ZooKeeper itself, one Java
// process per server, for tests; [RunReal] and [RunRealEnsemble] do the same
// for programs. The servers listen on 127.0.0.1 only, keep their data in a
// temporary directory of their own, and can be stopped, killed, paused and
// started again on the same port with the same data.
//
// No server outlives the process that started it: when that process is gone,
// in whatever way, a watchdog kills the server and removes its directory.
//
// Real servers need a Unix system, sh and java on the PATH, and either an
// unpacked Apache ZooKeeper distribution named by the environment variable
// ZOOKEEPER_HOME or Debian's zookeeper package. Where one of these is missing
// the functions fail and say what to install; they never skip a test.
package zktest
