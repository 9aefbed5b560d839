package behavior

// This file has the tests of deadlocks.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/plays"
)

var deadlockTests = []test{
	{"OfPools", deadlockOfPools, nil},
	{"OfOnePool", deadlockOfOnePool, nil},
	{"OfPlainLocks", func(b *bench) { deadlockOfKinds(b, plainly, exclusively) }, plainLocker},
	{"OfPermits", func(b *bench) { deadlockOfKinds(b, permitsOf(2, 3), exclusively) }, limiter},
	{"WithoutAStatedLimit", deadlockWithoutAStatedLimit, limiter},
	{"UnderANameWithALimit", deadlockUnderANameWithALimit, limiter},
	{"OfSeveralLocks", func(b *bench) { deadlockOfKinds(b, withAll, exclusively) }, nil},
	{"ThroughAWaitingWriter", deadlockThroughAWaitingWriter, nil},
	{"WithoutACycle", noDeadlockWithoutACycle, limiter},
	{"HoldThatEnds", holdThatEndsBreaksTheCycle, nil},
	{"VictimDecidesItself", victimDecidesItself, nil},
	{"Off", deadlockCheckOff, nil},
	{"OffForTheLast", deadlockCheckOffForTheLast, nil},
	{"Later", deadlockCheckLater, nil},
	{"Several", severalDeadlocks, nil},
	{"ThatALimitCloses", deadlockThatALimitCloses, limiter},
	{"OfMixedKinds", deadlockOfMixedKinds, []string{"Limiter", "PlainLocker"}},
	{"OfMixedKindsInOnePool", deadlockOfMixedKindsInOnePool, []string{"Limiter", "PlainLocker"}},
	{"ThatAGuardClosesLate", deadlockThatAGuardClosesLate, limiter},
	{"ThatAnotherGuardClosesLate", deadlockThatAnotherGuardClosesLate, limiter},
	{"VictimKeepsItsAge", victimKeepsItsAge, nil},
	{"VictimKeepsItsAgeInLockAll", victimKeepsItsAgeInLockAll, nil},
	{"NobodyStarves", nobodyStarves, nil},
	{"LockAllAsksOnce", lockAllAsksOnce, nil},
	{"LockAllAsksOnceForPlainLocks", lockAllAsksOnceForPlainLocks, plainLocker},
	{"WaitKeepsItsPlace", waitKeepsItsPlace, []string{"Downgrader"}},
	{"HoldThatOthersShare", holdThatOthersShareEnds, nil},
	{"HoldThatBecomesShared", deadlockThroughADowngrade, []string{"Downgrader"}},
	{"RevokedParties", deadlockOfRevokedParties, []string{"Revoker", "Limiter", "PlainLocker"}},
}

// What the tests have in common with the plays.
type ask = plays.Ask

var (
	exclusively, plainly, toRead = plays.Exclusively, plays.Plainly, plays.ToRead
	withAll, permitsOf           = plays.WithAll, plays.Permits
)

// party is a handle with some locks, waiting for another one.
type party struct {
	*call[struct{}]
	h *lockpool.Handle
	p *lockpool.Pool
}

// parties returns n handles of pools of their own.
func (b *bench) parties(n int, opts ...lockpool.Option) []*party {
	return b.partiesOf(b.pools(n, opts...)...)
}

// partiesOf returns a handle of each of the pools.
func (b *bench) partiesOf(pools ...*lockpool.Pool) (all []*party) {
	for _, p := range pools {
		all = append(all, &party{p: p, h: b.handle(p)})
	}
	return all
}

// holds takes locks.
func (b *bench) holds(p *party, get ask, name string) {
	b.Helper()
	require.NoError(b, get(b.ctx, p.h, name))
}

// asks starts to wait for a lock, and returns when the call waits. The wait for a plain lock is
// shown to others a moment later.
func (b *bench) asks(p *party, get ask, name string) {
	b.Helper()
	before := p.p.Stats().Waiting
	b.begins(p, get, name)
	b.until(func() bool { return p.p.Stats().Waiting > before }, "the party waits")
}

func (b *bench) begins(p *party, get ask, name string) {
	p.call = do(b, func(ctx context.Context) error { return get(ctx, p.h, name) })
}

// shown waits until another process sees a wait for the lock by a call with other locks.
func (b *bench) shown(name string) {
	b.Helper()
	b.until(func() bool {
		g, err := b.looker.Waits(b.ctx, name)
		require.NoError(b, err)
		return slices.ContainsFunc(g.Parties, func(p lockpool.Party) bool { return p.Wait != nil && p.Wait.At != "" })
	}, "a wait for %s is shown", name)
}

// victims waits until each of the parties has got the asked lock or failed, and so released
// its locks, and returns the indices of the failed parties, sorted.
func (b *bench) victims(parties ...*party) (victims []int) {
	b.Helper()
	for left := slices.Clone(parties); len(left) > 0; {
		var i int
		b.until(func() bool {
			i = slices.IndexFunc(left, func(p *party) bool { return plays.Closed(p.done) })
			return i >= 0
		}, "a party goes on")
		p := left[i]
		left = slices.Delete(left, i, i+1)
		if p.err != nil {
			require.ErrorIs(b, p.err, lockpool.ErrDeadlock)
			victims = append(victims, slices.Index(parties, p))
		}
		b.close(p.h)
	}
	slices.Sort(victims)
	return victims
}

// looks is within how much time a deadlock is found.
const looks = time.Second

func deadlockOfPools(b *bench) {
	for _, n := range []int{2, 3, 20} {
		name := func(i int) string { return b.name(fmt.Sprintf("of-%d-lock-%d", n, i%n)) }
		parties := b.parties(n, lockpool.WithOwner("test"))
		for i, p := range parties {
			b.holds(p, exclusively, name(i))
		}
		for i, p := range parties[:n-1] {
			b.asks(p, exclusively, name(i+1))
		}
		last, began := parties[n-1], time.Now()
		b.begins(last, exclusively, name(0))
		err := last.returned()
		b.took(0, began.Add(looks/2))
		require.Equal(b, []int{n - 1}, b.victims(parties...))

		var deadlock *lockpool.DeadlockError
		require.ErrorAs(b, err, &deadlock)
		require.Len(b, deadlock.Cycle, n)
		for i, w := range deadlock.Cycle {
			require.Equal(b, []string{name(n - 1 + i), name(n + i), "test"}, []string{w.Holds[0].Lock, w.Wait.Lock, w.Owner}, "%d", i)
			require.Equal(b, os.Getpid(), w.PID)
			require.Regexp(b, `^plays\.\S+ \(deadlock.go:\d+\) from `, w.Wait.At)
		}
		var lockErr *lockpool.LockError
		require.ErrorAs(b, err, &lockErr)
		require.Equal(b, "deadlock", lockErr.ErrorType())
		require.NotErrorIs(b, err, context.Canceled)
		require.Equal(b, n, strings.Count(err.Error(), " holds "), err)
	}
}

func deadlockOfOnePool(b *bench) {
	p := b.pool()
	parties := b.partiesOf(p, p)
	b.faces(parties, exclusively, exclusively, "1", "2")
	began := time.Now()
	b.begins(parties[1], exclusively, b.name("1"))
	_ = parties[1].returned()
	b.took(0, began) // no service is asked
	require.Equal(b, []int{1}, b.victims(parties...))
}

// deadlockOfKinds lets a kind of lock be held and asked for in cycles, also with another kind.
func deadlockOfKinds(b *bench, get, other ask) {
	for i, second := range []ask{get, other} {
		parties := b.parties(2)
		x, _ := b.faces(parties, get, second, fmt.Sprint("x", i), fmt.Sprint("y", i))
		b.begins(parties[1], get, x)
		require.Len(b, b.victims(parties...), 1)
	}
}

func deadlockWithoutAStatedLimit(b *bench) {
	for _, name := range []string{"x0", "y0", "x1"} {
		require.NoError(b, b.looker.Semaphore(b.name(name), 0).SetLimit(b.ctx, 3))
	}
	deadlockOfKinds(b, permitsOf(2, 0), permitsOf(1, 1))
}

// A limit, and what callers for permits have left, stay when the name is used for exclusive locks.
func deadlockUnderANameWithALimit(b *bench) {
	s := b.pool().Semaphore(b.name("s"), 3)
	require.NoError(b, s.SetLimit(b.ctx, 2))
	b.unlock(b.acquire(s, 1))
	parties := b.parties(2)
	b.pair("s", "a", parties...)
	_, err := b.looker.Waits(b.ctx, b.name("s"))
	require.NoError(b, err)
	require.Equal(b, []int{1}, b.victims(parties...))
}

// A reader without contended locks is no part of the cycle, but the writer between two
// readers is.
func deadlockThroughAWaitingWriter(b *bench) {
	p := b.pool()
	for i, parties := range [][]*party{b.parties(3), b.partiesOf(p, p, p)} {
		one, two, writer := parties[0], parties[1], parties[2]
		x, y := b.name(fmt.Sprint("x", i)), b.name(fmt.Sprint("y", i))
		b.holds(one, toRead, x)
		b.holds(two, exclusively, y)
		b.asks(writer, exclusively, x)
		b.queued(x, 2)
		b.asks(one, exclusively, y)
		began := time.Now()
		b.begins(two, toRead, x)
		require.Equal(b, []int{1}, b.victims(parties...))
		b.took(looks/2, began)
		var deadlock *lockpool.DeadlockError
		require.ErrorAs(b, two.err, &deadlock)
		require.Len(b, deadlock.Cycle, 3)
		require.Empty(b, deadlock.Cycle[1].Holds)
	}
}

func noDeadlockWithoutACycle(b *bench) {
	// Two readers wait for a lock held by a third handle, able to release the lock.
	readers, x, y := b.parties(2), b.name("x"), b.name("y")
	third := b.lock(b.pool(), y)
	for _, p := range readers {
		b.holds(p, toRead, x)
		b.asks(p, exclusively, y)
	}
	// A permit can come from a third handle.
	parties, s, z := b.parties(2), b.name("s"), b.name("z")
	b.holds(parties[0], permitsOf(1, 2), s)
	permit := b.acquire(b.pool().Semaphore(s, 2), 1)
	b.holds(parties[1], exclusively, z)
	b.asks(parties[1], permitsOf(1, 2), s)
	b.asks(parties[0], exclusively, z)
	time.Sleep(2 * looks) // time for a look
	b.unlock(third)
	b.unlock(permit)
	require.Empty(b, b.victims(append(readers, parties...)...))
}

// An Unlock by another goroutine during the handle's wait breaks the cycle.
func holdThatEndsBreaksTheCycle(b *bench) {
	parties, x, y := b.parties(2), b.name("x"), b.name("y")
	one, two := parties[0], parties[1]
	held := b.lock(one.h, x)
	b.holds(two, exclusively, y)
	b.asks(one, exclusively, y)
	b.unlock(held)
	b.begins(two, exclusively, x)
	require.Empty(b, b.victims(two, one))
}

// The victim keeps its locks, and may ask again.
func victimDecidesItself(b *bench) {
	parties := b.parties(2)
	one, two := parties[0], parties[1]
	x, y := b.faces(parties, exclusively, exclusively, "x", "y")
	require.ErrorIs(b, exclusively(b.ctx, two.h, x), lockpool.ErrDeadlock)
	l := b.lock(two.h, y) // enters again
	require.NoError(b, l.Verify(b.ctx))
	require.ErrorIs(b, exclusively(b.ctx, two.h, x), lockpool.ErrDeadlock)
	one.waits()
	b.close(two.h)
	require.NoError(b, one.returned())
	b.close(one.h)
}

func deadlockCheckOff(b *bench) {
	parties := b.parties(2, lockpool.WithDeadlockCheck(0))
	one, two := parties[0], parties[1]
	x, _ := b.faces(parties, exclusively, exclusively, "x", "y")
	b.asks(two, exclusively, x)
	time.Sleep(2 * looks) // time for a look
	one.waits()
	two.waits()
	b.close(one.h)
	require.ErrorIs(b, one.returned(), lockpool.ErrHandleClosed)
	require.NoError(b, two.returned())
	b.close(two.h)
}

// faces lets the first of two parties hold x and wait for y, which the second holds. It
// returns the names of both locks.
func (b *bench) faces(parties []*party, get, other ask, x, y string) (string, string) {
	b.Helper()
	x, y = b.name(x), b.name(y)
	b.holds(parties[0], get, x)
	b.holds(parties[1], other, y)
	b.asks(parties[0], other, y)
	return x, y
}

// pair closes a cycle of two parties, whose second asks last.
func (b *bench) pair(x, y string, parties ...*party) {
	b.Helper()
	x, _ = b.faces(parties, exclusively, exclusively, x, y)
	b.begins(parties[1], exclusively, x)
}

// Where the last call does not look, the one before is the victim.
func deadlockCheckOffForTheLast(b *bench) {
	one, last := b.parties(1)[0], b.parties(1, lockpool.WithDeadlockCheck(0))[0]
	b.pair("x", "y", one, last)
	require.Equal(b, []int{0}, b.victims(one, last))
}

func deadlockCheckLater(b *bench) {
	parties := b.parties(2, lockpool.WithDeadlockCheck(3*looks))
	b.pair("x", "y", parties[:2]...)
	began := time.Now()
	require.Equal(b, []int{1}, b.victims(parties...))
	require.GreaterOrEqual(b, time.Since(began), 2*looks)
}

// Two separate cycles have a victim each.
func severalDeadlocks(b *bench) {
	parties := b.parties(4)
	b.pair("x", "y", parties[:2]...)
	b.pair("v", "w", parties[2:]...)
	require.Equal(b, []int{1, 3}, b.victims(parties...))
}

// No call asks when a limit is set.
func deadlockThatALimitCloses(b *bench) {
	parties, s, x := b.parties(2), b.name("s"), b.name("x")
	one, two := parties[0], parties[1]
	b.holds(one, permitsOf(1, 3), s)
	other := b.acquire(b.pool().Semaphore(s, 3), 1)
	b.holds(two, exclusively, x)
	b.asks(two, permitsOf(2, 3), s)
	b.queued(s, 3)
	b.asks(one, exclusively, x)
	b.settle()
	one.waits()
	require.NoError(b, b.looker.Semaphore(s, 0).SetLimit(b.ctx, 2))
	require.ErrorIs(b, one.returned(), lockpool.ErrDeadlock)
	b.close(one.h)
	b.unlock(other)
	require.NoError(b, two.returned())
	b.close(two.h)
}

// mixed are cycles of n parties, each holding a lock of some kind and asking for the next
// party's lock.
func mixed(n int) (kinds [][]ask) {
	all := []ask{plainly, permitsOf(2, 3), withAll, exclusively}
	for first := range all {
		var kind []ask
		for i := range n {
			kind = append(kind, all[(first+i)%len(all)])
		}
		kinds = append(kinds, kind)
	}
	return kinds
}

// cycle lets parties close a cycle, one after the other, and returns the indices of the parties
// ended by a deadlock.
func (b *bench) cycle(name string, kinds []ask, parties []*party) []int {
	n := len(parties)
	lock := func(i int) string { return b.name(fmt.Sprintf("%s-%d", name, i%n)) }
	for i, p := range parties {
		b.holds(p, kinds[i], lock(i))
	}
	for i, p := range parties[:n-1] {
		b.asks(p, kinds[(i+1)%n], lock(i+1))
		b.shown(lock(i + 1))
	}
	b.begins(parties[n-1], kinds[0], lock(n))
	return b.victims(parties...)
}

// The call that asked last fails, for all kinds.
func deadlockOfMixedKinds(b *bench) {
	for n := 3; n <= 5; n++ {
		for i, kinds := range mixed(n) {
			parties := b.parties(n)
			require.Equal(b, []int{n - 1}, b.cycle(fmt.Sprintf("mixed-%d-%d", n, i), kinds, parties), "%d, %d", n, i)
		}
	}
}

func deadlockOfMixedKindsInOnePool(b *bench) {
	for i, kinds := range mixed(4) {
		parties := b.partiesOf(slices.Repeat([]*lockpool.Pool{b.pool()}, len(kinds))...)
		began := time.Now()
		require.Equal(b, []int{3}, b.cycle(fmt.Sprint("mixed-", i), kinds, parties), "%d", i)
		b.took(0, began) // found in memory
	}
}

// guardClosesLate closes a cycle without a new call: when the guard in front of a wait for permits
// leaves. The visitors ask for permits first, and hold nothing. The victim is the last call to
// ask.
func (b *bench) guardClosesLate(permits int, visitors ...int) {
	parties, s, x := b.parties(2+len(visitors)), b.name("s"), b.name("x")
	one, two := parties[0], parties[1]
	b.holds(one, permitsOf(1, 3), s)
	others := b.acquire(b.pool().Semaphore(s, 3), 2)
	b.holds(two, exclusively, x)
	for i, n := range visitors {
		b.asks(parties[2+i], permitsOf(n, 3), s)
		b.queued(s, 3+i)
	}
	b.asks(two, permitsOf(permits, 3), s)
	b.queued(s, 3+len(visitors))
	b.asks(one, exclusively, x)
	time.Sleep(2 * looks) // time for a look
	b.unlock(others)
	require.Equal(b, []int{0}, b.victims(parties...))
}

func deadlockThatAGuardClosesLate(b *bench) { b.guardClosesLate(3, 1) }

// The wait with the turn may hold nothing. Then the victim is a call that asked long
// before.
func deadlockThatAnotherGuardClosesLate(b *bench) { b.guardClosesLate(1, 1, 3) }

// A victim trying again is older than callers that asked after the first try, with a handle
// of its own and, by the goroutine, without.
func victimKeepsItsAge(b *bench) {
	parties := b.parties(2)
	one, two := parties[0], parties[1]
	x, y := b.faces(parties, exclusively, exclusively, "x", "y")
	require.ErrorIs(b, exclusively(b.ctx, two.h, x), lockpool.ErrDeadlock)
	again, err := two.h.Lock(b.ctx, y) // y was held before
	require.NoError(b, err)
	b.unlock(again)
	b.close(one.h)
	require.Error(b, one.returned())
	one.h = b.handle(one.p)
	b.holds(one, exclusively, x)
	b.begins(two, exclusively, x)
	b.until(func() bool { return two.p.Stats().Waiting > 0 }, "the party waits")
	b.begins(one, exclusively, y)
	require.Equal(b, []int{0}, b.victims(one, two))
}

// The same for LockAll, which waits for another lock before at the second try.
func victimKeepsItsAgeInLockAll(b *bench) {
	parties := b.parties(3)
	all, one, two := parties[0], parties[1], parties[2]
	x, first, second := b.name("x"), b.name("first"), b.name("second")
	lockAll := func(ctx context.Context, h *lockpool.Handle, _ string) error {
		_, err := h.LockAll(ctx, []string{first, second})
		return err
	}
	b.holds(all, exclusively, x)
	b.holds(one, exclusively, second)
	b.asks(one, exclusively, x)
	require.ErrorIs(b, lockAll(b.ctx, all.h, ""), lockpool.ErrDeadlock)
	b.close(one.h)
	require.Error(b, one.returned())

	b.holds(two, exclusively, second)
	b.asks(two, exclusively, x)
	b.shown(x)
	l := b.lock(b.looker, first)
	b.asks(all, lockAll, "")
	b.shown(first)
	b.unlock(l)
	require.Equal(b, []int{1}, b.victims(all, two))
}

// The same with handles of the calls, in a loop: one of them begins later than the others each
// time. One keeps another lock all the time, and each has a goroutine for a try, and other
// nested locks before.
func nobodyStarves(b *bench) {
	const callers = 3
	turns, starved := make([]int, callers), make([]int, callers)
	pools, lock := b.pools(callers), func(i int) string { return b.name(fmt.Sprint("lock-", i%callers)) }
	leader := b.handle(pools[0])
	b.lock(leader, b.name("leader"))
	plays.Together(b, callers, func(i int) error {
		do := pools[i].Do
		if i == 0 {
			do = leader.Do
		}
		nested := func(first, second string) error {
			tried := make(chan error)
			go func() { // ends with the try
				tried <- do(b.ctx, first, func(ctx context.Context) error {
					time.Sleep(50 * time.Millisecond) // until all have the first of their locks
					return do(ctx, second, nothing)
				})
			}()
			return <-tried
		}
		own := b.name(fmt.Sprint("own-", i))
		for began := time.Now(); time.Since(began) < 6*looks || turns[i] == 0 && !b.bubble; {
			time.Sleep(time.Duration(i) * 10 * time.Millisecond)
			require.NoError(b, nested(own, own+"-too"))
			err := nested(lock(i), lock(i+1))
			switch {
			case err == nil:
				turns[i]++
				starved[i] = 0
			case errors.Is(err, lockpool.ErrDeadlock):
				if starved[i]++; starved[i] > 2*callers {
					return fmt.Errorf("caller %d is the victim for the %dth time on end", i, starved[i])
				}
			default:
				return err
			}
		}
		return nil
	})
	b.close(leader)
	b.Log("turns", turns)
	for i := range turns {
		require.NotZero(b, turns[i], "caller %d", i)
	}
}

// LockAll asks for all locks at the time of the first, even after a long wait for the
// first, so a call asking meanwhile is the victim.
func lockAllAsksOnce(b *bench) {
	x, first := b.name("x"), b.name("first")
	lockAllWaitsTwice(b, x, x)
	lockAllWaitsTwice(b, "", first)
}

func lockAllAsksOnceForPlainLocks(b *bench) {
	x := b.name("x")
	lockAllWaitsTwice(b, x, x, lockpool.Plain())
}

// lockAllWaitsTwice lets a party with a lock, or with none, wait for first and then for second,
// while another one has second and waits for wanted.
func lockAllWaitsTwice(b *bench, with, wanted string, opts ...lockpool.LockOption) {
	parties, first, second := b.parties(3), b.name("first"), b.name("second")
	all, last, other := parties[0], parties[1], parties[2]
	if with != "" {
		b.holds(all, exclusively, with)
	}
	b.lock(last.h, second, opts...)
	b.lock(other.h, first, opts...)
	b.asks(all, func(ctx context.Context, h *lockpool.Handle, _ string) error {
		_, err := h.LockAll(ctx, []string{first, second}, opts...)
		return err
	}, "")
	if with != "" {
		b.shown(first)
	}
	b.asks(last, exclusively, wanted)
	b.close(other.h)
	victims := b.victims(all, last)
	if b.bubble || opts == nil { // a wait for a plain lock may end before its order number is known
		require.Equal(b, []int{1}, victims)
	}
	require.Len(b, victims, 1)
}

// A wait keeps its place when another goroutine ends a hold of the same handle whose node
// stays: because a reader shares the node, or the lock rests, is passed on in memory, or is
// downgraded.
func waitKeepsItsPlace(b *bench) {
	p, others := b.pool(), b.pool()
	for name, end := range map[string]func(h *lockpool.Handle, name string) func(){
		"shared": func(h *lockpool.Handle, name string) func() {
			l := b.read(h, name)
			b.read(b.handle(p), name)
			return func() { b.unlock(l) }
		},
		"rests": func(h *lockpool.Handle, name string) func() {
			l := b.lock(h, name, lockpool.HoldAtLeast(short))
			return func() { b.unlock(l) }
		},
		"passed on": func(h *lockpool.Handle, name string) func() {
			l := b.lock(h, name)
			w := b.waiter(p, name, 1)
			return func() { b.unlock(l); b.unlock(w.granted()) }
		},
		"downgraded": func(h *lockpool.Handle, name string) func() {
			l := b.lock(h, name)
			b.read(h, name)
			return func() { b.unlock(l) }
		},
	} {
		h, busy := b.handle(p), b.name("busy "+name)
		ends := end(h, b.name("held "+name))
		held := b.lock(others, busy)
		first := b.enqueue(h, busy, 2)
		second := b.enqueue(others, busy, 3, lockpool.Shared())
		before := b.nodes(busy)
		ends()
		b.settle()
		b.settle()
		require.Equal(b, before, b.nodes(busy), name)
		b.unlock(held)
		b.unlock(first.granted())
		b.unlock(second.granted())
		b.close(h)
	}
	b.until(func() bool { return p.Stats().Resting == 0 }, "nothing rests")
}

// An Unlock by another goroutine breaks the cycle, also if the node stays because others of
// the pool share the node.
func holdThatOthersShareEnds(b *bench) {
	parties, x, y := b.parties(2), b.name("x"), b.name("y")
	one, two := parties[0], parties[1]
	began := time.Now()
	held := b.read(one.h, x)
	stays := b.read(b.handle(one.p), x)
	if time.Since(began) < 100*time.Millisecond { // later, a reader takes a separate node
		require.Len(b, b.nodes(x), 1)
	}
	b.holds(two, exclusively, y)
	b.asks(one, exclusively, y)
	b.unlock(held)
	b.begins(two, exclusively, x)
	time.Sleep(2 * looks) // time for a look
	two.waits()
	b.unlock(stays)
	require.Empty(b, b.victims(two, one))
}

// A cycle is found through a node named before its replacement.
func deadlockThroughADowngrade(b *bench) {
	parties, x, y := b.parties(2), b.name("x"), b.name("y")
	one, two := parties[0], parties[1]
	l := b.lock(one.h, x)
	b.read(one.h, x)
	b.holds(two, exclusively, y)
	b.asks(one, exclusively, y)
	b.unlock(l) // by another goroutine
	b.begins(two, exclusively, x)
	require.Equal(b, []int{0}, b.victims(two, one))
}

// Asking for a lock back hides nothing of a cycle.
func deadlockOfRevokedParties(b *bench) {
	for i, get := range []ask{exclusively, plainly, permitsOf(2, 3)} {
		parties := b.parties(2)
		x, y := b.faces(parties, get, get, fmt.Sprint("x", i), fmt.Sprint("y", i))
		b.shown(y)
		for _, name := range []string{x, y} {
			require.NoError(b, b.looker.Revoke(b.ctx, name, b.nodes(name)...))
		}
		b.begins(parties[1], get, x)
		require.Equal(b, []int{1}, b.victims(parties...), "%d", i)
	}
}
