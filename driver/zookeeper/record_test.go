package zookeeper_test

// This file has tests of the records of finished runs.

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

func done(context.Context) error { return nil }

func runOnce(b *locktest.Bench, p *lockpool.Pool, key string, opts ...lockpool.LockOption) {
	b.Helper()
	require.NoError(b, p.Once(b.Ctx, "a", key, done, opts...))
}

func keysOf(b *locktest.Bench, p *lockpool.Pool) (keys []string) {
	b.Helper()
	runs, err := p.Finished(b.Ctx, "a")
	require.NoError(b, err)
	for _, run := range runs {
		keys = append(keys, run.Key)
	}
	return keys
}

// shardOf returns the directory of the record of the key.
func shardOf(b *locktest.Bench, key string) string {
	b.Helper()
	for _, shard := range b.Children(".done") {
		if slices.Contains(b.Children(".done/"+shard), "a~"+lockpool.Escape(key)) {
			return b.Chroot + "/.done/" + shard
		}
	}
	require.Fail(b, "there is no record", "of %q", key)
	return ""
}

// Records are persistent nodes outside the lock's directory. All directories are containers.
func TestWhereRecordsAre(t *testing.T) {
	t.Parallel()
	locktest.Once(t)
	b, own := locktest.NewEmbedded(t)
	for _, layout := range []zookeeper.Layout{zookeeper.LayoutCurator, zookeeper.LayoutKazoo} {
		cfg := b.Config()
		cfg.Layout = layout
		p := b.PoolWith(cfg)
		runOnce(b, p, "x/y")
		data, stat, err := b.Admin.Get(shardOf(b, "x/y") + "/a~x%2Fy")
		require.NoError(t, err)
		require.Zero(t, stat.EphemeralOwner)
		require.Regexp(t, `^168h0m0s 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ \{"owner":"zookeeper\.test","host":".*","pid":\d+,"token":\d+,"run":"[-0-9a-f]{36}"\}$`, string(data))
		for range 4 {
			own.ReapContainers()
		}
		require.Empty(t, b.Children("a"), "the directory of the run's lock is gone")
		require.Equal(t, []string{"x/y"}, keysOf(b, p))
		require.NoError(t, p.Forget(b.Ctx, "a"))
		for range 4 {
			own.ReapContainers()
		}
		exists, _, err := b.Admin.Exists(b.Chroot + "/.done")
		require.NoError(t, err)
		require.False(t, exists)
	}
}

// What costs how many requests: the record is read, the lock's directory and node are created
// together and listed, the record and the node are read by the holder, the record is created,
// and the node is removed. Only now and then is there a look for old records.
func TestRequestsOfARun(t *testing.T) {
	locktest.Once(t)
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, own *zktest.Server) {
		p := b.Pool()
		require.NoError(t, p.Ping(b.Ctx))
		time.Sleep(time.Millisecond) // the session remembers no look for old records at its beginning
		runOnce(b, p, "19")
		runOnce(b, b.Pool(), "20") // the directory of the record exists from now on
		require.NoError(t, p.Forget(b.Ctx, "a"))
		require.NoError(t, b.Admin.Delete(b.Chroot+"/a/run:20", -1))
		require.Len(t, locktest.Requests(own, func() { runOnce(b, p, "20") }), 7)
		require.Len(t, locktest.Requests(own, func() {
			require.ErrorIs(t, p.Once(b.Ctx, "a", "20", done), lockpool.ErrDone)
		}), 1)
		own.ReapContainers()
		require.Len(t, locktest.Requests(own, func() {
			_, err := p.List(b.Ctx, "")
			require.NoError(t, err)
		}), 4, "a sync, the listings of the root and of a, and a look whether a is a plain lock")
	})
}

// A server before 3.5 knows no containers, in a transaction or on their own.
func TestRecordsWithoutContainers(t *testing.T) {
	t.Parallel()
	locktest.Once(t)
	b, own := locktest.NewEmbedded(t)
	p := b.Pool()
	own.Inject(zktest.Rule{
		Match: zktest.Match{Ops: []zktest.Op{zktest.OpCreateContainer}}, Times: zktest.Always, Do: zktest.FailWith(zktest.ErrUnimplemented),
	})
	l := b.Lock(p, "a")
	own.Inject(zktest.Rule{
		Match: zktest.Match{Prefix: b.Chroot, Ops: []zktest.Op{zktest.OpMulti}}, Skip: 2, Do: zktest.FailWith(zktest.ErrBadArguments),
	})
	require.NoError(t, p.Once(l.Context(b.Ctx), "a", "1", done))
	b.Unlock(l)
	require.Equal(t, []string{"1"}, keysOf(b, p))
}

// Clearing is under way on a session that is slow when another client forgets a record,
// and its run is recorded again. The new record stays.
func TestClearingSparesNewRecords(t *testing.T) {
	locktest.Once(t)
	for name, slow := range map[string]struct {
		op      zktest.Op
		in, key string
		skip    int
	}{
		"to begin":             {zktest.OpSetData, "", "", 0},
		"to begin with a part": {zktest.OpSetData, "/", "", 0},
		"to look":              {zktest.OpGetChildren2, "/", "", 1},
		"to remove":            {zktest.OpMulti, "/", "a~old", 0},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
				p, others := b.Pool(), b.Pool()
				const keep = time.Second
				runOnce(b, p, "old", lockpool.KeepDone(keep))
				time.Sleep(2 * keep)
				path := b.Chroot + "/.done"
				if slow.in != "" {
					path = shardOf(b, "old") + strings.TrimSuffix("/"+slow.key, "/")
				}
				held := server.Inject(zktest.Rule{Match: zktest.Match{Prefix: path, Ops: []zktest.Op{slow.op}}, Skip: slow.skip, Do: zktest.HoldApply()})
				cleared := make(chan error, 1)
				go func() { cleared <- p.Once(b.Ctx, "a", "new", done, lockpool.KeepDone(keep)) }() // ends when released
				require.NoError(t, held.Wait(b.Ctx))
				require.NoError(t, others.Forget(b.Ctx, "a", "old"))
				require.Equal(t, []string{"new"}, keysOf(b, others))
				runOnce(b, others, "old")
				held.Release()
				require.NoError(t, <-cleared)
				require.Equal(t, []string{"new", "old"}, keysOf(b, others))
			})
		})
	}
}

// Nodes that are no records stay, and disturb nobody.
func TestForgetLeavesOtherNodes(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	for i := range 120 { // more than are removed in one transaction
		runOnce(b, p, fmt.Sprint(i))
	}
	shard := shardOf(b, "7")
	for _, name := range []string{"a~7x", "a~7x/y", "a~%zz"} {
		_, err := b.Admin.Create(shard+"/"+name, nil, 0, zk.WorldACL(zk.PermAll))
		require.NoError(t, err)
	}
	require.Contains(t, keysOf(b, p), "%zz")
	require.NoError(t, p.Forget(b.Ctx, "a"))
	require.Equal(t, []string{"7x"}, keysOf(b, p))
}

// A reply to a removal is lost.
func TestForgetRepeatsWhatWasNotAnswered(t *testing.T) {
	t.Parallel()
	b, proxy := locktest.NewBehindProxy(t)
	p := b.Pool()
	for _, op := range []zktest.Op{zktest.OpSetData, zktest.OpMulti} {
		for i := range 3 {
			runOnce(b, p, fmt.Sprint(i))
		}
		proxy.Inject(zktest.Rule{Match: zktest.Match{Prefix: b.Chroot + "/.done", Ops: []zktest.Op{op}}, Do: zktest.ResetAfterApply()})
		require.NoError(t, p.Forget(b.Ctx, "a", "0", "2"))
		require.Equal(t, []string{"1"}, keysOf(b, p))
		require.NoError(t, p.Forget(b.Ctx, "a"))
	}
}

// Clearing that fails does not make a run fail, and is logged.
func TestClearingThatFails(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	log := new(locktest.Log)
	p := b.Pool(lockpool.WithLogger(slog.New(slog.NewTextHandler(log, nil))))
	runOnce(b, p, "old", lockpool.KeepDone(time.Nanosecond))
	require.NoError(t, b.Admin.AddAuth("digest", []byte("admin:x")))
	_, err := b.Admin.SetACL(b.Chroot+"/.done", append(zk.DigestACL(zk.PermAll, "admin", "x"), zk.WorldACL(zk.PermCreate|zk.PermRead)...), -1)
	require.NoError(t, err)
	time.Sleep(2 * time.Millisecond)
	runOnce(b, p, "new", lockpool.KeepDone(time.Nanosecond))
	require.Contains(t, log.String(), "old records of finished runs were not removed")
	require.Contains(t, log.String(), "needs the right WRITE on "+b.Chroot+"/.done\"")
	require.Len(t, keysOf(b, p), 2)
}
