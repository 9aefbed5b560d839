package etcd

// This file has the time until which a lease certainly lives.

import (
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// lease determines until when the session's lease certainly lives, by our own clock.
//
// A keep-alive proves little by itself: the answering member passes the keep-alive to the
// supposed leader, and the leader prolongs the lease in memory without asking a majority. A
// leader cut off, or stopped for a while, does the same while another leader ends the
// lease. So a keep-alive counts only between two reads confirmed by a majority
// (linearizable reads, not writes), if all three answers are of the same member and of the
// term of the lease's grant:
//
//	read       answered, term t
//	keep-alive sent at q, answered, term t
//	read       sent after that, answered, term t
//
// Then the lease lives until q + TTL by the servers' clocks. The answering member fills the
// header with the term of the last entry applied, and the member's belief about the leader
// is not older. So the keep-alive went to a member M leading in a term of at least t. The
// second read shows that a majority was in no term above t after the keep-alive had been
// answered, so no leader had been elected in a later term: M led in t. M ends the lease no
// earlier than q + TTL, even if M is stopped, loses the leadership, and goes on without
// noticing at once. Every leader of a later term is elected after q, and begins with the
// whole TTL, and an election timeout more, for all leases.
//
// Leaders of terms before t do not know the lease: the lease's entry is of term t, and a
// member with an entry of term t leads in no earlier term. So a lease lives in one term
// only. A former leader, stopped for longer than the TTL, may end all leases known there,
// because the member has missed their keep-alives (etcd issue 15247; 3.7.3 and 3.4.23 do
// so). After an election each session is granted another lease and moves its keys to the
// new lease. The end of the first lease stays as last proved.
//
// The grant is of term t if both the answer to the grant, and the answer to an earlier
// read, have term t: the entry of the grant follows everything applied at the read, and was
// applied itself. No member counts a lease from before the grant was sent, so a grant needs
// no further proof. The TTL is the one asked for: a member may answer with a longer TTL, its
// own minimum, but only the leader's counts.
//
// (Positions in etcd 3.7: leases are renewed in etcdserver/v3_server.go LeaseRenew and
// lease/lessor.go Renew; a new leader promotes them in etcdserver/server.go applyEntryNormal
// and lease/lessor.go Promote; reads are confirmed in etcdserver/read and, in raft, by
// ReadOnlySafe; headers are filled in etcdserver/api/v3rpc/header.go.)
//
// It is assumed that
//   - clocks drift apart by less than a twentieth of the TTL, and holders learn of the end
//     within the same twentieth;
//   - the TTL is at most 300 s: longer leases may be checkpointed, and then a new leader
//     continues with the rest of the TTL;
//   - the endpoint is a member of the cluster. The answers of etcd's gRPC proxy to
//     keep-alives come from the proxy's own loop;
//   - members are changed one by one, and no backup is restored under a live session;
//   - a member caught up by a snapshot applies an entry within the TTL. Until then the
//     member's headers have the term of an earlier entry. A lease of the earlier term would
//     count, although a stopped leader of the term may end the lease.
type lease struct {
	mu      sync.Mutex
	id      clientv3.LeaseID   // of keys created now
	others  []clientv3.LeaseID // earlier leases of keys being moved
	term    uint64             // of the grant, or 0 if the term is unknown
	ttl     time.Duration      // as asked for
	ends    time.Duration      // as proved; 0 before the grant
	assumed time.Duration      // the end without a proof yet; 0 if there is none later than ends
	read    *seen              // the last answer to a read
	kept    *seen              // the keep-alive since, if member and term are the same
	changed chan struct{}      // filled when the lease ends at another time than before, or idleness ends
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

// granted begins a lease for all keys. sent is when the request was sent.
func (l *lease) granted(term uint64, sent time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.others, l.term = nil, term
	l.until(sent)
}

// outlived reports whether the session needs another lease: the lease is of an earlier term,
// or keys may still have an earlier lease.
func (l *lease) outlived() (term uint64, yes bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.read.term, l.read.term != l.term || len(l.others) > 0
}

// replace makes id the lease of keys created from now on, and returns the leases whose keys
// are to be moved.
func (l *lease) replace(id clientv3.LeaseID) (others []clientv3.LeaseID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.others = append(l.others, l.id)
	l.id = id
	return slices.Clone(l.others)
}

// current returns the lease of keys created now.
func (l *lease) current() clientv3.LeaseID {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.id
}

// all returns all possible leases of keys.
func (l *lease) all() []clientv3.LeaseID {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]clientv3.LeaseID{l.id}, l.others...)
}

// until has the lease end when the TTL has passed since at.
func (l *lease) until(at time.Duration) {
	l.ends, l.assumed = max(l.ends, at+l.ttl-l.ttl/20), 0
	l.tellChanged()
}

func (l *lease) tellChanged() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// assume has the lease of an idle session end when the TTL has passed since the newest
// keep-alive. It reports false if the keep-alive was answered in another term than the last
// read, so that the next read would not prove the end.
func (l *lease) assume() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kept == nil {
		return false
	}
	l.assumed = l.kept.sent + l.ttl - l.ttl/20
	l.tellChanged()
	return true
}

// isProved reports whether nothing about the end is assumed.
func (l *lease) isProved() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.assumed == 0
}

// readAnswered is called, in order, for every answer to a read of the proofs.
func (l *lease) readAnswered(a seen) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a.term == l.term && l.term > 0 && l.kept.sameTerm(&a) {
		l.until(l.kept.sent)
	}
	l.read, l.kept = &a, nil
}

// keepAliveAnswered is called for the answer to a keep-alive sent after the answer to the
// last read. The next read is sent after the call.
func (l *lease) keepAliveAnswered(a seen) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept = nil
	if l.read.sameTerm(&a) {
		l.kept = &a
	}
}

// untilExpired returns how long the servers certainly keep the lease.
func (l *lease) untilExpired(now time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ends + l.ttl/20 - now
}

// end returns when the lease ends, or 0 before it was granted. Nothing is granted while the end
// is assumed.
func (l *lease) end() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(l.ends, l.assumed)
}
