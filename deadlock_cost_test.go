package lockpool_test

import (
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
			locktest.Bubble(t, func(t *testing.T) {
				b := locktest.New(t)
				pool, others := b.Pool(), b.Pool()
				counted := countRequests(b, b.Server.(*zktest.Server), pool)
				count := func(nested, waits bool) int {
					before := len(counted())
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
					return len(counted()) - before
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
			lockAndUnlock(b, h, []*lockpool.Handle{handle}, 20)
			b.ReportAllocs()
			b.ResetTimer()
			lockAndUnlock(b, h, []*lockpool.Handle{handle}, b.N)
			b.StopTimer()
			require.NoError(b, handle.Close(h.Ctx))
		})
	}
}
