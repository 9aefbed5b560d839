package lockpool_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/zktest"
)

// forbid makes a node below the chroot on which all but the bench's admin have
// only the rights given.
func (b *bench) forbid(path string, rights ...int32) {
	var perms int32
	for _, r := range rights {
		perms |= r
	}
	require.NoError(b, b.admin.AddAuth("digest", []byte("admin:x")))
	acl := zk.DigestACL(zk.PermAll, "admin", "x")
	if perms != 0 {
		acl = append(acl, zk.WorldACL(perms)...)
	}
	_, err := b.admin.Create(b.chroot, nil, 0, zk.WorldACL(zk.PermAll))
	if err != zk.ErrNodeExists {
		require.NoError(b, err)
	}
	_, err = b.admin.Create(b.chroot+path, nil, 0, acl)
	require.NoError(b, err)
}

// Scenario 131.
func TestMissingRightIsNamedAndNothingIsLeft(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	for name, c := range map[string]struct {
		rights []int32
		right  string
	}{
		"no-create": {[]int32{zk.PermRead, zk.PermDelete}, "CREATE"},
		"no-read":   {[]int32{zk.PermCreate, zk.PermDelete}, "READ"},
	} {
		b.forbid("/"+name, c.rights...)
		_, err := p.Lock(b.ctx, name)
		require.ErrorIs(t, err, lockpool.ErrNoPermission)
		require.ErrorContains(t, err, c.right)
		require.ErrorContains(t, err, b.chroot+"/"+name)
		_, err = p.TryLock(b.ctx, name)
		require.ErrorIs(t, err, lockpool.ErrNoPermission)
	}
	b.forbid("/parent", zk.PermRead, zk.PermDelete)
	_, err := p.Lock(b.ctx, "parent/child")
	require.ErrorIs(t, err, lockpool.ErrNoPermission)
	require.ErrorContains(t, err, "CREATE on "+b.chroot+"/parent")
}

func TestDigestMakesNodesTheCreatorsOwn(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cfg := b.config()
	cfg.Digest = zookeeper.Digest{User: "lockpool", Password: "s3cret"}
	p := b.poolWith(cfg)
	l := b.lock(p, "a")
	for _, path := range []string{"", "/a"} {
		acl, _, err := b.admin.GetACL(b.chroot + path)
		if err == nil { // shown without rights, or not at all
			require.Equal(t, "digest", acl[0].Scheme)
		} else {
			require.ErrorIs(t, err, zk.ErrNoAuth)
		}
	}
	stranger := b.pool()
	_, err := stranger.TryLock(b.ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrNoPermission)
	cfg.Digest.Password = "wr0ng"
	_, err = b.poolWith(cfg).TryLock(b.ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrNoPermission)
	require.NotContains(t, err.Error(), "wr0ng")
	cfg.Digest.Password = "s3cret"
	friend := b.poolWith(cfg)
	_, err = friend.TryLock(b.ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrLocked)
	b.unlock(l)
	require.NoError(t, b.admin.AddAuth("digest", []byte("lockpool:s3cret"))) // to look at what is left
}

func TestDigestSurvivesAReconnect(t *testing.T) {
	t.Parallel()
	b, proxy := benchBehindProxy(t)
	cfg := b.config()
	cfg.Digest = zookeeper.Digest{User: "lockpool", Password: "s3cret"}
	p := b.poolWith(cfg)
	l := b.lock(p, "a")
	proxy.Cut(zktest.Selector{})
	b.unlock(l)
	b.unlock(b.lock(p, "a"))
	require.NoError(t, b.admin.AddAuth("digest", []byte("lockpool:s3cret")))
}

// A log, an error and whatever can be printed.
func TestPasswordIsNowhereToBeSeen(t *testing.T) {
	t.Parallel()
	b, proxy := benchBehindProxy(t)
	var mu sync.Mutex
	var log strings.Builder
	cfg := b.config()
	cfg.Digest = zookeeper.Digest{User: "lockpool", Password: "s3cret"}
	cfg.Logger = slog.New(slog.NewJSONHandler(writer(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return log.Write(p)
	}), &slog.HandlerOptions{Level: slog.LevelDebug}))
	p := b.poolWith(cfg)
	connector, err := zookeeper.NewConnector(cfg)
	require.NoError(t, err)
	b.forbid("/closed")
	_, denied := p.Lock(b.ctx, "closed")
	proxy.Cut(zktest.Selector{})
	l := b.lock(p, "a")
	ctx, cancel := context.WithTimeout(b.ctx, 20*time.Millisecond)
	defer cancel()
	_, late := p.Lock(ctx, "a")
	b.unlock(l)
	cfg.Logger.Info("what users log", "config", cfg, "pointer", &cfg, "digest", cfg.Digest, "pool", p, "connector", connector, "errors", []error{denied, late})
	for _, v := range []any{cfg, &cfg, cfg.Digest, &cfg.Digest, p, connector, denied, late, p.Stats(), l} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			text := fmt.Sprintf(verb, v)
			require.NotContains(t, text, "s3cret", verb)
			require.NotContains(t, text, fmt.Sprintf("%x", "s3cret"), verb)
		}
	}
	require.NoError(t, p.Close())
	mu.Lock()
	require.NotEmpty(t, log.String())
	require.NotContains(t, log.String(), "s3cret")
	mu.Unlock()
	require.NoError(t, b.admin.AddAuth("digest", []byte("lockpool:s3cret")))
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }
