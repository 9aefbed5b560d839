package etcd

import (
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// lease determines until when the session's lease certainly lives, by our own clock.
//
// A keep-alive proves little by itself: the member that answers it passes it to the member
// that it believes to lead, which prolongs the lease in its own memory and asks nobody. A
// leader that was cut off, or that was stopped for a while, does that as well, while
// another leader ends the lease. So a keep-alive counts only between two reads that a
// majority has confirmed (linearizable ones, which do not write), if all three answers are
// of the same member and of the term in which the lease was granted:
//
//	read       answered, term t
//	keep-alive sent at q, answered, term t
//	read       sent after that, answered, term t
//
// Then the lease lives until q + TTL by the servers' clocks. A header is filled by the
// member that answers, with the term of the last entry that it has applied, and its belief
// about the leader is not older. So the keep-alive went to a member M that led in a term
// of at least t. The second read shows that a majority was in no term above t after the
// keep-alive had been answered, so nobody had been elected in one: M led in t. M itself ends
// the lease no earlier than q + TTL, even if it is stopped, loses its leadership, and does
// not notice that at once when it goes on. Every leader of a later term is elected after q,
// and gives all leases their whole TTL, and an election timeout more, when it begins.
//
// Leaders of terms before t do not know the lease: it is in an entry of term t, and a member
// that has received one leads in no earlier term. That is why a lease lives in one term only.
// A member that led before, and was stopped for longer than the TTL, may end all leases that
// it knows, because it has not heard of their keep-alives since (etcd issue 15247; 3.7.3 and
// 3.4.23 do so). After an election each session is granted another lease and moves its keys
// to it, while the end of the first lease stays where the last proof has put it.
//
// The grant is of term t if a read that was answered before it, and its own answer, have
// that term: its entry is behind all that was applied then, and was applied itself.
// No member counts a lease from before its grant was sent, so it needs no further proof.
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
//   - a member that has caught up by a snapshot applies an entry within the TTL. Until it does,
//     its headers have the term of an earlier entry. A lease of that term would count, although
//     a leader of that term that was stopped may end it.
type lease struct {
	mu      sync.Mutex
	id      clientv3.LeaseID   // that of the keys that are created now
	others  []clientv3.LeaseID // those that keys may still have, while they are moved
	term    uint64             // of the grant, or 0 if that is not known
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

// granted begins a lease to which all keys belong. sent is when it was asked for.
func (l *lease) granted(term uint64, sent, ttl time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.others = nil
	l.term, l.ttl = term, ttl
	l.until(sent)
}

// outlived reports whether the session needs another lease: the present term is not that of
// the lease, or keys may have an earlier lease yet.
func (l *lease) outlived() (term uint64, yes bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.read.term, l.read.term != l.term || len(l.others) > 0
}

// replace makes another lease that of the keys that are created from now on, and returns
// those whose keys are to be moved to it.
func (l *lease) replace(id clientv3.LeaseID) (others []clientv3.LeaseID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.others = append(l.others, l.id)
	l.id = id
	return slices.Clone(l.others)
}

// current returns the lease of the keys that are created now.
func (l *lease) current() clientv3.LeaseID {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.id
}

// all returns all leases that keys may have.
func (l *lease) all() []clientv3.LeaseID {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]clientv3.LeaseID{l.id}, l.others...)
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
	if a.term == l.term && l.term > 0 && l.kept.sameTerm(&a) {
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

// untilExpired returns for how long the servers certainly do not end the lease.
func (l *lease) untilExpired(now time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ends + l.ttl/20 - now
}

// end returns when the lease ends, or 0 before it was granted.
func (l *lease) end() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ends
}
