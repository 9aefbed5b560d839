package etcdtest

// This file tests the keys: used again, and told apart from names.

import (
	"testing"

	"github.com/stretchr/testify/require"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/lockpool/lockpool"
)

// The servers keep few keys for a session, even after many locks, because they pass over
// old keys in each listing until they compact their history. The names of nodes differ
// nevertheless.
func TestKeysAreUsedAgain(t *testing.T) {
	t.Parallel()
	c := Start(t, 1)
	p := open(t, c.connector(t))
	admin, err := clientv3.New(clientv3.Config{Endpoints: c.Endpoints(), Logger: zap.NewNop()})
	require.NoError(t, err)
	defer admin.Close()
	const turns = 20
	nodes := map[string]bool{}
	for range turns {
		for _, lock := range []func() (func() error, error){
			func() (func() error, error) {
				l, err := p.Lock(t.Context(), "a")
				return func() error { return l.Unlock(t.Context()) }, err
			},
			func() (func() error, error) {
				l, err := p.Lock(t.Context(), "a", lockpool.Shared())
				return func() error { return l.Unlock(t.Context()) }, err
			},
			func() (func() error, error) {
				l, err := p.Lock(t.Context(), "a")
				require.NoError(t, err)
				r, err := p.Lock(l.Context(t.Context()), "a", lockpool.Shared())
				require.NoError(t, err)
				require.NoError(t, l.Unlock(t.Context())) // the Unlock downgrades the key
				return func() error { return r.Unlock(t.Context()) }, err
			},
		} {
			unlock, err := lock()
			require.NoError(t, err)
			queue, err := p.Queue(t.Context(), "a")
			require.NoError(t, err)
			require.Len(t, queue.Contenders, 1)
			nodes[queue.Contenders[0].Node] = true
			require.NoError(t, unlock())
		}
	}
	require.Len(t, nodes, 3*turns)

	keys := map[string]bool{}
	history := admin.Watch(t.Context(), "lockpool/a/", clientv3.WithPrefix(), clientv3.WithRev(1))
	for events := 0; events < 2*3*turns; {
		got := <-history
		require.NoError(t, got.Err())
		for _, e := range got.Events {
			keys[string(e.Kv.Key)] = true
		}
		events += len(got.Events)
	}
	require.LessOrEqual(t, len(keys), 3, "one to write, one to read, and perhaps one that was in use")
}

// A name may have parts like the last part of a contender's key.
func TestNamesThatLookLikeKeys(t *testing.T) {
	t.Parallel()
	c := Start(t, 1)
	p, others := open(t, c.connector(t)), open(t, c.connector(t))
	ctx := t.Context()
	names := []string{"s", "s/0123456789abcdef", "s/202611231200", "s/plain", "s/plain/plain"}
	for _, options := range [][]lockpool.LockOption{nil, {lockpool.Plain()}} {
		var held []*lockpool.Lock
		for _, name := range names {
			l, err := p.Lock(ctx, name, options...)
			require.NoError(t, err)
			held = append(held, l)
		}
		for _, name := range names {
			_, err := others.TryLock(ctx, name, options...)
			require.ErrorIs(t, err, lockpool.ErrLocked)
			q, err := others.Queue(ctx, name)
			require.NoError(t, err)
			require.Len(t, q.Contenders, 1)
		}
		found, err := others.List(ctx, "s")
		require.NoError(t, err)
		require.Equal(t, names, found)
		for _, l := range held {
			require.NoError(t, l.Unlock(ctx))
		}
	}
}
