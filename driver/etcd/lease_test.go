package etcd

// This file has the model of leases, and the tests of lease.go against the model.

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A model of the basis of the lease's rule: three members, each with a term, a supposed
// leader, applied entries, and a lessor. A step happens to one of them at a time, in random
// order: elections, messages, cuts and stops. The client proves the lease meanwhile, and
// moves to another lease after elections. No member in the belief of leading may revoke the
// lease before the end known to the client, even without hearing anything from now on: when
// the member reaches the others again, they carry the revocation out.

const (
	modelTTL      = 20 // units of time
	modelElection = 3
)

type modelMember struct {
	term, log, applied int
	leader             int // or -1
	leads, committed   bool
	primary            bool // the lessor ends leases
	expiry             int  // of the client's lease, if known
	next               int  // of the lease that the client moves to
	stopped            bool
}

type model struct {
	*rand.Rand
	now     int
	granted int // the term of the client's lease, known to members with the entry applied
	moving  int // the term of the next lease
	members [3]*modelMember
	cut     [3][3]bool
}

func newModel(r *rand.Rand) *model {
	m := &model{Rand: r, granted: 1}
	for i := range m.members {
		m.members[i] = &modelMember{term: 1, log: 1, applied: 1, leader: 0}
	}
	l := m.members[0]
	l.leads, l.committed, l.primary, l.expiry = true, true, true, modelTTL
	return m
}

func (m *model) reaches(a, b int) bool {
	return a == b || !m.cut[a][b] && !m.members[a].stopped && !m.members[b].stopped
}

func (a *modelMember) follow(term, leader int) { // ends the member's leadership, if any
	a.term, a.leader, a.leads, a.committed, a.primary = term, leader, false, false, false
}

// majority reports whether a majority is in no later term than the leader, and hears the
// leader.
func (m *model) majority(leader int) bool {
	n := 0
	for j, b := range m.members {
		if m.reaches(leader, j) && b.term <= m.members[leader].term {
			n++
		}
	}
	return n >= 2
}

func (m *model) elect(i int) {
	a, votes := m.members[i], 1
	a.follow(a.term+1, -1)
	for j, b := range m.members {
		if j != i && m.reaches(i, j) && b.term < a.term && b.log <= a.log {
			b.follow(a.term, -1)
			votes++
		}
	}
	if votes >= 2 {
		a.leads, a.leader = true, i
	}
}

func (m *model) heartbeat(i, j int) {
	a, b := m.members[i], m.members[j]
	switch {
	case i == j || !a.leads || !m.reaches(i, j):
	case b.term > a.term:
		a.follow(b.term, -1)
	default:
		if b.term < a.term || b.leader != i {
			b.follow(a.term, i)
		}
		if a.committed && m.Float64() < 0.5 { // or else the member lags
			b.log, b.applied = a.term, a.term
		}
	}
}

// commit commits an entry of the leader's term. The first one promotes the leader's lessor.
func (m *model) commit(i int) {
	a := m.members[i]
	if !a.leads || !m.majority(i) {
		return
	}
	if n := 0; true {
		for j, b := range m.members {
			if m.reaches(i, j) && b.term <= a.term && n < 2 {
				b.log = a.term
				n++
			}
		}
	}
	a.log = a.term
	if !a.committed {
		a.committed, a.applied = true, a.term
		a.promote(m.now)
	}
}

func (a *modelMember) promote(now int) {
	a.primary, a.expiry, a.next = true, now+modelTTL+modelElection, now+modelTTL+modelElection
}

// step is one random event of the cluster.
func (m *model) step() {
	m.now += m.IntN(2)
	i, j := m.IntN(3), m.IntN(3)
	a := m.members[i]
	switch p := m.Float64(); {
	case p < 0.01: // the member is cut off, or all are healed
		isolated := m.Float64() < 0.5
		for other := range m.members {
			for third := range m.members {
				m.cut[other][third] = isolated && (other == i || third == i)
			}
		}
	case p < 0.02:
		m.cut[i][j] = !m.cut[i][j]
		m.cut[j][i] = m.cut[i][j]
	case p < 0.03:
		a.stopped = !a.stopped
	case a.stopped:
	case p < 0.16: // an election, mostly because there is no leader to hear
		if !a.leads && (a.leader < 0 || !m.reaches(i, a.leader) || m.Float64() < 0.1) {
			m.elect(i)
		}
	case p < 0.17:
		if a.leads && !m.majority(i) {
			a.follow(a.term, -1)
		}
	case p < 0.19:
		if a.leads && !a.committed { // by an empty entry of an earlier leader, applied only now
			a.promote(m.now)
		}
	case p < 0.45:
		m.commit(i)
	default:
		m.heartbeat(i, j)
	}
}

// canBeEarly reports whether a member knowing the lease will end the lease before end
// without a further keep-alive.
func (m *model) canBeEarly(end time.Duration) bool {
	for _, a := range m.members {
		if a.primary && a.applied >= m.granted && time.Duration(a.expiry)*unit < end {
			return true
		}
	}
	return false
}

// modelCall is a request of the client under way.
type modelCall struct {
	kind         callKind
	sent, phase  int
	header, goal int
	target       int
	failed       bool
}

type callKind int

const (
	reads callKind = iota
	keepsAlive
	grants // a lease
	moves  // the keys to the next lease
)

// advance lets the call take a step at the client's member.
func (m *model) advance(c *modelCall, f int) (answered bool) {
	at := m.members[f]
	if c.phase != 1 && at.stopped {
		return false
	}
	switch c.phase {
	case 0: // the request arrives
		c.header, c.target = at.applied, at.leader
		if c.target < 0 {
			c.failed = true
			return true
		}
		c.phase = 1
	case 1: // at the leader, also if the cut is only between the members' logs
		l := m.members[c.target]
		if l.stopped {
			return false
		}
		if c.kind == keepsAlive {
			if c.failed = !l.primary; !c.failed {
				l.expiry = m.now + modelTTL
			}
		} else {
			if !l.leads || !l.committed || !m.majority(c.target) || !m.reaches(f, c.target) {
				c.failed = true
			} else if c.kind == grants {
				l.next = m.now + modelTTL
			}
			c.goal = l.term
		}
		c.phase = 2
	case 2:
		if c.failed || c.kind == keepsAlive {
			return true
		}
		if at.applied < c.goal {
			c.failed = m.Float64() < 0.1
			return c.failed
		}
		c.header = at.applied
		return true
	}
	return false
}

// rule is how a client draws conclusions from answers.
type rule interface {
	readAnswered(seen)
	keepAliveAnswered(seen)
	outlived() (term uint64, yes bool)
	granted(term uint64, sent time.Duration)
	end() time.Duration
}

const unit = time.Second

var plays = flag.Int("plays", 20_000, "how many plays TestLeaseIsNotRevokedBeforeItsEnd tries")

// play plays a client beside the cluster, and reports whether the lease could be revoked
// before the end known to the client.
func play(seed uint64, r rule) (early bool) {
	m := newModel(rand.New(rand.NewPCG(seed, 1)))
	f, conn := m.IntN(3), &connection{}
	var call *modelCall
	speed := []float64{1, 0.3, 0.1}[m.IntN(3)]
	for range 600 {
		m.step()
		if m.canBeEarly(r.end()) {
			return true
		}
		if time.Duration(m.now)*unit >= r.end() { // the session is over
			return false
		}
		switch {
		case m.Float64() > speed:
		case m.Float64() < 0.02:
			f, conn, call = m.IntN(3), &connection{}, nil
		case call == nil:
			call = &modelCall{sent: m.now}
		case !m.advance(call, f):
		case call.failed:
			call = &modelCall{sent: m.now, kind: callKind(m.IntN(2))} // the rule must not depend on the kind
		default:
			call = m.answered(call, seen{conn, uint64(f), uint64(call.header), time.Duration(call.sent) * unit}, r)
		}
	}
	return false
}

// answered lets the rule draw its conclusions, and returns the next call.
func (m *model) answered(c *modelCall, a seen, r rule) *modelCall {
	next := &modelCall{sent: m.now}
	switch c.kind {
	case reads:
		r.readAnswered(a)
		next.kind = keepsAlive
		if _, yes := r.outlived(); yes {
			next.kind = grants
		}
	case keepsAlive:
		r.keepAliveAnswered(a)
		if m.Float64() < 0.2 { // as an idle session
			next.kind = keepsAlive
		}
	case grants:
		if term, yes := r.outlived(); yes && term == a.term {
			next.kind, next.sent = moves, c.sent
			m.moving = int(term)
		}
	case moves:
		m.granted = m.moving
		for _, b := range m.members {
			b.expiry = b.next
		}
		r.granted(uint64(m.granted), a.sent)
	}
	return next
}

// newRule is the driver's rule, without the twentieth of the TTL left for clocks.
func newRule() rule {
	l := &lease{changed: make(chan struct{}, 1), ttl: modelTTL * unit}
	l.granted(1, 0)
	return exact{l}
}

type exact struct{ *lease }

func (e exact) end() time.Duration { return e.lease.end() + e.ttl/20 }

func TestLeaseIsNotRevokedBeforeItsEnd(t *testing.T) {
	prolonged := 0
	for seed := range uint64(*plays) {
		r := newRule()
		require.False(t, play(seed, r), "seed %d", seed)
		if r.end() > 2*modelTTL*unit {
			prolonged++
		}
	}
	t.Logf("%d leases were prolonged to more than twice their TTL", prolonged)
	require.Greater(t, prolonged, *plays/20)
}

// mutant is a rule with a mistake.
type mutant struct {
	ends    time.Duration
	term    uint64 // of the lease
	stays   bool   // never moves to another one
	read    *seen
	kept    *seen
	onRead  func(*mutant, seen)
	onAlive func(*mutant, seen)
}

func (m *mutant) end() time.Duration       { return m.ends }
func (m *mutant) readAnswered(a seen)      { m.onRead(m, a); m.read = &a }
func (m *mutant) keepAliveAnswered(a seen) { m.onAlive(m, a) }
func (m *mutant) until(at time.Duration)   { m.ends = max(m.ends, at+modelTTL*unit) }
func (m *mutant) outlived() (uint64, bool) { return m.read.term, !m.stays && m.read.term != m.term }

func (m *mutant) granted(term uint64, sent time.Duration) {
	m.term = term
	m.until(sent)
}

func TestLeaseNeedsEachPartOfItsRule(t *testing.T) {
	sameConn := func(a *seen, b seen) bool { return a != nil && a.on == b.on }
	keeps := func(m *mutant, a seen) {
		if m.kept = nil; m.read.sameTerm(&a) {
			m.kept = &a
		}
	}
	for name, made := range map[string]mutant{
		"a keep-alive alone": {
			onRead: func(*mutant, seen) {},
			onAlive: func(m *mutant, a seen) {
				if a.term == m.term {
					m.until(a.sent)
				}
			},
		},
		"no read afterward": {
			onRead: func(*mutant, seen) {},
			onAlive: func(m *mutant, a seen) {
				if m.read.sameTerm(&a) && a.term == m.term {
					m.until(a.sent)
				}
			},
		},
		"terms are not compared": {
			onRead: func(m *mutant, a seen) {
				if sameConn(m.kept, a) {
					m.until(m.kept.sent)
				}
				m.kept = nil
			},
			onAlive: func(m *mutant, a seen) { m.kept = &a },
		},
		"from the read that follows": {
			onRead: func(m *mutant, a seen) {
				if m.kept.sameTerm(&a) && a.term == m.term {
					m.until(a.sent)
				}
				m.kept = nil
			},
			onAlive: keeps,
		},
		"reads alone": {
			onRead: func(m *mutant, a seen) {
				if a.term == m.term {
					m.until(a.sent)
				}
			},
			onAlive: func(*mutant, seen) {},
		},
		"a lease of an earlier term": {
			stays: true,
			onRead: func(m *mutant, a seen) {
				if m.kept.sameTerm(&a) {
					m.until(m.kept.sent)
				}
				m.kept = nil
			},
			onAlive: keeps,
		},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(200_000) {
				wrong := made
				wrong.term, wrong.ends = 1, modelTTL*unit
				if play(seed, &wrong) {
					t.Logf("found with seed %d", seed)
					return
				}
			}
			t.Fatal("the model does not find the mistake")
		})
	}
}
