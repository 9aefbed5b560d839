package zookeeper_test

// This file tests which answers and events about a session's own node grant a lock.

import (
	"sync"
	"testing"
	"testing/synctest"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/recipe"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// Nor does the event about a node that the session is about to remove: only the answer to
// the removal shows that the session has not ended instead.
func TestRemovalOfALeavingNodeGrantsNothingBeforeTheAnswer(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		session := sessionOf(b, zookeeper.LayoutCurator)
		claim := recipe.Claim{Session: session, Queue: "a", Rule: recipe.Exclusive, Views: new(recipe.Views)}
		holder, err := claim.Acquire(b.Ctx)
		require.NoError(t, err)
		result := make(chan error, 1)
		go func() { // ends with the session
			_, err := claim.Acquire(b.Ctx)
			result <- err
		}()
		b.Until(func() bool { return b.Watched(server) == 2 }, "the waiter does not watch the holder and itself")
		deletes := server.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpDelete}}, Do: zktest.HoldApply()})
		go func() { _ = session.Leave(b.Ctx, "a", holder) }() // ends with the session
		require.NoError(t, deletes.Wait(b.Ctx))
		require.NoError(t, server.Delete(b.Chroot+"/a/"+holder.Name))
		synctest.Wait()
		require.Empty(t, result, "granted by the event")
		require.NoError(t, server.ExpireSession(session.ID()))
		require.ErrorIs(t, <-result, driver.ErrSessionLost)
		deletes.Release()
	})
}

// A listing that came with a late watch grants nothing if the own node has been removed since.
func TestLateWatchGrantsNothingWithoutTheOwnNode(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		session, other := sessionOf(b, zookeeper.LayoutCurator), sessionOf(b, zookeeper.LayoutCurator)
		for turn := range 4 { // the watches of three turns are late
			before, err := other.Join(b.Ctx, "a", driver.Request{Kind: driver.Exclusive})
			require.NoError(t, err)
			o := lateObserver{sync.OnceFunc(func() { require.NoError(t, other.Leave(b.Ctx, "a", before.Node)) }), func() {
				if turn == 3 {
					require.NoError(t, server.Delete(b.Chroot+"/a/"+b.Children("a")[0]))
					synctest.Wait()
				}
			}}
			claim := recipe.Claim{Session: session, Queue: "a", Rule: recipe.Exclusive, Observer: o}
			node, err := claim.Acquire(b.Ctx)
			if turn == 3 {
				require.ErrorIs(t, err, driver.ErrRemoved)
				return
			}
			require.NoError(t, err)
			require.NoError(t, session.Leave(b.Ctx, "a", node))
		}
	})
}

type lateObserver struct{ queued, waiting func() }

func (o lateObserver) Queued(driver.Node, int, int) { o.queued() }
func (o lateObserver) Waiting(recipe.Wait) bool     { o.waiting(); return false }
func (o lateObserver) Holder(driver.Node, []byte)   {}
func (o lateObserver) Woken(driver.Event, bool)     {}

// A removal that the server refuses has removed nothing, so it grants nothing either.
func TestRefusedRemovalGrantsNothingWithinTheSession(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	session := sessionOf(b, zookeeper.LayoutCurator)
	queued := make(chan struct{}, 10)
	claim := recipe.Claim{Session: session, Queue: "a", Rule: recipe.Exclusive, Views: new(recipe.Views), Observer: listObserver{queued}}
	holder, err := claim.Acquire(b.Ctx)
	require.NoError(t, err)
	<-queued
	granted := make(chan driver.Node)
	go func() { // ends when the holder has left
		node, _ := claim.Acquire(b.Ctx)
		granted <- node
	}()
	<-queued
	b.Until(func() bool { return b.WatchedIn("a") == 2 }, "the waiter does not watch the holder and itself")
	_, err = b.Admin.SetACL(b.Chroot+"/a", zk.WorldACL(zk.PermRead|zk.PermCreate|zk.PermAdmin), -1)
	require.NoError(t, err)
	require.ErrorIs(t, session.Leave(b.Ctx, "a", holder), driver.ErrNoPermission)
	select {
	case <-queued: // it watches again
	case <-granted:
		t.Fatal("granted while the holder's node is there")
	}
	_, err = b.Admin.SetACL(b.Chroot+"/a", zk.WorldACL(zk.PermAll), -1)
	require.NoError(t, err)
	require.NoError(t, session.Leave(b.Ctx, "a", holder))
	require.NoError(t, session.Leave(b.Ctx, "a", <-granted))
}

// listObserver tells of each queue that its claim has listed, and of each watch that told nothing.
type listObserver struct{ queued chan<- struct{} }

func (o listObserver) Queued(driver.Node, int, int) { o.queued <- struct{}{} }
func (o listObserver) Waiting(recipe.Wait) bool     { return false }
func (o listObserver) Holder(driver.Node, []byte)   {}
func (o listObserver) Woken(e driver.Event, _ bool) {
	if e == driver.Interrupted {
		o.queued <- struct{}{}
	}
}

// A release by the session itself does grant: with the release alone, and no request more.
func TestReleaseGrantsWithinTheSession(t *testing.T) {
	locktest.Once(t)
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, own *zktest.Server) {
		for layout, nodes := range map[zookeeper.Layout]int{zookeeper.LayoutCurator: 1, zookeeper.LayoutKazoo: 2} {
			session, name := sessionOf(b, layout), string(layout)
			claim := recipe.Claim{Session: session, Queue: name, Rule: recipe.Exclusive, Views: new(recipe.Views)}
			holder, err := claim.Acquire(b.Ctx)
			require.NoError(t, err)
			granted := make(chan driver.Node)
			const waiters = 20
			for i := range waiters {
				go func() { // ends when the holders before it have left
					node, _ := claim.Acquire(b.Ctx)
					granted <- node
				}()
				b.AwaitQueue(name, (i+2)*nodes)
			}
			b.Until(func() bool { return b.WatchedIn(name) >= (waiters+1)*nodes }, "not all wait")
			require.Len(t, locktest.Requests(own, func() {
				for range waiters {
					require.NoError(t, session.Leave(b.Ctx, name, holder))
					holder = <-granted
					require.NotZero(t, holder)
				}
			}), waiters)
			require.NoError(t, session.Leave(b.Ctx, name, holder))
		}
	})
}
