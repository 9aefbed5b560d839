package zookeeper

// This file has the lease of a session: the proof of how long the session is certainly
// alive.

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// lease determines until when a session is certainly alive. The locks of the session
// end then, before ZooKeeper can grant them to others.
//
// An answer alone proves little. A follower cut off from its leader still answers pings and
// reads, while the leader expires the session. So the lease counts only requests answered
// by way of the leader. T is the negotiated timeout of the session, and all times are read
// from this process's clock (package clock).
//
// What the servers do (read in the source of ZooKeeper 3.8; 3.5 and 3.9 do the same in the
// same places, and 3.4 under other names):
//
//  1. A leader expires a session no earlier than T after the last report of activity
//     (ExpiryQueue.update rounds up). A new session, or a session resumed on another
//     connection, is reported to the leader at once
//     (LeaderZooKeeperServer.checkIfValidGlobalSession). From then on the follower only
//     collects the activity (LearnerSessionTracker.touchTable) and reports all activity in
//     the answer to the leader's next ping; not even a request passed on to the leader
//     counts there.
//  2. The leader pings its followers every half tick, or a moment later; after a pause,
//     such as the garbage collector's, a moment after the pause (Leader.lead). The ping
//     goes on the same stream as the answers to the requests passed on. A follower answers
//     a ping at once, on the same stream as the next requests passed on. Both streams keep
//     their order (LearnerHandler.queuedPackets, Learner.ping).
//  3. A leader answers a sync by itself (Leader.processSync), but a write only after a
//     majority has agreed. The same holds for failing writes: they are proposed as
//     transactions of the type error. (It does not hold for writes refused by the connected
//     server itself: see the meaning decided.)
//  4. A new leader gives every session its full T from the moment when a majority has
//     agreed to follow the new leader (Leader.startZkServer, after waitForNewLeaderAck).
//
// The leader knows of activity. Let x, y and z be requests answered through the leader on
// one connection, where y began T/4 and a moment after x had been answered, and z began a
// moment after y had been answered. T is at least two ticks, so the leader sent a ping
// after the answer to x, and at most a moment after the answer to y. The follower got the
// ping after seeing x, and before passing on z; by then the follower had reported x, or
// activity after x. By the order of the stream the leader knew of this report when handling
// z. So when z is answered, the leader will not expire the session earlier than T after the
// beginning of x. (A shorter argument does not hold, namely: the answer to z alone shows
// the leader to have been told of all activity half a tick before. Pings held up on the way
// to the follower have not been answered when z is passed on.)
//
// No other server leads. A leader cut off from the others still answers syncs until the
// leader notices, many ticks later, and the others may have elected another leader since.
// But an answered write shows that a majority still followed the old leader after the write
// had begun, and by point 4 no new leader expires the session earlier than T after this
// beginning.
//
// So the lease ends T after the earlier of two beginnings: of the newest x for which the
// first argument holds, and of the newest answered write. A twentieth of T is subtracted
// for clocks running at different rates, and for the time to notify the holders.
//
// The proof rests on four assumptions. Clocks drift apart by less than this twentieth. T is
// at least two ticks, which holds unless minSessionTimeout was set lower; a client cannot
// see the tick. A moment is less than T/34, and the leader's stream does not fall silent in
// just the moment after a pause of the leader. The process, or its machine, is not paused
// between reading the lease and acting on the lease; nothing on this side can prevent such
// a pause, and a store has to compare fencing tokens to be safe.
//
// A suspended machine finds on waking, within a tick of the session, that the lease has
// ended: the clock counts the suspension if the system reports suspensions (Linux). On
// other systems, and in a virtual machine stopped from outside, the wall clock jumps
// against the process's clock, at once or when the wall clock is corrected. A jump may also
// mean that the wall clock was set, so a jump does not end the lease but puts the clock in
// doubt: from then on nothing is granted until a write begun after the jump has been
// answered. The leader refuses this write if the session has expired. (Holders are notified
// when the answer says so. Until the lease rests on proofs from after the jump, for another
// 0.4 T, the lease may end too late by the length of the jump. This matters only if the
// server is cut off from the leader in just this time.)
//
// The argument does not cover an observer behind another follower (observerMasterPort),
// whose reports take two steps: list voting members.
//
// idle.go has what holds for a session that nothing depends on.
type lease struct {
	ends atomic.Int64 // since the session began; 0 if there is no lease yet
	use  atomic.Int32 // inUse, asking or idle; changed from or to idle with mu held

	mu         sync.Mutex
	timeout    time.Duration // T
	activeAt   time.Duration // the leader knows of activity at or after this
	majorityAt time.Duration // a majority followed the leader at or after this, unless in doubt
	heardAt    time.Duration // the servers have answered a request begun then
	proofs     []proof       // starting with the newest x

	skew      time.Duration // how far the wall clock was ahead of ours
	compared  time.Duration // when skew was measured
	settled   chan struct{} // closed when the doubt is settled; nil if there is no doubt
	jumpedAt  time.Duration // when the proofs were forgotten because of a jump
	doubted   time.Duration // when the doubt began, or began again
	writeAt   time.Duration // when a write is sent to settle the doubt
	idleProof time.Duration // when the last proof of the last idleness began
	unproved  bool          // the doubt began with the end of idleness: there is no lease yet
}

// proof has the times of a request through the leader: when the request was sent, and when
// the answer came.
type proof struct{ begin, end time.Duration }

const (
	// proofsPerTimeout is how many proofs a session sends in T if nothing else is sent.
	// Four such intervals are longer than the time required between x and y, so x is five
	// of them older than z, and a healthy session tolerates 9/20 of T without an answer.
	proofsPerTimeout = 12
	// Every proofsPerWrite-th proof is a write.
	proofsPerWrite = 4
	// late bounds the delay of a leader's ping, and the drift of clocks meanwhile, in
	// hundredths of T.
	late = 3
	// apart is the time between x and y: half a tick, if T is two ticks, and a moment.
	apart = 25 + late
	// Proofs within T/proofGrain count as one.
	proofGrain = 64
	// T/driftPart is subtracted for the drift of clocks.
	driftPart = 20
	// mostSkew bounds how far the wall clock may drift from the process's clock unless T
	// allows less (maxSkew).
	mostSkew = 100 * time.Millisecond
)

// established begins the lease of a session, or continues the lease on another connection:
// the leader heard of the session after begin.
func (l *lease) established(begin, timeout time.Duration, created bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.heardAt = begin; begin >= l.jumpedAt {
		l.activeAt = max(l.activeAt, begin)
	}
	if created { // a transaction
		l.timeout, l.majorityAt = timeout, begin
	}
	l.timeout = min(l.timeout, timeout) // a new leader uses the first one
	// The proofs so far went through another server. They may stay: as x they show
	// nothing new, because they began before this handshake.
	l.update()
}

// recordProof records the answer to a request through the leader, begun at begin or later.
// write says that a majority agreed. now returns the exact time, and is called only if the
// exact time matters.
func (l *lease) recordProof(begin time.Duration, now func() time.Duration, write bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heardAt = max(l.heardAt, begin)
	if write {
		l.majorityAt = max(l.majorityAt, begin)
	}
	n := len(l.proofs)
	if begin >= l.jumpedAt && (n == 0 || begin-l.proofs[n-1].begin >= l.timeout/proofGrain) {
		if y := lastCompletedBefore(l.proofs, begin-l.timeout*late/100); y >= 0 {
			if x := lastCompletedBefore(l.proofs, l.proofs[y].begin-l.timeout*apart/100); x >= 0 {
				l.activeAt = max(l.activeAt, l.proofs[x].begin)
				l.proofs = slices.Delete(l.proofs, 0, x)
			}
		}
		l.proofs = append(l.proofs, proof{begin, now()})
	}
	settled := l.settled
	if settled == nil || !write || begin < l.doubted {
		l.update()
		return
	}
	l.settled, l.unproved = nil, false
	l.update()
	close(settled)
}

// maxSkew is how far the wall clock may drift from the process's clock between two
// comparisons; a larger difference is a jump. Since the proof on which the lease rests, the
// clocks were compared anew at most once, so twice maxSkew must not exceed the time
// subtracted by driftPart.
func (l *lease) maxSkew() time.Duration { return min(mostSkew, l.timeout/(2*driftPart)) }

// checkSkew records how far the wall clock is ahead of the process's clock. If the wall
// clock has jumped, and no write begun afterward has been answered, checkSkew returns a
// channel closed by the first such answer.
func (l *lease) checkSkew(now, skew time.Duration) (settled <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.compare(now, skew)
	return l.settled
}

// compare is checkSkew with mu held.
func (l *lease) compare(now, skew time.Duration) {
	rests, unheld := min(l.activeAt, l.majorityAt), l.unproved || l.use.Load() == idle
	if unheld {
		rests = l.activeAt
	}
	switch jumped := (skew - l.skew).Abs() > l.maxSkew(); {
	case l.timeout == 0: // nothing rests on the clock yet
		return
	case !jumped && rests <= l.compared: // later, drift is allowed
		return
	case jumped && unheld:
		l.proofs, l.activeAt, l.jumpedAt = nil, -l.timeout, now
	case jumped:
		l.doubt(now, now)
	}
	l.skew, l.compared = skew, now
}

// doubt begins a doubt, or begins it again. A write settles the doubt, sent at writeAt unless
// there was one before.
func (l *lease) doubt(now, writeAt time.Duration) {
	l.doubted, l.writeAt = now, writeAt
	if l.settled == nil {
		l.settled = make(chan struct{})
	}
}

// inDoubt reports whether the wall clock has jumped, and no proof since has settled the doubt.
func (l *lease) inDoubt() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.settled != nil && !l.unproved || l.activeAt < 0
}

// lastCompletedBefore returns the index of the newest proof complete at t, or -1.
func lastCompletedBefore(proofs []proof, t time.Duration) int {
	for i := len(proofs) - 1; i >= 0; i-- {
		if proofs[i].end <= t {
			return i
		}
	}
	return -1
}

func (l *lease) update() {
	from := min(l.activeAt, l.majorityAt)
	if l.unproved || l.use.Load() == idle {
		from = l.heardAt
	}
	l.ends.Store(int64(from + l.timeout - l.timeout/driftPart))
}

// margin is how much earlier the lease ends than the session may.
func (l *lease) margin() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.timeout / driftPart
}

// nextProof returns which proof the lease needs next, and how soon: a write if the last
// one is old, even if other requests are proofs all the time, or if the clock is in doubt,
// and otherwise a proof of any kind.
func (l *lease) nextProof(now time.Duration) (write bool, in time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.settled != nil {
		return true, l.writeAt - now
	}
	interval := l.timeout / proofsPerTimeout
	last := max(l.activeAt, l.majorityAt)
	if n := len(l.proofs); n > 0 {
		last = max(last, l.proofs[n-1].begin)
	}
	if l.use.Load() == idle {
		if n := len(l.proofs); n > 0 {
			last = max(last, l.proofs[n-1].end)
		}
		return false, last + l.timeout*apart/100 - now
	}
	writeAt := l.majorityAt + proofsPerWrite*interval
	catchUp := max(l.catchUp(), last+l.timeout/proofGrain) // earlier, it would not count
	return now >= writeAt, min(last+interval, writeAt, catchUp) - now
}

// retryPause is how long to wait after a failed proof.
func (l *lease) retryPause() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.timeout / proofGrain
}
