// Package zktest is ZooKeeper for tests: an embedded server that needs nothing
// but Go, and a launcher for real ones. It is meant for everybody who tests code
// that talks to ZooKeeper, with whatever client; the package needs only the
// standard library.
//
// # The embedded server
//
// [Start] gives a test a server of its own, in a millisecond or so:
//
//	func TestMyService(t *testing.T) {
//		server := zktest.Start(t)
//		run(t, server.ConnectString()) // like "127.0.0.1:43117"
//	}
//
// [Run] does the same for programs, and the command zkserve in this directory
// for a shell. It speaks the client protocol of ZooKeeper 3.8 and gives the
// answers of the real server: one suite of tests runs on both, random programs
// are compared on both, and go-zookeeper, Curator, kazoo and zkCli work with it
// unchanged. It keeps everything in memory, listens on the loopback interface
// only and is never for production.
//
// # Faults
//
// What can not be done to a real server at the right instant can be done here.
// A [Rule] says what happens to which request:
//
//	lost := server.Inject(zktest.Rule{
//		Match: zktest.Match{Ops: zktest.Creates, Prefix: "/locks/"},
//		Do:    zktest.DropAfterApply(), // created, but the client will not know
//	})
//	...
//	err := lost.Wait(ctx) // until it has happened
//
// Every fault happens when the test says so, is counted, and can be waited for.
// Nothing happens by chance, and nothing that could not happen in life: what a
// connection carries comes complete and in order for as long as it stands.
//
//	a request that never arrives            DropBeforeApply
//	one that is carried out unanswered      DropAfterApply, TruncateReply
//	a reset right behind a reply            ResetAfterReply
//	a slow or hanging server                DelayApply, HoldApply, DelayReply, HoldReply, Pause
//	an error                                FailWith
//	something between two requests          Call
//	a handshake that hangs or is lost       a rule on OpConnect
//	an odd session timeout                  GrantTimeout (on OpConnect)
//	a watch event that never comes          Swallow (on OpEvent)
//	a broken connection                     Cut (FIN), Reset (RST)
//	silence, and later all of it            Partition, Heal
//	the server never hears the client       Deafen
//	the server has forgotten the client     HalfOpen
//	both are cut off until the session ends Freeze (at a request)
//	nobody can connect                      RefuseConnections, RejectConnections, HangConnections
//	a session's end                         ExpireSession; ExpireBeforeApply, ExpireAfterApply (at a request)
//	a session's end by time, in no time     ManualClock, Advance
//	a restart; another leader               Stop, Start; BumpEpoch, MoveSession
//	a follower behind its leader            Members, Lag
//	containers that go; the last number     ReapContainers; SetSequence
//
// [Faulty] is what the embedded server has in common with [Proxy], which does
// the same in front of a real server.
//
// [Server.WaitWatch], [Server.WaitChildWatch], [Server.WaitFor] and
// [Server.WaitRequest] wait for what others do, so that no test has to sleep.
// [Server.State] and [Server.TrackHolders] show what the server knows.
// [Server.Trace] is all that was asked and answered: log it when a test fails.
//
// With github.com/go-zookeeper/zk v1.0.4: to be quiet it needs WithLogger, and
// not only WithLogInfo; it takes about a second to come back to the only
// address it has; and coming back with watches is a data race of its own
// (sendSetWatches reads what recvLoop writes) that go test -race may report.
//
// # Real servers
//
// [StartReal] and [StartRealEnsemble] run Apache ZooKeeper itself, one Java
// process per server, for tests; [RunReal] and [RunRealEnsemble] do the same
// for programs. The servers listen on 127.0.0.1 only, keep their data in a
// temporary directory of their own, and can be stopped, killed, paused and
// started again on the same port with the same data. With the option
// [Separated] the members of an ensemble have networks of their own, which reach
// no further than this machine, and [RealEnsemble.Isolate] cuts one off from the
// others. With the option [TLS] they serve TLS, too.
//
// No server outlives the process that started it: when that process is gone,
// in whatever way, a watchdog kills the server and removes its directory.
//
// Real servers need a Unix system, sh and java on the PATH, and either an
// unpacked Apache ZooKeeper distribution named by the environment variable
// ZOOKEEPER_HOME or Debian's zookeeper package. Where one of these is missing
// the functions fail and say what to install; they never skip a test.
package zktest
