package lockpool_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/zktest"
)

// The removal of a plain lock's node is not confirmed, and the server is too busy
// for the question that follows, once. DESIGN, rules 12 and 13.
func TestPlainNodeIsRemovedAfterABusyMoment(t *testing.T) {
	t.Parallel()
	own := zktest.Start(t)
	b := newBenchOn(t, own.Addr())
	p, others := b.pool(lockpool.WithMaxSessions(1)), b.pool()
	other := b.lock(p, "other") // keeps the session
	defer b.unlock(other)
	l := b.plainHolder(p, "a")
	session := own.State().Nodes[b.chroot+"/a"].Stat.EphemeralOwner
	own.Inject(zktest.Rule{
		Match: zktest.Match{Prefix: b.chroot + "/a", Ops: []zktest.Op{zktest.OpDelete}},
		Do:    zktest.DropBeforeApply(),
	})
	own.Inject(zktest.Rule{
		Match: zktest.Match{Prefix: b.chroot + "/a", Ops: []zktest.Op{zktest.OpSync}, Selector: zktest.Selector{Session: session}},
		Do:    zktest.FailWith(-127),
	})
	err := l.Unlock(b.ctx)
	next, blocked := others.Lock(expiring(t, 4*time.Second), "a", lockpool.Plain())
	if blocked == nil {
		b.unlock(next)
	}
	require.NoError(t, blocked, "the node stays for as long as its session holds anything else (unlock: %v)", err)
	require.NoError(t, err)
}

// Some who do little under a plain lock, and no faults: nobody gets an error.
func TestPlainLockUnderContentionIsNoError(t *testing.T) {
	b := newBenchOn(t, zktest.Start(t).Addr())
	var all sync.WaitGroup
	var failed, turns atomic.Int32
	for range 4 {
		p := b.pool()
		all.Go(func() {
			for end := time.Now().Add(4 * time.Second); time.Now().Before(end); turns.Add(1) {
				l, err := p.Lock(b.ctx, "a", lockpool.Plain())
				if err != nil {
					failed.Add(1)
					t.Log(err)
					continue
				}
				if err := l.Unlock(b.ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	require.Zero(t, failed.Load(), "of %d turns", turns.Load())
}
