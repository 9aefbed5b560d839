package lockpool_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// ran returns a function for Once that counts its calls.
func ran(n *int) func(context.Context) error {
	return func(context.Context) error { *n++; return nil }
}

// requireDone requires that err says that a run for the key has finished.
func requireDone(t testing.TB, err error, name, key string) *lockpool.DoneError {
	t.Helper()
	require.ErrorIs(t, err, lockpool.ErrDone)
	var done *lockpool.DoneError
	require.ErrorAs(t, err, &done)
	require.Equal(t, name, done.Name)
	require.Equal(t, key, done.Key)
	return done
}

func TestOnceRunsOnce(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p, others := b.Pool(lockpool.WithOwner("night shift")), b.Pool()
	n := 0
	before := time.Now()
	var token int64
	require.NoError(t, p.Once(b.Ctx, "cron/cleanup", "monday", func(ctx context.Context) error {
		l, ok := lockpool.LockFromContext(ctx)
		require.True(t, ok)
		token = b.Token(l)
		n++
		return nil
	}))
	require.Empty(t, b.Contenders("/"))
	for _, again := range []*lockpool.Pool{p, others} {
		err := again.Once(b.Ctx, "cron/cleanup", "monday", ran(&n))
		done := requireDone(t, err, "cron/cleanup", "monday")
		require.WithinDuration(t, before, done.Finished, 5*time.Second)
		host, _ := os.Hostname()
		require.Equal(t, []any{"night shift", host, os.Getpid(), token}, []any{done.Owner, done.Host, done.PID, done.Token})
		require.ErrorContains(t, err, `lockpool: once "cron/cleanup": done before: the run for "monday" finished at 2`)
		require.ErrorContains(t, err, fmt.Sprintf("(night shift, process %d on %s)", os.Getpid(), host))
		var locking *lockpool.LockError
		require.ErrorAs(t, err, &locking)
		require.Equal(t, "done", locking.ErrorType())
	}
	require.Equal(t, 1, n)
	require.NoError(t, others.Once(b.Ctx, "cron/cleanup", "tuesday", ran(&n)))
	require.NoError(t, others.Once(b.Ctx, "cron/other", "monday", ran(&n)))
	require.Equal(t, 3, n)

	runs, err := p.Finished(b.Ctx, "cron/cleanup")
	require.NoError(t, err)
	require.Len(t, runs, 2)
	require.Equal(t, []string{"monday", "tuesday"}, []string{runs[0].Key, runs[1].Key})
	require.Equal(t, "night shift", runs[0].Owner)
	names, err := p.List(b.Ctx, "")
	require.NoError(t, err)
	require.Empty(t, names, "records are no locks")
}

// A key that is done costs one request, also while the lock is held.
func TestOnceLooksBeforeItQueues(t *testing.T) {
	t.Parallel()
	b, proxy := locktest.NewBehindProxy(t)
	p := b.Pool()
	n := 0
	require.NoError(t, p.Once(b.Ctx, "a", "1", ran(&n)))
	held := b.Lock(p, "a")
	b.Token(held) // so that it is watched already
	var requests atomic.Int32
	counted := proxy.Inject(zktest.Rule{Times: zktest.Always, Do: zktest.Pass(), Match: zktest.Match{Where: func(r zktest.Request) bool {
		if r.Op != zktest.OpSync && r.Op != zktest.OpPing && (len(r.Paths) == 0 || r.Paths[0] != "/") {
			requests.Add(1)
		}
		return false
	}}})
	requireDone(t, p.Once(b.Ctx, "a", "1", ran(&n)), "a", "1")
	counted.Remove()
	require.EqualValues(t, 1, requests.Load())
	b.Unlock(held)
}

// Several pools, each with several goroutines, ask for the same keys.
func TestOnceUnderContention(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	const keys, goroutines = 8, 4
	var starts, nils [keys]atomic.Int32
	var inside atomic.Int32
	var all sync.WaitGroup
	for range 3 {
		p := b.Pool()
		for range goroutines {
			all.Go(func() {
				for key := range keys {
					err := p.Once(b.Ctx, "job", fmt.Sprint(key), func(context.Context) error {
						if inside.Add(1) != 1 {
							t.Error("two runs at a time")
						}
						starts[key].Add(1)
						inside.Add(-1)
						return nil
					})
					if err == nil {
						nils[key].Add(1)
					} else if !errors.Is(err, lockpool.ErrDone) {
						t.Error(err)
					}
				}
			})
		}
	}
	all.Wait()
	for key := range keys {
		require.EqualValues(t, 1, starts[key].Load(), "key %d", key)
		require.EqualValues(t, 1, nils[key].Load(), "key %d", key)
	}
}

// Those who wait for the lock when a run finishes do not run.
func TestOnceTellsItsWaiters(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p, others := b.Pool(), b.Pool()
	inside, finish := make(chan struct{}), make(chan struct{})
	first := make(chan error)
	go func() { // ends with finish
		first <- p.Once(b.Ctx, "a", "1", func(context.Context) error {
			close(inside)
			<-finish
			return nil
		})
	}()
	<-inside
	require.ErrorIs(t, others.Once(b.Ctx, "a", "1", nope(t), lockpool.WaitAtMost(0)), lockpool.ErrLocked)
	require.ErrorIs(t, others.Once(b.Ctx, "a", "1", nope(t), lockpool.WaitAtMost(30*time.Millisecond)), context.DeadlineExceeded)
	waiters := make(chan error)
	for _, p := range []*lockpool.Pool{p, others, others} { // each has a node
		go func() { // ends with finish
			waiters <- p.Once(b.Ctx, "a", "1", nope(t))
		}()
	}
	b.AwaitQueue("a", 4)
	close(finish)
	require.NoError(t, <-first)
	for range 3 {
		requireDone(t, <-waiters, "a", "1")
	}
}

func nope(t testing.TB) func(context.Context) error {
	return func(context.Context) error {
		t.Error("it ran")
		return nil
	}
}

func TestUnfinishedRunsAreTakenUp(t *testing.T) {
	t.Parallel()
	errJob := errors.New("job failed")
	for name, c := range map[string]struct {
		fn   func(ctx context.Context, b *locktest.Bench) error
		want error // nil if Once does not return
	}{
		"error":  {func(context.Context, *locktest.Bench) error { return errJob }, errJob},
		"panic":  {func(context.Context, *locktest.Bench) error { panic("job") }, nil},
		"goexit": {func(context.Context, *locktest.Bench) error { runtime.Goexit(); return nil }, nil},
		"node removed, and nobody looks": {func(_ context.Context, b *locktest.Bench) error {
			return b.Admin.Delete(b.Chroot+"/a/"+b.Children("a")[0], -1)
		}, lockpool.ErrLockLost},
		"node removed": {func(ctx context.Context, b *locktest.Bench) error {
			err := b.Admin.Delete(b.Chroot+"/a/"+b.Children("a")[0], -1)
			<-ctx.Done()
			return err
		}, lockpool.ErrLockLost},
		"unlocked by fn": {func(ctx context.Context, _ *locktest.Bench) error {
			l, _ := lockpool.LockFromContext(ctx)
			return l.Unlock(ctx)
		}, lockpool.ErrNotHeld},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := locktest.New(t)
			p, others := b.Pool(), b.Pool()
			inside := make(chan struct{})
			taken := make(chan error)
			n := 0
			go func() { // ends when it has run
				<-inside
				taken <- others.Once(b.Ctx, "a", "1", ran(&n))
			}()
			var err error
			returned := false
			done := make(chan struct{})
			go func() { // ends with the run
				defer close(done)
				defer func() { _ = recover() }()
				err = p.Once(b.Ctx, "a", "1", func(ctx context.Context) error {
					close(inside)
					b.AwaitQueue("a", 2)
					return c.fn(ctx, b)
				})
				returned = true
			}()
			<-done
			require.Equal(t, c.want != nil, returned)
			require.ErrorIs(t, err, c.want)
			if errors.Is(err, lockpool.ErrLockLost) {
				require.ErrorContains(t, err, `once "a": the run was not recorded as finished: `)
			}
			require.NoError(t, <-taken)
			require.Equal(t, 1, n)
			requireDone(t, p.Once(b.Ctx, "a", "1", nope(t)), "a", "1")
		})
	}
}

// The pool of a run is closed, and the lock with it.
func TestRunThatLosesItsPoolHasNotFinished(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p, others := b.Pool(), b.Pool()
	err := p.Once(b.Ctx, "a", "1", func(ctx context.Context) error {
		require.NoError(t, p.Close())
		require.ErrorIs(t, ctx.Err(), context.Canceled)
		return nil
	})
	require.ErrorIs(t, err, lockpool.ErrPoolClosed)
	n := 0
	require.NoError(t, others.Once(b.Ctx, "a", "1", ran(&n)))
	require.Equal(t, 1, n)
}

// Shutdown waits until a run is recorded.
func TestShutdownWaitsForARun(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p, others := b.Pool(), b.Pool()
	shut := make(chan error)
	require.NoError(t, p.Once(b.Ctx, "a", "1", func(ctx context.Context) error {
		go func() { shut <- p.Shutdown(b.Ctx) }() // ends with the run
		b.Until(func() bool { return errors.Is(p.Ping(b.Ctx), lockpool.ErrPoolClosed) }, "the pool shuts down")
		return ctx.Err()
	}))
	require.NoError(t, <-shut)
	requireDone(t, others.Once(b.Ctx, "a", "1", nope(t)), "a", "1")
}

// The context of the call ends while fn runs, which finishes nevertheless.
func TestRunIsRecordedAfterItsContext(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	ctx, cancel := context.WithCancel(b.Ctx)
	require.NoError(t, p.Once(ctx, "a", "1", func(context.Context) error {
		cancel()
		return nil
	}))
	requireDone(t, p.Once(b.Ctx, "a", "1", nope(t)), "a", "1")
}

// A holder enters its lock with Once, which does not give it back.
func TestOnceUnderItsOwnLock(t *testing.T) {
	t.Parallel()
	for name, options := range map[string][]lockpool.Option{"local turns": nil, "at the service": {lockpool.WithLocalTurns(0)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := locktest.New(t)
			p := b.Pool(options...)
			h := b.Handle(p)
			l := b.Lock(h, "a")
			n := 0
			require.NoError(t, h.Once(b.Ctx, "a", "1", ran(&n)))
			requireDone(t, h.Once(b.Ctx, "a", "1", nope(t)), "a", "1")
			require.NoError(t, p.Once(l.Context(b.Ctx), "a", "2", ran(&n)))
			require.NoError(t, p.Once(l.Context(b.Ctx), "a", "3", func(ctx context.Context) error {
				n++
				return l.Unlock(ctx) // the run's own entry is the last
			}))
			require.Empty(t, b.Contenders("/"))
			require.Equal(t, 3, n)
			runs, err := p.Finished(b.Ctx, "a")
			require.NoError(t, err)
			require.Len(t, runs, 3)
			require.ErrorIs(t, l.Unlock(b.Ctx), lockpool.ErrNotHeld)
		})
	}
}

// A run that calls Once for its own key finds the inner run's record.
func TestOnceWithinItself(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	n := 0
	err := p.Once(b.Ctx, "a", "1", func(ctx context.Context) error {
		return p.Once(ctx, "a", "1", ran(&n))
	})
	requireDone(t, err, "a", "1")
	require.Equal(t, 1, n)
	b.Until(func() bool { return len(b.Contenders("/")) == 0 }, "the lock is free")
}

// A run that is the last entry of a lock that is to rest is recorded before the rest begins.
func TestOnceUnderALockThatIsToRest(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool(lockpool.WithLocalTurns(0))
	h := b.Handle(p)
	l := b.Lock(h, "a", lockpool.HoldAtLeast(time.Hour))
	require.NoError(t, h.Once(b.Ctx, "a", "1", l.Unlock))
	require.Equal(t, 1, p.Stats().Resting)
	requireDone(t, p.Once(b.Ctx, "a", "1", nope(t)), "a", "1")
}

// A run whose hold ends while its function runs has not finished, although the node stays:
// another handle has the next turn.
func TestOnceUnderALockThatIsPassedOn(t *testing.T) {
	for name, end := range map[string]func(ctx context.Context, h *lockpool.Handle, l *lockpool.Lock) error{
		"closed": func(ctx context.Context, h *lockpool.Handle, _ *lockpool.Lock) error { return h.Close(ctx) },
		"unlocked": func(ctx context.Context, _ *lockpool.Handle, l *lockpool.Lock) error {
			own, _ := lockpool.LockFromContext(ctx)
			return errors.Join(l.Unlock(ctx), own.Unlock(ctx))
		},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.Bubble(t, func(t *testing.T) {
				b := locktest.New(t)
				p := b.Pool()
				h := b.Handle(p)
				l := b.Lock(h, "a")
				w := b.StartLock(p, "a")
				synctest.Wait()
				err := h.Once(b.Ctx, "a", "1", func(ctx context.Context) error { return end(ctx, h, l) })
				require.ErrorIs(t, err, lockpool.ErrNotHeld)
				next := w.Granted()
				require.EqualValues(t, 1, p.Stats().LocalTurns)
				runs, err := p.Finished(b.Ctx, "a")
				require.NoError(t, err)
				require.Empty(t, runs)
				b.Unlock(next)
			})
		})
	}
}

// A lock that is lost while its holder enters it again with Once.
func TestOnceUnderALockThatIsLost(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	l := b.Lock(p, "a")
	err := p.Once(l.Context(b.Ctx), "a", "1", func(context.Context) error {
		return b.Admin.Delete(b.Chroot+"/a/"+b.Children("a")[0], -1)
	})
	require.ErrorIs(t, err, lockpool.ErrLockLost)
	require.ErrorIs(t, l.Unlock(b.Ctx), lockpool.ErrLockLost)
	n := 0
	require.NoError(t, p.Once(b.Ctx, "a", "1", ran(&n)))
	require.Equal(t, 1, n)
}

// Any text is a key, and every name that a lock can have is a name.
func TestKeysAndNamesOfRuns(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	for _, layout := range []zookeeper.Layout{zookeeper.LayoutCurator, zookeeper.LayoutKazoo} {
		cfg := b.Config()
		cfg.Layout = layout
		cfg.Chroot += "/" + string(layout) + "/does/not/exist/yet"
		p := b.PoolWith(cfg)
		for _, name := range []string{"a", "a/b", "größe/東京", "%2E", "a%2Fb"} {
			for _, key := range []string{"1", "a/b", "a%2Fb", ".", "..", "日本\x00\xff", "2026-11-22T18:00:00Z", " ", "~", "lock-0000000001", "zookeeper", ".done"} {
				n := 0
				require.NoError(t, p.Once(b.Ctx, name, key, ran(&n)), "%q %q", name, key)
				require.Equal(t, 1, n)
				requireDone(t, p.Once(b.Ctx, name, key, nope(t)), name, key)
			}
			runs, err := p.Finished(b.Ctx, name)
			require.NoError(t, err)
			require.Len(t, runs, 12)
			require.Equal(t, "日本\x00\xff", runs[5].Key)
		}
	}
}

func TestOnceRefusesBadInput(t *testing.T) {
	t.Parallel()
	locktest.Once(t)
	p, err := lockpool.Open("zookeeper", "127.0.0.1:1") // where nobody answers
	require.NoError(t, err)
	defer p.Close()
	ctx := locktest.Context(t)
	for _, err := range []error{
		p.Once(ctx, "", "k", nope(t)), p.Once(ctx, "/a", "k", nope(t)), p.Once(ctx, ".done/a", "k", nope(t)),
		p.Once(ctx, "a", "", nope(t)), p.Once(ctx, "a", strings.Repeat("ü", 86), nope(t)),
		p.Forget(ctx, "a", "x", ""), p.Forget(ctx, "/a"), errOf(p.Finished(ctx, ".done")),
		errOf(p.Lock(ctx, ".done/x")),
	} {
		require.ErrorIs(t, err, lockpool.ErrInvalidName)
	}
	require.ErrorContains(t, p.Once(ctx, ".done", "k", nope(t)), ".done is where the records of finished runs are")
	require.ErrorContains(t, p.Once(ctx, "a", "k", nil), "the function is nil")
	require.ErrorContains(t, p.Once(ctx, "a", "k", nope(t), lockpool.Plain()), "leave out Plain and Shared")
	require.ErrorContains(t, p.Once(ctx, "a", "k", nope(t), lockpool.Shared()), "leave out Plain and Shared")
	require.ErrorContains(t, p.Once(ctx, "a", "k", nope(t), lockpool.HoldAtLeast(time.Minute)), "leave out HoldAtLeast")
	require.ErrorContains(t, p.Once(ctx, "a", "k", nope(t), lockpool.KeepDone(0)), "must be kept for some time")
	require.ErrorContains(t, p.Do(ctx, "a", nope(t), lockpool.KeepDone(time.Hour)), "KeepDone is for Once")
	require.ErrorContains(t, p.Do(ctx, "a", nope(t), lockpool.KeepDone(0)), "KeepDone is for Once")
	require.Zero(t, p.Stats().OpenSessions)
}

func errOf(_ any, err error) error { return err }

func TestForget(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	require.NoError(t, p.Forget(b.Ctx, "a"))
	require.NoError(t, p.Forget(b.Ctx, "a", "none"))
	n := 0
	const keys = 30
	for key := range keys {
		require.NoError(t, p.Once(b.Ctx, "a", fmt.Sprint(key), ran(&n)))
	}
	require.NoError(t, p.Forget(b.Ctx, "a", "7", "none", "8", "7"))
	runs, err := p.Finished(b.Ctx, "a")
	require.NoError(t, err)
	require.Len(t, runs, keys-2)
	for _, key := range []string{"7", "9"} {
		err := p.Once(b.Ctx, "a", key, ran(&n))
		require.Equal(t, key == "9", errors.Is(err, lockpool.ErrDone), "%v", err)
	}
	require.Equal(t, keys+1, n)
	require.NoError(t, p.Forget(b.Ctx, "a"))
	runs, err = p.Finished(b.Ctx, "a")
	require.NoError(t, err)
	require.Empty(t, runs)
	require.NoError(t, p.Once(b.Ctx, "a", "9", ran(&n)))
}

// Records are removed when their time is over, by later runs.
func TestOldRecordsAreRemoved(t *testing.T) {
	locktest.Once(t)
	locktest.Bubble(t, func(t *testing.T) {
		b := locktest.New(t)
		p := b.Pool()
		const period, keep = 3 * time.Second, 10 * 3 * time.Second
		n, ctx := 0, context.Background()
		for i := range 100 {
			require.NoError(t, p.Once(ctx, "a", fmt.Sprint(i), ran(&n), lockpool.KeepDone(keep)))
			runs, err := p.Finished(ctx, "a")
			require.NoError(t, err)
			require.GreaterOrEqual(t, len(runs), min(i+1, 10))
			require.LessOrEqual(t, len(runs), 13, "kept for a quarter more at most")
			for _, run := range runs {
				requireDone(t, p.Once(ctx, "a", run.Key, nope(t), lockpool.KeepDone(keep)), "a", run.Key)
			}
			time.Sleep(period)
		}
		require.NoError(t, p.Once(ctx, "a", "0", ran(&n), lockpool.KeepDone(keep)))
		require.Equal(t, 101, n)
	})
}

// A process is killed in the middle of a run.
func TestRunOfAProcessThatIsKilled(t *testing.T) {
	locktest.Once(t)
	locktest.Bubble(t, func(t *testing.T) {
		b := locktest.New(t)
		server := b.Server.(*zktest.Server)
		p, others := b.Pool(), b.Pool()
		require.NoError(t, others.Ping(b.Ctx))
		inside := make(chan struct{})
		killed := make(chan error)
		go func() { // ends when the lease does
			killed <- p.Once(context.Background(), "a", "1", func(ctx context.Context) error {
				close(inside)
				<-ctx.Done()
				return nil // as if it had finished
			})
		}()
		<-inside
		var holder int64
		for path, node := range server.State().Nodes {
			if strings.Contains(path, "/a/_c_") {
				holder = node.Stat.EphemeralOwner
			}
		}
		for _, conn := range server.State().Conns {
			if conn.Session == holder {
				server.Partition(zktest.Selector{Session: holder}, zktest.Both)
			}
		}
		n := 0
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(t, others.Once(ctx, "a", "1", ran(&n)))
		require.Equal(t, 1, n)
		server.Heal()
		require.ErrorIs(t, <-killed, lockpool.ErrLockLost)
	})
}

// Other clients lock the same path while there are records, and with records of their
// name.
func TestRecordsDoNotDisturbOtherClients(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	n := 0
	require.NoError(t, p.Once(b.Ctx, "a", "1", ran(&n)))
	other := zk.NewLock(b.Dial(), b.Chroot+"/a", zk.WorldACL(zk.PermAll))
	require.NoError(t, other.Lock())
	require.ErrorIs(t, p.Once(b.Ctx, "a", "2", ran(&n), lockpool.WaitAtMost(0)), lockpool.ErrLocked)
	done := make(chan error)
	go func() { done <- p.Once(b.Ctx, "a", "2", ran(&n)) }() // ends when the other client unlocks
	b.AwaitQueue("a", 2)
	require.NoError(t, other.Unlock())
	require.NoError(t, <-done)
	require.NoError(t, other.Lock())
	require.NoError(t, other.Unlock())
	require.Equal(t, 2, n)
	q, err := p.Queue(b.Ctx, "a")
	require.NoError(t, err)
	require.Empty(t, q.Foreign)
}
