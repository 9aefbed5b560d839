package lockpool_test

// This file tests tenancies: turns in memory on one node.

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// waitLocally starts a waiter for the lock "a", and returns when it waits.
func waitLocally(b *locktest.Bench, p *lockpool.Pool, opts ...lockpool.LockOption) *locktest.Waiter {
	b.Helper()
	before := p.Stats().Waiting
	w := b.StartLock(p, "a", opts...)
	b.AwaitWaiting(p, before+1)
	return w
}

// expire ends the session of a node of the bench.
func expire(b *locktest.Bench, path string) {
	b.Helper()
	server := b.Server.(*zktest.Server)
	require.NoError(b, server.ExpireSession(server.State().Nodes[b.Chroot+path].Stat.EphemeralOwner))
}

// LocalTurns of testing/behavior tests the order of turns, and their bounds.
func TestLocalTurnsSendNothing(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		p := b.Pool()
		holder := b.Lock(p, "a")
		b.Token(holder)
		waiters := []*locktest.Waiter{waitLocally(b, p), waitLocally(b, p), waitLocally(b, p)}
		require.Len(t, b.Children("a"), 1, "one node for all")
		require.Equal(t, 1, p.Stats().InUse, "waiters in memory take no slot")
		requests := server.Inject(zktest.Rule{
			Match: zktest.Match{Prefix: b.Chroot + "/"}, Times: zktest.Always, Do: zktest.Pass()})
		for _, w := range waiters {
			b.Unlock(holder)
			holder = w.Granted()
			b.Token(holder)
		}
		require.Zero(t, requests.Fired())
		requests.Remove()
		b.Unlock(holder)
		require.Empty(t, b.Children("a"))
	})
}

// A wait that ends at the moment of its turn was kept from the lock by the holder until then.
func TestWaitThatEndsWithItsTurn(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, _ *zktest.Server) {
		const rounds, waiters = 50, 8
		p := b.Pool()
		for range rounds {
			l := b.Lock(p, "a")
			b.Token(l) // the node is watched
			deadline := time.Now().Add(50 * time.Millisecond)
			var calls sync.WaitGroup
			for range waiters {
				calls.Go(func() {
					ctx, cancel := context.WithDeadline(b.Ctx, deadline)
					defer cancel()
					l, err := p.Lock(ctx, "a")
					if err == nil {
						assert.NoError(t, l.Unlock(b.Ctx))
						return
					}
					assert.ErrorIs(t, err, lockpool.ErrLocked)
					assert.NotErrorIs(t, err, lockpool.ErrUnavailable)
				})
			}
			b.AwaitWaiting(p, waiters)
			time.Sleep(time.Until(deadline))
			b.Unlock(l)
			calls.Wait()
		}
	})
}

func TestLocalReadersJoinADowngradedLock(t *testing.T) {
	locktest.Bubble(t, func(t *testing.T) {
		b := locktest.New(t)
		p := b.Pool()
		h := b.Handle(p)
		write := b.Lock(h, "a")
		token := b.Token(write)
		read := b.Lock(h, "a", lockpool.Shared())
		b.Unlock(write)
		also := b.Lock(p, "a", lockpool.Shared())
		require.Len(t, b.Children("a"), 1, "both share a node")
		require.Equal(t, token, b.Token(read))
		require.Greater(t, b.Token(also), token)
		w := b.Enqueue(p, "a", 2)
		require.NoError(t, h.Close(b.Ctx))
		w.StillWaits()
		b.Unlock(also)
		b.Unlock(w.Granted())
	})
}

// While the node of a writer is replaced by a reader's, no writer gets a turn with it.
func TestNoLocalTurnBesideADowngrade(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		p := b.Pool()
		h := b.Handle(p)
		write := b.Lock(h, "a")
		b.Token(write)
		read := b.Lock(h, "a", lockpool.Shared())
		w := waitLocally(b, p)
		replace := server.Inject(zktest.Rule{
			Match: zktest.Match{Ops: []zktest.Op{zktest.OpMulti}, Prefix: b.Chroot + "/a/"}, Do: zktest.HoldReply()})
		downgraded, released := make(chan error), make(chan error)
		go func() { downgraded <- write.Unlock(b.Ctx) }()
		require.NoError(t, replace.Wait(b.Ctx))
		go func() { released <- read.Unlock(b.Ctx) }()
		time.Sleep(50 * time.Millisecond)
		w.StillWaits()
		replace.Release()
		require.NoError(t, <-downgraded)
		require.NoError(t, <-released)
		l := w.Granted()
		reader := b.EnqueueRead(b.Pool(), "a", 2)
		reader.StillWaits()
		b.Unlock(l)
		b.Unlock(reader.Granted())
		require.NoError(t, h.Close(b.Ctx))
	})
}

// A tenancy lasts 100 ms, but a share of it while another pool waits, for a reader's lock as well.
func TestCrowdLeavesTheLockToOthers(t *testing.T) {
	for _, kind := range []struct {
		name  string
		opts  []lockpool.LockOption
		turns int64 // in a second
	}{{"writers", nil, 900}, {"readers", []lockpool.LockOption{lockpool.Shared()}, 3600}} {
		t.Run(kind.name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, s *zktest.Server) {
				p, loner := b.Pool(), b.Pool()
				s.Inject(zktest.Rule{Match: zktest.Match{Ops: zktest.Creates}, Do: zktest.DelayReply(time.Second)})
				for range 12 { // one slow answer does not say what an acquisition costs
					b.Unlock(b.Lock(p, "b"))
				}
				var turns atomic.Int64
				ctx, stop := context.WithCancel(b.Ctx)
				var crowd sync.WaitGroup
				for i := range 4 {
					crowd.Go(func() {
						time.Sleep(time.Duration(i) * 300 * time.Microsecond)
						for ctx.Err() == nil {
							l := b.Lock(p, "a", kind.opts...)
							turns.Add(1)
							time.Sleep(time.Millisecond)
							b.Unlock(l)
						}
					})
				}
				before := p.Stats().LocalTurns
				listed := s.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpGetChildren2}}, Times: 1 << 20, Do: zktest.DelayReply(0)})
				time.Sleep(time.Second)
				tenancies := turns.Load() - (p.Stats().LocalTurns - before)
				require.Greater(t, turns.Load(), kind.turns)
				require.LessOrEqual(t, tenancies, int64(11))
				require.LessOrEqual(t, listed.Fired(), 60)
				for range 10 {
					plain := b.Lock(loner, "plain", lockpool.Plain()) // nor does the wait for a plain lock
					waiter := b.StartLock(p, "plain", lockpool.Plain())
					time.Sleep(20 * time.Millisecond)
					b.Unlock(plain)
					b.Unlock(waiter.Granted())
					b.Unlock(b.Lock(loner, "a")) // and the crowd's next tenancy begins
					began := time.Now()
					b.Unlock(b.Lock(loner, "a"))
					require.Less(t, time.Since(began), 15*time.Millisecond)
				}
				stop()
				crowd.Wait()
			})
		})
	}
}

// A waiter behind a holder of the pool queues at the service when the share is over, though a
// reader queued there when the timer of the share fired, and then gave up.
func TestWaiterQueuesAfterTheShareOfAnOtherKind(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, _ *zktest.Server) {
		p := b.Pool()
		holder := b.Lock(p, "a")
		for i, kind := range [][]lockpool.LockOption{nil, {lockpool.Shared()}} { // the first arms the timer
			ctx, giveUp := context.WithCancel(b.Ctx)
			var w sync.WaitGroup
			w.Go(func() {
				_, err := p.Lock(ctx, "a", kind...)
				require.ErrorIs(t, err, context.Canceled)
			})
			b.AwaitWaiting(p, 1)
			if i == 1 {
				time.Sleep(20 * time.Millisecond)
			}
			giveUp()
			w.Wait()
		}
		waiter := b.StartLock(p, "a")
		time.Sleep(time.Second)
		require.Len(t, b.Children("a"), 2)
		b.Unlock(holder)
		b.Unlock(waiter.Granted())
	})
}

// The delegate waits for a session here, and not for a handle.
func TestErrorOfALocalWaiterWhoseDelegateHasNoSessionYet(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		p := b.Pool()
		var handles []*lockpool.Handle
		for range 32 { // on one session
			handles = append(handles, b.Handle(p))
		}
		server.Inject(zktest.Rule{
			Match: zktest.Match{Ops: []zktest.Op{zktest.OpConnect}}, Do: zktest.DelayReply(time.Second)})
		first := b.StartLock(p, "a")
		synctest.Wait()
		_, err := p.Lock(b.Ctx, "a", lockpool.WaitAtMost(20*time.Millisecond))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotContains(t, err.Error(), "no free handle")
		b.Unlock(first.Granted())
		for _, h := range handles {
			require.NoError(t, h.Close(b.Ctx))
		}
	})
}

// The pool keeps its place in the service's queue for as long as calls wait for it, also
// if the one that has queued for all gives up.
func TestPlaceInTheQueueOutlivesItsFirstWaiter(t *testing.T) {
	locktest.Bubble(t, func(t *testing.T) {
		b := locktest.New(t)
		p, others := b.Pool(), b.Pool()
		holder := b.Lock(others, "a")
		ctx, giveUp := context.WithCancel(b.Ctx)
		first := startLock(ctx, p)
		b.AwaitQueue("a", 2)
		b.AwaitWaiting(p, 1)
		second := startLock(ctx, p)
		b.AwaitWaiting(p, 2)
		third, fourth := waitLocally(b, p), waitLocally(b, p)
		rival := b.Enqueue(others, "a", 3)
		queue := b.Children("a")
		giveUp()
		require.ErrorIs(t, <-first, context.Canceled)
		require.ErrorIs(t, <-second, context.Canceled)
		time.Sleep(time.Second)
		require.Equal(t, queue, b.Children("a"), "nobody has queued again")
		require.Equal(t, 2, p.Stats().Waiting)
		b.Unlock(holder)
		holder = third.Granted()
		token := b.Token(holder)
		b.Unlock(holder)
		holder = fourth.Granted()
		require.Greater(t, b.Token(holder), token)
		rival.StillWaits()
		b.Unlock(holder)
		b.Unlock(rival.Granted())
		require.Empty(t, b.Children("a"))
	})
}

// startLock locks "a", unlocks it if that succeeds, and tells the error.
func startLock(ctx context.Context, p *lockpool.Pool, opts ...lockpool.LockOption) <-chan error {
	return startLockOf(ctx, p, "a", opts...)
}

func startLockOf(ctx context.Context, p *lockpool.Pool, name string, opts ...lockpool.LockOption) <-chan error {
	done := make(chan error, 1)
	go func() {
		l, err := p.Lock(ctx, name, opts...)
		if err == nil {
			err = l.Unlock(ctx)
		}
		done <- err
	}()
	return done
}

// The place is given up with the last waiter, or with the last that can use it.
func TestPlaceInTheQueueEnds(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, b *locktest.Bench, p *lockpool.Pool){
		"all give up together": func(t *testing.T, b *locktest.Bench, p *lockpool.Pool) {
			ctx, giveUp := context.WithCancel(b.Ctx)
			var waiters []<-chan error
			for n := range 5 {
				waiters = append(waiters, startLock(ctx, p))
				b.AwaitWaiting(p, n+1)
			}
			require.Len(t, b.Children("a"), 2)
			giveUp()
			for _, w := range waiters {
				require.ErrorIs(t, <-w, context.Canceled)
			}
			b.AwaitQueue("a", 1)
		},
		"shutdown": func(t *testing.T, b *locktest.Bench, p *lockpool.Pool) {
			var waiters []<-chan error
			for n := range 5 {
				waiters = append(waiters, startLock(b.Ctx, p))
				b.AwaitWaiting(p, n+1)
			}
			require.NoError(t, p.Shutdown(b.Ctx))
			for _, w := range waiters {
				require.ErrorIs(t, <-w, lockpool.ErrPoolClosed)
			}
			b.AwaitQueue("a", 1)
		},
		"readers wait behind a writer": func(t *testing.T, b *locktest.Bench, p *lockpool.Pool) {
			ctx, giveUp := context.WithCancel(b.Ctx)
			writer := startLock(ctx, p)
			b.AwaitWaiting(p, 1)
			reader := waitLocally(b, p, lockpool.Shared())
			node := b.Children("a")[1]
			giveUp()
			require.ErrorIs(t, <-writer, context.Canceled)
			b.Until(func() bool { c := b.Children("a"); return len(c) == 2 && c[1] != node }, "the reader has a node of its own")
			require.NoError(t, p.Break(b.Ctx, "a", b.Children("a")[0]))
			b.Unlock(reader.Granted())
		},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.Bubble(t, func(t *testing.T) {
				b := locktest.New(t)
				b.Lock(b.Pool(), "a")
				end(t, b, b.Pool())
			})
		})
	}
}

// A call that takes over a place, whose node is gone or whose session has ended, queues
// again.
func TestPlaceInTheQueueIsLost(t *testing.T) {
	for name, lose := range map[string]func(b *locktest.Bench, node string){
		"removed": func(b *locktest.Bench, node string) { require.NoError(b, b.Admin.Delete(b.Chroot+"/a/"+node, -1)) },
		"session": func(b *locktest.Bench, node string) {
			expire(b, "/a/"+node)
		},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.Bubble(t, func(t *testing.T) {
				b := locktest.New(t)
				holder := b.Lock(b.Pool(), "a")
				p := b.Pool()
				ctx, giveUp := context.WithCancel(b.Ctx)
				first := startLock(ctx, p)
				b.AwaitWaiting(p, 1)
				second, third := waitLocally(b, p), waitLocally(b, p)
				node := b.Children("a")[1]
				giveUp()
				require.ErrorIs(t, <-first, context.Canceled)
				lose(b, node)
				b.Until(func() bool { c := b.Children("a"); return len(c) == 2 && c[1] != node }, "it has queued again")
				b.Unlock(holder)
				l := second.Granted()
				third.StillWaits()
				b.Unlock(l)
				b.Unlock(third.Granted())
			})
		})
	}
}

// A call that waits for a free handle blocks nobody who has one.
func TestNobodyWithAHandleWaitsForOneWithout(t *testing.T) {
	locktest.Bubble(t, func(t *testing.T) {
		b := locktest.New(t)
		p := b.Pool(lockpool.WithMaxHandles(1), lockpool.WithLocalTurns(2))
		h := b.Handle(p)
		without := startLock(b.Ctx, p) // waits for a handle
		time.Sleep(time.Second)
		l := b.Lock(h, "a")
		w1, w2 := waitLocally(b, p), waitLocally(b, p)
		b.Unlock(l)
		again := b.StartLock(h, "a")
		l = w1.Granted() // the last turn
		b.AwaitWaiting(p, 2)
		b.Unlock(l)
		b.Unlock(w2.Granted())
		b.Unlock(again.Granted())
		require.NoError(t, h.Close(b.Ctx))
		require.NoError(t, <-without)
		require.Zero(t, p.Stats().InUse)
	})
}

// A handle whose session is over waits for a place on another one. Those that have one do
// not wait behind it.
func TestNobodyWithAHandleWaitsForOneThatLostItsSession(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		p := b.Pool(lockpool.WithMaxHandles(1))
		h := b.Handle(p)
		opened := make(chan *lockpool.Handle)
		go func() { opened <- b.Handle(p) }() // waits for the handle
		time.Sleep(time.Second)
		for _, s := range server.State().Sessions {
			if s.ID != b.Admin.SessionID() {
				require.NoError(t, server.ExpireSession(s.ID))
			}
		}
		synctest.Wait()
		done := make(chan error, 1)
		go func() { done <- h.Do(b.Ctx, "a", func(context.Context) error { return nil }) }()
		other := <-opened
		ctx, cancel := context.WithTimeout(b.Ctx, 10*time.Second)
		defer cancel()
		l, err := other.Lock(ctx, "a")
		require.NoError(t, err)
		b.Unlock(l)
		require.NoError(t, <-done)
		require.NoError(t, other.Close(b.Ctx))
		require.NoError(t, h.Close(b.Ctx))
	})
}

// A holder that needs another lock does not wait for a handle: those who have the handles
// may wait for it.
func TestHolderDoesNotWaitForAHandle(t *testing.T) {
	locktest.Bubble(t, func(t *testing.T) {
		b := locktest.New(t)
		p := b.Pool(lockpool.WithMaxHandles(1))
		h := b.Handle(p)
		l := b.Lock(h, "a")
		done := make(chan error, 1)
		go func() {
			done <- p.Do(b.Ctx, "a", func(ctx context.Context) error { // a turn, without a handle
				time.Sleep(time.Second)
				ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
				defer cancel()
				return p.Do(ctx, "b", func(context.Context) error { return nil })
			})
		}()
		b.AwaitWaiting(p, 1)
		b.Unlock(l)
		w := b.StartLock(h, "a")
		require.NoError(t, <-done)
		b.Unlock(w.Granted())
		require.NoError(t, h.Close(b.Ctx))
	})
}

// Only for a handle that others have does a call not wait.
func TestFirstWaiterTakesAHandleThatIsFree(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		p := b.Pool()
		lost := b.Lock(p, "a")
		w := waitLocally(b, p)
		server.Inject(zktest.Rule{
			Match: zktest.Match{Ops: []zktest.Op{zktest.OpConnect}}, Times: zktest.Always, Do: zktest.DelayReply(100 * time.Millisecond)})
		expire(b, "/a/"+b.Children("a")[0])
		b.AwaitLoss(lost)
		require.ErrorIs(t, lost.Unlock(b.Ctx), lockpool.ErrLockLost)
		l := w.Granted()
		require.Equal(t, 1, p.Stats().InUse)
		b.Unlock(l)
	})
}

// A try passes nobody who waits in memory, or who has just become the one to queue at the
// service.
func TestTryPassesNoLocalWaiter(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		p := b.Pool()
		reader := b.Lock(p, "a", lockpool.Shared())
		create := server.Inject(zktest.Rule{
			Match: zktest.Match{Ops: zktest.Creates, Prefix: b.Chroot + "/a/"}, Do: zktest.HoldApply()})
		writer := b.StartLock(p, "a")
		require.NoError(t, create.Wait(b.Ctx))
		ctx, cancel := context.WithTimeout(b.Ctx, time.Second) // later requests of the session wait as well
		defer cancel()
		_, err := p.TryLock(ctx, "a", lockpool.Shared())
		require.ErrorIs(t, err, lockpool.ErrLocked)
		_, err = p.TryLock(ctx, "a")
		require.ErrorIs(t, err, lockpool.ErrLocked)
		require.NoError(t, ctx.Err())
		create.Release()
		b.Unlock(reader)
		b.Unlock(writer.Granted())
		l, err := p.TryLock(b.Ctx, "a")
		require.NoError(t, err)
		b.Unlock(l)
	})
}

// Without room for the turns in a token, nothing is granted.
func TestNothingIsGrantedWithoutTokens(t *testing.T) {
	locktest.Bubble(t, func(t *testing.T) {
		b := locktest.New(t)
		connector, err := zookeeper.NewConnector(b.Config())
		require.NoError(t, err)
		p := locktest.Open(t, tokenless{connector})
		for _, lock := range []func() error{
			func() error { _, err := p.Lock(b.Ctx, "a"); return err },
			func() error { _, err := p.Lock(b.Ctx, "a", lockpool.Shared()); return err },
			func() error { _, err := p.Lock(b.Ctx, "plain", lockpool.Plain()); return err },
			func() error { _, err := p.Semaphore("s", 2).Acquire(b.Ctx, 1); return err },
		} {
			require.ErrorIs(t, lock(), errNoTokens)
		}
		require.Empty(t, b.Contenders("/"))
		require.Zero(t, p.Stats().Held)
	})
}

var errNoTokens = errors.New("there are no more tokens")

// tokenless is a connector for an ensemble whose numbers do not fit into tokens.
type tokenless struct{ driver.Connector }

func (c tokenless) Connect(ctx context.Context) (driver.Session, error) {
	s, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return tokenlessSession{s, s.(driver.PlainLocker), s.(driver.Limiter)}, nil
}

type tokenlessSession struct {
	driver.Session
	driver.PlainLocker
	driver.Limiter
}

func (tokenlessSession) Alive(context.Context) error { return errNoTokens }

// A turn that a handle gets from another one.
func BenchmarkLocalTurn(b *testing.B) {
	bench := locktest.New(b)
	p := bench.Pool()
	ctx := context.Background()
	b.SetParallelism(32)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			l, err := p.Lock(ctx, "a")
			if err == nil {
				err = l.Unlock(ctx)
			}
			if err != nil {
				b.Error(err)
				return
			}
		}
	})
}
