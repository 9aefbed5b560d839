package zookeeper

// This file tests listings that several callers share.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/testing/zktest"
	"github.com/lockpool/lockpool/testing/zktest/bubble"
)

// A listing that is on its way may miss what later callers have to see, so they
// share the next one.
func TestListingIsSharedByAllCallersBeforeItIsSent(t *testing.T) {
	bubble.Parallel(t)
	synctest.Test(t, func(t *testing.T) {
		s := zktest.StartBubble(t)
		ctx := t.Context()
		session := open(t, s, Config{})
		joined := join(t, session, "a")
		node := joined.Node
		require.Equal(t, []driver.Node{node}, joined.Queue)

		lists := zktest.Match{Ops: zktest.Lists}
		held := s.Inject(zktest.Rule{Match: lists, Do: zktest.HoldReply()})
		sent := s.Inject(zktest.Rule{Match: lists, Times: zktest.Always, Do: zktest.Pass()})
		var all sync.WaitGroup
		list := func(expected ...driver.Node) {
			all.Go(func() {
				queue, err := session.List(ctx, "a")
				if err != nil || !slices.Equal(queue, expected) {
					t.Errorf("%v, %v", queue, err)
				}
			})
		}
		list(node)
		require.NoError(t, held.Wait(ctx))
		require.NoError(t, s.Delete("/a/"+node.Name))
		for range 100 {
			list()
		}
		synctest.Wait() // until all of them wait
		held.Release()
		all.Wait()
		synctest.Wait() // until the server has counted the last listing
		require.Equal(t, 2, sent.Fired(), "the first listing, and one for all others")
	})
}

// Calls that give up take back their listings, unless other calls share them.
func TestListingsThatNobodyWaitsForAreNotSent(t *testing.T) {
	once(t)
	bubble.Parallel(t)
	synctest.Test(t, func(t *testing.T) {
		server := zktest.StartBubble(t)
		s := open(t, server, Config{})
		require.NoError(t, server.Create("/found", nil))
		require.NoError(t, server.Create("/found/before", nil))
		use := func(ctx context.Context, i int) error {
			queue := fmt.Sprint("q", i/2)
			switch i % 4 {
			case 0, 2:
				_, err := s.Join(ctx, queue, driver.Request{Kind: driver.Exclusive})
				return err
			case 1:
				_, err := s.List(ctx, queue)
				return err
			default:
				return s.readAll(ctx, s.readChildren(s.path(queue), func(*listing) []read { return nil }))
			}
		}
		require.NoError(t, s.Leave(t.Context(), "found", join(t, s, "found").Node)) // from now on, queues are listed
		listings := func() int {
			s.listings.mu.Lock()
			defer s.listings.mu.Unlock()
			return len(s.listings.latest)
		}

		silent := server.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpGetData}}, Do: zktest.HoldReply()})
		before := s.requests.send(getRequest("/found")) // nothing after it is answered
		ctx, giveUp := context.WithCancel(t.Context())
		var all, others sync.WaitGroup
		for i := range 1000 {
			all.Go(func() {
				if err := use(ctx, i); !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		for i := 1; i < 1000; i += 200 { // some lists are shared with calls that do not give up
			others.Go(func() {
				if err := use(t.Context(), i); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		giveUp()
		all.Wait()
		synctest.Wait()
		const sent = maxAnswers / minAnswer // creates among them, whose calls go on to find out what came of them
		require.LessOrEqual(t, s.requests.unanswered(), 2*sent+5)
		require.LessOrEqual(t, listings(), 2*sent+5)
		silent.Release()
		<-before.done
		others.Wait()
		synctest.Wait()
		time.Sleep(time.Second) // until the calls that gave up have ended
		require.Zero(t, listings())
		require.Zero(t, s.requests.unanswered())
	})
}
