package behavior

// This file has the tests of looking: Queue, List, Waits, Break and Revoke.

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
)

var lookTests = []test{
	{"Queue", queueTells, nil},
	{"QueueOfPermits", queueOfPermits, limiter},
	{"QueueShowsLocalWaiters", queueShowsLocalWaiters, nil},
	{"QueueTellsCallersOfOthers", queueTellsCallersOfOthers, nil},
	{"List", listFindsLocks, nil},
	{"TakesNoHandle", lookingTakesNoHandle, []string{"Breaker", "Revoker"}},
	{"Waits", waitsTell, nil},
	{"WaitsShowDeadlocks", waitsShowDeadlocks, nil},
	{"WaitsOfReaders", waitsOfReaders, nil},
	{"WaitsOfPermits", waitsOfPermits, limiter},
	{"WaitsOfPlainLocksAndInMemory", waitsOfPlainLocksAndInMemory, plainLocker},
}

func queueTells(b *bench) {
	p, others, a := b.pool(atService, lockpool.WithOwner("billing")), b.pool(atService), b.name("a")
	first, second := b.read(p, a), b.read(others, a)
	w := b.enqueue(others, a, 3)
	r := b.enqueue(p, a, 4, lockpool.Shared())
	q, err := p.Queue(b.ctx, a)
	require.NoError(b, err)
	require.Equal(b, a, q.Name)
	require.Empty(b, q.Foreign)
	require.Len(b, q.Contenders, 4)
	host, err := os.Hostname()
	require.NoError(b, err)
	for i, want := range []string{"read true", "read true", "mutex false", "read false"} {
		c := q.Contenders[i]
		require.Equal(b, want, fmt.Sprint(c.Kind, " ", c.Holds), i)
		require.Equal(b, []any{host, os.Getpid(), false}, []any{c.Host, c.PID, c.Local})
		require.NotEmpty(b, c.Session)
		require.NotEmpty(b, c.Node)
		require.WithinDuration(b, time.Now(), c.Asked, time.Minute)
		require.Equal(b, i == 0 || i == 3, c.Owner == "billing")
		require.Equal(b, i == 0, !c.Granted.IsZero(), "only the pool of a holder knows when it was granted")
	}
	require.Equal(b, b.token(first), q.Contenders[0].Token)
	require.Equal(b, b.token(second), q.Contenders[1].Token)
	b.unlock(first)
	b.unlock(second)
	b.unlock(w.granted())
	b.unlock(r.granted())
	q, err = p.Queue(b.ctx, b.name("not/there"))
	require.NoError(b, err)
	require.Empty(b, q.Contenders)
}

func queueOfPermits(b *bench) {
	p, others, s := b.pool(lockpool.WithOwner("billing")), b.pool(lockpool.WithOwner("other")), b.name("s")
	first, second := b.acquire(p.Semaphore(s, 4), 1), b.acquire(others.Semaphore(s, 4), 2)
	w := b.startAcquire(p.Semaphore(s, 4), 2)
	b.until(func() bool { // the first waiter says how many
		q := b.contenders(s)
		return len(q) == 3 && q[2].Permits == 2
	}, "it waits")
	behind := b.startAcquire(others.Semaphore(s, 4), 1)
	b.queued(s, 4)
	var got []string
	for i, c := range b.contenders(s) {
		if i == 3 && c.Permits == 0 {
			c.Permits = 1 // need not say
		}
		got = append(got, fmt.Sprint(c.Kind, " ", c.Holds, " ", c.Permits, " ", c.Owner))
	}
	require.Equal(b, []string{"semaphore true 1 billing", "semaphore true 2 other", "semaphore false 2 billing", "semaphore false 1 other"}, got)
	require.Equal(b, []string{s}, b.list(b.prefix))
	b.unlock(second)
	got2 := w.granted()
	b.unlock(behind.granted())
	b.unlock(got2)
	b.unlock(first)
}

func queueShowsLocalWaiters(b *bench) {
	p, a := b.pool(lockpool.WithOwner("billing"), lockpool.WithLocalTurns(1023)), b.name("a")
	holder := b.lock(p, a)
	var waiters []*call[*lockpool.Lock]
	for i := range 3 {
		waiters = append(waiters, b.waiter(p, a, i+1))
	}
	q, err := p.Queue(b.ctx, a)
	require.NoError(b, err)
	require.Len(b, q.Contenders, 4)
	nodes := map[string]bool{}
	for i, c := range q.Contenders {
		require.Equal(b, i == 0, c.Holds)
		require.Equal(b, []any{"mutex", "billing"}, []any{c.Kind, c.Owner})
		if b.bubble { // without passing of time
			require.Equal(b, i > 0, c.Local)
			require.WithinDuration(b, time.Now(), c.Asked, time.Minute)
		}
		nodes[c.Node] = true
	}
	require.Len(b, nodes, 4)
	require.Equal(b, b.token(holder), q.Contenders[0].Token)
	if b.bubble {
		require.Len(b, b.contenders(a), 1, "only the pool itself knows them")
		require.ErrorContains(b, p.Break(b.ctx, a, q.Contenders[3].Node), "it waits without a node")
	}
	for _, w := range waiters {
		b.unlock(holder)
		holder = w.granted()
		q, err := p.Queue(b.ctx, a)
		require.NoError(b, err)
		require.Equal(b, b.token(holder), q.Contenders[0].Token)
	}
	b.unlock(holder)
}

func listFindsLocks(b *bench) {
	p := b.pool()
	var held []*lockpool.Lock
	for _, name := range []string{"orders/42", "orders/7", "orders", "orders2", "accounts/1/x"} {
		held = append(held, b.lock(p, b.name(name)))
	}
	b.unlock(b.lock(p, b.name("orders/free")))
	for prefix, want := range map[string][]string{
		"":            {"/accounts/1/x", "/orders", "/orders/42", "/orders/7", "/orders2"},
		"/orders":     {"/orders", "/orders/42", "/orders/7"},
		"/accounts":   {"/accounts/1/x"},
		"/orders/42":  {"/orders/42"},
		"/not/there":  nil,
		"/accounts/1": {"/accounts/1/x"},
	} {
		for i := range want {
			want[i] = b.prefix + want[i]
		}
		require.Equal(b, want, b.list(b.prefix+prefix), prefix)
	}
	_, err := p.List(b.ctx, "orders/")
	require.ErrorIs(b, err, lockpool.ErrInvalidName)
	for _, l := range held {
		b.unlock(l)
	}
}

// Other processes see how many calls wait in memory behind a node, and whose turn lasts.
func queueTellsCallersOfOthers(b *bench) {
	holder, crowd, a := b.pool(), b.pool(), b.name("a")
	first := b.lock(holder, a)
	waits := []*call[*lockpool.Lock]{b.enqueue(crowd, a, 2)}
	for n, opts := range [][]lockpool.LockOption{{lockpool.Revocable()}, nil, nil} {
		waits = append(waits, b.waiter(crowd, a, 2+n, opts...))
	}
	waiters := func(contenders []lockpool.Contender) (n int) {
		for _, c := range contenders {
			if n += c.Callers; !c.Holds {
				n++
			}
		}
		return n
	}
	tells := func(n int) {
		b.until(func() bool {
			g, err := b.looker.Waits(b.ctx, a)
			require.NoError(b, err)
			return len(g.Queues) == 1 && waiters(g.Queues[0].Contenders) == n && waiters(b.contenders(a)) == n
		}, "%d waiters", n)
	}
	tells(4)
	b.unlock(first)
	first = waits[0].granted()
	tells(3)
	b.unlock(first)
	second := waits[1].granted()
	tells(2)
	b.until(func() bool {
		c := b.contenders(a)[0]
		return c.Revocable && strings.Contains(c.At, "bench.go:")
	}, "what lasts is the second turn, not the first")
	b.unlock(second)
	b.unlock(waits[2].granted())
	last := waits[3].granted()
	tells(0)
	b.unlock(last)
}

// A pool whose handles all wait can break the awaited lock.
func lookingTakesNoHandle(b *bench) {
	p, a := b.pool(atService, lockpool.WithMaxHandles(2)), b.name("a")
	stuck := b.lock(b.pool(), a)
	waiters := []*call[*lockpool.Lock]{b.enqueue(p, a, 2), b.enqueue(p, a, 3)}
	require.Equal(b, 2, p.Stats().InUse)
	names, err := p.List(b.ctx, b.prefix)
	require.NoError(b, err)
	require.Equal(b, []string{a}, names)
	require.NoError(b, p.Ping(b.ctx))
	require.NoError(b, p.Revoke(b.ctx, a))
	b.await(stuck.Revoked(), "the revocation")
	q, err := p.Queue(b.ctx, a)
	require.NoError(b, err)
	require.NoError(b, p.Break(b.ctx, a, q.Contenders[0].Node))
	b.isLost(stuck)
	for _, w := range waiters {
		b.unlock(w.granted())
	}
}

// gathering is several parties, each a handle of a separate pool, not looking for
// deadlocks.
type gathering struct {
	*bench
	names map[string]*lockpool.Handle
}

func (g *gathering) party(name string) *lockpool.Handle {
	if g.names[name] == nil {
		g.names[name] = g.handle(g.pool(lockpool.WithOwner(name), lockpool.WithDeadlockCheck(0)))
	}
	return g.names[name]
}

// waits lets a party wait for a lock, until the test ends, as the nth contender.
func (g *gathering) waits(party, lock string, nth int, opts ...lockpool.LockOption) {
	g.Helper()
	g.enqueue(g.party(party), g.name(lock), nth, opts...)
}

// lines returns a line for each party: its name, its locks, and the awaited parties.
// Parties in a deadlock are marked.
func (g *gathering) lines() []string {
	g.Helper()
	return g.linesFor(g.looker)
}

// linesFor returns the lines for what a pool knows.
func (g *gathering) linesFor(p *lockpool.Pool) (lines []string) {
	g.Helper()
	graph, err := p.Waits(g.ctx, g.prefix)
	require.NoError(g, err)
	require.Empty(g, graph.Unread)
	short := func(lock string) string { return lock[len(g.prefix)+1:] }
	for i, party := range graph.Parties {
		var holds []string
		for _, s := range party.Holds {
			require.True(g, s.Holds)
			holds = append(holds, " holds "+short(s.Lock))
		}
		slices.Sort(holds)
		line := party.Owner + strings.Join(holds, "")
		if party.Wait != nil {
			require.False(g, party.Wait.Holds)
			line += " waits for " + short(party.Wait.Lock)
		}
		for _, other := range party.For {
			line += " < " + graph.Parties[other].Owner
		}
		for n, deadlock := range graph.Deadlocks {
			if slices.Contains(deadlock, i) {
				line += fmt.Sprint(" deadlock ", n)
			}
		}
		lines = append(lines, line)
	}
	return lines
}

func waitsTell(b *bench) {
	g := &gathering{b, map[string]*lockpool.Handle{}}
	require.Empty(b, g.lines())
	b.lock(g.party("ann"), b.name("a"), lockpool.Revocable())
	b.lock(g.party("ann"), b.name("other"))
	b.lock(g.party("bob"), b.name("b"))
	b.lock(g.party("bob"), b.name("c"))
	g.waits("bob", "a", 2)
	g.waits("cid", "b", 2)
	g.waits("dan", "b", 3)
	require.Equal(b, []string{
		"ann holds a",
		"bob holds b holds c waits for a < ann",
		"cid waits for b < bob",
		"dan waits for b < cid",
		"ann holds other",
	}, g.lines())
	graph, err := b.looker.Waits(b.ctx, b.name("a"))
	require.NoError(b, err)
	require.Len(b, graph.Queues, 1)
	require.Equal(b, b.contenders(b.name("a")), graph.Queues[0].Contenders)
	for _, name := range []string{"a", "b"} {
		for _, c := range b.contenders(b.name(name)) { // holders, too
			require.Contains(b, c.At, "bench.go:")
			require.Equal(b, c.Owner == "ann", c.Revocable)
		}
	}
	_, err = b.looker.Waits(b.ctx, "a/")
	require.ErrorIs(b, err, lockpool.ErrInvalidName)
}

func waitsShowDeadlocks(b *bench) {
	g := &gathering{b, map[string]*lockpool.Handle{}}
	for _, party := range []string{"0", "1", "2", "3", "4"} {
		b.lock(g.party(party), b.name("lock"+party))
	}
	g.waits("0", "lock1", 2)
	require.Contains(b, g.lines(), "0 holds lock0 waits for lock1 < 1")
	g.waits("1", "lock2", 2)
	g.waits("2", "lock0", 2)
	g.waits("3", "lock4", 2)
	g.waits("4", "lock3", 2)
	g.waits("behind", "lock3", 3)
	lines := g.lines()
	slices.Sort(lines)
	require.Equal(b, []string{
		"0 holds lock0 waits for lock1 < 1 deadlock 0",
		"1 holds lock1 waits for lock2 < 2 deadlock 0",
		"2 holds lock2 waits for lock0 < 0 deadlock 0",
		"3 holds lock3 waits for lock4 < 4 deadlock 1",
		"4 holds lock4 waits for lock3 < 3 deadlock 1",
		"behind waits for lock3 < 4",
	}, lines)
}

func waitsOfReaders(b *bench) {
	g := &gathering{b, map[string]*lockpool.Handle{}}
	b.read(g.party("r1"), b.name("a"))
	b.read(g.party("r2"), b.name("a"))
	b.lock(g.party("w"), b.name("b"))
	g.waits("w", "a", 3)
	g.waits("r3", "a", 4, lockpool.Shared())
	g.waits("r4", "a", 5, lockpool.Shared())
	g.waits("w2", "a", 6)
	g.waits("r5", "a", 7, lockpool.Shared())
	g.waits("r1", "b", 2)
	require.Equal(b, []string{
		"r2 holds a",
		"w holds b waits for a < r2 < r1 deadlock 0",
		"r3 waits for a < w",
		"r4 waits for a < w",
		"w2 waits for a < r3 < r4",
		"r5 waits for a < w2",
		"r1 holds a waits for b < w deadlock 0",
	}, g.lines())
}

func waitsOfPermits(b *bench) {
	g := &gathering{b, map[string]*lockpool.Handle{}}
	s := func(party string) *lockpool.Semaphore { return g.party(party).Semaphore(b.name("s"), 3) }
	b.acquire(s("one"), 1)
	b.acquire(s("two"), 1)
	b.lock(g.party("third"), b.name("x"))
	b.startAcquire(s("third"), 2)
	b.until(func() bool { // the first waiter says how many
		q := b.contenders(b.name("s"))
		return len(q) == 3 && q[2].Permits == 2
	}, "it waits")
	for i, party := range []string{"fourth", "fifth"} {
		b.startAcquire(s(party), 1)
		b.queued(b.name("s"), i+4)
	}
	g.waits("one", "x", 2)
	require.Equal(b, []string{
		"two holds s",
		"third holds x waits for s < two < one",
		"fourth waits for s < third",
		"fifth waits for s < fourth",
		"one holds s waits for x < third",
	}, g.lines(), "two can let go: it is no deadlock")
	g.waits("two", "x", 3)
	require.Equal(b, []string{
		"third holds x waits for s < one < two deadlock 0",
		"fourth waits for s < third",
		"fifth waits for s < fourth",
		"one holds s waits for x < third deadlock 0",
		"two holds s waits for x < one deadlock 0",
	}, g.lines())
}

func waitsOfPlainLocksAndInMemory(b *bench) {
	g := &gathering{b, map[string]*lockpool.Handle{}}
	b.lock(g.party("holder"), b.name("plain"), lockpool.Plain())
	for i, party := range []string{"first", "second"} {
		h := b.handle(b.pool(lockpool.WithOwner(party), lockpool.WithDeadlockCheck(time.Millisecond))) // shows itself then
		b.lock(h, b.name(fmt.Sprint("x", i)))
		b.startLock(h, b.name("plain"), lockpool.Plain())
		line := fmt.Sprintf("%s holds x%d waits for plain < holder", party, i)
		b.until(func() bool { return slices.Contains(g.lines(), line) }, "the wait is shown")
	}
	p := b.pool(lockpool.WithOwner("local"))
	b.lock(p, b.name("m"))
	for i := range 2 {
		b.waiter(p, b.name("m"), i+1)
	}
	require.Equal(b, []string{
		"local holds m",
		"local waits for m < local",
		"local waits for m < local",
		"holder holds plain",
		"first holds x0 waits for plain < holder",
		"second holds x1 waits for plain < holder",
	}, g.linesFor(p))
	graph, err := p.Waits(b.ctx, b.prefix)
	require.NoError(b, err)
	require.Equal(b, [][]int{{0}, {1}}, [][]int{graph.Parties[1].For, graph.Parties[2].For})
	require.Equal(b, "plain", graph.Parties[4].Wait.Kind)
	if b.bubble { // without passing of time
		require.True(b, graph.Parties[2].Wait.Local)
	}
}

var revoker = []string{"Revoker"}

var revokeTests = []test{
	{"HolderKeepsTheLock", revokedHolderKeepsTheLock, revoker},
	{"Revocable", revocableEndsContexts, revoker},
	{"RevocableWaiter", revocableWaiterGivesUp, revoker},
	{"LocalWaiter", revokeReachesLocalWaiters, revoker},
	{"LocalTurns", revocationEndsLocalTurns, revoker},
	{"Readers", revokeAsksAllReaders, revoker},
	{"Do", doReportsARevocation, revoker},
	{"PermitsAndPlainLocks", permitsAndPlainLocksAreRevoked, []string{"Revoker", "Limiter", "PlainLocker"}},
	{"LosesNothing", revocationLosesNothing, []string{"Revoker", "Limiter", "PlainLocker", "Downgrader"}},
	{"AfterADowngrade", downgradedHolderIsFound, []string{"Revoker", "Breaker", "Downgrader"}},
}

func revokedHolderKeepsTheLock(b *bench) {
	p, others, a := b.pool(), b.pool(), b.name("a")
	l := b.lock(p, a)
	b.notYet(l.Revoked(), "a revocation")
	ctx := l.Context(b.ctx)
	require.NoError(b, others.Revoke(b.ctx, a))
	b.await(l.Revoked(), "the revocation")
	require.NoError(b, others.Revoke(b.ctx, a), "again")
	require.NoError(b, ctx.Err(), "a lock without Revocable")
	require.NoError(b, l.Verify(b.ctx))
	b.isHeld(a)
	w := b.enqueue(others, a, 2)
	b.unlock(l)
	l = w.granted()
	b.notYet(l.Revoked(), "a revocation")
	b.unlock(l)
	require.NoError(b, others.Revoke(b.ctx, b.name("free")))
	require.ErrorContains(b, others.Revoke(b.ctx, a, "config"), "use one that Queue returns")
}

func revocableEndsContexts(b *bench) {
	p, others, a := b.pool(), b.pool(), b.name("a")
	l := b.lock(p, a, lockpool.Revocable())
	before := l.Context(b.ctx)
	require.NoError(b, others.Revoke(b.ctx, a))
	b.await(before.Done(), "the revocation")
	require.Equal(b, lockpool.ErrRevoked, context.Cause(before))
	require.Equal(b, lockpool.ErrRevoked, context.Cause(l.Context(b.ctx)), "a context made after the revocation")
	require.NoError(b, l.Verify(b.ctx))
	b.isHeld(a)
	b.unlock(l)

	// To enter again makes the hold revocable.
	h := b.handle(p)
	l = b.lock(h, a)
	ctx := l.Context(b.ctx)
	require.NoError(b, others.Revoke(b.ctx, a))
	b.await(l.Revoked(), "the revocation")
	require.NoError(b, ctx.Err())
	inner := b.lock(h, a, lockpool.Revocable())
	b.await(ctx.Done(), "the end of the context")
	b.unlock(inner)
	b.unlock(l)
	b.close(h)
}

func revocableWaiterGivesUp(b *bench) {
	p, others, a := b.pool(), b.pool(atService), b.name("a")
	l := b.lock(p, a)
	first := b.enqueue(others, a, 2, lockpool.Revocable())
	second := b.enqueue(others, a, 3, lockpool.Revocable(), lockpool.Shared())
	third := b.enqueue(others, a, 4) // not revocable
	for i, w := range []*call[*lockpool.Lock]{second, first} {
		w.waits()
		require.NoError(b, p.Revoke(b.ctx, a, b.nodes(a)[2-i]))
		require.ErrorIs(b, w.returned(), lockpool.ErrRevoked)
		b.queued(a, 3-i)
	}
	require.NoError(b, p.Revoke(b.ctx, a, b.nodes(a)[1]))
	b.notYet(l.Revoked(), "a revocation of the holder")
	b.unlock(l)
	got := third.granted()
	b.await(got.Revoked(), "the revocation") // during the wait
	b.unlock(got)
}

func revokeReachesLocalWaiters(b *bench) {
	p, a := b.pool(), b.name("a")
	holder := b.lock(p, a)
	gives := b.waiter(p, a, 1, lockpool.Revocable())
	ignores := b.waiter(p, a, 2)
	q, err := p.Queue(b.ctx, a)
	require.NoError(b, err)
	require.NoError(b, p.Revoke(b.ctx, a, q.Contenders[1].Node, q.Contenders[2].Node))
	require.ErrorIs(b, gives.returned(), lockpool.ErrRevoked)
	b.notYet(holder.Revoked(), "a revocation of the holder")
	b.unlock(holder)
	holder = ignores.granted()
	b.await(holder.Revoked(), "the revocation")
	b.unlock(holder)
}

// A request to release the lock reaches the holder of the moment, and the lock goes to another
// process.
func revocationEndsLocalTurns(b *bench) {
	p, others, a := b.pool(), b.pool(), b.name("a")
	first := b.lock(p, a, lockpool.Revocable())
	w1 := b.waiter(p, a, 1, lockpool.Revocable())
	w2 := b.waiter(p, a, 2)
	b.unlock(first)
	l := w1.granted()
	var rival *call[*lockpool.Lock]
	if b.bubble { // the pool has not queued for the next waiter yet
		rival = b.enqueue(others, a, 2)
	}
	ctx := l.Context(b.ctx)
	require.NoError(b, others.Revoke(b.ctx, a))
	b.await(ctx.Done(), "the revocation")
	require.ErrorIs(b, context.Cause(ctx), lockpool.ErrRevoked)
	b.unlock(l)
	if rival != nil {
		l = rival.granted()
		w2.waits()
		b.unlock(l)
	}
	l = w2.granted()
	b.notYet(l.Revoked(), "a revocation of the next holder")
	b.unlock(l)
}

func revokeAsksAllReaders(b *bench) {
	p, others, a := b.pool(), b.pool(), b.name("a")
	first, second := b.read(p, a), b.read(others, a)
	w := b.enqueue(p, a, 3)
	require.NoError(b, others.Revoke(b.ctx, a))
	b.await(first.Revoked(), "the revocation")
	b.await(second.Revoked(), "the revocation")
	b.unlock(first)
	b.unlock(second)
	l := w.granted()
	b.notYet(l.Revoked(), "a revocation of the next holder")
	b.unlock(l)
}

func doReportsARevocation(b *bench) {
	p, others, a := b.pool(), b.pool(), b.name("a")
	revoked := func(result func(ctx context.Context) error) error {
		return p.Do(b.ctx, a, func(ctx context.Context) error {
			require.NoError(b, others.Revoke(b.ctx, a))
			<-ctx.Done()
			return result(ctx)
		}, lockpool.Revocable())
	}
	err := revoked(func(ctx context.Context) error { return ctx.Err() })
	require.ErrorIs(b, err, lockpool.ErrRevoked)
	require.ErrorIs(b, err, context.Canceled)
	require.ErrorIs(b, revoked(context.Cause), lockpool.ErrRevoked)
	require.NoError(b, revoked(nothing), "the work was done nevertheless")

	// The end of another lock's context is no revocation of this one.
	var inner error
	err = p.Do(b.ctx, a, func(ctx context.Context) error {
		inner = p.Do(ctx, b.name("inner"), func(ctx context.Context) error {
			require.NoError(b, p.Revoke(b.ctx, a))
			<-ctx.Done()
			return ctx.Err()
		})
		return inner
	}, lockpool.Revocable())
	require.NotErrorIs(b, inner, lockpool.ErrRevoked)
	require.ErrorIs(b, err, lockpool.ErrRevoked)
}

func permitsAndPlainLocksAreRevoked(b *bench) {
	p, others, s, a := b.pool(), b.pool(), b.name("s"), b.name("a")
	first, second := b.acquire(p.Semaphore(s, 5), 2), b.acquire(others.Semaphore(s, 5), 1)
	require.NoError(b, p.Revoke(b.ctx, s))
	b.await(first.Revoked(), "the revocation")
	b.await(second.Revoked(), "the revocation")
	b.unlock(first)
	b.unlock(second)
	permits, err := p.Semaphore(s, 5).Acquire(b.ctx, 1, lockpool.Revocable(), lockpool.WaitAtMost(0))
	require.NoError(b, err)
	ctx := permits.Context(b.ctx)
	require.NoError(b, others.Revoke(b.ctx, s))
	b.await(ctx.Done(), "the revocation")
	require.Equal(b, lockpool.ErrRevoked, context.Cause(ctx))
	b.unlock(permits)
	err = p.Semaphore(s, 5).Do(b.ctx, 1, func(ctx context.Context) error {
		require.NoError(b, others.Revoke(b.ctx, s))
		<-ctx.Done()
		return ctx.Err()
	}, lockpool.Revocable())
	require.ErrorIs(b, err, lockpool.ErrRevoked)
	for range 2 {
		l := b.lock(p, a, lockpool.Plain())
		b.notYet(l.Revoked(), "a revocation")
		require.NoError(b, others.Revoke(b.ctx, a))
		require.NoError(b, others.Revoke(b.ctx, a))
		b.await(l.Revoked(), "the revocation")
		require.NoError(b, l.Verify(b.ctx))
		b.unlock(l)
	}
}

// downgraded returns a lock that became shared, and the former name of the node.
func (b *bench) downgraded(by locker, name string) (reader *lockpool.Lock, was string) {
	l := b.lock(by, name)
	reader = b.read(by, name)
	was = b.nodes(name)[0]
	b.unlock(l)
	require.NotEqual(b, was, b.nodes(name)[0])
	return reader, was
}

// Asking for a lock changes nothing in what is seen of the lock.
func revocationLosesNothing(b *bench) {
	p, others := b.pool(lockpool.WithOwner("holder")), b.pool(lockpool.WithOwner("waiter"))
	shared, _ := b.downgraded(b.handle(p), b.name("shared"))
	h := b.handle(others)
	b.lock(h, b.name("held"))
	w := b.enqueue(h, b.name("shared"), 2)
	plain := b.lock(p, b.name("alone"), lockpool.Plain())
	permits := b.acquire(p.Semaphore(b.name("s"), 3), 2)
	for _, name := range []string{"shared", "alone", "s"} {
		before := b.contenders(b.name(name))
		require.NoError(b, others.Revoke(b.ctx, b.name(name), b.nodes(b.name(name))...))
		require.Equal(b, before, b.contenders(b.name(name)))
		require.Equal(b, "holder", before[0].Owner)
	}
	g, err := others.Waits(b.ctx, b.prefix)
	require.NoError(b, err)
	at := slices.IndexFunc(g.Parties, func(p lockpool.Party) bool { return p.Wait != nil })
	require.Equal(b, b.name("held"), g.Parties[at].Holds[0].Lock)
	require.NotEmpty(b, g.Parties[at].Wait.At)
	b.await(shared.Revoked(), "the revocation")
	b.await(plain.Revoked(), "the revocation")
	b.await(permits.Revoked(), "the revocation")
	b.unlock(shared)
	b.unlock(plain)
	b.unlock(permits)
	b.await(w.granted().Revoked(), "the revocation") // during the wait
	b.close(h)
}

// A holder is found by the name shown by Queue before the lock became shared.
func downgradedHolderIsFound(b *bench) {
	p, others, a := b.pool(), b.pool(), b.name("a")
	l, was := b.downgraded(b.handle(p), a)
	require.NoError(b, others.Revoke(b.ctx, a, was))
	b.await(l.Revoked(), "the revocation")
	require.NoError(b, others.Break(b.ctx, a, was))
	b.isLost(l)
	require.ErrorIs(b, others.Break(b.ctx, a, was), lockpool.ErrNotHeld)
	b.isFree(a)
}
