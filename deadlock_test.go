package lockpool_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
)

// ask asks for a lock of some kind with a handle. What it gets is released when the handle
// is closed.
type ask func(ctx context.Context, h *lockpool.Handle, name string) error

func exclusively(ctx context.Context, h *lockpool.Handle, name string) error {
	_, err := h.Lock(ctx, name)
	return err
}

func plainly(ctx context.Context, h *lockpool.Handle, name string) error {
	_, err := h.Lock(ctx, name, lockpool.Plain())
	return err
}

func toRead(ctx context.Context, h *lockpool.Handle, name string) error {
	_, err := h.Lock(ctx, name, lockpool.Shared())
	return err
}

func withAll(ctx context.Context, h *lockpool.Handle, name string) error {
	_, err := h.LockAll(ctx, []string{name, name + "-too"})
	return err
}

// permits asks for n permits of limit.
func permits(n, limit int) ask {
	return func(ctx context.Context, h *lockpool.Handle, name string) error {
		_, err := h.Semaphore(name, limit).Acquire(ctx, n)
		return err
	}
}

// party is a handle that holds some locks and then waits for another one.
type party struct {
	*lockpool.Handle
	done chan struct{} // closed when the following is set
	err  error
}

// waitFor starts to wait for a lock.
func (p *party) waitFor(ctx context.Context, get ask, name string) {
	p.done = make(chan struct{})
	go func() {
		defer close(p.done)
		p.err = get(ctx, p.Handle, name)
	}()
}

// awaitVictim waits until one of the parties fails, and then lets it go and the others on.
// It returns the victims and how long the first took.
func awaitVictims(t *testing.T, b *locktest.Bench, parties []*party) (victims []int, first time.Duration) {
	t.Helper()
	began := time.Now()
	var mu sync.Mutex
	var all sync.WaitGroup
	for i, p := range parties {
		all.Go(func() {
			<-p.done
			mu.Lock()
			if p.err != nil {
				if len(victims) == 0 {
					first = time.Since(began)
				}
				victims = append(victims, i)
				assert.ErrorIs(t, p.err, lockpool.ErrDeadlock)
			}
			mu.Unlock()
			assert.NoError(t, p.Close(b.Ctx))
		})
	}
	all.Wait()
	return victims, first
}

// inCycle lets n handles of the given pools hold a lock each and ask for the next one's.
// The last one closes the cycle.
func inCycle(t *testing.T, b *locktest.Bench, pools []*lockpool.Pool, hold, want func(i int) ask) (parties []*party) {
	n := len(pools)
	name := func(i int) string { return fmt.Sprint("lock-", i%n) }
	for i, pool := range pools {
		p := &party{Handle: b.Handle(pool)}
		require.NoError(t, hold(i)(b.Ctx, p.Handle, name(i)))
		parties = append(parties, p)
	}
	for i, p := range parties {
		p.waitFor(b.Ctx, want((i+1)%n), name(i+1))
		if i < n-1 {
			b.Until(func() bool { return pools[i].Stats().Waiting > 0 }, "party %d waits", i)
		}
	}
	return parties
}

// breaksWithin is the time in which a deadlock is found. On real servers, beside other tests,
// it is only shorter than what a look that is missing would take.
func breaksWithin() time.Duration {
	if locktest.Embedded() {
		return 2 * time.Second
	}
	return 8 * time.Second
}

func everybody(a ask) func(int) ask { return func(int) ask { return a } }

func somePools(b *locktest.Bench, n int, opts ...lockpool.Option) (pools []*lockpool.Pool) {
	for range n {
		pools = append(pools, b.Pool(opts...))
	}
	return pools
}

func TestDeadlockOfPoolsEndsForTheLastToAsk(t *testing.T) {
	for _, n := range []int{2, 3, 7} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			locktest.Timed(t, func(t *testing.T) {
				b := locktest.New(t)
				parties := inCycle(t, b, somePools(b, n, lockpool.WithOwner("test")), everybody(exclusively), everybody(exclusively))
				victims, after := awaitVictims(t, b, parties)
				require.Equal(t, []int{n - 1}, victims)
				require.Less(t, after, time.Second)

				var deadlock *lockpool.DeadlockError
				err := parties[n-1].err
				require.ErrorAs(t, err, &deadlock)
				require.Len(t, deadlock.Cycle, n)
				for i, w := range deadlock.Cycle {
					require.Equal(t, fmt.Sprint("lock-", (n-1+i)%n), w.Holds, "%d", i)
					require.Equal(t, fmt.Sprint("lock-", (n+i)%n), w.Lock)
					require.Equal(t, "test", w.Owner)
					require.Equal(t, os.Getpid(), w.PID)
					require.Regexp(t, `^lockpool_test.exclusively \(deadlock_test.go:\d+\) from `, w.At)
				}
				var lockErr *lockpool.LockError
				require.ErrorAs(t, err, &lockErr)
				require.Equal(t, "deadlock", lockErr.ErrorType())
				require.NotErrorIs(t, err, context.Canceled)
				require.Equal(t, n, strings.Count(err.Error(), " holds "), err)
				require.Empty(t, b.Contenders("/"))
			})
		})
	}
}

func TestDeadlockOfOnePoolEndsAtOnce(t *testing.T) {
	for kind, get := range map[string]ask{"exclusive": exclusively, "plain": plainly, "permits": permits(2, 3), "all": withAll} {
		t.Run(kind, func(t *testing.T) {
			locktest.Timed(t, func(t *testing.T) {
				b := locktest.New(t)
				pool := b.Pool()
				one, two := &party{Handle: b.Handle(pool)}, &party{Handle: b.Handle(pool)}
				require.NoError(t, get(b.Ctx, one.Handle, "a"))
				require.NoError(t, get(b.Ctx, two.Handle, "b"))
				one.waitFor(b.Ctx, get, "b")
				b.AwaitWaiting(pool, 1)
				two.waitFor(b.Ctx, get, "a")
				victims, after := awaitVictims(t, b, []*party{one, two})
				require.Equal(t, []int{1}, victims)
				require.Less(t, after, 100*time.Millisecond)
			})
		})
	}
}

func TestDeadlockOfEachKind(t *testing.T) {
	kinds := map[string]ask{
		"exclusive": exclusively, "plain": plainly, "permits": permits(2, 3), "one permit": permits(1, 1), "all": withAll,
		"no stated limit": permits(2, 0),
	}
	for first, getFirst := range kinds {
		for second, getSecond := range kinds {
			t.Run(first+" and "+second, func(t *testing.T) {
				locktest.Slow(t, func(t *testing.T) {
					b := locktest.New(t)
					for i, kind := range []string{first, second} {
						if kind == "no stated limit" {
							require.NoError(t, b.Pool().Semaphore(fmt.Sprint("lock-", i), 0).SetLimit(b.Ctx, 3))
						}
					}
					kind := func(i int) ask { return []ask{getFirst, getSecond}[i] }
					parties := inCycle(t, b, somePools(b, 2), kind, kind)
					victims, after := awaitVictims(t, b, parties)
					require.Len(t, victims, 1)
					require.Less(t, after, breaksWithin())
					require.Empty(t, b.Contenders("/"))
				})
			})
		}
	}
}

// A reader that holds nothing anybody wants is no part of it, but the writer between two
// readers is.
func TestDeadlockThroughAWaitingWriter(t *testing.T) {
	locktest.Timed(t, func(t *testing.T) {
		b := locktest.New(t)
		one, two, writer := &party{Handle: b.Handle(b.Pool())}, &party{Handle: b.Handle(b.Pool())}, &party{Handle: b.Handle(b.Pool(lockpool.WithOwner("the writer")))}
		require.NoError(t, toRead(b.Ctx, one.Handle, "a"))
		require.NoError(t, exclusively(b.Ctx, two.Handle, "b"))
		writer.waitFor(b.Ctx, exclusively, "a")
		b.AwaitQueue("a", 2)
		one.waitFor(b.Ctx, exclusively, "b")
		b.AwaitQueue("b", 2)
		two.waitFor(b.Ctx, toRead, "a")
		victims, after := awaitVictims(t, b, []*party{one, two, writer})
		require.Equal(t, []int{1}, victims)
		require.Less(t, after, time.Second)
		var deadlock *lockpool.DeadlockError
		require.ErrorAs(t, two.err, &deadlock)
		require.Len(t, deadlock.Cycle, 3, deadlock)
		require.Equal(t, "the writer", deadlock.Cycle[1].Owner)
		require.Empty(t, deadlock.Cycle[1].Holds)
	})
}

func TestNoDeadlockWithoutACycle(t *testing.T) {
	for name, build := range map[string]func(t *testing.T, b *locktest.Bench, one, two *party){
		"readers": func(t *testing.T, b *locktest.Bench, one, two *party) {
			require.NoError(t, toRead(b.Ctx, one.Handle, "a"))
			require.NoError(t, toRead(b.Ctx, two.Handle, "a"))
			third := b.Lock(b.Handle(b.Pool()), "b")
			one.waitFor(b.Ctx, exclusively, "b")
			two.waitFor(b.Ctx, exclusively, "b")
			time.AfterFunc(5*time.Second, func() { _ = third.Unlock(b.Ctx) })
		},
		"a permit that somebody else can release": func(t *testing.T, b *locktest.Bench, one, two *party) {
			require.NoError(t, permits(1, 2)(b.Ctx, one.Handle, "s"))
			third := b.Acquire(b.Handle(b.Pool()).Semaphore("s", 2), 1)
			require.NoError(t, exclusively(b.Ctx, two.Handle, "a"))
			two.waitFor(b.Ctx, permits(1, 2), "s")
			b.AwaitQueue("s/leases", 3)
			one.waitFor(b.Ctx, exclusively, "a")
			time.AfterFunc(5*time.Second, func() { _ = third.Unlock(b.Ctx) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.Slow(t, func(t *testing.T) {
				b := locktest.New(t)
				one, two := &party{Handle: b.Handle(b.Pool())}, &party{Handle: b.Handle(b.Pool())}
				build(t, b, one, two)
				victims, _ := awaitVictims(t, b, []*party{one, two})
				require.Empty(t, victims)
			})
		})
	}
}

// What another goroutine unlocks while its handle waits breaks the cycle, also if the node
// stays, because a reader of the pool shares it.
func TestHoldThatEndsBreaksTheCycle(t *testing.T) {
	locktest.Slow(t, func(t *testing.T) {
		b := locktest.New(t)
		pool := b.Pool()
		one, two := &party{Handle: b.Handle(pool)}, &party{Handle: b.Handle(b.Pool())}
		held := b.Lock(one.Handle, "a", lockpool.Shared())
		stays := b.Lock(b.Handle(pool), "a", lockpool.Shared())
		require.Len(t, b.Children("a"), 1, "the two share a node")
		require.NoError(t, exclusively(b.Ctx, two.Handle, "b"))
		one.waitFor(b.Ctx, exclusively, "b")
		b.AwaitQueue("b", 2)
		b.Unlock(held)
		two.waitFor(b.Ctx, exclusively, "a")
		time.AfterFunc(5*time.Second, func() { _ = stays.Unlock(b.Ctx) })
		victims, _ := awaitVictims(t, b, []*party{one, two})
		require.Empty(t, victims)
	})
}

func TestWithDeadlockCheck(t *testing.T) {
	t.Run("negative", func(t *testing.T) {
		_, err := lockpool.Open("zookeeper", "127.0.0.1:1", lockpool.WithDeadlockCheck(-1))
		require.ErrorContains(t, err, "WithDeadlockCheck(-1ns): negative")
	})
	t.Run("off", func(t *testing.T) {
		locktest.Slow(t, func(t *testing.T) {
			b := locktest.New(t)
			parties := inCycle(t, b, somePools(b, 2, lockpool.WithDeadlockCheck(0)), everybody(exclusively), everybody(exclusively))
			time.Sleep(10 * time.Second) // several looks would have come
			for _, p := range parties {
				select {
				case <-p.done:
					require.FailNow(t, "the wait has ended", p.err)
				default:
				}
			}
			require.NoError(t, parties[0].Close(b.Ctx))
			<-parties[0].done
			require.ErrorIs(t, parties[0].err, lockpool.ErrHandleClosed)
			<-parties[1].done
			require.NoError(t, parties[1].err)
		})
	})
	t.Run("off for the last one", func(t *testing.T) { // then the one before is the victim
		locktest.Slow(t, func(t *testing.T) {
			b := locktest.New(t)
			parties := inCycle(t, b, []*lockpool.Pool{b.Pool(), b.Pool(lockpool.WithDeadlockCheck(0))}, everybody(exclusively), everybody(exclusively))
			victims, after := awaitVictims(t, b, parties)
			require.Equal(t, []int{0}, victims)
			require.Less(t, after, breaksWithin())
		})
	})
	t.Run("later", func(t *testing.T) {
		locktest.Slow(t, func(t *testing.T) {
			b := locktest.New(t)
			parties := inCycle(t, b, somePools(b, 2, lockpool.WithDeadlockCheck(5*time.Second)), everybody(exclusively), everybody(exclusively))
			victims, after := awaitVictims(t, b, parties)
			require.Equal(t, []int{1}, victims)
			require.GreaterOrEqual(t, after, 4*time.Second)
		})
	})
}

// The victim keeps what it holds, and may ask again.
func TestVictimOfADeadlockDecidesItself(t *testing.T) {
	locktest.Timed(t, func(t *testing.T) {
		b := locktest.New(t)
		pools := somePools(b, 2)
		parties := inCycle(t, b, pools, everybody(exclusively), everybody(exclusively))
		<-parties[1].done
		require.ErrorIs(t, parties[1].err, lockpool.ErrDeadlock)
		l, err := parties[1].Lock(b.Ctx, "lock-1") // enters again
		require.NoError(t, err)
		require.NoError(t, l.Verify(b.Ctx))
		_, err = parties[1].Lock(b.Ctx, "lock-0")
		require.ErrorIs(t, err, lockpool.ErrDeadlock)
		require.NoError(t, parties[1].Close(b.Ctx))
		<-parties[0].done
		require.NoError(t, parties[0].err)
	})
}

// Two cycles that share nothing have a victim each; two that share a wait have at least
// one, and none is left.
func TestSeveralDeadlocks(t *testing.T) {
	locktest.Timed(t, func(t *testing.T) {
		b := locktest.New(t)
		var parties []*party
		for range 2 {
			two := somePools(b, 2)
			n := len(parties)
			for i, pool := range two {
				p := &party{Handle: b.Handle(pool)}
				require.NoError(t, exclusively(b.Ctx, p.Handle, fmt.Sprint("lock-", n+i)))
				parties = append(parties, p)
			}
		}
		for i, p := range parties {
			p.waitFor(b.Ctx, exclusively, fmt.Sprint("lock-", i^1))
		}
		victims, after := awaitVictims(t, b, parties)
		require.Len(t, victims, 2)
		require.NotEqual(t, victims[0]/2, victims[1]/2)
		require.Less(t, after, time.Second)
	})
}

// A cycle may close without a new call: when a wait for permits becomes the first. The victim
// is nevertheless the one that has asked last.
func TestDeadlockThatAGuardClosesLate(t *testing.T) {
	locktest.Slow(t, func(t *testing.T) {
		b := locktest.New(t)
		one, two, visitor := &party{Handle: b.Handle(b.Pool())}, &party{Handle: b.Handle(b.Pool())}, &party{Handle: b.Handle(b.Pool())}
		require.NoError(t, permits(1, 3)(b.Ctx, one.Handle, "s"))
		others := b.Acquire(b.Handle(b.Pool()).Semaphore("s", 3), 2)
		require.NoError(t, exclusively(b.Ctx, two.Handle, "a"))
		visitor.waitFor(b.Ctx, permits(1, 3), "s")
		b.AwaitQueue("s/locks", 1)
		two.waitFor(b.Ctx, permits(3, 3), "s")
		b.AwaitQueue("s/locks", 2)
		time.Sleep(9 * time.Second) // the next look of the call that was made last comes after 15.5
		one.waitFor(b.Ctx, exclusively, "a")
		b.AwaitQueue("a", 2)
		b.Unlock(others)
		victims, after := awaitVictims(t, b, []*party{one, two, visitor})
		require.Equal(t, []int{0}, victims)
		require.Less(t, after, breaksWithin())
	})
}

// The wait that becomes the first may hold nothing. Then the victim is one that had asked
// long before.
func TestDeadlockThatAnotherGuardClosesLate(t *testing.T) {
	locktest.Slow(t, func(t *testing.T) {
		b := locktest.New(t)
		var parties []*party
		for range 4 {
			parties = append(parties, &party{Handle: b.Handle(b.Pool())})
		}
		one, two, first, second := parties[0], parties[1], parties[2], parties[3]
		require.NoError(t, permits(1, 3)(b.Ctx, one.Handle, "s"))
		others := b.Acquire(b.Handle(b.Pool()).Semaphore("s", 3), 2)
		require.NoError(t, exclusively(b.Ctx, two.Handle, "a"))
		first.waitFor(b.Ctx, permits(1, 3), "s")
		b.AwaitQueue("s/locks", 1)
		second.waitFor(b.Ctx, permits(3, 3), "s")
		b.AwaitQueue("s/locks", 2)
		two.waitFor(b.Ctx, permits(1, 3), "s")
		b.AwaitQueue("s/locks", 3)
		one.waitFor(b.Ctx, exclusively, "a")
		b.AwaitQueue("a", 2)
		time.Sleep(9 * time.Second)
		b.Unlock(others)
		victims, after := awaitVictims(t, b, parties)
		require.Equal(t, []int{0}, victims)
		require.Less(t, after, breaksWithin())
	})
}

// Nor does anybody ask when a limit is set.
func TestDeadlockThatALimitCloses(t *testing.T) {
	locktest.Slow(t, func(t *testing.T) {
		b := locktest.New(t)
		one, two := &party{Handle: b.Handle(b.Pool())}, &party{Handle: b.Handle(b.Pool())}
		require.NoError(t, permits(1, 3)(b.Ctx, one.Handle, "s"))
		other := b.Acquire(b.Pool().Semaphore("s", 3), 1)
		require.NoError(t, exclusively(b.Ctx, two.Handle, "a"))
		two.waitFor(b.Ctx, permits(2, 3), "s")
		b.AwaitQueue("s/leases", 4)
		one.waitFor(b.Ctx, exclusively, "a")
		b.AwaitQueue("a", 2)
		time.Sleep(9 * time.Second)
		require.NoError(t, b.Pool().Semaphore("s", 0).SetLimit(b.Ctx, 2))
		began := time.Now()
		<-one.done
		require.ErrorIs(t, one.err, lockpool.ErrDeadlock)
		require.Less(t, time.Since(began), breaksWithin())
		require.NoError(t, one.Close(b.Ctx))
		b.Unlock(other)
		<-two.done
		require.NoError(t, two.err)
	})
}
