package lockpool_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/zktest"
)

// ways to use a name that make its directory first.
var making = map[string]func(b *bench, ctx context.Context, p *lockpool.Pool) error{
	"lock": func(b *bench, ctx context.Context, p *lockpool.Pool) error {
		l, err := p.Lock(ctx, "x/s")
		if err != nil {
			return err
		}
		return l.Unlock(b.ctx)
	},
	"plain": func(b *bench, ctx context.Context, p *lockpool.Pool) error {
		l, err := p.Lock(ctx, "x/s/a", lockpool.Plain())
		if err != nil {
			return err
		}
		return l.Unlock(b.ctx)
	},
	"semaphore": func(b *bench, ctx context.Context, p *lockpool.Pool) error {
		permits, err := p.Semaphore("x/s", 2).Acquire(ctx, 2)
		if err != nil {
			return err
		}
		return permits.Release(b.ctx)
	},
	"limit": func(b *bench, ctx context.Context, p *lockpool.Pool) error {
		return p.Semaphore("x/s", 0).SetLimit(ctx, 2)
	},
}

// A script deletes the directory again and again. Whoever needs it makes it again
// for as long as its context lasts.
func TestDirectoryThatVanishesAgainAndAgainIsMadeAgain(t *testing.T) {
	t.Parallel()
	for name, use := range making {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			own := zktest.Start(t)
			b := newBenchOn(t, own.Addr())
			p := b.pool()
			dir := b.chroot + "/x/s"
			var turns atomic.Int32
			script := own.Inject(zktest.Rule{
				Match: zktest.Match{Prefix: dir + "/", Ops: append([]zktest.Op{zktest.OpMulti}, zktest.Creates...)}, Times: zktest.Always,
				Do: zktest.Call(func(zktest.Request) {
					for _, path := range []string{dir + "/leases", dir + "/locks", dir, b.chroot + "/x"}[turns.Add(1)%2:] {
						_ = own.Delete(path) // what is empty
					}
				}),
			})
			err := use(b, expiring(t, 300*time.Millisecond), p)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Greater(t, turns.Load(), int32(10))
			require.Less(t, turns.Load(), int32(200), "with pauses")

			got := make(chan error, 1)
			go func() { got <- use(b, b.ctx, p) }()
			begun := turns.Load()
			b.until(func() bool { return turns.Load() > begun+15 }, "it goes on")
			script.Remove()
			require.NoError(t, <-got)
			if name == "limit" {
				require.NoError(t, b.admin.Delete(dir+"/limit", -1))
			}
		})
	}
}
