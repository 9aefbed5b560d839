// Package zktest provides ZooKeeper for tests of any program using ZooKeeper, through any
// client: an embedded server in Go, a launcher for real servers, and a proxy in front of
// them. The package depends only on the standard library. The README beside this file
// begins with short examples.
//
// # The embedded server
//
// [Start] gives a test a new server, in a millisecond or so:
//
//	func TestMyService(t *testing.T) {
//		server := zktest.Start(t)
//		run(t, server.ConnectString()) // like "127.0.0.1:43117"
//	}
//
// [Run] does the same for programs, and the command zkserve in this directory for programs
// in other languages. The server speaks the client protocol of ZooKeeper 3.8 and replies as
// the real server does: random scripts of requests are compared with a real server, reply
// by reply, checks of everything else run on both, and go-zookeeper, Curator, kazoo and
// zkCli work unchanged. The server keeps everything in memory and listens on the loopback
// interface only. Do not use it in production.
//
// # Faults
//
// Faults hard to time on a real server are exact here. A [Rule] determines the requests hit
// by a fault, and what happens to them:
//
//	lost := server.Inject(zktest.Rule{
//		Match: zktest.Match{Ops: zktest.Creates, Prefix: "/workers/"},
//		Do:    zktest.DropAfterApply(), // the node exists, the reply is lost
//	})
//	...
//	err := lost.Wait(ctx) // until the fault has happened
//
// Every fault happens when the test says so, is counted, and can be waited for. Nothing is
// random, and nothing happens beyond the possibilities of a real network: an open
// connection delivers everything in order.
//
//	a lost request                           DropBeforeApply
//	a lost reply                             DropAfterApply, TruncateReply
//	a reset right after a reply              ResetAfterReply
//	a slow or hanging server                 DelayApply, HoldApply, DelayReply, HoldReply, Pause
//	an error                                 FailWith
//	another change between two requests      Call
//	a hanging or lost handshake              a rule on OpConnect
//	a lost watch event                       Swallow (on OpEvent)
//	a broken connection                      Cut (FIN), Reset (RST)
//	a partition that heals                   Partition, Heal
//	a client that the server cannot hear     Deafen
//	a half-open connection                   HalfOpen
//	a partition until the session expires    Freeze (at a request)
//	a server that takes no connections       RefuseConnections, RejectConnections, HangConnections
//	an expired session                       ExpireSession; ExpireBeforeApply, ExpireAfterApply (at a request)
//	a restart                                Stop, Start
//	a follower behind its leader             Members, Lag, SlowMember
//	a crash of members; elections            StopMember, StartMember
//	members that freeze                      PauseMember, ResumeMember
//	partitions between members               Isolate, Separate, HealMembers
//	deleted containers; exhausted sequences  ReapContainers; SetSequence
//	a clock that jumps                       MoveTimeOfDay
//
// With the option [Members] the server is an ensemble. One member leads and decides when a
// majority has accepted a write; the others follow, each with a separate state. A follower
// cut off answers reads and pings until the follower notices, after five ticks. So does a
// leader cut off, which also answers syncs. Then the others elect a leader with every
// committed write, and give all sessions their full timeout. Not modeled: observers,
// members joining or leaving the ensemble, disks losing accepted writes, and the time of
// copying a state.
//
// [FaultInjector] is the interface of the embedded server and of [Proxy], which injects the
// same faults in front of a real server.
//
// [Server.WaitWatch], [Server.WaitFor] and [Fault.Wait] wait for actions of clients, so
// that no test has to sleep. [Server.State] shows the server's state. [Server.Trace]
// returns the latest requests, replies and events: log them when a test fails.
//
// Three notes on github.com/go-zookeeper/zk v1.0.4. To silence the client, use WithLogger;
// WithLogInfo is not enough. Reconnecting to an only address takes about a second.
// Reconnecting with watches is a data race in the client (sendSetWatches reads what
// recvLoop writes), possibly reported by go test -race.
//
// # Real servers
//
// [StartReal] and [StartRealEnsemble] run Apache ZooKeeper itself, one Java process per
// server, for tests; [RunReal] and [RunRealEnsemble] do the same for programs. The servers
// listen on 127.0.0.1 only, keep their data in separate temporary directories, and can be
// stopped, killed, paused and started again on the same port with the same data. With the
// option [Separated] each member of an ensemble has a separate network inside this machine,
// and [RealEnsemble.Isolate] cuts a member off from the others. With the option [TLS] the
// servers also serve TLS.
//
// No server outlives the process that started the server: when the process ends, for any
// reason, a watchdog kills the server and removes the directory.
//
// Real servers need a Unix system, sh and java on the PATH, and either an unpacked Apache
// ZooKeeper distribution named by the environment variable ZOOKEEPER_HOME or Debian's
// zookeeper package. If any of them is missing, the functions fail and say what to install;
// they never skip a test.
package zktest
