package main

// This file has the kinds of faults of a bubble.

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/lockpool/lockpool/testing/lab/simulate/workload"
	"github.com/lockpool/lockpool/testing/zktest"
)

// fault is a kind of fault. begin injects the fault, and returns where, and how to heal the
// fault; a fault over at once has nothing to heal.
type fault struct {
	name    string
	lasts   workload.Length
	members int // the least members of the ensemble
	often   int // how much more often than others the fault is drawn, if not 0
	begin   func(b *bubble, s step) (what string, heal func())
}

var faults = []fault{
	// Processes and machines.
	{"kill a process", workload.Short, 1, 0, replace(func(b *bubble, i *instance) { i.kill(b.server.Cut) })},
	{"cut a process's power", workload.Short, 1, 0, replace(func(b *bubble, i *instance) { i.kill(b.server.HalfOpen) })},
	{"stop a process", workload.Moment, 1, 0, replace(func(b *bubble, i *instance) { i.shutdown() })},
	{"close a process's pool", workload.Moment, 1, 0, replace(func(b *bubble, i *instance) { i.close() })},
	{"suspend a machine", workload.Stopped, 1, 2, stop{reported: true}.begin},
	{"suspend a machine that was cut off", workload.Stopped, 1, 0, stop{reported: true, cutBefore: true}.begin},
	{"suspend a machine whose network comes back late", workload.Long, 1, 4, stop{reported: true, cutAfter: true}.begin},
	{"stop a virtual machine", workload.Stopped, 1, 4, stop{}.begin},
	{"stop a virtual machine that was cut off", workload.Stopped, 1, 2, stop{cutBefore: true}.begin},
	{"stop a virtual machine whose network comes back late", workload.Stopped, 1, 2, stop{cutAfter: true}.begin},
	{"stop a virtual machine whose wall clock is corrected late", workload.Stopped, 1, 2, stop{corrected: true}.begin},
	{"stop a virtual machine again and again", workload.Short, 1, 2, stop{often: true}.begin},
	{"set a wall clock", workload.Moment, 1, 0, func(b *bubble, s step) (string, func()) {
		i := b.target(s)
		d := time.Duration((s.Amount - 0.5) * float64(time.Hour))
		i.machine.SetWallClock(d)
		return fmt.Sprintf("%s by %s", i.name, d), nil
	}},

	// Connections of a process.
	{"cut connections", workload.Moment, 1, 0, disturb((*zktest.Server).Cut)},
	{"reset connections", workload.Moment, 1, 0, disturb((*zktest.Server).Reset)},
	{"half-open connections", workload.Long, 1, 0, disturb((*zktest.Server).HalfOpen)},
	{"deafen connections", workload.Long, 1, 0, disturb((*zktest.Server).Deafen)},
	{"freeze connections", workload.Short, 1, 0, partition(zktest.Both)},
	{"freeze connections for long", workload.Long, 1, 0, partition(zktest.Both)},
	{"freeze what a process sends", workload.Long, 1, 0, partition(zktest.Inbound)},
	{"freeze what a process receives", workload.Long, 1, 0, partition(zktest.Outbound)},
	{"throttle connections", workload.Long, 1, 0, func(b *bubble, s step) (string, func()) {
		i := b.target(s)
		b.server.Throttle(i.selector(), 1+int(s.Amount*30), 20*time.Millisecond)
		return i.name, func() { b.server.Throttle(i.selector(), 0, 0) }
	}},
	{"expire a session", workload.Moment, 1, 0, func(b *bubble, s step) (string, func()) {
		i := b.target(s)
		for _, c := range b.server.State().Conns {
			if strings.HasPrefix(c.Addr, i.host+":") && c.Session != 0 {
				b.expire(c)
			}
		}
		return i.name, nil
	}},

	// Requests of any process.
	{"delay requests", workload.Moment, 1, 0, inject(func(s step) zktest.Action { return zktest.DelayApply(seconds(s.Amount * 3)) })},
	{"delay replies", workload.Moment, 1, 0, inject(func(s step) zktest.Action { return zktest.DelayReply(seconds(s.Amount * 3)) })},
	{"lose requests", workload.Moment, 1, 0, inject(func(step) zktest.Action { return zktest.DropBeforeApply() })},
	{"lose replies", workload.Moment, 1, 0, inject(func(step) zktest.Action { return zktest.DropAfterApply() })},
	{"reset instead of replying", workload.Moment, 1, 0, inject(func(step) zktest.Action { return zktest.ResetAfterApply() })},
	{"cut replies short", workload.Moment, 1, 0, inject(func(s step) zktest.Action { return zktest.TruncateReply(int(s.Amount * 40)) })},
	{"reset after replies", workload.Moment, 1, 0, inject(func(step) zktest.Action { return zktest.ResetAfterReply() })},

	// Members, as clients see them.
	{"reset all connections", workload.Moment, 1, 0, func(b *bubble, _ step) (string, func()) {
		b.server.Reset(zktest.Selector{})
		return "", nil
	}},
	{"reset the connections of a member", workload.Moment, 3, 0, func(b *bubble, s step) (string, func()) {
		b.server.Reset(zktest.Selector{Member: s.Member})
		return member(s.Member), nil
	}},
	{"freeze the connections of a member", workload.Long, 3, 0, func(b *bubble, s step) (string, func()) {
		sel := zktest.Selector{Member: s.Member}
		b.server.Partition(sel, zktest.Both)
		return member(s.Member), func() { b.server.HealOnly(sel, zktest.Both) }
	}},
	{"refuse connections", workload.Long, 1, 0, admit((*zktest.Server).RefuseConnections)},
	{"reject connections", workload.Long, 1, 0, admit((*zktest.Server).RejectConnections)},
	{"hang connections", workload.Long, 1, 0, admit((*zktest.Server).HangConnections)},
	{"restart the ensemble", workload.Short, 1, 0, alone(func(b *bubble) func() {
		_ = b.server.Stop(context.Background()) // fails only if closed
		return func() { _ = b.server.Start(context.Background()) }
	})},
	{"pause the ensemble", workload.Short, 1, 0, alone(pauseAll)},
	{"pause the ensemble for long", workload.Long, 1, 0, alone(pauseAll)},

	// Members of an ensemble.
	{"kill the leader", workload.Short, 3, 0, members(leader, kill)},
	{"kill the leader for long", workload.Long, 3, 0, members(leader, kill)},
	{"kill a follower", workload.Long, 3, 0, members(follower, kill)},
	{"kill the leader and a follower", workload.Long, 3, 0, members(leaderAndFollower, kill)},
	{"kill all members", workload.Short, 3, 0, members(everyMember, kill)},
	{"pause the leader", workload.Short, 3, 0, members(leader, pause)},
	{"pause the leader for long", workload.Long, 3, 0, members(leader, pause)},
	{"pause a follower", workload.Short, 3, 0, members(follower, pause)},
	{"pause a follower for long", workload.Long, 3, 0, members(follower, pause)},
	{"isolate the leader", workload.Short, 3, 0, members(leader, isolate)},
	{"isolate the leader for long", workload.Long, 3, 0, members(leader, isolate)},
	{"isolate a follower", workload.Short, 3, 0, members(follower, isolate)},
	{"isolate a follower for long", workload.Long, 3, 0, members(follower, isolate)},
	{"isolate all members", workload.Short, 3, 0, members(everyMember, isolate)},
	{"separate the leader and a follower", workload.Long, 3, 0, func(b *bubble, s step) (string, func()) {
		which := leaderAndFollower(b, s)
		_ = b.server.Separate(which[0], which[1])
		return fmt.Sprint(which), b.server.HealMembers
	}},
	// What a lease must survive: the leader does not hear of a session, or hears late,
	// while the client still gets answers.
	{"isolate a process's member", workload.Long, 3, 0, members(own, isolate)},
	{"pause a process's member", workload.Long, 3, 0, members(own, pause)},
	{"slow down and isolate a process's member", workload.Long, 3, 0, func(b *bubble, s step) (string, func()) {
		n := own(b, s)[0]
		_ = b.server.SlowMember(n, time.Duration(s.Amount*float64(b.Tick)))
		b.later(b.Tick, func() { _ = b.server.Isolate(n) })
		return member(n), func() {
			b.server.HealMembers()
			_ = b.server.SlowMember(n, 0)
		}
	}},
	{"silence a process after a write", workload.Longer, 1, 8, series((*chain).afterWrite, (*chain).silence)},
	{"silence a process after a pause of the leader", workload.Longer, 1, 8, series((*chain).pauseLeader, (*chain).afterProofs, (*chain).silence)},
	{"silence a slow process after a pause of the leader", workload.Longer, 1, 8, series((*chain).slow, (*chain).afterSyncs, (*chain).pauseLeader,
		(*chain).afterProofs, (*chain).silence)},
	{"silence a process after a reconnect", workload.Longer, 1, 8, series((*chain).afterWrite, (*chain).reset, (*chain).afterConnect, (*chain).silence)},
	{"silence a process after a slow reconnect", workload.Longer, 1, 8, series((*chain).afterSyncs, (*chain).slow, (*chain).reset, (*chain).afterConnect,
		(*chain).afterWrite, (*chain).silence)},
	{"replace the leader of a process", workload.Longer, 3, 8, series((*chain).joinLeader, (*chain).slowWrites, (*chain).afterWrite, (*chain).replaceLeader)},

	{"slow down the leader", workload.Long, 3, 0, members(leader, slow)},
	{"slow down a follower", workload.Long, 3, 0, members(follower, slow)},
	{"slow down all members", workload.Long, 3, 0, members(everyMember, slow)},
	{"a member lags", workload.Long, 3, 0, func(b *bubble, s step) (string, func()) {
		_ = b.server.Lag(s.Member)
		return member(s.Member), func() { _ = b.server.CatchUp(s.Member) }
	}},

	// What others do to contenders.
	{"remove nodes", workload.Moment, 1, 4, func(b *bubble, s step) (string, func()) {
		if b.active > 0 {
			return "none, because of another fault", nil
		}
		r := rand.New(rand.NewPCG(b.Seed, uint64(s.At)))
		nodes := b.server.State().Nodes
		for _, path := range slices.Sorted(maps.Keys(nodes)) {
			if nodes[path].Stat.EphemeralOwner != 0 && r.IntN(2) == 0 {
				b.remove(path)
			}
		}
		b.findDisplaced()
		return "", nil
	}},
	{"remove the node that a request deletes", workload.Short, 1, 0, strike(removeNode, deletes)},
	{"remove the node that a request reads", workload.Short, 1, 0, strike(removeNode, reads)},
	{"lose replies to creates while members lag", workload.Short, 3, 3, loseReplies(creates)},
	{"lose replies to deletes while members lag", workload.Short, 1, 3, loseReplies(deletes)},
	{"isolate the leader during a create", workload.Short, 3, 3, func(b *bubble, s step) (string, func()) {
		what, heal := strike(func(b *bubble, r zktest.Request) {
			if r.Member != b.server.Leader() {
				return
			}
			_ = b.server.Isolate(r.Member)
			for n := range b.Members { // the client must come back
				if n+1 != r.Member {
					_ = b.server.RefuseConnections(n + 1)
				}
			}
			b.later(10*time.Millisecond, func() { b.server.Reset(zktest.Selector{Conn: r.Conn}) })
		}, creates)(b, s)
		return what, func() {
			heal()
			_ = b.server.AcceptConnections()
			b.server.HealMembers()
		}
	}},
	{"expire the session that deletes a node", workload.Short, 1, 0, strike(expireSession, deletes)},
}

// leader returns the leader, or any member if there is none.
func leader(b *bubble, s step) []int {
	if n := b.server.Leader(); n != 0 {
		return []int{n}
	}
	return []int{s.Member}
}

// own returns the member of a process's connection, or any member without one.
func own(b *bubble, s step) []int {
	if c := b.target(s).conn(); c.Member != 0 {
		return []int{c.Member}
	}
	return []int{s.Member}
}

func follower(b *bubble, s step) []int {
	if s.Member == b.server.Leader() {
		return []int{s.Member%b.Members + 1}
	}
	return []int{s.Member}
}

func leaderAndFollower(b *bubble, s step) []int {
	n := leader(b, s)[0]
	other := s.Member
	if other == n {
		other = n%b.Members + 1
	}
	return []int{n, other}
}

func everyMember(b *bubble, _ step) (all []int) {
	for n := range b.Members {
		all = append(all, n+1)
	}
	return all
}

// members is a fault of some members, one after the other. Errors mean the end of a member
// meanwhile, by another fault.
func members(which func(b *bubble, s step) []int, begin func(b *bubble, s step, member int) (heal func())) func(b *bubble, s step) (string, func()) {
	return func(b *bubble, s step) (string, func()) {
		all := which(b, s)
		var heals []func()
		for _, n := range all {
			heals = append(heals, begin(b, s, n))
		}
		return fmt.Sprint(all), func() {
			for _, heal := range heals {
				heal()
			}
		}
	}
}

func kill(b *bubble, _ step, n int) func() {
	_ = b.server.StopMember(n)
	return func() { _ = b.server.StartMember(n) }
}

func pause(b *bubble, _ step, n int) func() {
	_ = b.server.PauseMember(n)
	return func() { _ = b.server.ResumeMember(n) }
}

func isolate(b *bubble, _ step, n int) func() {
	_ = b.server.Isolate(n)
	return b.server.HealMembers
}

// slow makes messages of a member take up to a tick.
func slow(b *bubble, s step, n int) func() {
	_ = b.server.SlowMember(n, time.Duration(s.Amount*s.Amount*float64(b.Tick)))
	return func() { _ = b.server.SlowMember(n, 0) }
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func member(n int) string { return fmt.Sprintf("member %d", n) }

// replace ends a process, and starts another one when the fault is over.
func replace(end func(b *bubble, i *instance)) func(b *bubble, s step) (string, func()) {
	return func(b *bubble, s step) (string, func()) {
		i := b.target(s)
		if !i.retire() {
			return i.name + ", which has ended already", nil
		}
		end(b, i)
		if s.Lasts > 0 {
			return i.name, func() { b.start(i.slot) }
		}
		b.start(i.slot)
		return i.name, nil
	}
}

func disturb(do func(*zktest.Server, zktest.Selector)) func(b *bubble, s step) (string, func()) {
	return func(b *bubble, s step) (string, func()) {
		i := b.target(s)
		do(b.server, i.selector())
		return i.name, nil
	}
}

func partition(dir zktest.Direction) func(b *bubble, s step) (string, func()) {
	return func(b *bubble, s step) (string, func()) {
		i := b.target(s)
		b.server.Partition(i.selector(), dir)
		return i.name, func() { b.server.HealOnly(i.selector(), dir) }
	}
}

// inject hits some of the next requests, of one kind or of all.
func inject(action func(s step) zktest.Action) func(b *bubble, s step) (string, func()) {
	return func(b *bubble, s step) (string, func()) {
		rule := zktest.Rule{Skip: int(s.Amount * 20), Times: 1 + s.Process%4, Do: action(s)}
		kinds := [][]zktest.Op{nil, nil, zktest.Creates, {zktest.OpDelete, zktest.OpMulti}, {zktest.OpGetChildren, zktest.OpGetChildren2}, {zktest.OpConnect}}
		rule.Ops = kinds[(s.Process+s.Member)%len(kinds)]
		begin, f := b.now(), b.server.Inject(rule)
		b.delayed.Go(func() { // ends after a minute, at the latest
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			_ = f.Wait(ctx)
			f.Remove()
			b.history.Update(func(rec *workload.Record) {
				rec.Pending = append(rec.Pending, workload.Span{Process: rule.String(), Begin: begin, End: b.now()})
			})
		})
		return rule.String(), nil
	}
}

var (
	deletes = zktest.Match{Ops: []zktest.Op{zktest.OpDelete, zktest.OpMulti}, Prefix: chroot + "/"}
	reads   = zktest.Match{Ops: []zktest.Op{zktest.OpGetData, zktest.OpExists}, Prefix: chroot + "/"}
	creates = zktest.Match{Ops: []zktest.Op{zktest.OpCreate, zktest.OpMulti}, Prefix: chroot + "/", Where: func(r zktest.Request) bool {
		return r.Op == zktest.OpCreate || strings.HasSuffix(r.Paths[0], "-") // without a number yet
	}}
)

// strike is a fault of some of the next requests, before they are carried out, unless there
// is another fault by then.
func strike(do func(b *bubble, r zktest.Request), match zktest.Match) func(b *bubble, s step) (string, func()) {
	return func(b *bubble, s step) (string, func()) {
		f := b.server.Inject(zktest.Rule{Match: match, Skip: int(s.Amount * 10), Times: 3, Do: zktest.Call(func(r zktest.Request) {
			if !b.faulting.TryLock() {
				return // a fault begins or ends, and may wait for the server
			}
			defer b.faulting.Unlock()
			if b.active == 1 {
				do(b, r)
			}
		})})
		return "", f.Remove
	}
}

// loseReplies loses the replies to some requests while the other members lag, so that a
// client may ask about the request at a member not yet knowing of the request.
func loseReplies(match zktest.Match) func(b *bubble, s step) (string, func()) {
	return func(b *bubble, s step) (string, func()) {
		what, heal := strike(func(b *bubble, r zktest.Request) {
			for n := range b.Members {
				if n+1 != r.Member {
					_ = b.server.Lag(n + 1)
				}
			}
			sel := zktest.Selector{Conn: r.Conn}
			b.server.Partition(sel, zktest.Outbound)
			b.later(10*time.Millisecond, func() {
				b.server.Reset(sel)
				b.server.HealOnly(sel, zktest.Outbound)
			})
		}, match)(b, s)
		return what, func() {
			heal()
			for n := range b.Members {
				_ = b.server.CatchUp(n + 1)
			}
		}
	}
}

func removeNode(b *bubble, r zktest.Request) {
	b.remove(r.Paths[0])
	b.findDisplaced()
}

func expireSession(b *bubble, r zktest.Request) {
	for _, c := range b.server.State().Conns {
		if c.Number == r.Conn {
			b.expire(c)
		}
	}
}

// expire expires the session of a connection. The client cannot know before being told.
func (b *bubble) expire(c zktest.Conn) {
	b.expired[c.Session] = true
	b.excuse(b.nameOf(c), b.now(), b.now().Add(b.longest))
	_ = b.server.ExpireSession(c.Session) // fails if the session has ended
}

// remove removes a contender's node. It leaves guards alone if names are used for two kinds
// of locks: only the guard shows that a caller is about to create leases.
func (b *bubble) remove(path string) {
	if b.Load.Mixed > 0 && strings.Contains(path, "/locks/") {
		return
	}
	node := b.server.State().Nodes[path]
	if below, ok := strings.CutPrefix(path, chroot+"/"); ok && node.Stat.EphemeralOwner != 0 && b.server.Delete(path) == nil {
		b.history.Update(func(rec *workload.Record) {
			rec.Removals = append(rec.Removals, workload.NewRemoval(b.now(), below, node.Stat.Czxid))
		})
	}
}

// findDisplaced finds waiters who have waited since before now, when nodes were removed, and
// who have no place in the queue two seconds later, unless nodes are removed again meanwhile.
func (b *bubble) findDisplaced() {
	removed := b.now()
	b.removed = removed
	b.later(2*time.Second, func() {
		if b.removed == removed {
			b.findDisplacedSince(removed)
		}
	})
}

func (b *bubble) findDisplacedSince(removed workload.Instant) {
	if slices.ContainsFunc(b.ends.Removals(), func(x zktest.RemovedNode) bool { return b.instant(x.At) > removed.Add(lag) }) {
		return // by a bystander
	}
	state := b.server.State()
	for w, places := range b.history.Waiters(removed, b.now()) {
		nodes := 0
		for _, c := range state.Conns {
			if b.nameOf(c) != w.Process {
				continue
			}
			for _, name := range state.Children(chroot + "/" + w.Lock) {
				if state.Nodes[chroot+"/"+w.Lock+"/"+name].Stat.EphemeralOwner == c.Session {
					nodes++
				}
			}
		}
		if nodes < places {
			b.history.Update(func(rec *workload.Record) {
				what := fmt.Sprintf("%s waited for lock %q and needed %d nodes, but had %d", w.Process, w.Lock, places, nodes)
				rec.Displaced = append(rec.Displaced, workload.Span{Process: what, Begin: removed, End: b.now()})
			})
		}
	}
}

// nameOf returns the name of the process of a connection, or "" if the process has ended.
func (b *bubble) nameOf(c zktest.Conn) string {
	for _, i := range b.instances {
		if strings.HasPrefix(c.Addr, i.host+":") {
			return i.name
		}
	}
	return ""
}

func admit(mode func(*zktest.Server, ...int) error) func(b *bubble, s step) (string, func()) {
	return func(b *bubble, s step) (string, func()) {
		which := []int{s.Member}
		if s.Amount < 0.3 {
			which = nil
		}
		_ = mode(b.server, which...) // fails while the server is stopped
		return fmt.Sprint(which), func() { _ = b.server.AcceptConnections(which...) }
	}
}

func pauseAll(b *bubble) func() {
	_ = b.server.Pause() // fails only if closed or stopped
	return func() { _ = b.server.Resume() }
}

// alone is a fault of the whole ensemble, one at a time.
func alone(begin func(b *bubble) (heal func())) func(b *bubble, s step) (string, func()) {
	return func(b *bubble, s step) (string, func()) {
		if b.down {
			return "none, because the ensemble is down already", nil
		}
		b.down = true
		heal := begin(b)
		return "", func() { heal(); b.down = false }
	}
}
