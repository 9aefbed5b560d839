package lockpool_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// A plain lock's node is removed by hand, and another holder takes the lock before
// the first unlocks it. The second holder's node is left alone, wherever it is.
func TestUnlockOfAPlainLockDoesNotHitTheNextHolder(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"on one session", "in one pool", "in another pool", "in another pool, watched"} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			b := locktest.New(t)
			p := b.Pool()
			others := p
			switch where {
			case "on one session":
				p = b.Pool(lockpool.WithMaxSessions(1))
				others = p
			case "in another pool", "in another pool, watched":
				others = b.Pool()
			}
			b.Unlock(b.Lock(others, "x")) // so that it has a session
			for range 5 {
				l, err := p.Lock(b.Ctx, "a", lockpool.Plain())
				require.NoError(t, err)
				if where == "in another pool, watched" {
					b.Token(l)
				}
				require.NoError(t, b.Admin.Delete(b.Chroot+"/a", -1))
				next, err := others.Lock(b.Ctx, "a", lockpool.Plain())
				require.NoError(t, err)
				err = l.Unlock(b.Ctx)
				require.True(t, locktest.IsAny(err, driver.ErrRemoved, lockpool.ErrLockLost), "%v", err)
				require.NoError(t, next.Verify(b.Ctx), "the next holder's node stands")
				b.Unlock(next)
			}
			// Nobody has taken it.
			l, err := p.Lock(b.Ctx, "a", lockpool.Plain())
			require.NoError(t, err)
			require.NoError(t, b.Admin.Delete(b.Chroot+"/a", -1))
			err = l.Unlock(b.Ctx)
			require.True(t, locktest.IsAny(err, driver.ErrRemoved, lockpool.ErrLockLost), "%v", err)
		})
	}
}

// As above, but the next holder does not know yet that it is one.
func TestUnlockOfAPlainLockDoesNotHitACreateUnderWay(t *testing.T) {
	t.Parallel()
	own := zktest.Start(t)
	for _, sessions := range []int{1, 4} {
		b := locktest.NewOn(t, own.Addr())
		p, others := b.Pool(lockpool.WithMaxSessions(sessions)), b.Pool()
		if sessions == 1 {
			others = p
		}
		b.Unlock(b.Lock(others, "x"))
		l, err := p.Lock(b.Ctx, "a", lockpool.Plain())
		require.NoError(t, err)
		require.NoError(t, b.Admin.Delete(b.Chroot+"/a", -1))
		held := own.Inject(zktest.Rule{
			Match: zktest.Match{Prefix: b.Chroot + "/a", Ops: zktest.Creates},
			Do:    zktest.DelayReply(200 * time.Millisecond),
		})
		got := make(chan *lockpool.Lock, 1)
		go func() {
			next, err := others.Lock(b.Ctx, "a", lockpool.Plain())
			if err != nil {
				t.Error(err)
			}
			got <- next
		}()
		require.NoError(t, held.Wait(b.Ctx))
		err = l.Unlock(b.Ctx)
		require.True(t, locktest.IsAny(err, driver.ErrRemoved, lockpool.ErrLockLost), "%v", err)
		next := <-got
		require.NoError(t, next.Verify(b.Ctx), "the next holder's node stands")
		b.Unlock(next)
	}
}

// As above, but the delete is on its way when the node is removed. Whoever waits in
// this process waits for its answer, too.
func TestWaiterForAPlainLockIsNotHitByADeleteUnderWay(t *testing.T) {
	t.Parallel()
	own := zktest.Start(t)
	b := locktest.NewOn(t, own.Addr())
	p, others := b.Pool(), b.Pool()
	path := b.Chroot + "/a"
	for range 10 {
		l, err := p.Lock(b.Ctx, "a", lockpool.Plain())
		require.NoError(t, err)
		got := make(chan *lockpool.Lock, 1)
		go func() {
			next, err := others.Lock(b.Ctx, "a", lockpool.Plain())
			if err != nil {
				t.Error(err)
			}
			got <- next
		}()
		require.NoError(t, own.WaitWatch(b.Ctx, path, 1))
		held := own.Inject(zktest.Rule{Match: zktest.Match{Prefix: path, Ops: []zktest.Op{zktest.OpDelete}}, Do: zktest.HoldApply()})
		unlocked := make(chan error, 1)
		go func() { unlocked <- l.Unlock(b.Ctx) }()
		require.NoError(t, held.Wait(b.Ctx))
		from := len(own.Trace())
		require.NoError(t, own.Delete(path))
		late := time.Now().Add(15 * time.Millisecond) // for the waiter to do what it must not
		b.Until(func() bool {
			return time.Now().After(late) || slices.ContainsFunc(own.Trace()[from:], func(r zktest.Record) bool { return r.Kind == zktest.Requested && r.Op == zktest.OpCreate })
		}, "time")
		held.Release()
		err = <-unlocked
		require.True(t, locktest.IsAny(err, driver.ErrRemoved, lockpool.ErrLockLost), "%v", err)
		next := <-got
		require.NoError(t, next.Verify(b.Ctx), "the next holder's node stands")
		b.Unlock(next)
	}
}

// As above, but it is the delete of somebody who breaks the lock, and the holder
// is faster.
func TestWaiterForAPlainLockIsNotHitByABreakUnderWay(t *testing.T) {
	t.Parallel()
	own := zktest.Start(t)
	b := locktest.NewOn(t, own.Addr())
	p, others, operator := b.Pool(), b.Pool(), b.Pool()
	path := b.Chroot + "/a"
	for range 10 {
		l, err := p.Lock(b.Ctx, "a", lockpool.Plain())
		require.NoError(t, err)
		q, err := operator.Queue(b.Ctx, "a")
		require.NoError(t, err)
		got := make(chan *lockpool.Lock, 1)
		go func() {
			next, err := others.Lock(b.Ctx, "a", lockpool.Plain())
			if err != nil {
				t.Error(err)
			}
			got <- next
		}()
		require.NoError(t, own.WaitWatch(b.Ctx, path, 1))
		held := own.Inject(zktest.Rule{Match: zktest.Match{Prefix: path, Ops: []zktest.Op{zktest.OpDelete}}, Times: 1, Do: zktest.HoldApply()})
		broken := make(chan error, 1)
		go func() { broken <- operator.Break(b.Ctx, "a", q.Contenders[0].Node) }()
		require.NoError(t, held.Wait(b.Ctx))
		from := len(own.Trace())
		b.Unlock(l)
		late := time.Now().Add(15 * time.Millisecond) // for the waiter to do what it must not
		b.Until(func() bool {
			return time.Now().After(late) || slices.ContainsFunc(own.Trace()[from:], func(r zktest.Record) bool { return r.Kind == zktest.Requested && r.Op == zktest.OpCreate })
		}, "time")
		held.Release()
		require.ErrorIs(t, <-broken, lockpool.ErrNotHeld)
		next := <-got
		require.NoError(t, next.Verify(b.Ctx), "the next holder's node stands")
		b.Unlock(next)
	}
}

// The session that lost a plain lock takes it again, the reply is lost, and
// somebody asks for the lock before it is found: it is its own.
func TestSessionThatLostAPlainLockKnowsItsNextNode(t *testing.T) {
	t.Parallel()
	own := zktest.Start(t)
	b := locktest.NewOn(t, own.Addr())
	p := b.Pool(lockpool.WithMaxSessions(1))
	other := b.Lock(p, "other") // keeps the session
	defer b.Unlock(other)
	for _, noticed := range []string{"by its watch", "by Verify"} {
		l, err := p.Lock(b.Ctx, "a", lockpool.Plain())
		require.NoError(t, err)
		if noticed == "by its watch" {
			b.Token(l)
		}
		require.NoError(t, b.Admin.Delete(b.Chroot+"/a", -1))
		if noticed == "by Verify" {
			require.ErrorIs(t, l.Verify(b.Ctx), lockpool.ErrLockLost)
		}
		b.AwaitLoss(l)
		own.Inject(zktest.Rule{
			Match: zktest.Match{Prefix: b.Chroot + "/a", Ops: zktest.Creates},
			Do:    zktest.DropAfterApply(),
		})
		own.Inject(zktest.Rule{
			Match: zktest.Match{Ops: []zktest.Op{zktest.OpConnect}},
			Do:    zktest.Call(func(zktest.Request) { _ = own.Set(b.Chroot+"/a", []byte("__REVOKE__")) }),
		})
		next, err := p.Lock(locktest.Timeout(t, 4*time.Second), "a", lockpool.Plain())
		require.NoError(t, err, "it waits for its own node")
		b.Unlock(next)
		require.ErrorIs(t, l.Unlock(b.Ctx), lockpool.ErrLockLost)
	}
}

// A plain lock that is held for long enough to be watched needs no look.
func TestUnlockOfAWatchedPlainLockIsOneRequest(t *testing.T) {
	t.Parallel()
	own := zktest.Start(t)
	b := locktest.NewOn(t, own.Addr())
	l := watchedPlainLock(b, b.Pool(), "a")
	time.Sleep(60 * time.Millisecond) // the work
	before := len(own.Trace())
	b.Unlock(l)
	for _, e := range own.Trace()[before:] {
		require.False(t, e.Kind == zktest.Requested && e.Op == zktest.OpGetData && e.Paths[0] == b.Chroot+"/a", "%v", e)
	}
}
