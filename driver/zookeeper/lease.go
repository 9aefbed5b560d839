package zookeeper

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// lease determines until when a session is certainly alive. The locks of the session
// end then, before ZooKeeper can grant them to others.
//
// An answer by itself proves little. A follower that is cut off from its leader
// still answers pings and reads, while the leader expires the session. So the
// lease counts only requests that went through the leader. T is the negotiated
// timeout of the session, and all times are by our own clock (package clock).
//
// What the servers do (read in the source of ZooKeeper 3.8; 3.5 and 3.9 have the same
// in the same places, and 3.4 has it under other names):
//
//  1. A leader expires a session no earlier than T after it was last told of
//     activity (ExpiryQueue.update rounds up). A new session, and one that
//     comes back on another connection, is reported to the leader at once
//     (LeaderZooKeeperServer.checkIfValidGlobalSession). From then on its
//     follower only collects the activity (LearnerSessionTracker.touchTable)
//     and reports it in its answer to the leader's next ping; not even a
//     request that is passed on to the leader counts there.
//  2. The leader pings its followers every half tick, or a moment later; if it was
//     paused, as by its garbage collector, a moment after it goes on
//     (Leader.lead), on the stream on which it also answers the requests that they
//     pass on. A follower answers a ping at once, on the stream on which it passes
//     on the next requests. Both streams keep their order
//     (LearnerHandler.queuedPackets, Learner.ping).
//  3. A leader answers a sync by itself (Leader.processSync), but a write only
//     after a majority has agreed to it. That also holds for writes that
//     fail: they are proposed as transactions of the type error. (It does not hold
//     for writes that the server we are connected to refuses itself: see
//     the meaning decided.)
//  4. A new leader gives every session its full T from the moment at which a
//     majority has agreed to follow it (Leader.startZkServer, after
//     waitForNewLeaderAck).
//
// The leader knows of activity. Let x, y and z be requests that went through
// the leader on one connection, where y began T/4 and a moment after x had
// been answered, and z began a moment after y had been answered. T is at least two
// ticks, so the leader sent a ping after its answer to x, and at most a moment after
// its answer to y. The follower got it after it had seen x, and before it passed on z;
// by then it had reported x, or activity after x. By the order of its stream the
// leader knew of that report when it handled z. So when z is answered, the
// leader will not expire the session before the beginning of x + T. (The
// shorter argument, that the answer to z itself shows that the leader had been
// told of all activity half a tick before, does not hold: pings that were held
// up on their way to the follower have not been answered when z is passed on.)
//
// No other server leads. A leader that was cut off from the others still answers syncs
// until it notices, many ticks later, and the others may have elected another one
// since. But a write shows that a majority still followed the old leader after the
// write had begun, and by point 4 no new leader expires the session before that moment
// + T.
//
// So the lease ends T after the earlier of the two: the beginning of the newest x for
// which the first argument holds, and the beginning of the newest write that was
// answered. A twentieth of T is subtracted for clocks that run at different rates, and
// for the time that it takes to notify the holders.
//
// This rests on four assumptions. Clocks drift apart by less than that twentieth. T is
// at least two ticks, as it is unless minSessionTimeout was set lower; a client cannot
// see the tick. A moment is less than T/34, and the leader's stream does not fall silent
// in just the moment after a pause of the leader. The process, or its machine, is not
// paused between reading the lease and acting on it; nothing on this side can prevent
// that, and a store that must be safe has to compare fencing tokens.
//
// A machine that was suspended finds on waking, within a tick of the session, that the
// lease has ended: the clock counts the suspension if the system reports it (Linux). If
// it does not, and in a virtual machine that was stopped from outside, the wall clock
// jumps against ours, then or when it is corrected. A jump may also mean that the wall
// clock was set, so it does not end the lease. It puts the clock in doubt: from then on
// nothing is granted until a write that began after the jump has been answered, which
// the leader refuses if it has expired the session. (Holders are notified when the
// answer says so. Until the lease rests on proofs from after the jump, for another 0.4
// T, it may end too late by the length of the jump, which matters if the server is cut
// off from the leader in just that time.)
//
// An observer that follows through another follower (observerMasterPort) reports in
// two steps, which the argument does not cover: list voting members.
type lease struct {
	ends atomic.Int64 // since the session began; 0 if there is no lease yet

	mu         sync.Mutex
	timeout    time.Duration // T
	activeAt   time.Duration // the leader knows of activity at or after this
	majorityAt time.Duration // a majority followed the leader at or after this
	proofs     []proof       // starting with the newest x

	skew     time.Duration // how far the wall clock was ahead of ours
	compared time.Duration // when skew was measured
	settled  chan struct{} // closed when the doubt since then is settled; nil if there is no doubt
}

// proof is a request that went through the leader: when it was sent and when
// its answer came.
type proof struct{ begin, end time.Duration }

const (
	// proofsPerTimeout is how many proofs a session sends in T if it sends nothing
	// else. Four such intervals are longer than the time that must pass between x and
	// y, so x is five of them older than z, and a healthy session tolerates 9/20 of T
	// without an answer.
	proofsPerTimeout = 12
	// proofsPerWrite is how many proofs there are for each that is a write.
	proofsPerWrite = 4
	// late is by how much a leader may be late with its ping, and clocks may drift
	// meanwhile, in hundredths of T.
	late = 3
	// apart is the time between x and y: half a tick, if T is two ticks, and a moment.
	apart = 25 + late
	// proofGrain is the part of T within which proofs count as one.
	proofGrain = 64
	// driftPart is the part of T that is subtracted for the drift of clocks.
	driftPart = 20
	// maxSkew is how far the wall clock may drift from ours between two writes; beyond
	// that it has jumped. It is half of what driftPart subtracts if T is four seconds.
	maxSkew = 100 * time.Millisecond
)

// established begins the lease of a session, or continues it on another
// connection: the leader heard of the session after begin.
func (l *lease) established(begin, timeout time.Duration, created bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.activeAt = max(l.activeAt, begin)
	if created { // a transaction
		l.timeout, l.majorityAt = timeout, begin
	}
	l.timeout = min(l.timeout, timeout) // a new leader uses the first one
	// The proofs so far went through another server. They may stay: as x they show
	// nothing new, because they began before this handshake.
	l.update()
}

// recordProof records that a request was answered that went through the leader and
// began at begin, or later. write says that a majority agreed to it. now returns the
// exact time; it is called only if that matters.
func (l *lease) recordProof(begin time.Duration, now func() time.Duration, write bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if write {
		l.majorityAt = max(l.majorityAt, begin)
	}
	if l.settled != nil && l.majorityAt >= l.compared {
		close(l.settled)
		l.settled = nil
	}
	if n := len(l.proofs); n == 0 || begin-l.proofs[n-1].begin >= l.timeout/proofGrain {
		if y := lastCompletedBefore(l.proofs, begin-l.timeout*late/100); y >= 0 {
			if x := lastCompletedBefore(l.proofs, l.proofs[y].begin-l.timeout*apart/100); x >= 0 {
				l.activeAt = max(l.activeAt, l.proofs[x].begin)
				l.proofs = slices.Delete(l.proofs, 0, x)
			}
		}
		l.proofs = append(l.proofs, proof{begin, now()})
	}
	l.update()
}

// checkSkew records how far the wall clock is ahead of ours. If the wall clock has
// jumped, and no write that began afterward has been answered, checkSkew returns a
// channel that is closed when one is.
func (l *lease) checkSkew(now, skew time.Duration) (settled <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch moved := skew - l.skew; {
	case moved > maxSkew || moved < -maxSkew:
		l.skew, l.compared = skew, now
		if l.settled == nil {
			l.settled = make(chan struct{})
		}
	case l.majorityAt > l.compared: // drift is allowed
		l.skew, l.compared = skew, now
	}
	return l.settled
}

// inDoubt reports whether the wall clock has jumped and no write has been answered since.
func (l *lease) inDoubt() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.settled != nil
}

// lastCompletedBefore returns the index of the newest proof that was complete at t, or
// -1.
func lastCompletedBefore(proofs []proof, t time.Duration) int {
	for i := len(proofs) - 1; i >= 0; i-- {
		if proofs[i].end <= t {
			return i
		}
	}
	return -1
}

func (l *lease) update() {
	l.ends.Store(int64(min(l.activeAt, l.majorityAt) + l.timeout - l.timeout/driftPart))
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
		return true, 0
	}
	interval := l.timeout / proofsPerTimeout
	last := max(l.activeAt, l.majorityAt)
	if n := len(l.proofs); n > 0 {
		last = max(last, l.proofs[n-1].begin)
	}
	writeAt := l.majorityAt + proofsPerWrite*interval
	return now >= writeAt, min(last+interval, writeAt) - now
}

// retryPause is how long to wait after a proof that failed.
func (l *lease) retryPause() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.timeout / proofGrain
}
