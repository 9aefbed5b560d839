package lockpool_test

// This file tests Waits.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
)

// waits returns a line for each party below a prefix: who it is, what it holds, and whom
// it waits for. Those in a deadlock are marked.
func waits(b *locktest.Bench, p *lockpool.Pool, prefix string) (lines []string, g lockpool.WaitGraph) {
	b.Helper()
	g, err := p.Waits(b.Ctx, prefix)
	require.NoError(b, err)
	for i, party := range g.Parties {
		line := party.Owner
		for _, s := range party.Holds {
			require.True(b, s.Holds)
			require.Equal(b, party.Owner, s.Owner)
			line += " holds " + s.Lock
		}
		if party.Wait != nil {
			require.False(b, party.Wait.Holds)
			line += " waits for " + party.Wait.Lock
		}
		for _, other := range party.For {
			line += " < " + g.Parties[other].Owner
		}
		for n, deadlock := range g.Deadlocks {
			if slices.Contains(deadlock, i) {
				line += fmt.Sprint(" deadlock ", n)
			}
		}
		lines = append(lines, line)
	}
	return lines, g
}

// nobody looks for deadlocks, and each handle is of a pool of its own.
func (c *gathering) handle(owner string, opts ...lockpool.Option) *lockpool.Handle {
	c.Helper()
	opts = append([]lockpool.Option{lockpool.WithOwner(owner), lockpool.WithDeadlockCheck(0)}, opts...)
	return c.Handle(c.Pool(opts...))
}

type gathering struct {
	*locktest.Bench
	calls []<-chan struct{}
}

func newGathering(t *testing.T) *gathering {
	c := &gathering{Bench: locktest.New(t)}
	ctx, cancel := context.WithCancel(c.Ctx)
	c.Ctx = ctx
	t.Cleanup(func() {
		cancel()
		for _, done := range c.calls {
			<-done
		}
	})
	return c
}

// waits begins a call, which waits until the end of the test, as the nth contender of a
// directory.
func (c *gathering) waits(dir string, nth int, call func(context.Context) error) {
	c.Helper()
	done := make(chan struct{})
	c.calls = append(c.calls, done)
	go func() { // ends with ctx
		defer close(done)
		_ = call(c.Ctx) // it may be granted when others go
	}()
	c.AwaitQueue(dir, nth)
}

// stranger adds a contender of another process, which may name what it holds, and returns
// its node.
func (c *gathering) stranger(dir, holds string) string {
	c.Helper()
	conn, path := c.Dial(), ""
	for part := range strings.SplitSeq(c.Chroot[1:]+"/"+dir, "/") {
		path += "/" + part
		if _, err := conn.Create(path, nil, 0, zk.WorldACL(zk.PermAll)); !errors.Is(err, zk.ErrNodeExists) {
			require.NoError(c, err)
		}
	}
	data := fmt.Sprintf(`{"owner":"stranger","host":"h","pid":1,"ask":"1","holds":[%s]}`, holds)
	node, err := conn.CreateProtectedEphemeralSequential(path+"/lock-", []byte(data), zk.WorldACL(zk.PermAll))
	require.NoError(c, err)
	return node[len(path)+1:]
}

func lockCall(h *lockpool.Handle, name string, opts ...lockpool.LockOption) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := h.Lock(ctx, name, opts...)
		return err
	}
}

func TestWaitsOfPermits(t *testing.T) {
	t.Parallel()
	c := newGathering(t)
	acquire := func(h *lockpool.Handle, n int) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := h.Semaphore("s", 3).Acquire(ctx, n)
			return err
		}
	}
	one, two := c.handle("one"), c.handle("two")
	require.NoError(t, acquire(one, 1)(c.Ctx))
	require.NoError(t, acquire(two, 1)(c.Ctx))
	third := c.handle("third")
	c.Lock(third, "x")
	c.waits("s/locks", 1, acquire(third, 2))
	c.AwaitQueue("s/leases", 4)
	c.waits("s/locks", 2, acquire(c.handle("fourth"), 1))
	c.waits("s/locks", 3, acquire(c.handle("fifth"), 1))
	c.waits("x", 2, lockCall(one, "x"))
	lines, g := waits(c.Bench, c.Pool(), "")
	require.Equal(t, []string{
		"two holds s",
		"third holds x waits for s < two < one",
		"fourth waits for s < third",
		"fifth waits for s < fourth",
		"one holds s waits for x < third",
	}, lines, "two can let go: it is no deadlock")
	require.Equal(t, 2, g.Parties[1].Wait.Permits)
	c.waits("x", 3, lockCall(two, "x"))
	lines, _ = waits(c.Bench, c.Pool(), "")
	require.Equal(t, []string{
		"third holds x waits for s < one < two deadlock 0",
		"fourth waits for s < third",
		"fifth waits for s < fourth",
		"one holds s waits for x < third deadlock 0",
		"two holds s waits for x < one deadlock 0",
	}, lines)

	// Whoever has the guard, and no leases yet, may be about to be granted its permits.
	c.Acquire(c.Pool(lockpool.WithOwner("other")).Semaphore("t", 2), 1)
	c.Until(func() bool { return len(c.Contenders(c.Chroot+"/t/locks")) == 0 }, "the guard is gone")
	c.stranger("t/locks", "")
	_, g = waits(c.Bench, c.Pool(), "t")
	require.Len(t, g.Parties, 2)
	require.Empty(t, g.Parties[1].For)
}

func TestWaitsOfPlainLocksAndInMemory(t *testing.T) {
	t.Parallel()
	c := newGathering(t)
	holder := c.handle("holder")
	c.Lock(holder, "plain", lockpool.Plain())
	waiter := c.handle("waiter", lockpool.WithDeadlockCheck(time.Millisecond)) // shows itself then
	c.Lock(waiter, "x")
	c.waits(".waits/plain", 1, lockCall(waiter, "plain", lockpool.Plain()))
	next := c.handle("second", lockpool.WithDeadlockCheck(time.Millisecond))
	c.Lock(next, "y")
	c.waits(".waits/plain", 2, lockCall(next, "plain", lockpool.Plain()))
	p := c.Pool(lockpool.WithOwner("local"))
	c.Lock(p, "m")
	first, second := c.StartLock(p, "m"), c.StartLock(p, "m")
	c.AwaitWaiting(p, 2)
	lines, g := waits(c.Bench, p, "")
	require.Equal(t, []string{
		"local holds m",
		"local waits for m < local",
		"local waits for m < local",
		"holder holds plain",
		"waiter holds x waits for plain < holder",
		"second holds y waits for plain < holder",
	}, lines)
	require.Equal(t, []int{0}, g.Parties[1].For)
	require.Equal(t, []int{1}, g.Parties[2].For)
	require.True(t, g.Parties[2].Wait.Local)
	require.Equal(t, "plain", g.Parties[4].Wait.Kind)
	for _, w := range []*locktest.Waiter{first, second} {
		w.Cancel()
		<-w.Done
	}
}

func TestWaitsShowsDeadlocksOverPlainLocks(t *testing.T) {
	t.Parallel()
	c := newGathering(t)
	h := c.handle("h")
	c.Lock(h, "plain", lockpool.Plain())
	node := c.stranger("x", "")
	c.stranger(".waits/plain", fmt.Sprintf(`{"lock":"x","node":%q}`, node))
	c.waits("x", 2, lockCall(h, "x"))
	lines, _ := waits(c.Bench, c.Pool(), "")
	require.Equal(t, []string{
		"stranger holds x waits for plain < h deadlock 0",
		"h holds plain waits for x < stranger deadlock 0",
	}, lines)
}

// A node that cannot be read hides its lock, and no other.
func TestWaitsWithoutRights(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool(lockpool.WithOwner("me"))
	b.Lock(p, "a")
	b.Restrict("/hidden", zk.PermRead)
	b.Restrict("/secret", zk.PermCreate)
	node, err := b.Admin.Create(b.Chroot+"/hidden/lock-", nil, zk.FlagEphemeral|zk.FlagSequence, zk.DigestACL(zk.PermAll, "admin", "x"))
	require.NoError(t, err)
	lines, g := waits(b, p, "")
	require.Equal(t, []string{"me holds a"}, lines)
	require.Equal(t, []string{"hidden", "secret"}, g.Unread)
	require.Len(t, g.Queues, 1)
	names, err := p.List(b.Ctx, "")
	require.NoError(t, err)
	require.Equal(t, []string{"a", "hidden", "secret"}, names)
	_, err = p.Waits(b.Ctx, "secret")
	require.ErrorIs(t, err, lockpool.ErrNoPermission, "it is the prefix itself")
	require.NoError(t, b.Admin.Delete(node, -1))
}

// Whoever names what it does not hold, or names it twice, is not believed more than that.
func TestWaitsReadsHostileNodes(t *testing.T) {
	t.Parallel()
	c := newGathering(t)
	p := c.Pool(lockpool.WithOwner("me"))
	c.Lock(p, "a")
	q, err := p.Queue(c.Ctx, "a")
	require.NoError(t, err)
	hold := fmt.Sprintf(`{"lock":"a","node":%q}`, q.Contenders[0].Node)
	waiting := c.stranger("a", `{"lock":"../..","node":"x"},{"lock":"a","node":"gone"},`+hold+","+hold)
	c.stranger("a", fmt.Sprintf(`{"lock":"a","node":%q}`, waiting))
	g, err := p.Waits(c.Ctx, "")
	require.NoError(t, err)
	require.Len(t, g.Parties, 2)
	require.Empty(t, g.Parties[1].Holds, "a waiter holds nothing")
	require.Equal(t, []int{0}, g.Parties[1].For)
	require.Len(t, g.Parties[0].Holds, 1)
	require.Empty(t, g.Parties[0].For, "nobody waits for itself")
}
