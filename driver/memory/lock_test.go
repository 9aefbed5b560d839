package memory_test

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/driver/memory"
)

func TestOpenSharesAStoreByName(t *testing.T) {
	t.Parallel()
	open := func(dsn string) *lockpool.Pool {
		p, err := lockpool.Open("memory", dsn)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, p.Close()) })
		return p
	}
	held := must(open("").Lock(t.Context(), "a"))(t)
	_, err := open("").TryLock(t.Context(), "a")
	require.ErrorIs(t, err, lockpool.ErrLocked)
	_, err = open("another").TryLock(t.Context(), "a")
	require.NoError(t, err)
	_, err = openPool(t, memory.Shared("")).TryLock(t.Context(), "a")
	require.ErrorIs(t, err, lockpool.ErrLocked)
	_, err = openPool(t, memory.New()).TryLock(t.Context(), "a")
	require.NoError(t, err)
	require.NoError(t, held.Unlock(t.Context()))
	require.Contains(t, driver.Drivers(), "memory")
}

// ways are the ways to hold a lock alone.
var ways = map[string]func(ctx context.Context, p *lockpool.Pool, fn func(context.Context) error) error{
	"exclusive": func(ctx context.Context, p *lockpool.Pool, fn func(context.Context) error) error {
		return p.Do(ctx, "job", fn)
	},
	"plain": func(ctx context.Context, p *lockpool.Pool, fn func(context.Context) error) error {
		return p.Do(ctx, "job", fn, lockpool.Plain())
	},
	"permit": func(ctx context.Context, p *lockpool.Pool, fn func(context.Context) error) error {
		return p.Semaphore("job", 1).Do(ctx, 1, fn)
	},
	"all": func(ctx context.Context, p *lockpool.Pool, fn func(context.Context) error) error {
		all, err := p.LockAll(ctx, []string{"other", "job"})
		if err != nil {
			return err
		}
		return all.Do(ctx, func(ctx context.Context) error { return fn(all.Get("job").Context(ctx)) })
	},
}

// Among many goroutines of several pools, one holds the lock at a time, and tokens grow.
// The race detector sees that each holder happens before the next.
func TestContention(t *testing.T) {
	for name, do := range ways {
		for _, turns := range []int{0, 1000} {
			for place, run := range map[string]func(*testing.T, func(*testing.T)){
				"bubble": synctest.Test, "no bubble": func(t *testing.T, test func(*testing.T)) { test(t) },
			} {
				t.Run(fmt.Sprintf("%s, %d turns, %s", name, turns, place), func(t *testing.T) {
					run(t, func(t *testing.T) {
						store, newest, turn := memory.New(), int64(0), 0
						var pools []*lockpool.Pool
						for range 3 {
							pools = append(pools, openPool(t, store, lockpool.WithLocalTurns(turns)))
						}
						inTurn(t, 24, 8, func(i int) error {
							return do(t.Context(), pools[i%3], func(ctx context.Context) error {
								l, ok := lockpool.LockFromContext(ctx)
								if !ok {
									return errWork
								}
								token, err := l.Token(ctx)
								if token <= newest {
									t.Errorf("token %d after %d", token, newest)
								}
								newest = token
								turn++
								return err
							})
						})
						require.Equal(t, 192, turn)
						require.Empty(t, queue(t, pools[0], "job"))
					})
				})
			}
		}
	}
}

func TestReentry(t *testing.T) {
	inBubble(t, func(t *testing.T, store *memory.Store, a, b *lockpool.Pool) {
		l := must(a.Lock(t.Context(), "a"))(t)
		again := must(a.Lock(l.Context(t.Context()), "a"))(t)
		require.Equal(t, 2, l.Depth())
		require.NoError(t, l.Unlock(t.Context()))
		_, err := b.TryLock(t.Context(), "a")
		require.ErrorIs(t, err, lockpool.ErrLocked)
		require.NoError(t, again.Unlock(t.Context()))
		require.ErrorIs(t, again.Unlock(t.Context()), lockpool.ErrNotHeld)
		_, err = b.TryLock(t.Context(), "a")
		require.NoError(t, err)
	})
}

func TestContextEndsTheWait(t *testing.T) {
	for name, opts := range map[string][]lockpool.LockOption{"queue": nil, "plain": {lockpool.Plain()}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *memory.Store, a, b *lockpool.Pool) {
				l := must(a.Lock(t.Context(), "a", opts...))(t)
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				began := time.Now()
				_, err := b.Lock(ctx, "a", opts...)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.Equal(t, time.Hour, time.Since(began))
				require.Len(t, queue(t, a, "a"), 1, "the waiter has left")
				require.NoError(t, l.Verify(t.Context()))
				require.NoError(t, l.Unlock(ctx), "the context only bounds the wait")
				_, err = b.Lock(ctx, "a", opts...)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.Empty(t, queue(t, a, "a"))
			})
		})
	}
}

func TestReadersShareAndWritersWait(t *testing.T) {
	inBubble(t, func(t *testing.T, store *memory.Store, a, b *lockpool.Pool) {
		h := must(a.Handle(t.Context()))(t)
		write := must(h.Lock(t.Context(), "a"))(t)
		reader := start(func() (*lockpool.Lock, error) { return b.Lock(t.Context(), "a", lockpool.Shared()) })
		await()
		require.False(t, reader.isDone())
		read := must(h.Lock(t.Context(), "a", lockpool.Shared()))(t)
		token := must(write.Token(t.Context()))(t)

		require.NoError(t, write.Unlock(t.Context())) // which downgrades
		first := must(reader.wait())(t)
		require.Equal(t, token, must(read.Token(t.Context()))(t))
		writer := start(func() (*lockpool.Lock, error) { return b.Lock(t.Context(), "a") })
		await()
		late := start(func() (*lockpool.Lock, error) { return a.Lock(t.Context(), "a", lockpool.Shared()) })
		await()
		require.False(t, writer.isDone())
		require.NoError(t, read.Unlock(t.Context()))
		require.NoError(t, first.Unlock(t.Context()))
		w := must(writer.wait())(t)
		require.Greater(t, must(w.Token(t.Context()))(t), token)
		await()
		require.False(t, late.isDone(), "it asked after the writer")
		require.NoError(t, w.Unlock(t.Context()))
		require.NoError(t, must(late.wait())(t).Unlock(t.Context()))
		require.NoError(t, h.Close(t.Context()))
	}, lockpool.WithLocalTurns(0))
}

func TestSemaphoreKeepsItsLimit(t *testing.T) {
	t.Parallel()
	store := memory.New()
	pools := []*lockpool.Pool{openPool(t, store), openPool(t, store)}
	var used, most atomic.Int32
	inTurn(t, 20, 20, func(i int) error {
		n := 1 + i%3
		return pools[i%2].Semaphore("s", 4).Do(t.Context(), n, func(context.Context) error {
			if now := used.Add(int32(n)); now > most.Load() {
				most.Store(now)
			}
			runtime.Gosched()
			used.Add(int32(-n))
			return nil
		})
	})
	require.LessOrEqual(t, most.Load(), int32(4))
	require.Empty(t, queue(t, pools[0], "s"))
}

func TestLimitsOfSemaphores(t *testing.T) {
	inBubble(t, func(t *testing.T, store *memory.Store, a, b *lockpool.Pool) {
		_, err := a.Semaphore("s", 0).Acquire(t.Context(), 1)
		require.ErrorIs(t, err, lockpool.ErrLimit)
		held := must(a.Semaphore("s", 3).Acquire(t.Context(), 2))(t)
		_, err = b.Semaphore("s", 5).Acquire(t.Context(), 2, lockpool.WaitAtMost(0))
		require.ErrorIs(t, err, lockpool.ErrLocked, "the holder states a lower limit")
		require.NoError(t, b.Semaphore("s", 0).SetLimit(t.Context(), 2))
		_, err = b.Semaphore("s", 3).Acquire(t.Context(), 1, lockpool.WaitAtMost(0))
		require.ErrorIs(t, err, lockpool.ErrLocked, "a lower limit is set")

		three := start(func() (*lockpool.Lock, error) { return b.Semaphore("s", 0).Acquire(t.Context(), 3) })
		await()
		require.NoError(t, held.Unlock(t.Context()))
		await()
		require.False(t, three.isDone(), "they are more than the limit")
		require.NoError(t, a.Semaphore("s", 0).SetLimit(t.Context(), 3))
		require.NoError(t, must(three.wait())(t).Unlock(t.Context()))

		require.NoError(t, a.Semaphore("s", 0).SetLimit(t.Context(), 0))
		one := start(func() (*lockpool.Lock, error) { return b.Semaphore("s", 1).Acquire(t.Context(), 1) })
		await()
		require.False(t, one.isDone())
		require.True(t, store.Remove("s", "limit"))
		require.False(t, store.Remove("s", "limit"))
		require.NoError(t, must(one.wait())(t).Unlock(t.Context()))
	})
}

func TestKindsExcludeEachOther(t *testing.T) {
	inBubble(t, func(t *testing.T, store *memory.Store, a, b *lockpool.Pool) {
		names := []string{"queue", "plain", "semaphore"}
		take := map[string]func(p *lockpool.Pool) (unlock func(context.Context) error, err error){
			"queue": func(p *lockpool.Pool) (func(context.Context) error, error) {
				l, err := p.Lock(t.Context(), "a")
				return l.Unlock, err
			},
			"plain": func(p *lockpool.Pool) (func(context.Context) error, error) {
				l, err := p.Lock(t.Context(), "a", lockpool.Plain())
				return l.Unlock, err
			},
			"semaphore": func(p *lockpool.Pool) (func(context.Context) error, error) {
				l, err := p.Semaphore("a", 2).Acquire(t.Context(), 1)
				return l.Unlock, err
			},
		}
		for _, held := range names {
			unlock, err := take[held](a)
			require.NoError(t, err)
			for _, wanted := range names {
				if wanted != held {
					_, err := take[wanted](b)
					require.ErrorIs(t, err, lockpool.ErrKindMismatch, "%s beside %s", wanted, held)
				}
			}
			err = b.Semaphore("a", 0).SetLimit(t.Context(), 1)
			if held == "semaphore" {
				require.NoError(t, err)
				require.True(t, store.Remove("a", "limit"))
			} else {
				require.ErrorIs(t, err, lockpool.ErrKindMismatch)
			}
			require.NoError(t, unlock(t.Context()))
		}
	})
}

func TestNames(t *testing.T) {
	t.Parallel()
	store := memory.New()
	for _, good := range []string{"a", "orders/42", "locks", "limit", "a/b/c", "ä"} {
		require.NoError(t, store.CheckName(good), good)
	}
	long := string(make([]byte, 513))
	for _, bad := range []string{"", "/a", "a/", "a//b", ".", "a/../b", "a\x00", "a\xff", "a\u0085", "s/locks", "s/leases", "s/limit", ".done/a", ".waits", long} {
		require.Error(t, store.CheckName(bad), bad)
	}
	for node, is := range map[string]bool{
		"mutex-1": true, "read-20": true, "semaphore-3": true, "plain-4": true, "guard-1": false,
		"mutex-": false, "mutex": false, "mutex-x": false, "": false, "1-mutex": false, "local-a-1": false,
	} {
		require.Equal(t, is, store.IsContender(node), node)
	}
}

func TestInspection(t *testing.T) {
	inBubble(t, func(t *testing.T, store *memory.Store, a, b *lockpool.Pool) {
		held := must(a.Lock(t.Context(), "orders/1"))(t)
		waiter := start(func() (*lockpool.Lock, error) { return b.Lock(t.Context(), "orders/1") })
		must(a.Lock(t.Context(), "orders", lockpool.Plain()))(t)
		must(a.Semaphore("orders/2", 2).Acquire(t.Context(), 2))(t)
		must(a.Lock(t.Context(), "orders2/1"))(t)
		await()
		require.Equal(t, []string{"orders", "orders/1", "orders/2", "orders2/1"}, must(b.List(t.Context(), ""))(t))
		require.Equal(t, []string{"orders", "orders/1", "orders/2"}, must(b.List(t.Context(), "orders"))(t))

		q := must(b.Queue(t.Context(), "orders/1"))(t)
		require.Len(t, q.Contenders, 2)
		first, second := q.Contenders[0], q.Contenders[1]
		require.True(t, first.Holds && !second.Holds)
		require.Equal(t, must(held.Token(t.Context()))(t), first.Token)
		require.Equal(t, "mutex", first.Kind)
		require.Equal(t, "one", first.Owner)
		require.NotEqual(t, first.Session, second.Session)
		require.Equal(t, 30*time.Millisecond, time.Since(first.Asked))
		q = must(b.Queue(t.Context(), "orders"))(t)
		require.Equal(t, "plain", q.Contenders[0].Kind)
		q = must(b.Queue(t.Context(), "orders/2"))(t)
		require.Equal(t, 2, q.Contenders[0].Permits)
		require.Empty(t, q.Foreign)

		require.NoError(t, b.Revoke(t.Context(), "orders/1"))
		await()
		require.True(t, isClosed(held.Revoked()))
		require.False(t, waiter.isDone())
		require.NoError(t, b.Break(t.Context(), "orders/1", first.Node))
		next := must(waiter.wait())(t)
		await()
		require.True(t, isClosed(held.Lost()))
		require.ErrorIs(t, held.Unlock(t.Context()), lockpool.ErrLockLost)
		require.ErrorIs(t, b.Break(t.Context(), "orders/1", first.Node), lockpool.ErrNotHeld)
		require.NoError(t, next.Verify(t.Context()))
	}, lockpool.WithOwner("one"))
}

func TestRevocationOfEachKind(t *testing.T) {
	for name, do := range map[string]func(ctx context.Context, p *lockpool.Pool, fn func(context.Context) error) error{
		"exclusive": func(ctx context.Context, p *lockpool.Pool, fn func(context.Context) error) error {
			return p.Do(ctx, "job", fn, lockpool.Revocable())
		},
		"plain": func(ctx context.Context, p *lockpool.Pool, fn func(context.Context) error) error {
			return p.Do(ctx, "job", fn, lockpool.Plain(), lockpool.Revocable())
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *memory.Store, a, b *lockpool.Pool) {
				ended := start(func() (struct{}, error) {
					return struct{}{}, do(t.Context(), a, func(ctx context.Context) error {
						<-ctx.Done()
						return ctx.Err()
					})
				})
				await()
				require.NoError(t, b.Revoke(t.Context(), "job"))
				_, err := ended.wait()
				require.ErrorIs(t, err, lockpool.ErrRevoked)
			})
		})
	}
}

func TestOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, store *memory.Store, a, b *lockpool.Pool) {
		fail := func(context.Context) error { return errWork }
		require.ErrorIs(t, a.Once(t.Context(), "job", "1", fail), errWork)
		require.NoError(t, b.Once(t.Context(), "job", "1", nothing))
		require.ErrorIs(t, a.Once(t.Context(), "job", "1", fail), lockpool.ErrDone)
		time.Sleep(time.Hour)
		require.NoError(t, a.Once(t.Context(), "job", "2", nothing))
		runs := must(b.Finished(t.Context(), "job"))(t)
		require.Len(t, runs, 2)
		require.Equal(t, "1", runs[0].Key)
		require.Less(t, runs[0].Token, runs[1].Token)
		require.NoError(t, b.Forget(t.Context(), "job", "1"))
		require.NoError(t, a.Once(t.Context(), "job", "1", nothing))
		require.NoError(t, b.Forget(t.Context(), "job"))
		require.Empty(t, must(b.Finished(t.Context(), "job"))(t))

		for day := range 20 {
			require.NoError(t, a.Once(t.Context(), "job", fmt.Sprint(day), nothing))
			time.Sleep(24 * time.Hour)
		}
		require.Len(t, must(b.Finished(t.Context(), "job"))(t), 7, "a week of records")
	})
}

func TestOnceRunsOnceAmongMany(t *testing.T) {
	t.Parallel()
	store := memory.New()
	pools := []*lockpool.Pool{openPool(t, store), openPool(t, store)}
	var runs, refused atomic.Int32
	inTurn(t, 20, 1, func(i int) error {
		err := pools[i%2].Once(t.Context(), "job", "today", func(context.Context) error {
			runs.Add(1)
			return nil
		})
		if err != nil {
			refused.Add(1)
		}
		return nil
	})
	require.EqualValues(t, 1, runs.Load())
	require.EqualValues(t, 19, refused.Load())
}

func TestElectAndObserve(t *testing.T) {
	inBubble(t, func(t *testing.T, store *memory.Store, a, b *lockpool.Pool) {
		ctx, cancel := context.WithCancel(t.Context())
		var led [2]int
		var elections []*result[struct{}]
		for i, p := range []*lockpool.Pool{a, b} {
			elections = append(elections, start(func() (struct{}, error) {
				return struct{}{}, p.Elect(ctx, "leader", func(ctx context.Context) error {
					led[i]++
					<-ctx.Done()
					return ctx.Err()
				})
			}))
			await()
		}
		var seen []int // how many contenders
		observer := start(func() (struct{}, error) {
			for q, err := range b.Observe(ctx, "leader") {
				if err == nil {
					seen = append(seen, len(q.Contenders))
				}
			}
			return struct{}{}, nil
		})
		await()
		require.Equal(t, [2]int{1, 0}, led)
		require.Equal(t, []int{2}, seen)
		q := must(a.Queue(ctx, "leader"))(t)
		require.Equal(t, 1, store.Expire(q.Contenders[0].Session))
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, [2]int{1, 1}, led)
		require.Equal(t, 2, seen[len(seen)-1], "the former leader stands again")
		cancel()
		for _, r := range append(elections, observer) {
			_, _ = r.wait()
		}
	})
}

// An observer hears of each kind of lock that begins or ends under the name.
func TestObserveEachKind(t *testing.T) {
	inBubble(t, func(t *testing.T, store *memory.Store, a, b *lockpool.Pool) {
		ctx, cancel := context.WithCancel(t.Context())
		last := ""
		observer := start(func() (struct{}, error) {
			for q, err := range b.Observe(ctx, "x") {
				last = ""
				for _, c := range q.Contenders {
					last += fmt.Sprintf("%s %v %d; ", c.Kind, c.Holds, c.Permits)
				}
				if err != nil {
					last = err.Error()
				}
			}
			return struct{}{}, nil
		})
		look := func() string {
			time.Sleep(time.Second)
			synctest.Wait()
			return last
		}
		require.Equal(t, "", look())
		l := must(a.Lock(ctx, "x", lockpool.Plain()))(t)
		require.Equal(t, "plain true 0; ", look())
		require.NoError(t, l.Unlock(ctx))
		require.Equal(t, "", look())
		one := must(a.Semaphore("x", 3).Acquire(ctx, 1))(t)
		require.Equal(t, "semaphore true 1; ", look())
		two := must(a.Semaphore("x", 3).Acquire(ctx, 2))(t)
		require.Equal(t, "semaphore true 1; semaphore true 2; ", look())
		require.NoError(t, one.Unlock(ctx))
		require.NoError(t, two.Unlock(ctx))
		require.Equal(t, "", look())
		r := must(a.Lock(ctx, "x", lockpool.Shared()))(t)
		require.Equal(t, "read true 0; ", look())
		w := start(func() (*lockpool.Lock, error) { return b.Lock(ctx, "x") })
		require.Equal(t, "read true 0; mutex false 0; ", look())
		require.NoError(t, r.Unlock(ctx))
		require.Equal(t, "mutex true 0; ", look())
		must(w.wait())(t)
		cancel()
		_, _ = observer.wait()
	})
}

func TestHoldAtLeast(t *testing.T) {
	inBubble(t, func(t *testing.T, store *memory.Store, a, b *lockpool.Pool) {
		began := time.Now()
		require.NoError(t, a.Do(t.Context(), "a", nothing, lockpool.HoldAtLeast(time.Minute)))
		require.Zero(t, time.Since(began))
		must(b.Lock(t.Context(), "a"))(t)
		require.Equal(t, time.Minute, time.Since(began))
	})
}

func TestDeadlockIsFound(t *testing.T) {
	for name, opts := range map[string][]lockpool.LockOption{"queue": nil, "plain": {lockpool.Plain()}} {
		for _, samePool := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, same pool: %v", name, samePool), func(t *testing.T) {
				inBubble(t, func(t *testing.T, store *memory.Store, a, b *lockpool.Pool) {
					if samePool {
						b = a
					}
					one, two := must(a.Handle(t.Context()))(t), must(b.Handle(t.Context()))(t)
					must(one.Lock(t.Context(), "1", opts...))(t)
					must(two.Lock(t.Context(), "2", opts...))(t)
					first := start(func() (*lockpool.Lock, error) { return one.Lock(t.Context(), "2", opts...) })
					await()
					began := time.Now()
					_, err := two.Lock(t.Context(), "1", opts...)
					require.ErrorIs(t, err, lockpool.ErrDeadlock)
					require.LessOrEqual(t, time.Since(began), time.Second)
					require.Equal(t, []string{"1", "2"}, must(a.List(t.Context(), ""))(t))
					require.NoError(t, two.Close(t.Context()))
					must(first.wait())(t)
					require.NoError(t, one.Close(t.Context()))
				})
			})
		}
	}
}

// No time runs out for a lock that only its holder or the store can end, so nothing counts it.
func TestExpiringIsLost(t *testing.T) {
	inBubble(t, func(t *testing.T, store *memory.Store, a, b *lockpool.Pool) {
		l := must(a.Lock(t.Context(), "a"))(t)
		require.Equal(t, l.Lost(), l.Expiring(math.MaxInt64))
		select {
		case <-l.Lost():
			require.Fail(t, "it is held")
		default:
		}
		require.NoError(t, l.Unlock(t.Context()))
	})
}
