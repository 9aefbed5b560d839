package zookeeper_test

// This file has tests of the removal of old records.

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// The leader's clock is wrong for a while. No record goes early, whenever it was created, and
// when the clock is right again, all go that are old.
func TestClearingWhenTheServersClockIsWrong(t *testing.T) {
	locktest.Once(t)
	const year, keep = 365 * 24 * time.Hour, 10 * time.Minute
	for _, off := range []time.Duration{year, -year, 2 * keep, -2 * keep} {
		t.Run(fmt.Sprint(off), func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
				b.Ctx = context.Background()
				p := b.Pool()
				runs := 0
				begun := map[string]time.Time{}
				turn := func() { // of a tenth of keep
					key := fmt.Sprint(runs)
					runs++
					begun[key] = time.Now()
					runOnce(b, p, key, lockpool.KeepDone(keep))
					found := map[string]bool{}
					for _, key := range keysOf(b, p) {
						found[key] = true
					}
					for key, at := range begun {
						if time.Since(at) <= keep {
							require.True(t, found[key], "run %s is forgotten after %v, at run %d", key, time.Since(at), runs)
						}
					}
					time.Sleep(keep / 10)
				}
				for range 5 {
					turn()
				}
				server.MoveTimeOfDay(off)
				for range 15 {
					turn()
				}
				server.MoveTimeOfDay(-off)
				for range 40 {
					turn()
				}
				require.LessOrEqual(t, len(keysOf(b, p)), 15, "of the time and a quarter")
			})
		})
	}
}

// A name has more records than fit into a listing, of which a call clears some only.
func TestManyRecordsOfAName(t *testing.T) {
	t.Parallel()
	locktest.Once(t)
	const most, keep = 5_000, 200 * time.Millisecond
	b, own := locktest.NewEmbedded(t)
	b.Ctx = t.Context() // it takes long beside other tests
	cfg := b.Config()
	cfg.MaxPacket = 16 << 10         // a directory with all of them takes 20 times that
	cfg.SessionTimeout = time.Minute // beside other tests, an answer may take seconds
	session, err := connector(t, cfg).Connect(b.Ctx)
	require.NoError(t, err)
	joined, err := session.Join(b.Ctx, "a", driver.Request{Kind: driver.Exclusive})
	require.NoError(t, err)
	var keys atomic.Int32
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for key := keys.Add(1); key <= most && !t.Failed(); key = keys.Add(1) {
				r := driver.Record{Name: "jobs", Key: fmt.Sprintf("%050d", key), Data: fmt.Append(nil, key), Keep: keep}
				assert.NoError(t, session.(*zookeeper.Session).Finish(b.Ctx, "a", joined.Node, r))
			}
		})
	}
	all.Wait()
	p := b.PoolWith(cfg)
	runs, err := p.Finished(b.Ctx, "jobs")
	require.NoError(t, err)
	require.Len(t, runs, most)
	time.Sleep(2 * keep)
	calls := 0
	for left := most; left > 0; calls++ {
		require.Less(t, len(locktest.Requests(own, func() {
			require.NoError(t, p.Once(b.Ctx, "others", fmt.Sprint("run", calls), done, lockpool.KeepDone(keep)))
		})), 3_000, "of one run")
		left = 0
		for path := range own.State().Nodes {
			if strings.Contains(path, "/jobs~") {
				left++
			}
		}
	}
	require.Greater(t, calls, 2, "no call does all the work")
	require.NoError(t, session.Close(b.Ctx))
}
