package interop

import (
	"context"
	"errors"
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
)

// way is one way to enter a lock, and how much of its room it takes.
type way struct {
	kind   string
	weight int
}

// all is the room of a lock that can be shared, and what who is alone takes.
const all = 1000

// only is to be alone, by that name.
func only(kind string) []way { return []way{{kind, all}} }

// either is to be alone, by that name, or to share with who reads.
func either(alone string) []way { return []way{{alone, all}, {"read", 1}} }

// participant is one of those who contend for a lock.
type participant struct {
	name string
	client
	ways       []way
	reenters   bool // enters again what it is in
	downgrades bool // is in alone, enters to read, and leaves the first
	resigned   bool // can not give up
	mayWait    bool // where it need not
	process    *process
}

// contest is the referee of those who contend for one lock: it knows who is
// inside. One is inside from when he says so until he is told to leave.
type contest struct {
	testing.TB
	ctx          context.Context
	name         string // of the lock, to lockpool
	path         string // to others
	admin        *zk.Conn
	room         int
	idle         time.Duration // at most, between two turns of one
	participants []*participant

	mu     sync.Mutex
	inside map[*participant]int // how much each takes
	met    map[string]bool      // who was inside together
	late   map[string]int       // how often each gave up
	turns  map[string]int
}

func newContest(t testing.TB) *contest {
	name := newName()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return &contest{
		TB: t, ctx: ctx, name: name, path: chroot + "/" + name, admin: dial(t), room: all,
		inside: map[*participant]int{}, met: map[string]bool{}, late: map[string]int{}, turns: map[string]int{},
	}
}

// admit notes that somebody is in.
func (c *contest) admit(p *participant, weight int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := weight
	for other, w := range c.inside {
		taken += w
		if other != p {
			c.met[pair(p, other)] = true
		}
	}
	c.inside[p] += weight
	if taken <= c.room {
		return nil
	}
	var names []string
	for other, w := range c.inside {
		names = append(names, fmt.Sprintf("%s with %d", other.name, w))
	}
	slices.Sort(names)
	return fmt.Errorf("there is room for %d, and inside are %s", c.room, strings.Join(names, ", "))
}

// dismiss notes that somebody is about to leave.
func (c *contest) dismiss(p *participant, weight int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inside[p] -= weight; c.inside[p] == 0 {
		delete(c.inside, p)
	}
}

func pair(a, b *participant) string {
	names := []string{a.name, b.name}
	slices.Sort(names)
	return strings.Join(names, " and ")
}

// enter lets somebody in for good or, if not in time, not at all.
func (c *contest) enter(ctx context.Context, p *participant, w way, atMost time.Duration) (bool, error) {
	in, err := p.enter(ctx, w.kind, atMost)
	if err != nil {
		return false, fmt.Errorf("%s enters (%s): %w", p.name, w.kind, err)
	}
	if in {
		err = c.admit(p, w.weight)
	} else {
		c.mu.Lock()
		c.late[p.name]++
		c.mu.Unlock()
	}
	return in, err
}

func (c *contest) leave(ctx context.Context, p *participant, w way) error {
	c.dismiss(p, w.weight)
	if err := p.leave(ctx, w.kind); err != nil {
		return fmt.Errorf("%s leaves (%s): %w", p.name, w.kind, err)
	}
	return nil
}

// turn is one turn of a participant, his nth.
func (c *contest) turn(ctx context.Context, p *participant, n int, r *rand.Rand) error {
	w := p.ways[r.IntN(len(p.ways))]
	work := func() { time.Sleep(time.Duration(r.IntN(2)) * time.Millisecond) }
	in := false
	var err error
	if n%4 == 3 && !p.resigned {
		in, err = c.enter(ctx, p, w, time.Duration(r.IntN(8))*time.Millisecond)
	}
	if !in && err == nil {
		_, err = c.enter(ctx, p, w, forever)
	}
	if err != nil {
		return err
	}
	work()
	if n%3 == 2 && p.reenters {
		again := way{w.kind, 0}
		if _, err := c.enter(ctx, p, again, forever); err != nil {
			return err
		}
		work()
		if err := c.leave(ctx, p, again); err != nil {
			return err
		}
		work()
	}
	if n%3 == 1 && p.downgrades && w.weight == all {
		read := way{"read", 1}
		if _, err := c.enter(ctx, p, way{"read", 0}, forever); err != nil {
			return err
		}
		if err := c.leave(ctx, p, way{w.kind, all - read.weight}); err != nil {
			return err
		}
		work()
		w = read
	}
	if err := c.leave(ctx, p, w); err != nil {
		return err
	}
	c.mu.Lock()
	c.turns[p.name]++
	c.mu.Unlock()
	time.Sleep(time.Duration(r.Int64N(int64(c.idle) + 1)))
	return nil
}

// contend gives each so many turns.
func (c *contest) contend(turns int, participants []*participant) error {
	ctx, cancel := context.WithCancelCause(c.ctx)
	defer cancel(nil)
	var contending sync.WaitGroup
	for i, p := range participants {
		contending.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), uint64(turns)))
			for n := range turns {
				if err := c.turn(ctx, p, n, r); err != nil {
					cancel(fmt.Errorf("turn %d: %w", n, err)) // the first one's is why the others fail
					return
				}
			}
		})
	}
	contending.Wait()
	return context.Cause(ctx)
}

// everyoneKeepsOut lets one after the other be inside, and everyone else ask for
// a moment.
func (c *contest) everyoneKeepsOut() {
	for _, p := range c.participants {
		for _, w := range p.ways {
			c.in(p, w)
			before := c.contenders()
			for _, other := range c.participants {
				if other == p || other.resigned {
					continue
				}
				for _, v := range other.ways {
					atMost, fits := 15*time.Millisecond, w.weight+v.weight <= c.room
					if fits && !other.mayWait {
						atMost = forever
					}
					in, err := c.enter(c.ctx, other, v, atMost)
					require.NoError(c, err, "%s (%s) is inside", p.name, w.kind)
					if in {
						require.NoError(c, c.leave(c.ctx, other, v))
					}
				}
			}
			c.until(func() bool { return slices.Equal(before, c.contenders()) },
				"who gave up leaves nothing beside %s (%s)", p.name, w.kind)
			require.NoError(c, c.leave(c.ctx, p, w))
		}
	}
}

// lose kills one process that is inside and one that waits, with everyone else
// behind them, who go on when the dead ones' sessions are over.
func (c *contest) lose(holder, waiter *participant, turns int) {
	for range c.room / holder.ways[0].weight {
		c.in(holder, holder.ways[0])
	}
	waits := c.entering(waiter, waiter.ways[0])

	c.participants = slices.DeleteFunc(c.participants, func(p *participant) bool { return p == holder || p == waiter })
	before := len(c.contenders())
	contended := make(chan error, 1)
	go func() { contended <- c.contend(turns, c.participants) }() // ends with c.ctx at the latest
	c.until(func() bool { return len(c.contenders()) >= before+len(c.participants) }, "everyone else waits")

	waiter.process.kill()
	require.ErrorIs(c, <-waits, errEnded)
	c.dismiss(holder, c.room) // gone at any moment from now on
	holder.process.kill()
	require.NoError(c, <-contended)
}

// finish lets everyone go, and looks for what they leave behind.
func (c *contest) finish() {
	c.until(func() bool { return len(c.contenders()) == 0 }, "nothing is left behind")
	for _, p := range c.participants {
		if p.process != nil {
			require.NoError(c, p.process.finish(c.ctx), p.name)
		}
	}
	c.Logf("turns: %v, given up: %v, together: %v", c.turns, c.late, slices.Sorted(maps.Keys(c.met)))
}

// contenders lists the ephemeral nodes below the lock's.
func (c *contest) contenders() (found []string) {
	var list func(path string)
	list = func(path string) {
		children, _, err := c.admin.Children(path)
		if errors.Is(err, zk.ErrNoNode) {
			return
		}
		require.NoError(c, err)
		for _, child := range children {
			child = path + "/" + child
			exists, stat, err := c.admin.Exists(child)
			require.NoError(c, err)
			if exists && stat.EphemeralOwner != 0 {
				found = append(found, child)
			} else if exists {
				list(child)
			}
		}
	}
	list(c.path)
	slices.Sort(found)
	return found
}

// until waits for a condition.
func (c *contest) until(condition func() bool, what string, args ...any) {
	c.Helper()
	for !condition() {
		if c.ctx.Err() != nil {
			require.FailNowf(c, "waited in vain", what+"; contenders: %v", append(args, c.contenders())...)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
