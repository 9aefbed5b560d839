package etcd

import (
	"sync"
	"time"
)

// lease determines until when the session's lease certainly lives, by our own clock.
//
// A keep-alive proves little by itself: the member that answers it passes it to the member
// that it believes to lead, which prolongs the lease in its own memory and asks nobody. A
// leader that was cut off, or that was stopped for a while, does that as well, while
// another leader ends the lease. So a keep-alive counts only between two reads that a
// majority has confirmed (linearizable ones, which do not write), if all three answers are
// of the same member and of the same term:
//
//	read       answered, term t
//	keep-alive sent at q, answered, term t
//	read       sent after that, answered, term t
//
// Then the lease lives until q + TTL by the servers' clocks. A header is filled by the
// member that answers, with the term of the last entry that it has applied, and its belief
// about the leader is not older. So the keep-alive went to a member M that led in a term
// of at least t. The second read shows that a majority was in no term above t after the
// keep-alive had been answered, so nobody had been elected in one: M led in t. Every leader
// of a later term is elected after q, and gives all leases their whole TTL, and an election
// timeout more, when it begins. M itself ends the lease no earlier than q + TTL. What
// leaders before t have proposed was proposed before the end that the lease had then, which
// by induction they did not do early; and the first end is that of the grant, which no
// member counts from before it was sent.
//
// (Positions in etcd 3.7: leases are renewed in etcdserver/v3_server.go LeaseRenew and
// lease/lessor.go Renew; a new leader promotes them in etcdserver/server.go applyEntryNormal
// and lease/lessor.go Promote; reads are confirmed in etcdserver/read and, in raft, by
// ReadOnlySafe; headers are filled in etcdserver/api/v3rpc/header.go.)
//
// It is assumed that
//   - clocks drift apart by less than a twentieth of the TTL, in which holders learn of the
//     end, too;
//   - the TTL is at most 300 s: leases that are longer may be checkpointed, and then a new
//     leader continues with what was left of them;
//   - the endpoint is a member of the cluster. The answers of etcd's gRPC proxy to
//     keep-alives come from a loop of its own;
//   - members are changed one by one, and no backup is restored under a live session;
//   - a member that has lost its leadership notices that before leases run out by its clock.
//     A member that is stopped for longer than the TTL while it leads may, when it goes on,
//     end leases that have been prolonged elsewhere (etcd issue 15247; 3.7.3 still does).
//     Holders are told that their nodes are gone, and fencing tokens cover it.
type lease struct {
	mu      sync.Mutex
	ttl     time.Duration
	ends    time.Duration // 0 before the grant
	read    *seen         // the last answer to a read
	kept    *seen         // the keep-alive since, if it belongs to that
	changed chan struct{} // filled when the lease ends at another time than before
}

// seen is an answer to a proof.
type seen struct {
	on           *connection
	member, term uint64
	sent         time.Duration
}

func (a *seen) sameTerm(b *seen) bool {
	return a != nil && b != nil && a.on == b.on && a.member == b.member && a.term == b.term
}

// granted begins the lease. sent is when it was first asked for.
func (l *lease) granted(sent, ttl time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ttl = ttl
	l.until(sent)
}

// until has the lease end when its TTL has passed since at.
func (l *lease) until(at time.Duration) {
	l.ends = max(l.ends, at+l.ttl-l.ttl/20)
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// readAnswered is called for every read of the proofs that was answered, in order.
func (l *lease) readAnswered(a seen) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kept.sameTerm(&a) {
		l.until(l.kept.sent)
	}
	l.read, l.kept = &a, nil
}

// keepAliveAnswered is called for every keep-alive that was answered and sent after the
// last read was answered; the next read is sent afterward.
func (l *lease) keepAliveAnswered(a seen) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept = nil
	if l.read.sameTerm(&a) {
		l.kept = &a
	}
}

// end returns when the lease ends, or 0 before it was granted.
func (l *lease) end() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ends
}
