package lockpool_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/zktest"
)

// Kinds of locks, each with a way to take it and to give it back.
var lockKinds = []struct {
	name string
	take func(b *bench, p *lockpool.Pool) (release func(context.Context) error, err error)
	says string // what others are told is there
}{
	{"queue", func(b *bench, p *lockpool.Pool) (func(context.Context) error, error) {
		l, err := p.TryLock(b.ctx, "s")
		if err != nil {
			return nil, err
		}
		return l.Unlock, nil
	}, "a queue with 1 contenders"},
	{"plain", func(b *bench, p *lockpool.Pool) (func(context.Context) error, error) {
		l, err := p.TryLock(b.ctx, "s", lockpool.Plain())
		if err != nil {
			return nil, err
		}
		return l.Unlock, nil
	}, "a plain lock"},
	{"semaphore", func(b *bench, p *lockpool.Pool) (func(context.Context) error, error) {
		l, err := p.Semaphore("s", 2).TryAcquire(b.ctx, 1)
		if err != nil {
			return nil, err
		}
		return l.Release, nil
	}, "a semaphore"},
}

func TestKindsOfLocksDoNotMix(t *testing.T) {
	t.Parallel()
	for _, first := range lockKinds {
		for _, second := range lockKinds {
			if first.name == second.name {
				continue
			}
			t.Run(fmt.Sprint(first.name, " then ", second.name), func(t *testing.T) {
				t.Parallel()
				b := newBench(t)
				p, others := b.pool(), b.pool()
				release, err := first.take(b, p)
				require.NoError(t, err)
				_, err = second.take(b, others)
				require.ErrorIs(t, err, lockpool.ErrKindMismatch)
				require.ErrorContains(t, err, first.says)
				require.NoError(t, release(b.ctx))
			})
		}
	}
}

// What is left behind of one kind is no obstacle, if only after a while.
func TestNameCanBeUsedForAnotherKindWhenItIsFree(t *testing.T) {
	t.Parallel()
	own := startServer(t, zktest.ContainerInterval(50*time.Millisecond))
	b := newBenchOn(t, own.Addr())
	pools := []*lockpool.Pool{b.pool(), b.pool()}
	for i, k := range []int{0, 1, 2, 0, 2, 1, 0} {
		var release func(context.Context) error
		b.until(func() (ok bool) {
			var err error
			if release, err = lockKinds[k].take(b, pools[i%2]); err != nil {
				require.ErrorIs(t, err, lockpool.ErrKindMismatch)
				require.Equal(t, 1, k, "an empty container is an obstacle for a plain lock only: %v", err)
			}
			return err == nil
		}, lockKinds[k].name)
		require.NoError(t, release(b.ctx))
	}
	p := pools[0]
	_, err := b.admin.Create(b.chroot+"/keep", nil, 0, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	_, err = p.TryLock(b.ctx, "keep", lockpool.Plain())
	require.ErrorIs(t, err, lockpool.ErrKindMismatch)
	require.ErrorContains(t, err, "an empty node is at "+b.chroot+"/keep")
	l, err := p.TryLock(b.ctx, "keep/x", lockpool.Plain())
	require.NoError(t, err)
	b.unlock(l)
}

// A lock below a plain lock, and a plain lock above others.
func TestPlainLockHasNothingBelowIt(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	l, err := p.Lock(b.ctx, "a", lockpool.Plain())
	require.NoError(t, err)
	for _, name := range []string{"a/b", "a/b/c"} {
		_, err = p.Lock(b.ctx, name)
		require.ErrorIs(t, err, lockpool.ErrKindMismatch, name)
		require.ErrorContains(t, err, "a plain lock is held at "+b.chroot+"/a")
		_, err = p.Lock(b.ctx, name, lockpool.Plain())
		require.ErrorIs(t, err, lockpool.ErrKindMismatch, name)
	}
	require.ErrorIs(t, p.Semaphore("a", 0).SetLimit(b.ctx, 1), lockpool.ErrKindMismatch)
	b.unlock(l)
	below := b.lock(p, "a/b")
	_, err = p.Lock(b.ctx, "a", lockpool.Plain())
	require.ErrorIs(t, err, lockpool.ErrKindMismatch)
	require.ErrorContains(t, err, "other nodes below it, such as b")
	b.unlock(below)
}

// Two who begin at the same moment, with different kinds: one gets in at the most,
// and whoever does not is told.
func TestKindsOfLocksDoNotMixInARaceEither(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	pools := []*lockpool.Pool{b.pool(), b.pool()}
	for round := range 60 {
		type result struct {
			release func(context.Context) error
			err     error
		}
		results := make(chan result, 2)
		for i, k := range [][]int{{0, 1}, {0, 2}, {1, 2}}[round%3] {
			go func() {
				release, err := lockKinds[k].take(b, pools[i])
				results <- result{release, err}
			}()
		}
		one, two := <-results, <-results
		require.False(t, one.err == nil && two.err == nil, "both are in")
		for _, r := range []result{one, two} {
			if r.err == nil {
				require.NoError(t, r.release(b.ctx))
			} else {
				require.ErrorIs(t, r.err, lockpool.ErrKindMismatch)
			}
		}
		b.until(func() bool { return b.sweep("/s") }, "nothing is left")
	}
}

// sweep removes empty nodes, as ZooKeeper would in time. It reports whether all
// are gone.
func (b *bench) sweep(path string) bool {
	children, _, err := b.admin.Children(b.chroot + path)
	if err == zk.ErrNoNode {
		return true
	}
	require.NoError(b, err)
	for _, child := range children {
		if strings.HasPrefix(child, "_c_") || !b.sweep(path+"/"+child) {
			return false
		}
	}
	err = b.admin.Delete(b.chroot+path, -1)
	return err == nil || err == zk.ErrNoNode
}

// A holder that asks for another kind deeper in its code is told, too.
func TestHolderIsToldWhenItAsksForAnotherKind(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	s := b.session(p)
	l, err := s.Lock(b.ctx, "s")
	require.NoError(t, err)
	_, err = s.Lock(b.ctx, "s", lockpool.Plain())
	require.ErrorIs(t, err, lockpool.ErrKindMismatch)
	require.ErrorContains(t, err, "holds it as mutex")
	_, err = s.Semaphore("s", 1).Acquire(b.ctx, 1)
	require.ErrorIs(t, err, lockpool.ErrKindMismatch)
	b.unlock(l)
	l, err = s.Lock(b.ctx, "p", lockpool.Plain())
	require.NoError(t, err)
	_, err = s.Lock(b.ctx, "p")
	require.ErrorIs(t, err, lockpool.ErrKindMismatch)
	_, err = s.RLock(b.ctx, "p")
	require.ErrorIs(t, err, lockpool.ErrKindMismatch)
	b.unlock(l)
	require.NoError(t, s.Close(expiring(t, time.Second)))
}
