package lockpool_test

// This file tests that a victim is part of a cycle that stands, and names what the tests of
// deadlocks have in common with the plays.

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/plays"
	"github.com/lockpool/lockpool/testing/zktest"
)

// What the tests of deadlocks have in common with the plays.
type (
	ask   = plays.Ask
	party = plays.Party
)

var (
	exclusively, plainly, toRead = plays.Exclusively, plays.Plainly, plays.ToRead
	withAll, permits             = plays.WithAll, plays.Permits
)

// A look reads one queue after the other. What it has read of the first may be over when it
// reads the last.
func TestCycleThatDissolvesDuringALookHasNoVictim(t *testing.T) {
	locktest.Timed(t, func(t *testing.T) {
		b := locktest.New(t)
		first := &party{Handle: b.Handle(b.Pool())}
		proxy := b.Proxy()
		last := &party{Handle: b.Handle(b.Pool())}
		require.NoError(t, exclusively(b.Ctx, first.Handle, "a"))
		require.NoError(t, exclusively(b.Ctx, last.Handle, "b"))
		ctx, cancel := context.WithCancel(b.Ctx)
		defer cancel()
		first.WaitFor(ctx, exclusively, "b")
		b.AwaitQueue("b", 2)
		last.WaitFor(b.Ctx, exclusively, "a")
		b.AwaitQueue("a", 2)
		inItsOwnQueue := zktest.Match{Ops: zktest.Lists, Where: func(r zktest.Request) bool { return r.Paths[0] == b.Chroot+"/a" }}
		inTheOther := zktest.Match{Ops: zktest.Lists, Where: func(r zktest.Request) bool { return r.Paths[0] == b.Chroot+"/b" }}
		again := make(chan *zktest.Fault, 1)
		proxy.Inject(zktest.Rule{Match: inItsOwnQueue, Do: zktest.Call(func(zktest.Request) {
			cancel()
			<-first.Done
			again <- proxy.Inject(zktest.Rule{Match: inTheOther, Do: zktest.Pass()})
		})})
		second := <-again
		b.AwaitQueue("b", 1)
		select {
		case <-last.Done:
			require.NoError(t, last.Err)
		default:
		}
		require.NoError(t, second.Wait(b.Ctx), "it looks again")
		require.NoError(t, first.Close(b.Ctx))
		<-last.Done
		require.NoError(t, last.Err)
		require.NoError(t, last.Close(b.Ctx))
	})
}

// A look whose reads are refused finds nothing, however often, but is repeated soon.
func TestLookThatIsRefusedIsRepeatedSoon(t *testing.T) {
	locktest.Once(t)
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		one, two := &party{Handle: b.Handle(b.Pool())}, &party{Handle: b.Handle(b.Pool())}
		b.Lock(one.Handle, "a")
		b.Lock(two.Handle, "b")
		one.WaitFor(b.Ctx, exclusively, "b")
		b.AwaitQueue("b", 2)
		two.WaitFor(b.Ctx, exclusively, "a") // closes the cycle
		synctest.Wait()
		refused := server.Inject(zktest.Rule{
			Match: zktest.Match{Ops: zktest.Lists}, Times: zktest.Always, Do: zktest.FailWith(zktest.ErrSystem),
		})
		time.Sleep(9 * time.Second)
		refused.Remove()
		began := time.Now()
		<-two.Done
		require.ErrorIs(t, two.Err, lockpool.ErrDeadlock)
		require.Less(t, time.Since(began), time.Second)
		require.NoError(t, two.Close(b.Ctx))
		<-one.Done
		require.NoError(t, one.Err)
		require.NoError(t, one.Close(b.Ctx))
	})
}
