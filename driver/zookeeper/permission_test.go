package zookeeper_test

// This file has tests of rights, credentials and secrets.

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

func TestErrorNamesTheMissingRight(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	for name, c := range map[string]struct {
		rights []int32
		right  string
	}{
		"no-create": {[]int32{zk.PermRead, zk.PermDelete}, "CREATE"},
		"no-read":   {[]int32{zk.PermCreate, zk.PermDelete}, "READ"},
	} {
		b.Restrict("/"+name, c.rights...)
		child, err := b.Admin.Create(b.Chroot+"/"+name+"/child", nil, 0, zk.WorldACL(zk.PermAll))
		require.NoError(t, err)
		require.NoError(t, b.Admin.Delete(child, -1)) // nobody needs to list a queue that never had a node
		_, err = p.Lock(b.Ctx, name)
		require.ErrorIs(t, err, lockpool.ErrNoPermission)
		require.ErrorContains(t, err, c.right)
		require.ErrorContains(t, err, b.Chroot+"/"+name)
		_, err = p.TryLock(b.Ctx, name)
		require.ErrorIs(t, err, lockpool.ErrNoPermission)
	}
	b.Restrict("/parent", zk.PermRead, zk.PermDelete)
	_, err := p.Lock(b.Ctx, "parent/child")
	require.ErrorIs(t, err, lockpool.ErrNoPermission)
	require.ErrorContains(t, err, "CREATE on "+b.Chroot+"/parent")
}

func TestDigestRestrictsNodesToTheirCreator(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	cfg := b.Config()
	cfg.Digest = zookeeper.Digest{User: "lockpool", Password: "s3cret"}
	p := b.PoolWith(cfg)
	l := b.Lock(p, "a")
	for _, path := range []string{"", "/a"} {
		acl, _, err := b.Admin.GetACL(b.Chroot + path)
		if err == nil { // a server may refuse to show it
			require.Equal(t, "digest", acl[0].Scheme)
		} else {
			require.ErrorIs(t, err, zk.ErrNoAuth)
		}
	}
	stranger := b.Pool()
	_, err := stranger.TryLock(b.Ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrNoPermission)
	cfg.Digest.Password = "wr0ng"
	_, err = b.PoolWith(cfg).TryLock(b.Ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrNoPermission)
	require.NotContains(t, err.Error(), "wr0ng")
	cfg.Digest.Password = "s3cret"
	friend := b.PoolWith(cfg)
	_, err = friend.TryLock(b.Ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrLocked)
	b.Unlock(l)
	require.NoError(t, b.Admin.AddAuth("digest", []byte("lockpool:s3cret"))) // lets the admin look for nodes that are left
}

// Neither logs, errors nor any printed value may contain it.
func TestPasswordIsNeverPrinted(t *testing.T) {
	t.Parallel()
	b, proxy := locktest.NewBehindProxy(t)
	var log locktest.Log
	cfg := b.Config()
	cfg.Digest = zookeeper.Digest{User: "lockpool", Password: "s3cret"}
	cfg.Logger = slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	p := b.PoolWith(cfg)
	connector, err := zookeeper.NewConnector(cfg)
	require.NoError(t, err)
	b.Restrict("/closed")
	_, denied := p.Lock(b.Ctx, "closed")
	proxy.Cut(zktest.Selector{})
	l := b.Lock(p, "a")
	ctx, cancel := context.WithTimeout(b.Ctx, 20*time.Millisecond)
	defer cancel()
	_, late := p.Lock(ctx, "a")
	b.Unlock(l)
	cfg.Logger.Info("what users log", "config", cfg, "pointer", &cfg, "digest", cfg.Digest, "pool", p, "connector", connector, "errors", []error{denied, late})
	for _, v := range []any{cfg, &cfg, cfg.Digest, &cfg.Digest, p, connector, denied, late, p.Stats(), l} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			text := fmt.Sprintf(verb, v)
			require.NotContains(t, text, "s3cret", verb)
			require.NotContains(t, text, fmt.Sprintf("%x", "s3cret"), verb)
		}
	}
	text, err := json.Marshal(map[string]any{"a": cfg, "b": &cfg, "c": cfg.Digest})
	require.NoError(t, err)
	require.NotContains(t, string(text), "s3cret")
	require.Equal(t, "lockpool:(hidden)", fmt.Sprint(cfg.Digest))
	require.Empty(t, fmt.Sprint(zookeeper.Digest{}))
	require.NoError(t, p.Close())
	require.NotEmpty(t, log.String())
	require.NotContains(t, log.String(), "s3cret")
	require.NoError(t, b.Admin.AddAuth("digest", []byte("lockpool:s3cret")))
}

func TestRefusedRequestIsNotRepeated(t *testing.T) {
	t.Parallel()
	b, proxy := locktest.NewBehindProxy(t)
	p := b.PoolWithTimeout(10 * time.Second)
	require.NoError(t, p.Ping(b.Ctx))
	b.Restrict("/closed")
	require.LessOrEqual(t, len(locktest.Requests(proxy, func() {
		_, err := p.Lock(b.Ctx, "closed")
		require.ErrorIs(t, err, lockpool.ErrNoPermission)
	})), 2, "create and list")
}
