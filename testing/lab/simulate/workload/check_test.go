package workload

// This file tests the checks: each passes a good record, and finds the violation in a bad
// one.

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// at returns the time, in milliseconds after the beginning of a record.
func at(ms int) Instant { return Instant(1).Add(time.Duration(ms) * time.Millisecond) }

// held is an exclusive hold of the lock a.
func held(process string, token int64, begin, end int) *hold {
	return &hold{process: process, lock: "a", token: token, begin: at(begin), end: at(end), portion: portion{1, 1}}
}

// heldPart is a hold of some permits.
func heldPart(process string, token int64, permits, of, requested, begin, end int) *hold {
	return &hold{process: process, lock: "a", token: token, begin: at(begin), end: at(end), requested: at(requested), portion: portion{permits, of}}
}

// heldRevocable is a hold whose holder noticed a revocation request at a time, or
// never.
func heldRevocable(process string, begin, end int, revokedAt Instant) *hold {
	h := held(process, 1, begin, end)
	h.revocable, h.revokedAt = true, revokedAt
	return h
}

// revocable makes holds revocable. Their holders never notice a request.
func revocable(holds []*hold) []*hold {
	for _, h := range holds {
		h.revocable = true
	}
	return holds
}

// downgraded is an exclusive hold and its rest as a reader's.
func downgraded(process string, token int64, begin, downgraded, end int) []*hold {
	rest := heldPart(process, token, 1, many, begin, downgraded, end)
	rest.restOf = heldPart(process, token, many, many, begin, begin, downgraded)
	return []*hold{rest.restOf, rest}
}

// alternating are readers of two processes never holding the lock together, although each
// requested it while another was reading.
func alternating(n int) (holds []*hold) {
	for i := range n {
		holds = append(holds, heldPart(string(rune('x'+i%2)), int64(i+1), 1, many, 10*i-5, 10*i, 10*i+10))
	}
	return holds
}

// ran is a run of the job of a period. The run started at a time, or never.
func ran(process string, period int64, err string, started Instant, begin, end int) *call {
	return &call{process: process, op: opRun, lock: job, limit: time.Minute, period: period, err: err, started: started, begin: at(begin), end: at(end)}
}

// locked is a granted call of Lock.
func locked(process string, limit time.Duration, begin, end int) *call {
	return &call{process: process, op: opLock, lock: "a", limit: limit, begin: at(begin), end: at(end)}
}

// timedOut is a call of Lock without a grant.
func timedOut(begin, end int) *call {
	return &call{process: "x", op: opLock, lock: "a", limit: time.Minute, begin: at(begin), end: at(end), err: "timeout", portion: portion{1, 1}}
}

// failed is a call ended by an error.
func failed(op, err string) []*call {
	return []*call{{process: "x", op: op, lock: "a", limit: time.Second, begin: at(0), end: at(1), err: err}}
}

// revoke is a revocation request.
func revoke(begin, end int) []*call {
	return []*call{{process: "z", op: opRevoke, lock: "a", limit: time.Second, begin: at(begin), end: at(end)}}
}

func wrote(process string, token, value int64, accepted bool, begin, end int) *access {
	return &access{process: process, lock: "a", write: true, token: token, value: value, accepted: accepted, begin: at(begin), end: at(end)}
}

func read(process string, token, value int64, begin, end int) *access {
	return &access{process: process, lock: "a", token: token, value: value, begin: at(begin), end: at(end)}
}

// checked checks a record of 100 seconds.
func checked(t *testing.T, rec Record) Report {
	rec.Limits = Limits{WakeUp: 250 * time.Millisecond, Overrun: 2 * time.Second, Recovery: 30 * time.Second, Revocation: 3 * time.Second}
	rec.Begin, rec.End = at(0), at(100_000)
	r := Check(&rec)
	var out strings.Builder
	Summarize(&out, &rec, r)
	t.Log(out.String())
	require.True(t, strings.HasSuffix(out.String(), "\n"+r.Verdict()+"\n"))
	return r
}

// beside are faults with calm times of the given length between, before and after them.
func beside(calm int) []Span {
	return []Span{{"delay", at(1_000), at(30_000)}, {"pause", at(5000), at(20_000)}, {"kill", at(29_000 + calm), at(70_000)}, {"cut", at(70_000), at(100_000)}}
}

const noViolation = "violations=0 leaked_nodes=0 stuck_waiters=0"

func TestRecordWithoutViolationsIsClean(t *testing.T) {
	t.Parallel()
	for name, rec := range map[string]Record{
		"empty":                           {},
		"one after the other":             {holds: []*hold{held("x", 1, 0, 10), held("y", 2, 10, 20), held("x", 0, 30, 40), held("x", 3, 50, 60)}},
		"two locks":                       {holds: []*hold{held("x", 7, 0, 10), {process: "y", lock: "b", token: 2, begin: at(5), end: at(8)}}},
		"reentry":                         {holds: []*hold{{process: "x", lock: "a", token: 4, reentries: []int64{4, 4}, begin: at(0), end: at(9)}}},
		"write is fenced":                 {accesses: []*access{wrote("x", 1, 11, true, 0, 1), wrote("y", 2, 12, true, 2, 3), wrote("x", 1, 13, false, 4, 5), read("x", 2, 12, 6, 7)}},
		"writes overlap":                  {accesses: []*access{wrote("x", 1, 11, true, 0, 9), wrote("y", 2, 12, true, 0, 9), read("z", 1, 11, 1, 8)}},
		"job runs again if it fails":      {calls: []*call{ran("x", 1, "timeout", at(1), 0, 9), ran("y", 1, "lock_lost", at(10), 0, 19), ran("z", 1, "", at(20), 0, 29), ran("x", 1, done, Never, 30, 39)}},
		"job of each period":              {calls: []*call{ran("x", 1, "", at(1), 0, 9), ran("x", 2, "", at(11), 10, 19), ran("x", 2, "busy", Never, 10, 19)}},
		"job that is killed has finished": {calls: []*call{ran("x", 1, unanswered, at(1), 0, 9), ran("y", 1, undecided, at(1), 0, 9), ran("z", 1, done, Never, 0, 19)}},
		"call ends in time":               {calls: []*call{locked("x", time.Second, 0, 2900)}},
		"call ends late":                  {calls: []*call{locked("x", time.Second, 0, 6900)}, Pauses: []Span{{"x", at(500), at(4600)}}},
		"readers and writer":              {holds: []*hold{heldPart("x", 1, 1, many, 0, 1, 30), heldPart("y", 2, 1, many, 0, 2, 20), heldPart("z", 3, many, many, 0, 30, 40)}},
		"permits":                         {holds: []*hold{heldPart("x", 1, 1, 3, 0, 1, 30), heldPart("y", 2, 2, 3, 0, 2, 20), heldPart("z", 3, 2, 3, 0, 20, 40), heldPart("x", 4, 3, 3, 0, 40, 50)}},
		"larger limit":                    {holds: []*hold{heldPart("x", 1, 1, 3, 0, 1, 19), heldPart("y", 2, 2, 4, 0, 2, 20), heldPart("z", 3, 2, 4, 0, 19, 40)}},
		"grant noticed late":              {holds: []*hold{heldPart("y", 2, 1, 3, 0, 5, 10), heldPart("x", 1, 1, 3, 0, 11, 30)}},
		"downgrade":                       {holds: append(downgraded("x", 1, 0, 10, 20), heldPart("y", 2, 1, many, 0, 10, 30), heldPart("z", 3, many, many, 0, 30, 40))},
		"revoked in time":                 {holds: []*hold{heldRevocable("x", 0, 9000, at(3100))}, calls: revoke(90, 100)},
		"released in time":                {holds: []*hold{heldRevocable("x", 0, 3100, Never)}, calls: revoke(90, 100)},
		"granted afterwards":              {holds: []*hold{heldRevocable("x", 91, 9000, Never)}, calls: revoke(90, 100)},
		"revoked before":                  {holds: []*hold{heldRevocable("x", 0, 9000, at(10))}, calls: revoke(90, 100)},
		"not revocable":                   {holds: []*hold{held("x", 1, 0, 9000)}, calls: revoke(90, 100)},
		"revoked while paused":            {holds: []*hold{heldRevocable("x", 0, 9000, at(6000))}, calls: revoke(90, 100), Pauses: []Span{{"x", at(1000), at(5000)}}},
		"held for long":                   {holds: []*hold{held("x", 1, 0, 90_000)}, calls: []*call{timedOut(0, 50_000)}},
		"free for long beside faults":     {holds: []*hold{held("x", 1, 0, 10)}, calls: []*call{timedOut(0, 45_000), timedOut(45_000, 90_000)}, Faults: beside(30_000)},
		"free for long":                   {holds: []*hold{held("x", 1, 0, 10)}, calls: []*call{timedOut(0, 29_000)}},
		"node removed":                    {calls: failed(opUnlock, removed), Removals: removal(0, 1)},
		"kinds mixed":                     {calls: []*call{{process: "x", op: opLock, lock: NameOf(Semaphore, 1), limit: time.Second, begin: at(0), end: at(1), err: mixed}}},
		"removal noticed":                 {holds: []*hold{held("x", 1<<10, 0, 2100), held("y", 2<<10, 101, 2200)}, Removals: removal(100, 1)},
		"grant noticed after the removal": {holds: []*hold{held("y", 2<<10, 150, 2200), held("x", 1<<10, 200, 300)}, Removals: removal(100, 1)},
		"the same with unknown token":     {holds: []*hold{held("y", 2<<10, 150, 2200), held("x", 0, 200, 300)}, Removals: removal(100, 1)},
		"both with unknown tokens":        {holds: []*hold{held("y", 0, 150, 2200), held("x", 0, 50, 300)}, Removals: removal(100, 1)},
		"removal without token":           {holds: []*hold{held("x", 1<<10, 0, 2100), held("y", 2<<10, 101, 2200)}, Removals: removal(100, 0)},
		"removal and fault": {
			holds: []*hold{held("x", 1<<10, 0, 3100), held("y", 2<<10, 101, 4000)}, Removals: removal(100, 1),
			Faults: []Span{{"delay", at(50), at(60)}, {"remove a node", at(100), at(100)}},
		},
		"recovery in time": {Healed: []Instant{at(10)}, holds: []*hold{held("x", 1, 29_000, 29_001)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := checked(t, rec)
			require.Equal(t, noViolation, found.Verdict())
			require.True(t, found.Clean())
		})
	}
}

func TestViolationsAreFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		Record
		violations int
		text       string // of the first
	}{
		"job finished twice": {
			Record{calls: []*call{ran("x", 1, "", at(1), 0, 9), ran("y", 1, "", at(5), 0, 9)}},
			1, "job: that of period 1 finished twice, at 0.009s by x and at 0.009s by y",
		},
		"job started again": {
			Record{calls: []*call{ran("x", 7, unanswered, at(1), 0, 9), ran("y", 7, done, Never, 5, 10), ran("z", 7, "timeout", at(11), 5, 12)}},
			1, "job: that of period 7 was started again by z at 0.011s, although y knew at 0.010s that it has finished",
		},
		"job that nobody finished": {
			Record{calls: []*call{ran("x", 1, "lock_lost", at(1), 0, 9), ran("z", 1, unanswered, Never, 0, 9), ran("y", 1, done, Never, 5, 10)}},
			1, "job: y was told at 0.010s that the job of period 1 has finished, although no run of it can have",
		},
		"overlap": {
			Record{holds: []*hold{held("x", 1, 0, 20), held("y", 2, 19, 30)}},
			1, `exclusion: lock "a" exceeded its limit with 2 holders, for 1ms at 0.019s: x, `,
		},
		"overlap within a process": {
			Record{holds: []*hold{held("x", 1, 0, 20), held("x", 2, 19, 30)}},
			1, "exceeded its limit",
		},
		"overlap with an earlier hold than the last": {
			Record{holds: []*hold{held("x", 1, 0, 50), held("y", 2, 60, 70), held("z", 3, 61, 62), held("y", 4, 69, 80)}},
			2, "exceeded its limit",
		},
		"reader and writer": {
			Record{holds: []*hold{heldPart("x", 1, 1, many, 0, 0, 20), heldPart("y", 2, many, many, 0, 19, 30)}},
			1, `exclusion: lock "a" exceeded its limit with 2 holders, for 1ms at 0.019s: x, goroutine 0, token 0x1, reader`,
		},
		"writer and readers": {
			Record{holds: []*hold{heldPart("x", 1, many, many, 0, 0, 20), heldPart("y", 2, 1, many, 0, 18, 30), heldPart("z", 3, 1, many, 0, 19, 30)}},
			2, "exceeded its limit with 2 holders, for 2ms",
		},
		"downgraded holder and writer": {
			Record{holds: append(downgraded("x", 1, 0, 10, 20), heldPart("z", 2, many, many, 0, 19, 40))},
			1, "exceeded its limit",
		},
		"reader before the downgrade": {
			Record{holds: append(downgraded("x", 1, 0, 10, 20), heldPart("y", 2, 1, many, 0, 9, 40))},
			1, "exceeded its limit",
		},
		"too many permits": {
			Record{holds: []*hold{heldPart("x", 1, 1, 3, 0, 0, 20), heldPart("y", 2, 1, 3, 0, 1, 20), heldPart("x", 3, 2, 3, 0, 19, 30)}},
			1, `exclusion: lock "a" exceeded its limit with 3 holders, for 1ms at 0.019s: x, goroutine 0, token 0x1, 1 of 3 permits`,
		},
		"too many permits for the smaller limit": {
			Record{holds: []*hold{heldPart("x", 1, 2, 4, 0, 0, 20), heldPart("y", 2, 1, 3, 0, 1, 20), heldPart("x", 3, 1, 4, 0, 19, 30)}},
			1, "exceeded its limit",
		},
		"overlap after a revocation": {
			Record{holds: []*hold{heldRevocable("x", 0, 9000, at(100)), held("y", 2, 200, 300)}, calls: revoke(90, 100)},
			1, "exceeded its limit",
		},
		"same token": {
			Record{holds: []*hold{held("x", 2, 0, 10), held("y", 2, 20, 30)}},
			1, "the token did not grow: y, ",
		},
		"smaller token": {
			Record{holds: []*hold{held("x", 2, 0, 10), held("y", 0, 12, 13), held("y", 1, 20, 30), held("y", 3, 40, 50)}},
			1, "the token did not grow: y, ",
		},
		"writer's token below a reader's": {
			Record{holds: []*hold{heldPart("x", 5, 1, many, 0, 0, 10), heldPart("y", 4, many, many, 0, 20, 30)}},
			1, "the token did not grow: y, ",
		},
		"reader's token not above a writer's": {
			Record{holds: []*hold{heldPart("x", 5, many, many, 0, 0, 10), heldPart("y", 5, 1, many, 0, 20, 30)}},
			1, "the token did not grow: y, ",
		},
		"token of permits below that of earlier ones": {
			Record{holds: []*hold{heldPart("x", 5, 1, 3, 0, 0, 100), heldPart("y", 4, 1, 3, 1, 20, 30)}},
			1, "the token did not grow: y, ",
		},
		"token changed by reentry": {
			Record{holds: []*hold{{process: "x", lock: "a", token: 4, reentries: []int64{4, 5}, begin: at(0), end: at(9)}}},
			1, "reentry changed the token",
		},
		"old write accepted": {
			Record{accesses: []*access{wrote("x", 2, 11, true, 0, 1), wrote("y", 1, 12, true, 2, 3)}},
			1, "not linearizable",
		},
		"new write refused": {
			Record{accesses: []*access{wrote("x", 1, 11, true, 0, 1), wrote("y", 2, 12, false, 2, 3)}},
			1, "not linearizable",
		},
		"stale read": {
			Record{accesses: []*access{wrote("x", 1, 11, true, 0, 1), wrote("y", 2, 12, true, 2, 3), read("x", 1, 11, 4, 5)}},
			1, "not linearizable",
		},
		"readers never share": {
			Record{holds: alternating(minRequests + 1)},
			1, "never had two holders at once, although 50",
		},
		"revocation noticed too late": {
			Record{holds: []*hold{heldRevocable("x", 0, 9000, at(3101))}, calls: revoke(90, 100)},
			1, "did not notice the revocation request",
		},
		"revocation never noticed": {
			Record{holds: []*hold{heldRevocable("x", 0, 3101, Never)}, calls: revoke(90, 100)},
			1, "did not notice the revocation request",
		},
		"revocation before the downgrade never noticed": {
			Record{holds: revocable(downgraded("x", 1, 0, 1000, 9000)), calls: revoke(90, 100)},
			1, "did not notice the revocation request",
		},
		"token learned after the downgrade": {
			Record{holds: append(downgraded("x", 5, 0, 10, 20), heldPart("y", 4, many, many, 5, 20, 30))},
			1, "the token did not grow: y, ",
		},
		"token below the largest of several": {
			Record{holds: []*hold{heldPart("x", 3, 1, 3, 0, 0, 10), heldPart("x", 7, 1, 3, 0, 5, 10), heldPart("x", 6, 1, 3, 0, 6, 10), heldPart("y", 7, 1, 3, 7, 20, 30)}},
			1, "the token did not grow: y, goroutine 0, token 0x7, 1 of 3 permits, granted 0.020s, after x, goroutine 0, token 0x7",
		},
		"lost lock entered again": {Record{holds: []*hold{lost(held("x", 1, 0, 10)), again(held("x", 0, 10, 10))}}, 1, "reentry: "},
		"node removed":            {Record{calls: failed(opUnlock, removed)}, 1, "neither clients nor faults cause"},
		"node removed later":      {Record{calls: failed(opUnlock, removed), Removals: removal(2, 1)}, 1, "neither clients nor faults cause"},
		"removal long ago": {
			Record{holds: []*hold{held("x", 1<<10, 0, 3101), held("y", 2<<10, 3001, 4000)}, Removals: removal(100, 1), Faults: []Span{{"delay", at(0), at(1)}}},
			2, "exceeded its limit",
		},
		"another's node was removed": {
			Record{holds: []*hold{held("x", 1<<10, 0, 1000), held("y", 2<<10, 200, 2000)}, Removals: removal(100, 3)}, 1, "exceeded its limit",
		},
		"other kind":  {Record{calls: failed(opLock, "kind_mismatch")}, 1, "neither clients nor faults cause"},
		"other error": {Record{calls: failed(opLock, "no node after 10 tries")}, 1, "neither clients nor faults cause"},
		"free but not granted": {
			Record{holds: []*hold{held("x", 1, 0, 10)}, calls: []*call{timedOut(0, 20_000), timedOut(20_000, 50_000)}},
			1, "was free but not granted for 1m39.99s",
		},
		"free between faults": {
			Record{holds: []*hold{held("x", 1, 0, 10)}, calls: []*call{timedOut(0, 45_000), timedOut(45_000, 90_000)}, Faults: beside(31_000)},
			1, "without a fault for 30.99s",
		},
		"no recovery": {Record{Healed: []Instant{at(10)}, holds: []*hold{held("x", 1, 5, 6)}}, 1, "no lock was granted"},
		"crash":       {Record{Crashes: []string{"x ended by itself"}}, 1, "x ended by itself"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := checked(t, c.Record)
			require.Equal(t, fmt.Sprintf("violations=%d leaked_nodes=0 stuck_waiters=0", c.violations), found.Verdict())
			require.False(t, found.Clean())
			require.Contains(t, found.Violations[0], c.text)
		})
	}
}

func TestLeakedNodesAndStuckCallsAreFound(t *testing.T) {
	t.Parallel()
	for verdict, recs := range map[string][]Record{
		"violations=0 leaked_nodes=2 stuck_waiters=0": {{Leaked: []string{"/a/1", "/a/2"}}},
		"violations=0 leaked_nodes=0 stuck_waiters=1": {
			{Hung: []string{"x"}},
			{
				calls:  []*call{locked("x", time.Second, 0, 3001)},
				Pauses: []Span{{"y", at(0), at(2000)}, {"x", at(4000), at(5000)}}, // of another client, and later
			},
		},
	} {
		for _, rec := range recs {
			found := checked(t, rec)
			require.Equal(t, verdict, found.Verdict())
			require.False(t, found.Clean())
		}
	}
}

// strict are the limits of a record in virtual time, with more to check.
func strict(rec Record) Record {
	rec.Limits = Limits{
		WakeUp: 250 * time.Millisecond, Overrun: 2 * time.Second, Recovery: 30 * time.Second, Revocation: 3 * time.Second,
		CalmOnly: true, Order: time.Second, Cause: 10 * time.Second,
	}
	rec.Begin, rec.End = at(0), at(100_000)
	return rec
}

func lost(h *hold) *hold {
	h.lost = true
	return h
}

// again is the hold of a holder after a loss, lost again at once.
func again(h *hold) *hold {
	h.again = true
	return lost(h)
}

// removal is the removal of the node of the lock a with an order number.
func removal(ms int, order int64) []Removal { return []Removal{{at(ms), "a", order}} }

// unlocked is a hold and the ending call of Unlock.
func unlocked(token int64, begin, end, confirmed int, err string) ([]*hold, []*call) {
	h := held("x", token, begin, end)
	return []*hold{h}, []*call{{process: "x", op: opUnlock, lock: "a", limit: time.Minute, begin: at(end), end: at(confirmed), err: err, releases: h}}
}

// passing is the record of a process in which another call waits for the lock meanwhile.
func passing(rec Record) Record {
	rec.PassesOn = []string{"x"}
	rec.calls = append(rec.calls, timedOut(30_000, 40_000))
	return rec
}

// both are calls of LockAll, of one process each, for the locks a and b.
func both(process string, begin, end int) []*call {
	a, b := asked(process, begin, end), asked(process, begin, end)
	a.op, b.op, b.lock = opLockAll, opLockAll, "b"
	return []*call{a, b}
}

// asked is a call of Lock, granted an exclusive lock.
func asked(process string, begin, end int) *call {
	c := locked(process, time.Minute, begin, end)
	c.portion = portion{1, 1}
	return c
}

// granted adds the hold of a call.
func granted(c *call, until int) *call {
	c.grants = &hold{end: at(until)}
	return c
}

func TestStrictChecks(t *testing.T) {
	t.Parallel()
	fault := []Span{{"freeze", at(20_000), at(60_000)}}
	end := func(ms int, orders ...int64) []SessionEnd { return []SessionEnd{{At: at(ms), Orders: orders}} }
	release := func(ends []SessionEnd, removals []Removal, faults []Span, err string) Record {
		holds, calls := unlocked(7<<10|1, 20_000, 30_000, 31_000, err)
		return Record{holds: holds, calls: calls, Ends: ends, Removals: removals, Faults: faults}
	}
	removing := []Span{{"remove nodes", at(30_000), at(30_000)}}
	expiring := []Span{{"expire a session", at(30_000), at(30_000)}}
	for name, c := range map[string]struct {
		record Record
		text   string // of the only violation, if there is one
	}{
		"unlocked after a removal":       {release(nil, removal(30_500, 7), removing, ""), "release: "},
		"unlocked after an expiry":       {release(end(31_000, 7), nil, expiring, ""), "release: "},
		"unlocked before a removal":      {release(nil, removal(31_001, 7), removing, ""), ""},
		"another's node removed":         {release(nil, removal(30_500, 8), removing, ""), ""},
		"unlock says that it is lost":    {release(end(30_500, 7), nil, expiring, "lock_lost"), ""},
		"unlocked without an answer":     {release(end(30_500, 7), nil, []Span{{"freeze", at(30_400), at(40_000)}}, ""), ""},
		"passed on soon after a removal": {passing(release(nil, removal(29_500, 7), removing, "")), ""},
		"passed on long after a removal": {passing(release(nil, removal(28_999, 7), removing, "")), "release: "},
		"removal not noticed":            {Record{Faults: removing, Removals: removal(30_000, 7), holds: []*hold{held("x", 7<<10|2, 0, 32_001)}}, "removal: "},
		"removal noticed soon":           {Record{Faults: removing, Removals: removal(30_000, 7), holds: []*hold{held("x", 7<<10|2, 0, 32_000)}}, ""},
		"removal noticed at the end of the lease": {
			Record{Faults: append(removing, fault...), Removals: removal(30_000, 7), holds: []*hold{held("x", 7<<10|2, 0, 33_000)}}, "",
		},
		"removal noticed after the lease": {
			Record{Faults: append(removing, fault...), Removals: removal(30_000, 7), holds: []*hold{held("x", 7<<10|2, 0, 33_001)}}, "removal: ",
		},
		"removal noticed after a pause": {
			Record{Faults: removing, Removals: removal(30_000, 7), holds: []*hold{held("x", 7<<10|2, 0, 33_000)}, Pauses: []Span{{"x", at(31_000), at(32_000)}}}, "",
		},
		"queued again": {
			Record{Faults: removing, Removals: removal(33_000, 0), calls: []*call{asked("x", 30_000, 37_001), asked("y", 32_500, 35_000)}}, "",
		},
		"did not queue again": {
			Record{Faults: removing, Removals: removal(33_000, 0), calls: []*call{asked("x", 30_000, 39_001), asked("y", 34_001, 37_000)}}, "order: ",
		},
		"container left in vain":                      {Record{Unused: []string{"a"}, calls: []*call{timedOut(30_000, 31_000)}}, "left: the container"},
		"container of a client that lost its session": {Record{Faults: fault, Unused: []string{"a"}, calls: []*call{timedOut(30_000, 31_000)}}, ""},
		"waiter without a node":                       {Record{Faults: removing, Displaced: []Span{{"x waits", at(30_000), at(32_000)}}}, "place: "},
		"waiter without a node after a fault": {
			Record{Faults: append(removing, Span{"freeze", at(0), at(1000)}), Displaced: []Span{{"x waits", at(30_000), at(32_000)}}}, "",
		},
		"LockAll in order": {
			Record{calls: slices.Concat(both("x", 30_000, 35_000), both("y", 30_000, 46_000)), holds: []*hold{held("x", 1, 35_000, 42_000)}}, "",
		},
		"LockAll waits for LockAll": {
			Record{calls: slices.Concat(both("x", 30_000, 34_000), both("y", 30_000, 35_001)), holds: []*hold{held("z", 1, 20_000, 30_000)}}, "deadlock: ",
		},
		"LockAll waits during a fault": {
			Record{calls: slices.Concat(both("x", 60_000, 75_000), both("y", 60_000, 75_000)), Faults: fault}, "",
		},
		"loss after a fault":       {Record{Faults: fault, holds: []*hold{lost(held("x", 1, 0, 69_000))}}, ""},
		"loss without a fault":     {Record{Faults: fault, holds: []*hold{lost(held("x", 1, 0, 71_000))}}, "loss: "},
		"loss before the fault":    {Record{Faults: fault, holds: []*hold{lost(held("x", 1, 0, 19_000))}}, "loss: "},
		"loss at the end":          {Record{holds: []*hold{lost(held("x", 1, 0, 100_001))}}, ""},
		"session ends after hold":  {Record{Ends: end(5000, 7, 9), holds: []*hold{held("x", 7<<10|3, 0, 5000), held("y", 8<<10, 5000, 9000)}}, ""},
		"session ends before hold": {Record{Ends: end(4999, 7), holds: []*hold{held("x", 7<<10|3, 0, 5000)}}, "lease: "},
		"the holder was paused":    {Record{Ends: end(4000, 7), holds: []*hold{held("x", 7<<10, 0, 5000)}, Pauses: []Span{{"x", at(3000), at(4900)}}}, ""},
		"the clock had jumped":     {Record{Ends: end(4000, 7), holds: []*hold{held("x", 7<<10, 0, 5000)}, Jumps: []Jump{{Span{"x", at(3000), at(4100)}, time.Second}}}, ""},
		"by less than that":        {Record{Ends: end(4000, 7), holds: []*hold{held("x", 7<<10, 0, 6000)}, Jumps: []Jump{{Span{"x", at(3000), at(4100)}, time.Second / 2}}}, "lease: "},
		"long before":              {Record{Ends: end(4000, 7), holds: []*hold{held("x", 7<<10, 0, 5000)}, Jumps: []Jump{{Span{"x", at(3000), at(3900)}, time.Second}}}, "lease: "},
		"rescue":                   {Record{Rescues: []string{"path /a"}}, "rescue: "},
		"in order":                 {Record{calls: []*call{asked("x", 30_000, 35_000), asked("y", 31_000, 36_000)}}, ""},
		"out of order":             {Record{calls: []*call{asked("x", 30_000, 36_001), asked("y", 31_001, 35_000)}}, "order: "},
		"in the place of a process": {
			Record{PassesOn: []string{"y"}, calls: []*call{asked("x", 30_000, 36_001), asked("y", 29_000, 32_000), asked("y", 31_001, 35_000)}}, "",
		},
		"in the place of a holder of the process": {
			Record{PassesOn: []string{"y"}, calls: []*call{asked("x", 30_000, 36_001), granted(asked("y", 29_000, 30_000), 32_000), asked("y", 31_001, 35_000)}}, "",
		},
		"in the place of a call for several locks": {
			Record{PassesOn: []string{"y"}, calls: []*call{asked("x", 30_000, 36_001), both("y", 29_000, 32_000)[0], asked("y", 31_001, 35_000)}}, "",
		},
		"after the loss of another lock": {
			Record{calls: []*call{asked("x", 30_000, 36_001), asked("y", 31_001, 35_000)}, holds: []*hold{{process: "x", lock: "b", begin: at(29_000), end: at(30_500), lost: true, portion: portion{1, 1}}}, Faults: []Span{{"remove nodes", at(30_400), at(30_400)}}}, "",
		},
		"without a place of the process": {
			Record{PassesOn: []string{"y"}, calls: []*call{asked("x", 30_000, 36_001), asked("y", 29_000, 31_000), asked("y", 31_001, 35_000)}}, "order: ",
		},
		"almost at the same time": {Record{calls: []*call{asked("x", 30_000, 36_001), asked("y", 31_000, 35_000)}}, ""},
		"out of order by a fault": {Record{Faults: fault, calls: []*call{asked("x", 69_000, 76_001), asked("y", 71_000, 75_000)}}, ""},
		"waits in vain in order":  {Record{calls: []*call{timedOut(30_000, 34_000), asked("y", 31_001, 35_000)}}, ""},
		"free during a fault":     {Record{Faults: fault, holds: []*hold{held("x", 1, 0, 10), held("x", 2, 89_000, 90_000)}, calls: []*call{timedOut(0, 89_000)}}, ""},
		"free without a fault":    {Record{Faults: fault, holds: []*hold{held("x", 1, 0, 10), held("x", 2, 91_000, 92_000)}, calls: []*call{timedOut(0, 91_000)}}, "stall: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rec := strict(c.record)
			found := Check(&rec)
			if c.text == "" {
				require.Empty(t, slices.Concat(found.Violations, found.Leaked))
				return
			}
			all := slices.Concat(found.Violations, found.Leaked)
			require.Len(t, all, 1)
			require.Contains(t, all[0], c.text)
		})
	}
}

// A paused client cannot notice a loss, but must notice the loss shortly after the pause.
func TestOverlapIsExcusedOnlyWhileOlderHolderIsPaused(t *testing.T) {
	t.Parallel()
	pause := Span{"x", at(1000), at(5000)}
	for name, c := range map[string]struct {
		holds   []*hold
		excused int
	}{
		"during the pause":                {[]*hold{held("x", 1, 0, 5200), held("y", 2, 4000, 5300)}, 1},
		"with several holders":            {[]*hold{held("x", 1, 0, 5200), held("y", 2, 4000, 4300), held("z", 3, 4400, 4500)}, 2},
		"grant noticed after the pause":   {[]*hold{held("y", 2, 4000, 5300), held("x", 1, 5001, 5010)}, 1},
		"the same with unknown token":     {[]*hold{held("y", 2, 4000, 5300), held("x", 0, 5001, 5010)}, 1},
		"before the pause":                {[]*hold{held("x", 1, 0, 5200), held("y", 2, 999, 5300)}, 0},
		"too long after the pause":        {[]*hold{held("x", 1, 0, 5251), held("y", 2, 4000, 5300)}, 0},
		"permits":                         {[]*hold{heldPart("x", 1, 2, 3, 0, 0, 5200), heldPart("y", 2, 1, 3, 0, 0, 5300), heldPart("z", 3, 2, 3, 0, 4000, 6000)}, 1},
		"permits, exceeded by the others": {[]*hold{heldPart("x", 1, 1, 3, 0, 0, 5200), heldPart("y", 2, 2, 3, 0, 0, 5300), heldPart("z", 3, 2, 3, 0, 4000, 6000)}, 0},
		"reader":                          {[]*hold{heldPart("x", 1, 1, many, 0, 0, 5200), heldPart("y", 2, many, many, 0, 4000, 5300)}, 1},
		"reader, and another is running":  {[]*hold{heldPart("x", 1, 1, many, 0, 0, 5200), heldPart("y", 2, 1, many, 0, 0, 4001), heldPart("z", 3, many, many, 0, 4000, 5300)}, 0},
		"only the newer holder is paused": {[]*hold{held("y", 1, 0, 2000), held("x", 2, 1500, 3000)}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := checked(t, Record{holds: c.holds, Pauses: []Span{pause}})
			require.Equal(t, c.excused, found.excused)
			require.Equal(t, c.excused > 0, found.Clean())
		})
	}
}
