package drivertest

// This file has the entry points, the options, and one test of a law.

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/testing/zktest/bubble"
)

// Options describe a service and cause faults. A test of a field without a value is
// skipped, and reported as not proved.
type Options struct {
	// Timeout is the session timeout of the connector: how long after the last sign of a
	// session the service ends the session. The default is 15 s. Set the shortest timeout
	// supported by the driver, unless the tests run in bubbles: some tests wait for several
	// timeouts.
	Timeout time.Duration

	// Expire has the service end a session still heard: the service removes the session's
	// nodes, and answers the session no more.
	Expire func(s driver.Session)

	// Pause has the service answer the session no more, on any connection, until resume is
	// called. Other sessions may get no answers either. Requests sent meanwhile may be carried
	// out at once, on resume, or never. After a silence of Timeout the service ends the session.
	Pause func(s driver.Session) (resume func())

	// LoseReply has the service carry out the session's next request about a queue, a lock
	// or a record, and lose the answer, as when the connection breaks just then. LoseReply
	// may be limited to changing requests.
	LoseReply func(s driver.Session)

	// LoseEvent has the service not report the next change of a watched node to the session,
	// although no connection breaks. Leave LoseEvent out if the service cannot lose events.
	LoseEvent func(s driver.Session)

	// Lag has a server without sessions fall behind the other servers, without waiting by
	// the others, until a session requires the present state. move breaks the connection of
	// s; for a moment s finds only the lagging server.
	Lag func(s driver.Session) (move func())

	// Remove removes a node, as an operator does by hand.
	Remove func(queue string, node driver.Node)

	// Refuse has the service refuse to remove nodes for the session, for want of a right,
	// until allow is called.
	Refuse func(s driver.Session) (allow func())
}

// Run proves the laws of package driver for the sessions opened by the connector, each in a
// subtest with the law's name. All subtests use one service, in queues with new names. The
// queues are empty at the end; limits of semaphores stay. Run counts goroutines, so a
// parallel test must not call Run.
func Run(t *testing.T, connector driver.Connector, options Options) {
	runAll(t, func(t *testing.T, prove func(*run)) { prove(newRun(t, connector, options)) })
}

// RunInBubbles is [Run] for a driver in bubbles of testing/synctest, where timeouts take no
// time. start is called in each bubble, and starts a service ending with the test.
func RunInBubbles(t *testing.T, start func(t *testing.T) (driver.Connector, Options)) {
	runAll(t, func(t *testing.T, prove func(*run)) {
		synctest.Test(t, func(t *testing.T) {
			t.Cleanup(bubble.Enter())
			connector, options := start(t)
			r := newRun(t, connector, options)
			r.bubble = true
			prove(r)
		})
	})
}

func runAll(t *testing.T, one func(t *testing.T, prove func(*run))) {
	for _, law := range laws {
		t.Run(law.name, func(t *testing.T) {
			for _, part := range law.parts {
				t.Run(part.name, func(t *testing.T) {
					t.Cleanup(func() {
						if t.Failed() {
							t.Logf("What is demanded: %s", part.demands)
						}
					})
					one(t, part.prove)
				})
			}
		})
	}
}

// run is one test of a service.
type run struct {
	*testing.T
	Options
	connector driver.Connector
	bubble    bool
	ctx       context.Context // ends when a call has waited for too long
	prefix    string          // of the names of this test
	names     int
}

var runs atomic.Int64

func newRun(t *testing.T, connector driver.Connector, options Options) *run {
	if options.Timeout == 0 {
		options.Timeout = 15 * time.Second
	}
	// What the laws bound without a number must happen within this time.
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute+4*options.Timeout)
	t.Cleanup(cancel)
	return &run{T: t, Options: options, connector: connector, ctx: ctx, prefix: fmt.Sprintf("drivertest-%d-%d", time.Now().UnixNano(), runs.Add(1))}
}

// need skips the test if a needed option is not offered.
func (r *run) need(option string, offered bool) {
	if !offered {
		r.Skipf("not proved: it needs Options.%s", option)
	}
}

// offered returns the session as a T, or skips the test.
func offered[T any](r *run, s driver.Session) T {
	offer, err := driver.Offer[T](s)
	if err != nil {
		r.Skipf("not proved: %v", err)
	}
	return offer
}

// name returns a name never used by a lock.
func (r *run) name() string {
	r.names++
	return fmt.Sprintf("%s/%d", r.prefix, r.names)
}

// connect opens a session, closed when the test ends.
func (r *run) connect() driver.Session {
	r.Helper()
	s, err := r.connector.Connect(r.ctx)
	require.NoError(r, err)
	r.Cleanup(func() { _ = s.Close(r.ctx) })
	return s
}

func (r *run) connectAll(n int) (all []driver.Session) {
	for range n {
		all = append(all, r.connect())
	}
	return all
}

// pause pauses a session until resume is called or the test ends, or for as long as calls
// may wait at most.
func (r *run) pause(s driver.Session) (resume func()) {
	resume = sync.OnceFunc(r.Pause(s))
	r.Cleanup(resume)
	context.AfterFunc(r.ctx, resume)
	return resume
}

const data = "data"

// join joins a queue.
func (r *run) join(s driver.Session, queue string) driver.Located {
	r.Helper()
	return r.joinAs(s, queue, driver.Request{Kind: driver.Exclusive, Data: []byte(data)})
}

func (r *run) joinAs(s driver.Session, queue string, request driver.Request) driver.Located {
	r.Helper()
	joined, err := s.Join(r.ctx, queue, request)
	require.NoError(r, err)
	return driver.Located{Queue: queue, Node: joined.Node}
}

func (r *run) leave(s driver.Session, n driver.Located) {
	r.Helper()
	require.NoError(r, s.Leave(r.ctx, n.Queue, n.Node))
}

// list returns the queue now, as seen by the session.
func (r *run) list(s driver.Session, queue string) []driver.Node {
	r.Helper()
	require.NoError(r, s.Ping(r.ctx))
	nodes, err := s.List(r.ctx, queue)
	require.NoError(r, err)
	return nodes
}

// watch watches nodes of one queue.
func (r *run) watch(s driver.Session, nodes ...driver.Located) []*driver.Watch {
	r.Helper()
	require.NoError(r, s.Ping(r.ctx))
	watches, err := s.Watch(r.ctx, nodes[0].Queue, nodesOf(nodes)...)
	require.NoError(r, err)
	require.Len(r, watches, len(nodes))
	return watches
}

func (r *run) watchOne(s driver.Session, n driver.Located) *driver.Watch {
	r.Helper()
	return r.watch(s, n)[0]
}

// fires waits until a watch fires, and requires one of the events.
func (r *run) fires(w *driver.Watch, why string, events ...driver.Event) {
	r.Helper()
	require.NoError(r, r.first([]*driver.Watch{w}), why)
	require.True(r, slices.Contains(events, w.Fired()), "a watch has fired with %v, not with %v: %s", w.Fired(), events, why)
}

// waits requires a watch not to have fired.
func (r *run) waits(w *driver.Watch, why string) {
	r.Helper()
	require.Zero(r, w.Fired(), "a watch has fired with %v: %s", w.Fired(), why)
}

// first waits until one of the watches fires.
func (r *run) first(watches []*driver.Watch) error {
	begun := time.Now()
	fired, stop := driver.First(watches...)
	defer stop()
	select {
	case <-fired:
		return nil
	case <-r.ctx.Done():
		return fmt.Errorf("none of %d watches has fired in %v", len(watches), time.Since(begun).Round(time.Second))
	}
}

// over waits until a session is over.
func (r *run) over(s driver.Session) {
	r.Helper()
	begun := time.Now()
	select {
	case <-s.Done():
	case <-r.ctx.Done():
		require.FailNow(r, "Done is not closed", "%v after the session has ended", time.Since(begun).Round(time.Second))
	}
}

// until waits until a condition holds.
func (r *run) until(what string, condition func() bool) {
	r.Helper()
	for begun := time.Now(); !condition(); r.nap() {
		require.NoError(r, r.ctx.Err(), "still not after %v: %s", time.Since(begun).Round(time.Second), what)
	}
}

// nap is the pause between two looks at a condition.
func (r *run) nap() {
	if r.bubble {
		time.Sleep(10 * time.Millisecond)
	} else {
		time.Sleep(time.Millisecond)
	}
}

// shortly returns a context ending soon.
func (r *run) shortly() (ctx context.Context, cancel context.CancelFunc) {
	return context.WithTimeout(r.ctx, 20*time.Millisecond)
}

// late is how long after the end of its context a call may return: "a few milliseconds", and
// the delays of a machine if time is real.
func (r *run) late() time.Duration {
	if r.bubble {
		return 20 * time.Millisecond
	}
	return 5 * time.Second
}

func nodesOf(located []driver.Located) (nodes []driver.Node) {
	for _, n := range located {
		nodes = append(nodes, n.Node)
	}
	return nodes
}

// goroutines are the stacks of all goroutines, by their numbers.
func goroutines() map[string]string {
	buffer := make([]byte, 1<<20)
	n := runtime.Stack(buffer, true)
	for ; n == len(buffer); n = runtime.Stack(buffer, true) {
		buffer = make([]byte, 2*len(buffer))
	}
	all := map[string]string{}
	for stack := range strings.SplitSeq(string(buffer[:n]), "\n\n") {
		number, _, _ := strings.Cut(strings.TrimPrefix(stack, "goroutine "), " ")
		all[number] = stack
	}
	return all
}

// settledGoroutines returns all goroutines when none has begun or ended for a while. A
// session may be ready before its last goroutine has begun.
func (r *run) settledGoroutines() map[string]string {
	settled := goroutines()
	for same := 0; same < 10; same++ {
		time.Sleep(50 * time.Millisecond)
		now := goroutines()
		if !maps.EqualFunc(settled, now, func(_, _ string) bool { return true }) {
			same = 0
		}
		settled = now
	}
	return settled
}

// noneSince requires that there are no goroutines except the earlier ones. A finished
// goroutine, or the service's end of a connection, may need a moment to end.
func (r *run) noneSince(before map[string]string) {
	r.Helper()
	for nap := time.Millisecond; ; nap *= 2 {
		left := goroutines()
		maps.DeleteFunc(left, func(number, _ string) bool { return before[number] != "" })
		if len(left) == 0 {
			return
		}
		require.Less(r, nap, time.Minute, "goroutines are left: %v", left)
		time.Sleep(nap)
	}
}
