package zookeeper

// This file tests when a lease ends, by its own clock: proofs, stops, and random histories of
// a leader.

import (
	"math/rand/v2"
	"slices"
	"sort"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const testTimeout = 12 * time.Second

func readAt(t time.Duration) func() time.Duration { return func() time.Duration { return t } }

func TestLeaseOfANewSessionBeginsWithTheRequestForIt(t *testing.T) {
	t.Parallel()
	var l lease
	l.established(time.Second, testTimeout, true)
	require.Equal(t, time.Second+testTimeout*19/20, time.Duration(l.ends.Load()))
}

func TestLeaseIsNotProlongedBySyncsAlone(t *testing.T) {
	t.Parallel()
	var l lease
	l.established(0, testTimeout, true)
	for at := time.Duration(0); at < time.Minute; at += testTimeout / proofsPerTimeout {
		l.recordProof(at, readAt(at), false) // by a leader that has lost its followers
	}
	require.Equal(t, testTimeout*19/20, time.Duration(l.ends.Load()))
}

func TestLeaseIsNotProlongedByRequestsThatOverlap(t *testing.T) {
	t.Parallel()
	var l lease
	l.established(0, testTimeout, true)
	for at := time.Duration(0); at < time.Minute; at += time.Second {
		l.recordProof(at, readAt(time.Minute), true) // nothing was answered before another began
	}
	require.Equal(t, testTimeout*19/20, time.Duration(l.ends.Load()))
}

func TestLeaseCountsNoProofsOfAnotherServer(t *testing.T) {
	t.Parallel()
	var l lease
	l.established(0, testTimeout, true)
	l.recordProof(1*time.Second, readAt(1*time.Second), true)
	l.recordProof(5*time.Second, readAt(5*time.Second), true)
	l.established(6*time.Second, testTimeout, false)
	l.recordProof(7*time.Second, readAt(7*time.Second), true)
	require.Equal(t, 6*time.Second+testTimeout*19/20, time.Duration(l.ends.Load()), "the leader is told at once of a session that moves")
}

// The next leader knows the timeout that the session was opened with, and the
// present one that of the last handshake.
func TestLeaseUsesTheShortestTimeout(t *testing.T) {
	t.Parallel()
	var l lease
	l.established(0, testTimeout, true)
	l.established(time.Second, 2*testTimeout, false)
	l.recordProof(2*time.Second, readAt(2*time.Second), true)
	require.Equal(t, time.Second+testTimeout*19/20, time.Duration(l.ends.Load()))
	l.established(3*time.Second, testTimeout/2, false)
	require.Equal(t, 2*time.Second+testTimeout/2*19/20, time.Duration(l.ends.Load()))
}

// If the server answers within a fiftieth of the timeout, the lease lasts for almost
// 9/20 of it without an answer.
func TestLeaseOfAHealthySession(t *testing.T) {
	t.Parallel()
	const latency = testTimeout / 50
	var l lease
	l.established(0, testTimeout, true)
	now, left, writes, proofs := time.Duration(0), testTimeout, 0, 0
	for now < time.Hour {
		write, in := l.nextProof(now)
		if in > 0 {
			now += in
			continue
		}
		begin := now
		now += latency
		left = min(left, time.Duration(l.ends.Load())-now)
		l.recordProof(begin, readAt(now), write)
		proofs++
		if write {
			writes++
		}
	}
	require.InDelta(t, testTimeout*9/20-latency, left, 1e6)
	require.InDelta(t, time.Hour/testTimeout*proofsPerTimeout, proofs, 2)
	require.InDelta(t, proofs/proofsPerWrite, writes, 2)
}

// Requests of others that are proofs, but no writes, do not keep the session from writing.
func TestLeaseOfASessionThatReadsAllTheTime(t *testing.T) {
	t.Parallel()
	var l lease
	l.established(0, testTimeout, true)
	for now := time.Duration(0); now < time.Minute; now += testTimeout / proofsPerTimeout / 2 {
		l.recordProof(now, readAt(now), false)
		if write, in := l.nextProof(now); in <= 0 {
			l.recordProof(now, readAt(now), write)
		}
		require.Greater(t, time.Duration(l.ends.Load()), now+testTimeout*9/20)
	}
}

// The test checks the argument of the type lease against a model of the servers: a
// leader that is told of activity by a follower's answers to its pings and may be
// paused, and four streams that keep their order and may be held up for any time. The
// follower may be cut off at any moment, so the lease must never end after the
// session would expire if that happened now.
func TestLeaseEndsBeforeTheLeaderCanExpireTheSession(t *testing.T) {
	once(t)
	t.Parallel()
	short, granted := 0, false
	for i := range uint64(3000) {
		seed := i + 4000 // with one of them T/4 between x and y is too short
		m := newModel(seed)
		m.run(func() {
			if m.lease.use.Load() == idle || m.lease.settled != nil {
				return // nothing is held or granted
			}
			granted = granted || m.woken
			ends := time.Duration(m.lease.ends.Load()) + testTimeout/driftPart
			require.LessOrEqual(t, ends, m.told+testTimeout, "seed %d at %s", seed, m.now)
			if m.shorter > m.told+testTimeout {
				short++
			}
		})
	}
	require.True(t, granted, "no model was idle, and then used")
	require.Positive(t, short, "the model does not refute the shorter argument")
}

// model has one session, and ticks of half its timeout.
type model struct {
	rand    *rand.Rand
	now     time.Duration
	moments []moment // in order

	lease   lease
	shorter time.Duration // the end by the shorter argument

	chain  int           // of proofs; the next one begins when idleness ends
	woken  bool          // the session was idle before
	active bool          // at the follower, not reported yet
	told   time.Duration // when the leader was last told of activity
	goesOn time.Duration // when the pause of the leader ends or has ended

	toFollower, toLeader, fromLeader, fromFollower stream
}

// stream keeps order: nothing arrives before what was sent before it.
type stream struct{ last, heldUp time.Duration }

func newModel(seed uint64) *model {
	m := &model{rand: rand.New(rand.NewPCG(seed, 0))}
	m.lease.established(0, testTimeout, true)
	m.at(m.upTo(testTimeout/4), m.ping)
	m.at(0, m.renew)
	m.at(m.upTo(testTimeout), m.use)
	m.at(m.upTo(testTimeout), m.pause)
	if seed%2 == 0 {
		m.at(m.upTo(testTimeout), m.rest)
	}
	return m
}

func (m *model) run(check func()) {
	for m.now < 6*testTimeout {
		e := m.moments[0]
		m.moments = m.moments[1:]
		m.now = e.at
		e.do()
		check()
	}
}

func (m *model) upTo(d time.Duration) time.Duration { return time.Duration(m.rand.Int64N(int64(d))) }

func (m *model) at(when time.Duration, do func()) {
	i := sort.Search(len(m.moments), func(i int) bool { return m.moments[i].at > when })
	m.moments = slices.Insert(m.moments, i, moment{when, do})
}

func (m *model) send(s *stream, arrive func()) {
	goesOn := s == &m.fromLeader && m.now >= m.goesOn && m.now < m.goesOn+testTimeout*late/100
	if m.rand.IntN(20) == 0 && !goesOn {
		s.heldUp = m.now + m.upTo(testTimeout)
	}
	s.last = max(s.last, s.heldUp, m.now+m.upTo(testTimeout/200))
	m.at(s.last, arrive)
}

// pause pauses the leader, which then goes on with everything at once, except for the
// ping that was due, which is a moment late. Its stream is not held up from just that moment on.
func (m *model) pause() {
	m.goesOn = m.now + m.upTo(testTimeout/2)
	m.at(m.goesOn+m.upTo(2*testTimeout), m.pause)
}

// atLeader calls do when the leader is not paused.
func (m *model) atLeader(do func()) {
	if m.now < m.goesOn {
		m.at(m.goesOn, func() { m.atLeader(do) })
		return
	}
	do()
}

func (m *model) ping() {
	if m.now < m.goesOn {
		m.at(m.goesOn+m.upTo(testTimeout*late/100), m.pingNow)
		return
	}
	m.pingNow()
}

func (m *model) pingNow() {
	m.send(&m.fromLeader, func() {
		active := m.active
		m.active = false
		m.send(&m.toLeader, func() {
			m.atLeader(func() {
				if active {
					m.told = m.now
				}
			})
		})
	})
	m.at(m.now+testTimeout/4+m.upTo(testTimeout/34), m.ping) // at the earliest
}

func (m *model) renew() {
	chain := m.chain
	again := func() {
		if chain == m.chain {
			m.renew()
		}
	}
	write, in := m.lease.nextProof(m.now)
	if in > 0 {
		m.at(m.now+in, again)
		return
	}
	m.ask(write, again)
}

// use writes at any time, beside the proofs, unless the session is idle.
func (m *model) use() {
	for range m.rand.IntN(6) {
		m.at(m.now+m.upTo(testTimeout/4), func() {
			if m.lease.use.Load() == inUse {
				m.ask(true, func() {})
			}
		})
	}
	m.at(m.now+m.upTo(testTimeout), m.use)
}

// rest makes the session idle for a while.
func (m *model) rest() {
	m.lease.use.Store(asking)
	m.lease.beginIdle(testTimeout)
	m.at(m.now+m.upTo(3*testTimeout), func() {
		m.woken = true
		m.lease.endIdle(m.now, 0)
		m.chain++
		m.renew()
		m.ask(true, func() {})
		m.at(m.now+m.upTo(testTimeout), m.rest)
	})
}

func (m *model) ask(write bool, then func()) {
	begin := m.now
	m.send(&m.toFollower, func() {
		m.active = true
		m.send(&m.toLeader, func() {
			m.atLeader(func() {
				m.send(&m.fromLeader, func() {
					m.send(&m.fromFollower, func() {
						m.lease.recordProof(begin, readAt(m.now), write)
						m.shorter = max(m.shorter, begin+testTimeout*7/12)
						then()
					})
				})
			})
		})
	})
}

type moment struct {
	at time.Duration
	do func()
}

// What the process's clock may have missed since the proofs on which the lease rests, without a
// doubt, is no more than the lease's margin, for any session timeout and however often writes
// are answered meanwhile.
func TestSmallStopsStayWithinTheMargin(t *testing.T) {
	t.Parallel()
	for _, timeout := range []time.Duration{400 * time.Millisecond, time.Second, 2 * time.Second, testTimeout} {
		var l lease
		l.established(0, timeout, true)
		now, missed := timeout, time.Duration(0)
		for range 100 {
			missed += mostSkew / 10
			now += timeout / 100
			if l.checkSkew(now, missed) != nil {
				break
			}
			l.recordProof(now, readAt(now), true) // no proof of activity is old enough: the lease rests where it did
			l.activeAt = 0
		}
		require.True(t, l.inDoubt())
		require.LessOrEqual(t, missed, l.margin()+mostSkew/10, timeout)
	}
}

// A jump of the wall clock puts the lease in doubt until a write is answered that
// began after it; a drift does not.
func TestLeaseIsInDoubtUntilAWriteIsAnswered(t *testing.T) {
	t.Parallel()
	var l lease
	l.established(0, testTimeout, true)
	now, skew := time.Second, time.Duration(0)
	for range 100 {
		skew += mostSkew / 20
		require.Nil(t, l.checkSkew(now, skew))
		l.recordProof(now, readAt(now), true)
		now += time.Second
	}
	for _, jump := range []time.Duration{mostSkew + 1, -time.Hour} {
		began := now - time.Millisecond
		skew += jump
		settled := l.checkSkew(now, skew)
		write, in := l.nextProof(now)
		require.True(t, write && in == 0, "it wants a write at once")
		l.recordProof(now, readAt(now), false)
		l.recordProof(began, readAt(now), true)
		require.Equal(t, settled, l.checkSkew(now, skew))
		now += time.Millisecond
		skew += jump // again, so no earlier write counts
		require.Equal(t, settled, l.checkSkew(now, skew))
		l.recordProof(now-1, readAt(now), true)
		require.NotNil(t, l.checkSkew(now, skew))
		l.recordProof(now, readAt(now), true)
		require.Nil(t, l.checkSkew(now, skew))
		<-settled
		now += time.Second
	}
}
