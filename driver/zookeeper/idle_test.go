package zookeeper

// This file tests the lease of a session that was idle.

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Whenever a session is used after idleness, the lease is at least a fifth of the timeout, and as
// long as ever after four tenths, if answers take less than a fiftieth.
func TestLeaseAfterIdleness(t *testing.T) {
	t.Parallel()
	for _, latency := range []time.Duration{time.Millisecond, testTimeout / 100, testTimeout / quickPart} {
		least, later := testTimeout, testTimeout
		for from := testTimeout; from < 2*testTimeout; from += testTimeout / 50 {
			for until := from; until < from+2*testTimeout; until += testTimeout / 100 {
				var l lease
				l.established(0, testTimeout, true)
				now, proofs, writes := time.Duration(0), 0, 0
				prove := func(write bool) {
					begin := now
					now += latency
					least = min(least, l.left(now))
					if l.recordProof(begin, readAt(now), write); now > until+testTimeout*4/10 {
						later = min(later, l.left(now))
					}
				}
				renew := func(end time.Duration) {
					for now < end {
						if write, in := l.nextProof(now); in > 0 {
							now += min(in, end-now)
						} else {
							proofs++
							if write {
								writes++
							}
							prove(write)
						}
					}
				}
				renew(from)
				l.use.Store(asking)
				l.beginIdle(testTimeout)
				proofs, writes = 0, 0
				renew(until)
				require.Zero(t, writes)
				require.LessOrEqual(t, proofs, 1+int((now-from)*100/(testTimeout*apart)))
				l.endIdle(now, 0)
				prove(true)
				require.Positive(t, l.left(now))
				renew(until + testTimeout)
			}
		}
		require.Greater(t, least, testTimeout/5)
		require.Greater(t, later, testTimeout*9/20)
	}
}

func (l *lease) left(now time.Duration) time.Duration { return time.Duration(l.ends.Load()) - now }

// After a jump of the wall clock on an idle session, only later proofs count as x.
func TestJumpOfTheClockWhileIdle(t *testing.T) {
	t.Parallel()
	const interval = testTimeout / 3
	for _, jumpAt := range []time.Duration{-1, 3 * interval, 6 * interval, 6*interval + 1, 8 * interval} {
		var l lease
		l.established(0, testTimeout, true)
		l.recordProof(0, readAt(0), false)
		l.use.Store(asking)
		l.beginIdle(testTimeout)
		skew := func(now time.Duration) time.Duration {
			if jumpAt >= 0 && now >= jumpAt {
				return testTimeout / 2
			}
			return 0
		}
		const use = 8 * interval
		for now := interval; now < use; now += interval {
			require.Nil(t, l.checkSkew(now, skew(now)))
			l.recordProof(now, readAt(now), false)
			require.Positive(t, l.left(now), "the session is kept while nobody uses it")
		}
		l.endIdle(use, skew(use))
		l.recordProof(use, readAt(use), true)
		require.Equal(t, jumpAt <= 6*interval, l.left(use) > 0, "a jump at %v", jumpAt)
		if jumpAt == use { // what was on the way counts as little
			l.established(use-1, testTimeout, false)
			l.recordProof(use-1, readAt(use+1), false)
			l.recordProof(use+testTimeout/4, readAt(use+testTimeout/4), true)
			require.Negative(t, l.left(use+testTimeout/4))
		}
	}
}
