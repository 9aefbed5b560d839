package lockpool_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/zktest"
)

func (b *bench) rlock(p *lockpool.Pool, name string) *lockpool.Lock {
	b.Helper()
	l, err := p.RLock(b.ctx, name)
	require.NoError(b, err)
	return l
}

// rwait is wait for an RLock.
func (b *bench) rwait(p *lockpool.Pool, name string, nth int) *waiter {
	return b.waitFor(p.RLock, name, nth)
}

// Scenario 78.
func TestWritersAreAloneAndReadersTogether(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	pools := []*lockpool.Pool{b.pool(), b.pool()}
	var readers, writers, most atomic.Int32
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 0))
			for range 50 {
				var err error
				if r.IntN(10) == 0 {
					err = pools[i%2].Do(b.ctx, "a", func(context.Context) error {
						if w, r := writers.Add(1), readers.Load(); w != 1 || r != 0 {
							return fmt.Errorf("%d writers, %d readers", w, r)
						}
						defer writers.Add(-1)
						return nil
					})
				} else {
					err = pools[i%2].Do(b.ctx, "a", func(context.Context) error {
						n := readers.Add(1)
						defer readers.Add(-1)
						for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
						}
						if w := writers.Load(); w != 0 {
							return fmt.Errorf("%d writers beside a reader", w)
						}
						time.Sleep(time.Millisecond) // the work
						return nil
					}, lockpool.Shared())
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	require.Greater(t, most.Load(), int32(1))
}

// Scenarios 79 to 81: first come, first served, and nobody starves.
func TestReadersAndWritersQueueTogether(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.pool()
	first, second := b.rlock(p, "a"), b.rlock(others, "a")
	_, err := others.TryLock(b.ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrLocked)
	also, err := others.TryRLock(b.ctx, "a")
	require.NoError(t, err)
	b.unlock(also)

	w1 := b.wait(others, "a", 3)
	_, err = p.TryRLock(b.ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrLocked, "behind a writer that waits")
	r1, r2 := b.rwait(p, "a", 4), b.rwait(others, "a", 5)
	w2 := b.wait(p, "a", 6)
	r3 := b.rwait(p, "a", 7)

	b.unlock(first)
	b.stillWaits(w1)
	b.unlock(second)
	held := b.granted(w1)
	for _, w := range []*waiter{r1, r2, w2, r3} {
		b.stillWaits(w)
	}
	b.unlock(held)
	one, two := b.granted(r1), b.granted(r2) // both, and not behind the later writer
	b.stillWaits(w2)
	b.stillWaits(r3)
	b.unlock(one)
	b.stillWaits(w2)
	b.unlock(two)
	held = b.granted(w2)
	b.stillWaits(r3)
	b.unlock(held)
	b.unlock(b.granted(r3))
}

// Scenario 82.
func TestReaderEntersAgainAlthoughAWriterWaits(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	s := b.session(b.pool())
	outer, err := s.RLock(b.ctx, "a")
	require.NoError(t, err)
	w := b.wait(b.pool(), "a", 2)
	inner, err := s.RLock(b.ctx, "a")
	require.NoError(t, err)
	require.Equal(t, 2, outer.Depth())
	b.unlock(outer)
	b.stillWaits(w)
	b.unlock(inner)
	b.unlock(b.granted(w))
	require.NoError(t, s.Close(b.ctx))
}

// Scenario 83. (Curator hangs.)
func TestReaderCanNotBecomeAWriter(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	s, other := b.session(p), b.session(p)
	for _, reader := range []*lockpool.Handle{s, other} { // also two at the same time
		_, err := reader.RLock(b.ctx, "a")
		require.NoError(t, err)
	}
	for _, reader := range []*lockpool.Handle{s, other} {
		_, err := reader.Lock(b.ctx, "a")
		require.ErrorIs(t, err, lockpool.ErrUpgrade)
		_, err = reader.TryLock(b.ctx, "a")
		require.ErrorIs(t, err, lockpool.ErrUpgrade)
		again, err := reader.RLock(b.ctx, "a")
		require.NoError(t, err, "what it has, it keeps")
		b.unlock(again)
		require.NoError(t, reader.Close(b.ctx))
	}
	b.unlock(b.lock(p, "a"))
}

// Scenario 85.
func TestWriterThatReadsKeepsReading(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	s := b.session(b.pool())
	others, more := b.pool(), b.pool()
	write, err := s.Lock(b.ctx, "a")
	require.NoError(t, err)
	token := b.token(write)
	r1 := b.rwait(others, "a", 2)
	w := b.wait(more, "a", 3)
	r2 := b.rwait(more, "a", 4)
	read, err := s.RLock(b.ctx, "a")
	require.NoError(t, err)
	again, err := s.Lock(b.ctx, "a") // still alone
	require.NoError(t, err)
	require.Equal(t, 3, read.Depth())
	b.unlock(write)
	b.stillWaits(r1)
	b.unlock(again)
	one := b.granted(r1)
	b.stillWaits(w)
	b.stillWaits(r2)
	require.Equal(t, 1, read.Depth())
	require.NoError(t, read.Verify(b.ctx))
	require.Equal(t, token, b.token(read))
	_, err = s.Lock(b.ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrUpgrade)
	require.ErrorIs(t, write.Unlock(b.ctx), lockpool.ErrNotHeld)
	b.unlock(one)
	b.stillWaits(w)
	b.unlock(read)
	b.unlock(b.granted(w))
	b.unlock(b.granted(r2))
	require.NoError(t, s.Close(b.ctx))
}

// The order in which the entries are left does not matter.
func TestReadThatIsLeftBeforeTheWriteLeavesItAlone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	s := b.session(b.pool())
	write, err := s.Lock(b.ctx, "a")
	require.NoError(t, err)
	read, err := s.RLock(b.ctx, "a")
	require.NoError(t, err)
	b.unlock(read)
	_, err = b.pool().TryRLock(b.ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrLocked)
	again, err := s.Lock(b.ctx, "a")
	require.NoError(t, err)
	b.unlock(again)
	b.unlock(write)
	require.NoError(t, s.Close(b.ctx))
}

// What is shared now is still watched.
func TestReaderThatWasAWriterLearnsThatItsNodeWasRemoved(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	s := b.session(b.pool())
	write, err := s.Lock(b.ctx, "a")
	require.NoError(t, err)
	b.token(write)
	read, err := s.RLock(b.ctx, "a")
	require.NoError(t, err)
	b.unlock(write)
	require.True(t, strings.Contains(b.children("a")[0], "-rlock-"), "%v", b.children("a"))
	require.NoError(t, b.admin.Delete(b.chroot+"/a/"+b.children("a")[0], -1))
	b.lost(read)
	require.ErrorIs(t, read.Unlock(b.ctx), lockpool.ErrLockLost)
	require.NoError(t, s.Close(b.ctx))
}

// Scenario 87.
func TestAnotherHolderOfAWritersPoolWaitsToRead(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	l := b.lock(p, "a")
	_, err := p.TryRLock(b.ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrLocked)
	inner, err := p.RLock(l.Context(b.ctx), "a") // the same holder
	require.NoError(t, err)
	b.unlock(inner)
	b.unlock(l)
}

// A reply that is lost, before or after, while a write becomes a read.
func TestSharingSurvivesALostConnection(t *testing.T) {
	t.Parallel()
	for name, cut := range cuts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, proxy := benchBehindProxy(t)
			s := b.session(b.pool())
			write, err := s.Lock(b.ctx, "a")
			require.NoError(t, err)
			read, err := s.RLock(b.ctx, "a")
			require.NoError(t, err)
			r := b.rwait(b.pool(), "a", 2)
			f := proxy.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpMulti}, Prefix: b.chroot + "/a/"}, Do: cut})
			b.unlock(write)
			require.Equal(t, 1, f.Fired())
			b.unlock(b.granted(r))
			require.Len(t, b.children("a"), 1)
			b.unlock(read)
			require.NoError(t, s.Close(b.ctx))
		})
	}
}

func TestSharingGoesOnWhenItsContextHasEnded(t *testing.T) {
	t.Parallel()
	b, proxy := benchBehindProxy(t)
	s := b.session(b.pool())
	write, err := s.Lock(b.ctx, "a")
	require.NoError(t, err)
	read, err := s.RLock(b.ctx, "a")
	require.NoError(t, err)
	f := proxy.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpMulti}, Prefix: b.chroot + "/a/"}, Do: zktest.HoldReply()})
	ctx, cancel := context.WithTimeout(b.ctx, 20*time.Millisecond)
	defer cancel()
	err = write.Unlock(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "not confirmed yet")
	require.ErrorIs(t, read.Unlock(ctx), context.DeadlineExceeded)
	require.NoError(t, f.Wait(b.ctx))
	f.Release()
	b.queued("a", 0)
	b.unlock(b.lock(b.pool(), "a"))
	require.NoError(t, s.Close(b.ctx))
}

// go-zookeeper's Lock knows of no readers, and takes ours for locks like its own.
func TestReadersAndOtherClientsWaitForEachOther(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	reader := b.rlock(p, "a")
	theirs := zk.NewLock(b.admin, b.chroot+"/a", zk.WorldACL(zk.PermAll))
	locked := make(chan error, 1)
	go func() { locked <- theirs.Lock() }() // ends when the reader leaves
	b.queued("a", 2)
	select {
	case err := <-locked:
		require.FailNow(t, "it did not wait", "%v", err)
	case <-time.After(50 * time.Millisecond):
	}
	b.unlock(reader)
	require.NoError(t, <-locked)
	_, err := p.TryRLock(b.ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrLocked)
	w := b.rwait(p, "a", 2)
	b.stillWaits(w)
	require.NoError(t, theirs.Unlock())
	b.unlock(b.granted(w))
}

func TestWriterThatMayNotShareStaysAlone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cfg := b.config()
	cfg.ACL = zk.WorldACL(zk.PermRead | zk.PermCreate | zk.PermDelete)
	s := b.session(b.poolWith(cfg))
	write, err := s.Lock(b.ctx, "a")
	require.NoError(t, err)
	read, err := s.RLock(b.ctx, "a")
	require.NoError(t, err)
	err = write.Unlock(b.ctx)
	require.ErrorIs(t, err, lockpool.ErrNoPermission)
	require.NotErrorIs(t, err, lockpool.ErrLockLost)
	require.ErrorContains(t, err, "WRITE on the node")
	require.Equal(t, 1, read.Depth())
	require.NoError(t, read.Verify(b.ctx))
	_, err = b.pool().TryRLock(b.ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrLocked)
	b.unlock(read)
	require.NoError(t, s.Close(b.ctx))
}

// Whoever becomes a reader looks at its node first, which takes a round trip.
func TestUnlockBesideADowngrade(t *testing.T) {
	t.Parallel()
	for name, unlock := range map[string]func(b *bench, s *lockpool.Handle, read *lockpool.Lock) error{
		"unlock": func(b *bench, _ *lockpool.Handle, read *lockpool.Lock) error { return read.Unlock(b.ctx) },
		"close":  func(b *bench, s *lockpool.Handle, _ *lockpool.Lock) error { return s.Close(b.ctx) },
	} {
		b, proxy := benchBehindProxy(t)
		s := b.session(b.pool())
		look := proxy.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpGetData}}, Do: zktest.HoldReply()})
		alone, err := s.Lock(b.ctx, "a")
		require.NoError(t, err)
		read, err := s.RLock(b.ctx, "a")
		require.NoError(t, err)
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- alone.Unlock(b.ctx) }()
		require.NoError(t, look.Wait(b.ctx))
		go func() { second <- unlock(b, s, read) }()
		require.NoError(t, <-second, name)
		require.NoError(t, <-first, name)
		look.Release()
		require.Empty(t, b.children("a"), name)
		require.NoError(t, s.Close(b.ctx))
	}
}

// An answer of no use does not keep readers out for as long as it is held.
func TestDowngradeIsTriedAgain(t *testing.T) {
	t.Parallel()
	b, proxy := benchBehindProxy(t)
	s, others := b.session(b.pool()), b.pool()
	const throttled = -127
	proxy.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpGetData}}, Do: zktest.FailWith(throttled)})
	alone, err := s.Lock(b.ctx, "a")
	require.NoError(t, err)
	_, err = s.RLock(b.ctx, "a")
	require.NoError(t, err)
	b.unlock(alone)
	b.unlock(b.rlock(others, "a"))
	require.NoError(t, s.Close(b.ctx))
}
