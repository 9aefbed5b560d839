// Package behavior tests what lockpool promises to its users, on any driver: locks,
// handles, semaphores, elections and the rest behave the same on each service. A driver's
// module calls behavior beside package driver/drivertest, the proof of the laws of drivers:
//
//	// What lockpool promises holds on this service.
//	func TestBehavior(t *testing.T) {
//		server := startServer(t)
//		behavior.Run(t, behavior.Options{
//			Open: func(t testing.TB, opts ...lockpool.Option) *lockpool.Pool {
//				p, err := lockpool.Open("postgres", server.Address+"/locks", opts...)
//				require.NoError(t, err)
//				return p
//			},
//		})
//	}
//
// Each test uses only the public interface of package lockpool. What depends on one engine,
// such as the names of nodes, what requests cost, or what happens when servers fail, is not
// tested here.
//
// The tests run beside each other, and each fails after 3 minutes. A service slow on this
// machine, for example compiled with the race detector itself, may need go test -parallel
// 1.
package behavior

import (
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/zktest/bubble"
)

// Options say how to use a service.
type Options struct {
	// Open returns a new pool, in place of a separate process. All pools use one service.
	// Run closes the pools it has opened.
	Open func(t testing.TB, opts ...lockpool.Option) *lockpool.Pool

	// Expire has the service end a session, given the ID in lockpool.Contender. If Expire
	// is nil, the end of sessions is not tested.
	Expire func(t testing.TB, session string)

	// Pause has the service answer nothing until resume is called. If Pause is nil, as it
	// must be if tests beside each other share the service, silence is not tested.
	Pause func(t testing.TB) (resume func())

	// Lacks are the optional interfaces of package driver missing in the driver, by their
	// names, such as "Limiter", and why. The tests of a missing interface are skipped, and
	// say so.
	Lacks map[string]string
}

// Run tests what lockpool promises, each promise in a separate subtest, on the service
// described by the options. All locks have names beginning with "behavior-", and all are
// free when Run returns; limits set for semaphores stay. Run must not be called in a
// parallel test, because it counts goroutines.
func Run(t *testing.T, options Options) {
	runAll(t, options.Lacks, func(t *testing.T, c test) {
		if c.name == leaks {
			before := goleak.IgnoreCurrent()
			t.Cleanup(func() {
				for end := time.Now().Add(patience); goleak.Find(before) != nil && time.Now().Before(end); {
				}
				goleak.VerifyNone(t, before)
			})
		} else {
			t.Parallel()
		}
		c.run(newBench(t, options, false))
	})
}

// RunInBubbles is [Run] for a service in bubbles of testing/synctest, where the load of the
// machine takes no time: start is called in each of them, and returns the options for a
// service ending with the test. lacks is Options.Lacks, not needed in the options of start.
func RunInBubbles(t *testing.T, lacks map[string]string, start func(t *testing.T) Options) {
	runAll(t, lacks, func(t *testing.T, c test) {
		bubble.Parallel(t)
		synctest.Test(t, func(t *testing.T) { // fails if goroutines are left
			t.Cleanup(bubble.Enter())
			c.run(newBench(t, start(t), true))
		})
	})
}

// test is a promise.
type test struct {
	name  string
	run   func(b *bench)
	needs []string // of interfaces of package driver, beside Inspector
}

// leaks is the name of the test for which goroutines are counted outside of bubbles.
const leaks = "CloseLeavesNoGoroutine"

// groups are all tests, by what they are about.
var groups = []struct {
	name  string
	tests []test
}{
	{"Lock", lockTests},
	{"Context", contextTests},
	{"Handle", handleTests},
	{"Readers", readerTests},
	{"Semaphore", semaphoreTests},
	{"Plain", plainTests},
	{"Kinds", mixTests},
	{"LockAll", multiTests},
	{"HoldAtLeast", holdAtLeastTests},
	{"LocalTurns", turnTests},
	{"KeptLocks", keepTests},
	{"FullQueue", fullQueueTests},
	{"Look", lookTests},
	{"Revoke", revokeTests},
	{"Once", onceTests},
	{"Elect", electTests},
	{"Observe", observeTests},
	{"Deadlock", deadlockTests},
	{"Close", closeTests},
	{"Loss", lossTests},
}

// inspector is what the tests themselves need: they wait until others wait.
const inspector = "Inspector"

// optional are the possible names in Options.Lacks.
var optional = []string{inspector, "PlainLocker", "Limiter", "Downgrader", "Follower", "Breaker", "Revoker", "Recorder"}

func runAll(t *testing.T, lacks map[string]string, one func(t *testing.T, c test)) {
	for name := range maps.Keys(lacks) {
		if !slices.Contains(optional, name) {
			t.Fatalf("Options.Lacks: %s is not the name of an interface that drivers may lack", name)
		}
	}
	for _, g := range groups {
		t.Run(g.name, func(t *testing.T) {
			for _, c := range g.tests {
				t.Run(c.name, func(t *testing.T) {
					for _, need := range append(c.needs, inspector) {
						if why, lacked := lacks[need]; lacked {
							t.Skipf("the driver lacks %s: %s", need, why)
						}
					}
					one(t, c)
				})
			}
		})
	}
}

var benches atomic.Int64

func newBench(t *testing.T, options Options, inBubble bool) *bench {
	b := &bench{
		TB: t, options: options, bubble: inBubble,
		prefix: fmt.Sprintf("behavior-%d-%d", time.Now().UnixNano(), benches.Add(1)),
	}
	b.ctx = b.timeout(patience)
	b.looker = b.pool() // closed when all others are
	t.Cleanup(func() {
		if !t.Failed() {
			b.ctx = b.timeout(patience)
			b.until(func() bool { return len(b.list(b.prefix)) == 0 }, "nothing is left behind")
		}
	})
	return b
}
