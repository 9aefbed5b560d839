package lockpool_test

// This file tests what an Unlock that passes the lock on learns of the node.

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// A connection that breaks before the answer about the node leaves the question open: the node
// was removed, and another process has the lock.
func TestUnlockAsksAgainAfterABrokenConnection(t *testing.T) {
	locktest.Bubble(t, func(t *testing.T) {
		b := locktest.New(t)
		p := b.Pool(lockpool.WithMaxSessions(1))
		l := b.Lock(p, "a")
		w := b.StartLock(p, "a")
		synctest.Wait()
		server := b.Server.(*zktest.Server)
		require.NoError(t, server.Delete(b.Chroot+"/a/"+b.Children("a")[0]))
		other := b.Lock(b.Pool(), "a")
		server.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpGetData}}, Do: zktest.DropBeforeApply()})
		require.ErrorIs(t, l.Unlock(b.Ctx), lockpool.ErrLockLost)
		b.Unlock(other)
		b.Unlock(w.Granted())
	})
}
