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

// atOnce are readers granted the lock when they asked, each after the last one.
func atOnce(n int) (holds []*hold) {
	for i := range n {
		holds = append(holds, heldPart("x", int64(i+1), 1, many, 10*i, 10*i, 10*i+5))
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

// pauses are the pauses of a client.
type pauses []Span

func pause(process string, begin, end int) pauses { return pauses{{process, at(begin), at(end)}} }

// lateTimers are when timers of a client were late.
type lateTimers []Span

func lateTimer(process string, begin, end int) lateTimers {
	return lateTimers{{process, at(begin), at(end)}}
}

// recordOf returns a record of 100 seconds in which calls, holds and other things happen.
// Spans are faults. A Record comes first, if there is one.
func recordOf(parts ...any) (rec Record) {
	for _, part := range parts {
		switch p := part.(type) {
		case Record:
			rec = p
		case []any:
			rec = recordOf(append([]any{rec}, p...)...)
		case *hold:
			rec.holds = append(rec.holds, p)
		case []*hold:
			rec.holds = append(rec.holds, p...)
		case *call:
			rec.calls = append(rec.calls, p)
		case []*call:
			rec.calls = append(rec.calls, p...)
		case []Removal:
			rec.Removals = append(rec.Removals, p...)
		case []Span:
			rec.Faults = append(rec.Faults, p...)
		case pauses:
			rec.Pauses = append(rec.Pauses, p...)
		case lateTimers:
			rec.lateTimers = append(rec.lateTimers, p...)
		case []Jump:
			rec.Jumps = p
		case []SessionEnd:
			rec.Ends = p
		default:
			panic(p)
		}
	}
	rec.Begin, rec.End = at(0), at(100_000)
	return rec
}

// finding is a record, and the text that each finding of the check contains.
type finding struct {
	Record
	texts []string
}

func clean(parts ...any) finding              { return finding{Record: recordOf(parts...)} }
func finds(text string, parts ...any) finding { return finding{recordOf(parts...), []string{text}} }
func findsTwo(first, second string, parts ...any) finding {
	return finding{recordOf(parts...), []string{first, second}}
}

// lenient are the limits of a record in real time, and strict the limits of a record in virtual
// time, with more to check.
var (
	lenient = Limits{WakeUp: 250 * time.Millisecond, Overrun: 2 * time.Second, Recovery: 30 * time.Second, Revocation: 3 * time.Second}
	strict  = Limits{
		WakeUp: lenient.WakeUp, Overrun: lenient.Overrun, Recovery: lenient.Recovery, Revocation: lenient.Revocation,
		CalmOnly: true, Order: time.Second, Cause: 10 * time.Second,
	}
)

// check checks records. Findings that begin with one of the kinds are left out.
func check(t *testing.T, limits Limits, cases map[string]finding, but ...string) {
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := checked(t, limits, c.Record)
			all := slices.DeleteFunc(slices.Concat(found.Violations, found.Leaked, found.Stuck), func(text string) bool {
				return slices.ContainsFunc(but, func(kind string) bool { return strings.HasPrefix(text, kind) })
			})
			require.Len(t, all, len(c.texts))
			for i, text := range c.texts {
				require.Contains(t, all[i], text)
			}
		})
	}
}

func checked(t *testing.T, limits Limits, rec Record) Report {
	rec.Limits = limits
	r := Check(&rec)
	var out strings.Builder
	Summarize(&out, &rec, r)
	t.Log(out.String())
	verdict := fmt.Sprintf("violations=%d leaked_nodes=%d stuck_waiters=%d", len(r.Violations), len(r.Leaked), len(r.Stuck))
	require.True(t, strings.HasSuffix(out.String(), "\n"+verdict+"\n"))
	require.Equal(t, verdict == "violations=0 leaked_nodes=0 stuck_waiters=0", r.Clean())
	return r
}

// beside are faults with calm times of the given length between, before and after them.
func beside(calm int) []Span {
	return []Span{{"delay", at(1_000), at(30_000)}, {"pause", at(5000), at(20_000)}, {"kill", at(29_000 + calm), at(70_000)}, {"cut", at(70_000), at(100_000)}}
}

func TestChecks(t *testing.T) {
	t.Parallel()
	check(t, lenient, map[string]finding{
		"empty":                                         clean(),
		"one after the other":                           clean(held("x", 1, 0, 10), held("y", 2, 10, 20), held("x", 0, 30, 40), held("x", 3, 50, 60)),
		"two locks":                                     clean(held("x", 7, 0, 10), &hold{process: "y", lock: "b", token: 2, begin: at(5), end: at(8)}),
		"reentry":                                       clean(&hold{process: "x", lock: "a", token: 4, reentries: []int64{4, 4}, begin: at(0), end: at(9)}),
		"lost as it is entered again":                   clean(lost(held("x", 1<<10, 0, 10)), again(held("x", 1<<10|1, 10, 10)), []SessionEnd{{At: at(10), Orders: []int64{1}}}),
		"job runs again if it fails":                    clean(ran("x", 1, "timeout", at(1), 0, 9), ran("y", 1, "lock_lost", at(10), 0, 19), ran("z", 1, "", at(20), 0, 29), ran("x", 1, done, Never, 30, 39)),
		"job of each period":                            clean(ran("x", 1, "", at(1), 0, 9), ran("x", 2, "", at(11), 10, 19), ran("x", 2, "busy", Never, 10, 19)),
		"job that is killed has finished":               clean(ran("x", 1, unanswered, at(1), 0, 9), ran("y", 1, undecided, at(1), 0, 9), ran("z", 1, done, Never, 0, 19)),
		"call ends in time":                             clean(locked("x", time.Second, 0, 2900)),
		"call ends late":                                clean(locked("x", time.Second, 0, 6900), pause("x", 500, 4600)),
		"call ends late, without a processor":           clean(locked("x", time.Second, 0, 6900), lateTimer("x", 500, 4600)),
		"lost without a processor":                      clean(held("x", 1, 0, 5200), held("y", 2, 4000, 5300), lateTimer("x", 1000, 5000)),
		"no processor after a pause":                    clean(held("x", 1, 0, 5700), held("y", 2, 4000, 6000), pause("x", 1000, 5000), lateTimer("x", 1010, 5500)),
		"lost without a processor for a short time":     finds("exceeded its limit", held("x", 1, 0, 1200), held("y", 2, 1100, 1300), lateTimer("x", 1000, 1250)),
		"lost long after the processor came":            finds("exceeded its limit", held("x", 1, 0, 5251), held("y", 2, 4000, 5300), lateTimer("x", 1000, 5000)),
		"readers and writer":                            clean(heldPart("x", 1, 1, many, 0, 1, 30), heldPart("y", 2, 1, many, 0, 2, 20), heldPart("z", 3, many, many, 0, 30, 40)),
		"permits":                                       clean(heldPart("x", 1, 1, 3, 0, 1, 30), heldPart("y", 2, 2, 3, 0, 2, 20), heldPart("z", 3, 2, 3, 0, 20, 40), heldPart("x", 4, 3, 3, 0, 40, 50)),
		"larger limit":                                  clean(heldPart("x", 1, 1, 3, 0, 1, 19), heldPart("y", 2, 2, 4, 0, 2, 20), heldPart("z", 3, 2, 4, 0, 19, 40)),
		"grant noticed late":                            clean(heldPart("y", 2, 1, 3, 0, 5, 10), heldPart("x", 1, 1, 3, 0, 11, 30)),
		"downgrade":                                     clean(downgraded("x", 1, 0, 10, 20), heldPart("y", 2, 1, many, 0, 10, 30), heldPart("z", 3, many, many, 0, 30, 40)),
		"revoked in time":                               clean(heldRevocable("x", 0, 9000, at(3100)), revoke(90, 100)),
		"released in time":                              clean(heldRevocable("x", 0, 3100, Never), revoke(90, 100)),
		"granted afterwards":                            clean(heldRevocable("x", 91, 9000, Never), revoke(90, 100)),
		"revoked before":                                clean(heldRevocable("x", 0, 9000, at(10)), revoke(90, 100)),
		"not revocable":                                 clean(held("x", 1, 0, 9000), revoke(90, 100)),
		"revoked while paused":                          clean(heldRevocable("x", 0, 9000, at(6000)), revoke(90, 100), pause("x", 1000, 5000)),
		"held for long":                                 clean(held("x", 1, 0, 90_000), timedOut(0, 50_000)),
		"free for long beside faults":                   clean(held("x", 1, 0, 10), timedOut(0, 45_000), timedOut(45_000, 90_000), beside(30_000)),
		"free for long":                                 clean(held("x", 1, 0, 10), timedOut(0, 29_000)),
		"node removed, and that is known":               clean(failed(opUnlock, removed), removal(0, 1)),
		"kinds mixed":                                   clean(&call{process: "x", op: opLock, lock: NameOf(Semaphore, 1), limit: time.Second, begin: at(0), end: at(1), err: mixed}),
		"removal noticed":                               clean(held("x", 1<<10, 0, 2100), held("y", 2<<10, 101, 2200), removal(100, 1)),
		"grant noticed after the removal":               clean(held("y", 2<<10, 150, 2200), held("x", 1<<10, 200, 300), removal(100, 1)),
		"the same with unknown token":                   clean(held("y", 2<<10, 150, 2200), held("x", 0, 200, 300), removal(100, 1)),
		"both with unknown tokens":                      clean(held("y", 0, 150, 2200), held("x", 0, 50, 300), removal(100, 1)),
		"removal without token":                         clean(held("x", 1<<10, 0, 2100), held("y", 2<<10, 101, 2200), removal(100, 0)),
		"removal and fault":                             clean(held("x", 1<<10, 0, 3100), held("y", 2<<10, 101, 4000), removal(100, 1), []Span{{"delay", at(50), at(60)}, {"remove a node", at(100), at(100)}}),
		"recovery in time":                              clean(Record{Healed: []Instant{at(10)}}, held("x", 1, 29_000, 29_001)),
		"job finished twice":                            finds("job: that of period 1 finished twice, at 0.009s by x and at 0.009s by y", ran("x", 1, "", at(1), 0, 9), ran("y", 1, "", at(5), 0, 9)),
		"job started again":                             finds("job: that of period 7 was started again by z at 0.011s, although y knew at 0.010s that it has finished", ran("x", 7, unanswered, at(1), 0, 9), ran("y", 7, done, Never, 5, 10), ran("z", 7, "timeout", at(11), 5, 12)),
		"job that nobody finished":                      finds("job: y was told at 0.010s that the job of period 1 has finished, although no run of it can have", ran("x", 1, "lock_lost", at(1), 0, 9), ran("z", 1, unanswered, Never, 0, 9), ran("y", 1, done, Never, 5, 10)),
		"overlap":                                       finds(`exclusion: lock "a" exceeded its limit with 2 holders, for 1ms at 0.019s: x, `, held("x", 1, 0, 20), held("y", 2, 19, 30)),
		"overlap within a process":                      finds("exceeded its limit", held("x", 1, 0, 20), held("x", 2, 19, 30)),
		"overlap with an earlier hold than the last":    findsTwo("exceeded its limit", "exceeded its limit", held("x", 1, 0, 50), held("y", 2, 60, 70), held("z", 3, 61, 62), held("y", 4, 69, 80)),
		"reader and writer":                             finds(`exclusion: lock "a" exceeded its limit with 2 holders, for 1ms at 0.019s: x, goroutine 0, token 0x1, reader`, heldPart("x", 1, 1, many, 0, 0, 20), heldPart("y", 2, many, many, 0, 19, 30)),
		"writer and readers":                            findsTwo("exceeded its limit with 2 holders, for 2ms", "exceeded its limit with 3 holders, for 1ms", heldPart("x", 1, many, many, 0, 0, 20), heldPart("y", 2, 1, many, 0, 18, 30), heldPart("z", 3, 1, many, 0, 19, 30)),
		"downgraded holder and writer":                  finds("exceeded its limit", downgraded("x", 1, 0, 10, 20), heldPart("z", 2, many, many, 0, 19, 40)),
		"reader before the downgrade":                   finds("exceeded its limit", downgraded("x", 1, 0, 10, 20), heldPart("y", 2, 1, many, 0, 9, 40)),
		"too many permits":                              finds(`exclusion: lock "a" exceeded its limit with 3 holders, for 1ms at 0.019s: x, goroutine 0, token 0x1, 1 of 3 permits`, heldPart("x", 1, 1, 3, 0, 0, 20), heldPart("y", 2, 1, 3, 0, 1, 20), heldPart("x", 3, 2, 3, 0, 19, 30)),
		"too many permits for the smaller limit":        finds("exceeded its limit", heldPart("x", 1, 2, 4, 0, 0, 20), heldPart("y", 2, 1, 3, 0, 1, 20), heldPart("x", 3, 1, 4, 0, 19, 30)),
		"overlap after a revocation":                    finds("exceeded its limit", heldRevocable("x", 0, 9000, at(100)), held("y", 2, 200, 300), revoke(90, 100)),
		"same token":                                    finds("the token did not grow: y, ", held("x", 2, 0, 10), held("y", 2, 20, 30)),
		"smaller token":                                 finds("the token did not grow: y, ", held("x", 2, 0, 10), held("y", 0, 12, 13), held("y", 1, 20, 30), held("y", 3, 40, 50)),
		"writer's token below a reader's":               finds("the token did not grow: y, ", heldPart("x", 5, 1, many, 0, 0, 10), heldPart("y", 4, many, many, 0, 20, 30)),
		"reader's token not above a writer's":           finds("the token did not grow: y, ", heldPart("x", 5, many, many, 0, 0, 10), heldPart("y", 5, 1, many, 0, 20, 30)),
		"token of permits below that of earlier ones":   finds("the token did not grow: y, ", heldPart("x", 5, 1, 3, 0, 0, 100), heldPart("y", 4, 1, 3, 1, 20, 30)),
		"token changed by reentry":                      finds("reentry changed the token", &hold{process: "x", lock: "a", token: 4, reentries: []int64{4, 5}, begin: at(0), end: at(9)}),
		"readers come one after the other":              clean(atOnce(minRequests + 1)),
		"readers never share":                           finds("never had two holders at once, although 50", alternating(minRequests+1)),
		"revocation noticed too late":                   finds("did not notice the revocation request", heldRevocable("x", 0, 9000, at(3101)), revoke(90, 100)),
		"revocation never noticed":                      finds("did not notice the revocation request", heldRevocable("x", 0, 3101, Never), revoke(90, 100)),
		"revocation before the downgrade never noticed": finds("did not notice the revocation request", revocable(downgraded("x", 1, 0, 1000, 9000)), revoke(90, 100)),
		"token learned after the downgrade":             finds("the token did not grow: y, ", downgraded("x", 5, 0, 10, 20), heldPart("y", 4, many, many, 5, 20, 30)),
		"token below the largest of several":            finds("the token did not grow: y, goroutine 0, token 0x7, 1 of 3 permits, granted 0.020s, after x, goroutine 0, token 0x7", heldPart("x", 3, 1, 3, 0, 0, 10), heldPart("x", 7, 1, 3, 0, 5, 10), heldPart("x", 6, 1, 3, 0, 6, 10), heldPart("y", 7, 1, 3, 7, 20, 30)),
		"lost lock entered again":                       finds("reentry: ", lost(held("x", 1, 0, 10)), again(held("x", 0, 10, 10))),
		"node removed":                                  finds("neither clients nor faults cause", failed(opUnlock, removed)),
		"node removed later":                            finds("neither clients nor faults cause", failed(opUnlock, removed), removal(2, 1)),
		"removal long ago":                              findsTwo("exceeded its limit", "removal: ", held("x", 1<<10, 0, 3101), held("y", 2<<10, 3001, 4000), removal(100, 1), []Span{{"delay", at(0), at(1)}}),
		"another's node was removed":                    finds("exceeded its limit", held("x", 1<<10, 0, 1000), held("y", 2<<10, 200, 2000), removal(100, 3)),
		"other kind":                                    finds("neither clients nor faults cause", failed(opLock, "kind_mismatch")),
		"other error":                                   finds("neither clients nor faults cause", failed(opLock, "no node after 10 tries")),
		"free but not granted":                          finds("was free but not granted for 1m39.99s", held("x", 1, 0, 10), timedOut(0, 20_000), timedOut(20_000, 50_000)),
		"free between faults":                           finds("without a fault for 30.99s", held("x", 1, 0, 10), timedOut(0, 45_000), timedOut(45_000, 90_000), beside(31_000)),
		"no recovery":                                   finds("no lock was granted", Record{Healed: []Instant{at(10)}}, held("x", 1, 5, 6)),
		"crash":                                         finds("x ended by itself", Record{Crashes: []string{"x ended by itself"}}),
		"leaked nodes":                                  findsTwo("/a/1", "/a/2", Record{Leaked: []string{"/a/1", "/a/2"}}),
		"hung client":                                   finds("x", Record{Hung: []string{"x"}}),
		"stuck, not paused meanwhile":                   finds("stuck: ", locked("x", time.Second, 0, 3001), pause("y", 0, 2000), pause("x", 4000, 5000)),
	})
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
	unlocked := func(err string) []any {
		h := held("x", 7<<10|1, 20_000, 30_000)
		return []any{h, &call{process: "x", op: opUnlock, lock: "a", limit: time.Minute, begin: at(30_000), end: at(31_000), err: err, releases: h}}
	}
	passes := Record{PassesOn: []string{"x"}, calls: []*call{timedOut(30_000, 40_000)}}
	removing := []Span{{"remove nodes", at(30_000), at(30_000)}}
	expiring := []Span{{"expire a session", at(30_000), at(30_000)}}
	check(t, strict, map[string]finding{
		"unlocked after a removal":                    finds("release: ", unlocked(""), removal(30_500, 7), removing),
		"unlocked after an expiry":                    finds("release: ", unlocked(""), end(31_000, 7), expiring),
		"unlocked before a removal":                   clean(unlocked(""), removal(31_001, 7), removing),
		"another's node removed":                      clean(unlocked(""), removal(30_500, 8), removing),
		"unlock says that it is lost":                 clean(unlocked("lock_lost"), end(30_500, 7), expiring),
		"unlocked without an answer":                  clean(unlocked(""), end(30_500, 7), []Span{{"freeze", at(30_400), at(40_000)}}),
		"passed on soon after a removal":              clean(passes, unlocked(""), removal(29_500, 7), removing),
		"passed on long after a removal":              finds("release: ", passes, unlocked(""), removal(28_999, 7), removing),
		"removal not noticed":                         finds("removal: ", held("x", 7<<10|2, 0, 32_001), removing, removal(30_000, 7)),
		"removal noticed soon":                        clean(held("x", 7<<10|2, 0, 32_000), removing, removal(30_000, 7)),
		"removal noticed at the end of the lease":     clean(held("x", 7<<10|2, 0, 33_000), removing, fault, removal(30_000, 7)),
		"removal noticed after the lease":             finds("removal: ", held("x", 7<<10|2, 0, 33_001), removing, fault, removal(30_000, 7)),
		"removal noticed after a pause":               clean(held("x", 7<<10|2, 0, 33_000), removing, removal(30_000, 7), pause("x", 31_000, 32_000)),
		"queued again":                                clean(asked("x", 30_000, 37_001), asked("y", 32_500, 35_000), removing, removal(33_000, 0)),
		"did not queue again":                         finds("order: ", asked("x", 30_000, 39_001), asked("y", 34_001, 37_000), removing, removal(33_000, 0)),
		"container left in vain":                      finds("left: the container", Record{Unused: []string{"a"}}, timedOut(30_000, 31_000)),
		"container of a client that lost its session": clean(Record{Unused: []string{"a"}}, timedOut(30_000, 31_000), fault),
		"waiter without a node":                       finds("place: ", Record{Displaced: []Span{{"x waits", at(30_000), at(32_000)}}}, removing),
		"waiter without a node after a fault":         clean(Record{Displaced: []Span{{"x waits", at(30_000), at(32_000)}}}, removing, []Span{{"freeze", at(0), at(1000)}}),
		"LockAll in order":                            clean(both("x", 30_000, 35_000), both("y", 30_000, 46_000), held("x", 1, 35_000, 42_000)),
		"LockAll waits for LockAll":                   finds("deadlock: ", both("x", 30_000, 34_000), both("y", 30_000, 35_001), held("z", 1, 20_000, 30_000)),
		"LockAll waits during a fault":                clean(both("x", 60_000, 75_000), both("y", 60_000, 75_000), fault),
		"loss after a fault":                          clean(lost(held("x", 1, 0, 69_000)), fault),
		"loss without a fault":                        finds("loss: ", lost(held("x", 1, 0, 71_000)), fault),
		"loss before the fault":                       finds("loss: ", lost(held("x", 1, 0, 19_000)), fault),
		"loss at the end":                             clean(lost(held("x", 1, 0, 100_001))),
		"session ends after hold":                     clean(held("x", 7<<10|3, 0, 5000), held("y", 8<<10, 5000, 9000), end(5000, 7, 9)),
		"session ends before hold":                    finds("lease: ", held("x", 7<<10|3, 0, 5000), end(4999, 7)),
		"the holder was paused":                       clean(held("x", 7<<10, 0, 5000), end(4000, 7), pause("x", 3000, 4900)),
		"the clock had jumped":                        clean(held("x", 7<<10, 0, 5000), end(4000, 7), []Jump{{Span{"x", at(3000), at(4100)}, time.Second}}),
		"by less than that":                           finds("lease: ", held("x", 7<<10, 0, 6000), end(4000, 7), []Jump{{Span{"x", at(3000), at(4100)}, time.Second / 2}}),
		"long before":                                 finds("lease: ", held("x", 7<<10, 0, 5000), end(4000, 7), []Jump{{Span{"x", at(3000), at(3900)}, time.Second}}),
		"rescue":                                      finds("rescue: ", Record{Rescues: []string{"path /a"}}),
		"in order":                                    clean(asked("x", 30_000, 35_000), asked("y", 31_000, 36_000)),
		"out of order":                                finds("order: ", asked("x", 30_000, 36_001), asked("y", 31_001, 35_000)),
		"in the place of a process":                   clean(Record{PassesOn: []string{"y"}}, asked("x", 30_000, 36_001), asked("y", 29_000, 32_000), asked("y", 31_001, 35_000)),
		"in the place of a holder of the process":     clean(Record{PassesOn: []string{"y"}}, asked("x", 30_000, 36_001), granted(asked("y", 29_000, 30_000), 32_000), asked("y", 31_001, 35_000)),
		"in the place of a call for several locks":    clean(Record{PassesOn: []string{"y"}}, asked("x", 30_000, 36_001), both("y", 29_000, 32_000)[:1], asked("y", 31_001, 35_000)),
		"after the loss of another lock":              clean(asked("x", 30_000, 36_001), asked("y", 31_001, 35_000), &hold{process: "x", lock: "b", begin: at(29_000), end: at(30_500), lost: true, portion: portion{1, 1}}, []Span{{"remove nodes", at(30_400), at(30_400)}}),
		"queued again behind a place of the process":  clean(Record{PassesOn: []string{"y"}}, asked("x", 30_000, 39_001), asked("y", 33_500, 34_500), asked("y", 34_001, 37_000), removing, removal(33_000, 0)),
		"without a place of the process":              finds("order: ", Record{PassesOn: []string{"y"}}, asked("x", 30_000, 36_001), asked("y", 29_000, 31_000), asked("y", 31_001, 35_000)),
		"almost at the same time":                     clean(asked("x", 30_000, 36_001), asked("y", 31_000, 35_000)),
		"out of order by a fault":                     clean(asked("x", 69_000, 76_001), asked("y", 71_000, 75_000), fault),
		"waits in vain in order":                      clean(timedOut(30_000, 34_000), asked("y", 31_001, 35_000)),
		"free during a fault":                         clean(held("x", 1, 0, 10), held("x", 2, 89_000, 90_000), timedOut(0, 89_000), fault),
		"free without a fault":                        finds("stall: ", held("x", 1, 0, 10), held("x", 2, 91_000, 92_000), timedOut(0, 91_000), fault),
	}, "stuck: ")
}

// A paused client cannot notice a loss, but must notice the loss shortly after the pause.
func TestOverlapIsExcusedOnlyWhileOlderHolderIsPaused(t *testing.T) {
	t.Parallel()
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
			found := checked(t, lenient, recordOf(c.holds, pause("x", 1000, 5000)))
			require.Equal(t, c.excused, found.excused)
			require.Equal(t, c.excused > 0, found.Clean())
		})
	}
}
