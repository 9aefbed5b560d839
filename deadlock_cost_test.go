package lockpool_test

// This file tests what nested waits cost.

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// Looking for deadlocks costs no request for a lock that is not nested, nor for a wait that
// is shorter than WithDeadlockCheck. The numbers are those of the version before it; for a
// nested lock they include those of the lock that is held. But a nested wait for a plain lock
// is shown by a node, from the moment when it begins: its creation says when the call asked.
func TestRequestsOfLocksThatDoNotLook(t *testing.T) {
	type requests struct{ free, waits, nested, nestedWaits int }
	for _, kind := range []struct {
		name           string
		get, excluding ask
		want           requests // of three turns
	}{
		{"exclusive", exclusively, exclusively, requests{10, 15, 19, 27}},
		{"reader", toRead, exclusively, requests{10, 15, 19, 27}},
		{"permits", permits(2, 3), permits(2, 3), requests{26, 36, 35, 48}},
		{"plain", plainly, plainly, requests{8, 15, 15, 40}},
		{"several", withAll, exclusively, requests{19, 25, 27, 37}},
	} {
		t.Run(kind.name, func(t *testing.T) {
			locktest.Once(t)
			locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
				pool, others := b.Pool(), b.Pool()
				ids := sessionsOf(b, pool)
				count := func(nested, waits bool) int {
					return len(requestsOf(ids, server, func() {
						for range 3 {
							h := b.Handle(pool)
							if nested {
								b.Lock(h, "held")
							}
							name := "lock-" + strconv.FormatBool(nested) + strconv.FormatBool(waits)
							holder := b.Handle(others)
							if waits {
								require.NoError(t, kind.excluding(b.Ctx, holder, name))
							}
							time.AfterFunc(300*time.Millisecond, func() { _ = holder.Close(b.Ctx) })
							require.NoError(t, kind.get(b.Ctx, h, name))
							require.NoError(t, h.Close(b.Ctx))
							time.Sleep(400 * time.Millisecond)
						}
					}))
				}
				require.Equal(t, kind.want, requests{count(false, false), count(false, true), count(true, false), count(true, true)})
			})
		})
	}
}

// BenchmarkNestedLock takes and releases a lock while its handle holds none, one, or ten
// others.
func BenchmarkNestedLock(b *testing.B) {
	for _, held := range []int{0, 1, 10} {
		b.Run("held="+strconv.Itoa(held), func(b *testing.B) {
			h := locktest.New(b)
			handle := h.Handle(h.Pool())
			for i := range held {
				h.Lock(handle, "held-"+strconv.Itoa(i))
			}
			turn := func() { h.Unlock(h.Lock(handle, "a")) }
			for range 20 {
				turn()
			}
			b.ReportAllocs()
			for b.Loop() {
				turn()
			}
			require.NoError(b, handle.Close(h.Ctx))
		})
	}
}

// Nested waits ask nothing while nothing changes, whatever they wait for. What remains are
// the proofs of the session's lease, and after 15 s the driver's checks of its watches.
func TestNestedWaitsAskNothingWhileNothingChanges(t *testing.T) {
	locktest.Once(t)
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		pool, others := b.Pool(lockpool.WithMaxHandles(100)), b.Pool()
		ids := sessionsOf(b, pool)
		kinds := []ask{exclusively, toRead, plainly, permits(2, 3), withAll}
		var parties []*party
		for i, get := range kinds {
			name := "busy-" + strconv.Itoa(i)
			kind := get
			if i == 1 {
				kind = exclusively
			}
			require.NoError(t, kind(b.Ctx, b.Handle(others), name))
			for j := range 4 {
				p := &party{Handle: b.Handle(pool)}
				require.NoError(t, kinds[(i+j)%len(kinds)](b.Ctx, p.Handle, "held-"+strconv.Itoa(i)+strconv.Itoa(j)))
				p.WaitFor(t.Context(), get, name)
				parties = append(parties, p)
			}
		}
		b.AwaitWaiting(pool, len(parties))
		time.Sleep(4 * time.Second) // in which all have looked
		require.Empty(t, requestsOf(ids, server, func() { time.Sleep(5 * time.Second) }))

		// Somebody joins, and all who hold something of that look again.
		visitor := &party{Handle: b.Handle(others)}
		ctx, cancel := context.WithCancel(t.Context())
		looks := requestsOf(ids, server, func() {
			visitor.WaitFor(ctx, exclusively, "held-00")
			time.Sleep(5 * time.Second)
		})
		require.NotEmpty(t, looks)
		require.Less(t, len(looks), 10, "one of them: %v", looks)
		cancel()
		<-visitor.Done
		require.NoError(t, pool.Close())
		for _, p := range parties {
			<-p.Done
		}
	})
}

// On a slow network, a cycle is found before the waits behind the cycle are read, lock by lock.
func TestCycleIsFoundBeforeTheWaitsBehind(t *testing.T) {
	locktest.Once(t)
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		var parties []*party
		for i := range 12 { // each waits for the one before, and the first for the last
			p := &party{Handle: b.Handle(b.Pool())}
			require.NoError(t, exclusively(b.Ctx, p.Handle, strconv.Itoa(i)))
			parties = append(parties, p)
		}
		for i, p := range parties[:11] {
			p.WaitFor(b.Ctx, exclusively, strconv.Itoa((i+11)%12))
			b.AwaitQueue(strconv.Itoa((i+11)%12), 2)
		}
		time.Sleep(10 * time.Second)
		server.Inject(zktest.Rule{Times: zktest.Always, Do: zktest.DelayReply(100 * time.Millisecond)})
		last := parties[11]
		began := time.Now()
		last.WaitFor(b.Ctx, exclusively, "0")
		<-last.Done
		require.ErrorIs(t, last.Err, lockpool.ErrDeadlock)
		require.Less(t, time.Since(began), 4*time.Second)
		require.NoError(t, last.Handle.Close(b.Ctx))
		for _, p := range parties[:11] {
			<-p.Done
			require.NoError(t, p.Err)
			require.NoError(t, p.Handle.Close(b.Ctx))
		}
	})
}
