package interop

// This file has contests: contenders of several clients for one lock, and what is checked
// of them.

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
)

// mode is a way to take a lock, and how many of the lock's permits are taken.
type mode struct {
	kind    string // the client's name for the kind
	permits int
}

// all is the number of permits of a lock. An exclusive holder takes all of them,
// a reader one.
const all = 1000

// exclusive is the only mode of a client unable to share the lock.
func exclusive(kind string) []mode { return []mode{{kind, all}} }

// exclusiveOrRead are the modes of a client also able to share the lock as a reader.
func exclusiveOrRead(kind string) []mode { return []mode{{kind, all}, {"read", 1}} }

// contender contends for a lock.
type contender struct {
	name string
	client
	modes           []mode
	reenters        bool     // can acquire a held lock again
	downgrades      bool     // can acquire an exclusively held lock for reading, and release the exclusive entry
	cannotGiveUp    bool     // waits until granted the lock
	waitsForReaders bool     // even as a reader
	inMemory        bool     // waits without a node behind another contender of the pool
	process         *process // nil for a client in this process
}

// contest lets contenders contend for one lock, and checks that they never hold more
// permits than there are. A contender counts as a holder from the report of the grant until
// told to release.
type contest struct {
	*locktest.Bench
	name       string // of the lock, in lockpool
	path       string // of the lock, in ZooKeeper
	permits    int
	idle       time.Duration // upper bound of a contender's pause between two turns
	contenders []*contender

	mu       sync.Mutex
	held     map[*contender]int // permits
	shared   map[string]bool    // pairs of simultaneous holders
	timeouts map[string]int     // by contender
	turns    map[string]int     // by contender
}

func newContest(t testing.TB) *contest {
	b := locktest.NewOn(t, server)
	b.Ctx = locktest.Timeout(t, 5*locktest.Patience) // the processes start, contend, and end with their sessions
	// The other clients fail if the parent is removed while they create its children, so
	// the parent must be no container.
	_, err := b.Admin.Create(b.Chroot, nil, 0, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	return &contest{
		Bench: b, name: "lock", path: b.Chroot + "/lock", permits: all,
		held: map[*contender]int{}, shared: map[string]bool{}, timeouts: map[string]int{}, turns: map[string]int{},
	}
}

// granted records a grant.
func (c *contest) granted(p *contender, permits int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := permits
	for other, n := range c.held {
		taken += n
		if other != p {
			c.shared[pair(p, other)] = true
		}
	}
	c.held[p] += permits
	if taken <= c.permits {
		return nil
	}
	var holders []string
	for other, n := range c.held {
		holders = append(holders, fmt.Sprintf("%s with %d", other.name, n))
	}
	slices.Sort(holders)
	return fmt.Errorf("the lock has %d permits, and its holders are %s", c.permits, strings.Join(holders, ", "))
}

// releasing records a coming release of permits by a contender.
func (c *contest) releasing(p *contender, permits int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held[p] -= permits; c.held[p] == 0 {
		delete(c.held, p)
	}
}

func pair(a, b *contender) string {
	names := []string{a.name, b.name}
	slices.Sort(names)
	return strings.Join(names, " and ")
}

// acquire lets a contender acquire the lock, and reports false after the timeout.
func (c *contest) acquire(ctx context.Context, p *contender, m mode, timeout time.Duration) (bool, error) {
	ok, err := p.acquire(ctx, m.kind, timeout)
	if err != nil {
		return false, fmt.Errorf("%s acquires (%s): %w", p.name, m.kind, err)
	}
	if ok {
		return true, c.granted(p, m.permits)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timeouts[p.name]++
	return false, nil
}

func (c *contest) release(ctx context.Context, p *contender, m mode) error {
	c.releasing(p, m.permits)
	if err := p.release(ctx, m.kind); err != nil {
		return fmt.Errorf("%s releases (%s): %w", p.name, m.kind, err)
	}
	return nil
}

// mustAcquire lets a contender wait until granted the lock.
func (c *contest) mustAcquire(p *contender, m mode) {
	c.Helper()
	_, err := c.acquire(c.Ctx, p, m, noTimeout)
	require.NoError(c, err)
}

func (c *contest) mustRelease(p *contender, m mode) {
	c.Helper()
	require.NoError(c, c.release(c.Ctx, p, m))
}

// enqueue lets a contender begin to wait, and returns when the contender has a place in the
// queue. The channel receives the outcome.
func (c *contest) enqueue(p *contender, m mode) <-chan error {
	before := len(c.queue())
	done := make(chan error, 1)
	go func() { // ends with c.Ctx at the latest
		_, err := c.acquire(c.Ctx, p, m, noTimeout)
		done <- err
	}()
	c.Until(func() bool { return len(c.queue()) > before }, "%s is queued", p.name)
	return done
}

// turn is the nth turn of a contender.
func (c *contest) turn(ctx context.Context, p *contender, n int, r *rand.Rand) error {
	m := p.modes[r.IntN(len(p.modes))]
	work := func() { time.Sleep(time.Duration(r.IntN(2)) * time.Millisecond) }
	ok := false
	var err error
	if n%4 == 3 && !p.cannotGiveUp {
		ok, err = c.acquire(ctx, p, m, time.Duration(r.IntN(8))*time.Millisecond)
	}
	if !ok && err == nil {
		_, err = c.acquire(ctx, p, m, noTimeout)
	}
	if err != nil {
		return err
	}
	work()
	if n%3 == 2 && p.reenters {
		if err := c.reenter(ctx, p, m, work); err != nil {
			return err
		}
		work()
	}
	if n%3 == 1 && p.downgrades && m.permits == all {
		if m, err = c.downgrade(ctx, p, m); err != nil {
			return err
		}
		work()
	}
	if err := c.release(ctx, p, m); err != nil {
		return err
	}
	c.mu.Lock()
	c.turns[p.name]++
	c.mu.Unlock()
	time.Sleep(time.Duration(r.Int64N(int64(c.idle) + 1)))
	return nil
}

// reenter lets a holder acquire the lock once more, work, and release the new entry.
func (c *contest) reenter(ctx context.Context, p *contender, m mode, work func()) error {
	again := mode{m.kind, 0}
	if _, err := c.acquire(ctx, p, again, noTimeout); err != nil {
		return err
	}
	work()
	return c.release(ctx, p, again)
}

// downgrade turns an exclusive holder into a reader, and returns the new mode.
func (c *contest) downgrade(ctx context.Context, p *contender, m mode) (mode, error) {
	if _, err := c.acquire(ctx, p, mode{"read", 0}, noTimeout); err != nil {
		return m, err
	}
	return mode{"read", 1}, c.release(ctx, p, mode{m.kind, all - 1})
}

// contend gives each contender the number of turns.
func (c *contest) contend(turns int, contenders []*contender) error {
	ctx, cancel := context.WithCancelCause(c.Ctx)
	defer cancel(nil)
	var contending sync.WaitGroup
	for i, p := range contenders {
		contending.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), uint64(turns)))
			for n := range turns {
				if err := c.turn(ctx, p, n, r); err != nil {
					cancel(fmt.Errorf("turn %d: %w", n, err)) // the first error makes the others fail
					return
				}
			}
		})
	}
	contending.Wait()
	return context.Cause(ctx)
}

// run checks each pair of modes, lets all contend, and then kills two processes,
// if there are any.
func (c *contest) run(turns int) {
	var processes []*contender
	for _, p := range c.contenders {
		if p.process != nil {
			c.ready(p)
			processes = append(processes, p)
		}
	}
	c.checkModes()
	require.NoError(c, c.contend(turns, c.contenders))
	c.Until(func() bool { return len(c.queue()) == 0 }, "no node is left behind")
	if len(processes) > 0 {
		c.kill(processes[0], processes[1], 10)
	}
	c.finish()
}

// checkModes lets each contender in turn hold the lock in each of its modes, and checks
// that the others can share the lock only if both modes allow sharing.
func (c *contest) checkModes() {
	for _, holder := range c.contenders {
		for _, m := range holder.modes {
			c.mustAcquire(holder, m)
			before := c.queue()
			for _, other := range c.contenders {
				if other != holder && !other.cannotGiveUp {
					c.checkBeside(other, holder, m)
				}
			}
			c.Until(func() bool { return slices.Equal(before, c.queue()) },
				"waiters that gave up leave no node beside %s (%s)", holder.name, m.kind)
			c.mustRelease(holder, m)
		}
	}
}

// checkBeside lets a contender try each of its modes while another one holds the
// lock.
func (c *contest) checkBeside(p, holder *contender, held mode) {
	for _, m := range p.modes {
		timeout := 15 * time.Millisecond
		if held.permits+m.permits <= c.permits && !p.waitsForReaders {
			timeout = noTimeout
		}
		ok, err := c.acquire(c.Ctx, p, m, timeout)
		require.NoError(c, err, "%s (%s) holds the lock", holder.name, held.kind)
		if ok {
			c.mustRelease(p, m)
		}
	}
}

// kill kills a holding process and a waiting one, with all other contenders queued behind
// them. The others go on when the sessions of the dead have expired.
func (c *contest) kill(holder, waiter *contender, turns int) {
	for range c.permits / holder.modes[0].permits {
		c.mustAcquire(holder, holder.modes[0])
	}
	waits := c.enqueue(waiter, waiter.modes[0])

	c.contenders = slices.DeleteFunc(c.contenders, func(p *contender) bool { return p == holder || p == waiter })
	queued := len(c.queue()) + len(c.contenders)
	if slices.ContainsFunc(c.contenders, func(p *contender) bool { return p.inMemory }) {
		queued--
	}
	contended := make(chan error, 1)
	go func() { contended <- c.contend(turns, c.contenders) }() // ends with c.Ctx at the latest
	c.Until(func() bool { return len(c.queue()) >= queued }, "all others are queued")

	waiter.process.kill()
	require.ErrorIs(c, <-waits, errEnded)
	c.releasing(holder, c.permits) // from now on the session can expire at any moment
	holder.process.kill()
	require.NoError(c, <-contended)
}

// finish ends all processes, and checks for leftover nodes.
func (c *contest) finish() {
	c.Until(func() bool { return len(c.queue()) == 0 }, "no node is left behind")
	for _, p := range c.contenders {
		if p.process != nil {
			require.NoError(c, p.process.finish(c.Ctx), p.name)
		}
	}
	c.Logf("turns: %v, timeouts: %v, shared: %v", c.turns, c.timeouts, slices.Sorted(maps.Keys(c.shared)))
}

// queue lists the ephemeral nodes below the lock's path.
func (c *contest) queue() []string {
	found := c.Contenders("/" + c.name)
	slices.Sort(found)
	return found
}

// watched waits until a client watches a node.
func (c *contest) watched(path string) {
	c.Until(func() bool {
		paths, err := server.Command(c.Ctx, "wchp")
		require.NoError(c, err)
		return strings.Contains(paths, path+"\n")
	}, "%s is watched", path)
}

// lockpool returns four contenders of lockpool: two on one session, and two with local
// handoff on another.
func (c *contest) lockpool(layout string, modes []mode) (found []*contender) {
	one, other := c.openPool(layout, lockpool.WithLocalTurns(0)), c.openPool(layout)
	for i, p := range []*pool{one, one, other, other} {
		found = append(found, &contender{
			name: fmt.Sprint("lockpool ", i+1), client: p.locker(c.Ctx), modes: modes, reenters: true, downgrades: len(modes) > 1,
			inMemory: i == 3,
		})
	}
	return found
}

// peers returns n contenders like p, in a process each.
func (c *contest) peers(p contender, start func() *process, n int) (found []*contender) {
	for i := range n {
		one, process := p, start()
		one.name = fmt.Sprint(p.name, " ", i+1)
		one.client, one.process = process, process
		found = append(found, &one)
	}
	return found
}

func (c *contest) curator() *process { return startCurator(c, c.path, c.permits) }

func (c *contest) kazoo() *process { return startKazoo(c, c.path) }

func (c *contest) goZookeeper() *contender {
	return &contender{name: "go-zookeeper", client: zkLock{zk.NewLock(c.Dial(), c.path, zk.WorldACL(zk.PermAll))}, modes: exclusive("lock"), cannotGiveUp: true}
}

// ready waits until a contender's process has a session.
func (c *contest) ready(p *contender) {
	answer, err := p.process.answer(c.Ctx)
	require.NoError(c, err, p.name)
	require.Equal(c, "ready", answer, p.name)
}
