package behavior

// This file has the tests of WithKeptLocks.

import (
	"context"
	"errors"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockpool/lockpool"
)

var keepTests = []test{
	{"FromTheSecondUse", keptFromTheSecondUse, needKeeping},
	{"Traced", keptWithTraces, needKeeping},
	{"ComesFreeForOthers", keptComesFreeForOthers, needKeeping},
	{"Learns", keepingIsLearned, needKeeping},
	{"InUseComesFreeWithTheUnlock", keptInUseComesFree, needKeeping},
	{"TriesOfOthers", triesGetUnusedKeptLocks, needKeeping},
	{"Readers", keptByReaders, needKeeping},
	{"IsBounded", keepingIsBounded, needKeeping},
	{"EndsWithThePool", keptEndsWithThePool, needKeeping},
	{"OnlyForThoseAlone", contendedLocksAreNotKept, needKeeping},
	{"AllCalls", keptIsTakenByAllCalls, needKeeping},
	{"Broken", keptIsBroken, append([]string{"Breaker"}, needKeeping...)},
	{"Revoked", keptIsRevoked, append([]string{"Revoker"}, needKeeping...)},
	{"LostSession", keptIsLostWithTheSession, needKeeping},
	{"HoldAtLeast", keptAfterARest, needKeeping},
	{"Leader", keptIsTakenByALeader, needKeeping},
	{"DowngradedInUse", keptIsDowngraded, append([]string{"Downgrader", "Revoker"}, needKeeping...)},
	{"Downgraded", downgradedLocksAreNotKept, append([]string{"Downgrader"}, needKeeping...)},
}

var needKeeping = []string{"Follower"}

// keeps is the option, with locks that are kept longer than any test.
var keeps = lockpool.WithKeptLocks(0, time.Hour)

// keep uses a lock until the pool keeps the lock, and returns the last token.
func (b *bench) keep(p *lockpool.Pool, name string, opts ...lockpool.LockOption) (token int64) {
	b.Helper()
	before := p.Stats().Kept
	for range 2 {
		require.Equal(b, before, p.Stats().Kept)
		l := b.lock(p, name, opts...)
		token = b.token(l)
		b.unlock(l)
	}
	require.Equal(b, before+1, p.Stats().Kept, "the second use")
	return token
}

func keptFromTheSecondUse(b *bench) {
	p, a := b.pool(keeps), b.name("a")
	token := b.keep(p, a)
	shown := b.contenders(a)
	require.Len(b, shown, 1)
	require.True(b, shown[0].Holds)
	require.True(b, shown[0].Kept)
	require.True(b, shown[0].Unused.IsZero(), "another process does not know")
	q, err := p.Queue(b.ctx, a)
	require.NoError(b, err)
	require.False(b, q.Contenders[0].Unused.IsZero())
	for turn := range int64(3) {
		l := b.lock(p, a)
		next := b.token(l)
		require.Greater(b, next, token)
		token = next
		require.Equal(b, shown[0].Node, b.contenders(a)[0].Node)
		stats := p.Stats()
		require.Equal(b, []int64{0, 1, turn + 1}, []int64{int64(stats.Kept), int64(stats.Held), stats.KeptTurns})
		require.NoError(b, l.Verify(b.ctx))
		b.unlock(l)
	}
}

// keptWithTraces uses kept locks in a trace: such a call has spans, and may find the turns among
// those of the calls that wait.
func keptWithTraces(b *bench) {
	b.ctx = trace.ContextWithSpanContext(b.ctx, trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}}))
	keptFromTheSecondUse(b)
}

func keptComesFreeForOthers(b *bench) {
	p, other, a := b.pool(keeps), b.pool(), b.name("a")
	token := b.keep(p, a)
	l := b.lock(other, a)
	require.Greater(b, b.token(l), token)
	stats := p.Stats()
	require.Equal(b, []int{0, 1}, []int{stats.Kept, int(stats.AskedBack)})
	b.unlock(l)
}

// keepingIsLearned has others ask for a kept lock after many uses, and after none.
func keepingIsLearned(b *bench) {
	p, other, a := b.pool(keeps), b.pool(), b.name("a")
	b.keep(p, a)
	for range 10 {
		b.unlock(b.lock(p, a))
	}
	b.unlock(b.lock(other, a))
	b.unlock(b.lock(p, a))
	require.Equal(b, 1, p.Stats().Kept, "keeping has paid")
	b.unlock(b.lock(other, a))
	b.unlock(b.lock(p, a))
	require.Zero(b, p.Stats().Kept, "keeping has not paid")

	// So has keeping a lock that makes room for another.
	p, c := b.pool(lockpool.WithKeptLocks(1, time.Hour)), b.name("c")
	use := func(name string, times int) {
		for range times {
			b.unlock(b.lock(p, name))
		}
		b.until(func() bool { return p.Stats().Kept == 1 }, "the other is given back")
	}
	use(a, 8)
	b.unlock(b.lock(other, a))
	use(a, 1) // kept at once
	use(c, 2)
	b.unlock(b.lock(other, a))
	b.unlock(b.lock(p, a))
	require.Empty(b, b.contenders(a))
}

func keptInUseComesFree(b *bench) {
	p, other, a := b.pool(keeps), b.pool(), b.name("a")
	b.keep(p, a)
	l := b.lock(p, a)
	next := b.enqueue(other, a, 2)
	b.until(func() bool { return p.Stats().AskedBack == 1 }, "the pool knows")
	again := b.enqueue(p, a, 3) // behind the other
	b.unlock(l)
	b.unlock(next.granted())
	b.unlock(again.granted())
}

func triesGetUnusedKeptLocks(b *bench) {
	p, other, a := b.pool(keeps), b.pool(keeps), b.name("a")
	b.keep(p, a)
	l, err := other.TryLock(b.ctx, a)
	for !b.bubble && errors.Is(err, lockpool.ErrLocked) { // a busy machine answers late
		l, err = other.TryLock(b.ctx, a)
	}
	require.NoError(b, err)
	b.unlock(l)
	b.keepAgain(p, a)
	l = b.lock(p, a)
	_, err = other.TryLock(b.ctx, a)
	require.ErrorIs(b, err, lockpool.ErrLocked, "the lock is in use")
	_, err = other.TryLock(b.ctx, a)
	require.ErrorIs(b, err, lockpool.ErrLocked)
	b.unlock(l)
	b.keepAgain(p, a)
	l, err = p.TryLock(b.ctx, a)
	require.NoError(b, err)
	b.unlock(l)
	ended, cancel := context.WithCancel(b.ctx)
	cancel()
	_, err = other.TryLock(ended, a)
	require.ErrorIs(b, err, context.Canceled)
}

// keepAgain is keep after the pool was asked for the lock.
func (b *bench) keepAgain(p *lockpool.Pool, name string) {
	b.Helper()
	for range 64 {
		b.unlock(b.lock(p, name))
		if p.Stats().Kept > 0 {
			return
		}
	}
	require.Fail(b, "the lock is not kept again")
}

func keptByReaders(b *bench) {
	pools, a := b.pools(2, keeps), b.name("a")
	writer := b.pool()
	b.keep(pools[0], a, lockpool.Shared())
	other := b.read(writer, a) // wants nothing that the reader has
	b.settle()                 // the pool has looked before the other leaves, and looks again
	b.unlock(other)
	b.settle()
	require.Equal(b, 1, pools[0].Stats().Kept)
	b.keep(pools[1], a, lockpool.Shared())
	first, second := b.read(pools[0], a), b.read(pools[0], a)
	b.queued(a, 2) // a pool that has not noticed the other one's read yet gives up the kept node for a new one
	b.unlock(first)
	b.unlock(second)
	b.unlock(b.lock(writer, a))
	require.Zero(b, pools[0].Stats().Kept+pools[1].Stats().Kept)

	// A writer of the pool itself asks, too, and waits for other readers.
	b.keep(pools[0], b.name("b"), lockpool.Shared())
	reader := b.read(writer, b.name("b"))
	next := b.startLock(pools[0], b.name("b"))
	next.waits()
	b.unlock(reader)
	b.unlock(next.granted())
	l, err := pools[0].TryLock(b.ctx, b.name("b"), lockpool.Shared())
	require.NoError(b, err)
	b.unlock(l)
}

func keepingIsBounded(b *bench) {
	p := b.pool(lockpool.WithKeptLocks(2, time.Hour))
	b.keep(p, b.name("1"))
	b.keep(p, b.name("2"))
	b.unlock(b.lock(p, b.name("1")))
	b.unlock(b.lock(p, b.name("3")))
	b.unlock(b.lock(p, b.name("3"))) // in the place of 2, unused for longest
	b.until(func() bool { return len(b.contenders(b.name("2"))) == 0 }, "2 is free")
	require.Len(b, b.list(b.prefix), 2)
	require.Equal(b, 2, p.Stats().Kept)

	short := b.pool(lockpool.WithKeptLocks(0, time.Second))
	began := time.Now()
	b.keep(short, b.name("4"))
	b.until(func() bool { return len(b.contenders(b.name("4"))) == 0 }, "4 is free")
	b.took(time.Second, began)
	require.Zero(b, short.Stats().Kept)
}

func keptEndsWithThePool(b *bench) {
	for way, end := range map[string]func(p *lockpool.Pool) error{
		"Close":    func(p *lockpool.Pool) error { return p.Close() },
		"Shutdown": func(p *lockpool.Pool) error { return p.Shutdown(b.ctx) },
	} {
		p, a := b.pool(keeps), b.name(way)
		b.keep(p, a)
		require.NoError(b, end(p))
		require.Empty(b, b.contenders(a), way)
	}
	// Shutdown waits for holders, and keeps nothing meanwhile.
	p, a := b.pool(keeps), b.name("a")
	b.keep(p, a)
	b.keep(p, b.name("b"))
	l := b.lock(p, a)
	down := do(b, p.Shutdown)
	b.until(func() bool { return len(b.contenders(b.name("b"))) == 0 }, "b is free")
	b.unlock(l)
	require.NoError(b, down.returned())
	require.Empty(b, b.contenders(a))
}

func contendedLocksAreNotKept(b *bench) {
	p, other, a := b.pool(keeps), b.pool(), b.name("a")
	l := b.lock(p, a)
	for range 5 {
		next := b.enqueue(other, a, 2)
		b.unlock(l)
		l = next.granted()
		next = b.enqueue(p, a, 2)
		b.unlock(l)
		l = next.granted()
	}
	b.unlock(l)
	require.Zero(b, p.Stats().AskedBack)
}

// keptIsTakenByAllCalls begins with a pool that has no queue in memory.
func keptIsTakenByAllCalls(b *bench) {
	first, c := b.pool(keeps), b.name("c")
	for range 2 {
		l, err := first.TryLock(b.ctx, c)
		require.NoError(b, err)
		b.unlock(l)
	}
	require.Equal(b, 1, first.Stats().Kept)

	p, names := b.pool(keeps), []string{b.name("a"), b.name("b")}
	for _, name := range names {
		b.keep(p, name)
	}
	for range 3 {
		all := b.lockAll(p, names)
		require.NoError(b, all.Unlock(b.ctx))
		require.NoError(b, p.Do(b.ctx, names[0], func(ctx context.Context) error {
			return p.Do(ctx, names[1], nothing)
		}))
		h := b.handle(p)
		l, err := h.TryLock(b.ctx, names[0])
		require.NoError(b, err)
		b.unlock(b.lock(h, names[1]))
		b.unlock(b.lock(h, names[0]))
		b.unlock(l)
		b.close(h)
	}
	require.EqualValues(b, 3*6, p.Stats().KeptTurns)
	require.Equal(b, 2, p.Stats().Kept)
}

func keptIsTakenByALeader(b *bench) {
	p, a := b.pool(keeps), b.name("a")
	b.keep(p, a)
	require.NoError(b, p.Elect(b.ctx, a, func(context.Context) error {
		stats := p.Stats()
		require.Equal(b, []int64{0, 1}, []int64{int64(stats.Kept), stats.KeptTurns})
		return nil
	}))
	require.Equal(b, 1, p.Stats().Kept)
}

func keptIsBroken(b *bench)             { keptIsTakenAnew(b, b.breakHolder) }
func keptIsLostWithTheSession(b *bench) { keptIsTakenAnew(b, b.expire) }

// keptIsTakenAnew has a pool lose a kept lock.
func keptIsTakenAnew(b *bench, lose func(name string)) {
	p, a := b.pool(keeps), b.name("a")
	token := b.keep(p, a)
	lose(a)
	b.until(func() bool { return p.Stats().Kept == 0 }, "the pool knows")
	l := b.lock(p, a)
	require.Greater(b, b.token(l), token)
	b.unlock(l)
}

func keptIsRevoked(b *bench) {
	p, a := b.pool(keeps), b.name("a")
	b.keep(p, a)
	require.NoError(b, b.looker.Revoke(b.ctx, a))
	b.until(func() bool { return len(b.contenders(a)) == 0 }, "a is free")
	require.Zero(b, p.Stats().Kept)
}

func keptAfterARest(b *bench) {
	p, a := b.pool(keeps), b.name("a")
	b.keep(p, a)
	granted := time.Now()
	b.unlock(b.lock(p, a, lockpool.HoldAtLeast(short)))
	b.unlock(b.lock(p, a))
	b.took(short, granted)
	require.Equal(b, 1, p.Stats().Kept)
	b.unlock(b.lock(p, a, lockpool.HoldAtLeast(short)))
	b.unlock(b.lock(b.pool(), a))
}

func downgradedLocksAreNotKept(b *bench) {
	p, a := b.pool(keeps), b.name("a")
	b.keep(p, a)
	h := b.handle(p)
	l := b.lock(h, a)
	inner := b.read(h, a)
	b.unlock(l)
	if b.bubble { // 100 ms after the grant, the reader has a node, which the pool may keep
		b.unlock(b.read(p, a)) // shared
	}
	b.unlock(inner)
	b.isFree(a)
	require.Zero(b, p.Stats().Kept)
}

func keptIsDowngraded(b *bench) {
	p, other, a := b.pool(keeps), b.pool(), b.name("a")
	b.keep(p, a)
	node := b.contenders(a)[0].Node
	h := b.handle(p)
	l := b.lock(h, a)
	token := b.token(l)
	reader := b.read(h, a)
	b.unlock(l)
	next := b.enqueue(other, a, 2)
	b.until(func() bool { return p.Stats().AskedBack == 1 }, "the pool knows")
	b.settle()
	require.LessOrEqual(b, b.contenders(a)[0].Token, token)
	require.NoError(b, b.looker.Revoke(b.ctx, a, node))
	b.await(reader.Revoked(), "the revocation")
	b.unlock(reader)
	b.unlock(next.granted())
}
