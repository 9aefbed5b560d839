package zookeeper_test

// This file has tests with servers that behave as ClickHouse Keeper.

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// A holder on Keeper is told when the connection ends, though the servers keep the lock until
// the timeout. No session is opened only to be unused, and no connection is broken to find out
// about containers.
func TestKeeperSessionEndsWithItsConnection(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		p := b.Pool()
		l := b.Lock(p, "orders/17")
		containers := server.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpCreateContainer}}, Times: zktest.Always, Do: zktest.FailWith(-6)})
		sessions := server.State().Sessions
		of := slices.IndexFunc(sessions, func(s zktest.Session) bool { return len(s.Ephemerals) > 0 })
		began := time.Now()
		server.Cut(zktest.Selector{Session: sessions[of].ID})
		<-l.Lost()
		require.Less(t, time.Since(began), time.Second)
		require.ErrorIs(t, l.Unlock(b.Ctx), lockpool.ErrLockLost)
		time.Sleep(time.Second)
		require.Len(t, server.State().Sessions, len(sessions), "A session is in its place.")

		ctx, cancel := context.WithTimeout(b.Ctx, time.Second)
		defer cancel()
		_, err := p.Lock(ctx, "orders/17")
		require.ErrorIs(t, err, context.DeadlineExceeded, "The servers do not know that the holder was told.")
		b.Unlock(b.Lock(p, "orders/17"))
		require.Zero(t, containers.Fired())
	}, zktest.Members(3), zktest.Keeper())
}

func TestKeeperWithoutALeaderIsNamed(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		require.NoError(t, server.StopMember(1))
		require.NoError(t, server.StopMember(2))
		time.Sleep(10 * time.Second) // until the last one notices
		cfg := b.Config()
		cfg.Servers = server.Members()[2:]
		_, err := connector(t, cfg).Connect(t.Context())
		require.ErrorContains(t, err, "has no leader")
		require.NotErrorIs(t, err, driver.ErrPermanent)
		require.NoError(t, server.StartMember(1))
	}, zktest.Members(3), zktest.Keeper())
}

// Keeper has no containers, so sessions remove the directories that they used, when empty, and
// the directories above. A plain lock may have the name by then.
func TestDirectoriesAreRemovedFromKeeper(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		p := b.Pool()
		l := b.Lock(p, "orders/1/held")
		for _, name := range []string{"orders/1/free", "orders/2/free", "invoices", "plain"} {
			b.Unlock(b.Lock(p, name))
		}
		require.NoError(t, server.Delete(b.Chroot+"/plain"))
		plain := b.Lock(b.Pool(), "plain", lockpool.Plain())
		time.Sleep(2 * time.Minute)
		var left []string
		for path := range server.State().Nodes {
			if name, below := strings.CutPrefix(path, b.Chroot+"/"); below && !strings.Contains(name, "-lock-") {
				left = append(left, name)
			}
		}
		require.ElementsMatch(t, []string{"orders", "orders/1", "orders/1/held", "plain"}, left)
		require.NoError(t, plain.Unlock(t.Context()))
		require.NoError(t, l.Unlock(t.Context()))
	}, zktest.Keeper())
}
