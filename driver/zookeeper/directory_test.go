package zookeeper_test

// This file has tests of the directories of queues: how they come and go.

import (
	"context"
	"fmt"
	"slices"
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

// creator is a call that creates the directory of a name.
type creator func(ctx context.Context, p *lockpool.Pool) (*lockpool.Lock, error)

var creators = map[string]creator{
	"lock": func(ctx context.Context, p *lockpool.Pool) (*lockpool.Lock, error) { return p.Lock(ctx, "x/s") },
	"plain": func(ctx context.Context, p *lockpool.Pool) (*lockpool.Lock, error) {
		return p.Lock(ctx, "x/s/a", lockpool.Plain())
	},
	"semaphore": func(ctx context.Context, p *lockpool.Pool) (*lockpool.Lock, error) {
		return p.Semaphore("x/s", 2).Acquire(ctx, 2)
	},
	"limit": func(ctx context.Context, p *lockpool.Pool) (*lockpool.Lock, error) {
		return nil, p.Semaphore("x/s", 0).SetLimit(ctx, 2)
	},
}

// use makes the call, and unlocks the lock, if any.
func (c creator) use(ctx context.Context, b *locktest.Bench, p *lockpool.Pool) error {
	l, err := c(ctx, p)
	if l == nil {
		return err
	}
	return l.Unlock(b.Ctx)
}

// creating matches requests that create a node, on its own or in a transaction.
var creating = append([]zktest.Op{zktest.OpMulti}, zktest.Creates...)

// A script deletes the directory again and again, and creates it just before a caller
// does so in a transaction. The caller tries again until its context ends.
func TestVanishingDirectoryIsCreatedAgain(t *testing.T) {
	locktest.Once(t)
	for name, create := range creators {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, own *zktest.Server) {
				p := b.Pool()
				dir := b.Chroot + "/x/s"
				var turns atomic.Int32
				script := own.Inject(zktest.Rule{
					Match: zktest.Match{Prefix: dir + "/", Ops: creating}, Times: zktest.Always,
					Do: zktest.Call(func(r zktest.Request) {
						directories := []string{b.Chroot, b.Chroot + "/x", dir, dir + "/locks", dir + "/leases"}
						if i := slices.Index(directories, r.Paths[0]); i > 0 {
							turns.Add(1)
							for _, path := range append(directories[:3], r.Paths[0]) {
								_ = own.Create(path, nil) // unless it exists
							}
							return
						}
						for _, path := range []string{dir + "/leases", dir + "/locks", dir, b.Chroot + "/x"}[turns.Add(1)%2:] {
							_ = own.Delete(path) // only if it is empty
						}
					}),
				})
				err := create.use(locktest.Timeout(t, 300*time.Millisecond), b, p)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.Greater(t, turns.Load(), int32(10))
				require.Less(t, turns.Load(), int32(200), "attempts without pauses")

				got := make(chan error, 1)
				go func() { got <- create.use(b.Ctx, b, p) }()
				begun := turns.Load()
				b.Until(func() bool { return turns.Load() > begun+15 }, "further attempts")
				script.Remove()
				require.NoError(t, <-got)
				deletes := 0
				for _, r := range own.Trace() {
					if r.Kind == zktest.Requested && r.Op == zktest.OpDelete && slices.Contains(r.Paths, dir) {
						deletes++
					}
				}
				require.Less(t, deletes, 5, "a directory is removed too often")
				if name == "limit" {
					require.NoError(t, b.Admin.Delete(dir+"/limit", -1))
				}
			})
		})
	}
}

// A caller gives up, or is refused, after it has created the directories and before
// it creates its node. The server never removes a container that never had a child.
func TestUnusedDirectoriesAreRemoved(t *testing.T) {
	t.Parallel()
	for name, create := range creators {
		for _, what := range []string{"given up", "refused", "given up between two", "given up after a lost reply"} {
			t.Run(name+" "+what, func(t *testing.T) {
				t.Parallel()
				b, own := locktest.NewEmbedded(t)
				p := b.Pool()
				require.NoError(t, p.Ping(b.Ctx))
				require.NoError(t, own.Create(b.Chroot, nil))
				ctx, cancel := context.WithCancel(b.Ctx)
				defer cancel()
				last := b.Chroot + "/x/s"
				if name == "semaphore" {
					last += "/locks"
				}
				rule := zktest.Rule{
					Match: zktest.Match{
						Ops:   []zktest.Op{zktest.OpCreateContainer, zktest.OpMulti},
						Where: func(r zktest.Request) bool { return slices.Contains(r.Paths, last) },
					},
					Do: zktest.HoldApply(), // until the caller has given up: the answer may come first otherwise
				}
				switch what {
				case "given up":
					rule.Skip = 1 // the first fails for want of its parent
				case "refused": // the create that follows
					rule.Do = zktest.Call(func(zktest.Request) {
						own.Inject(zktest.Rule{Match: zktest.Match{Prefix: last + "/", Ops: creating}, Times: zktest.Always, Do: zktest.FailWith(zktest.ErrNoAuth)})
					})
				case "given up between two":
					rule.Match.Where = func(r zktest.Request) bool { return r.Paths[0] == b.Chroot+"/x" }
				case "given up after a lost reply":
					own.Inject(zktest.Rule{Match: rule.Match, Skip: 1, Do: zktest.DropAfterApply()})
					rule.Match.Where = func(r zktest.Request) bool { return r.Op == zktest.OpConnect }
					rule.Match.Ops = []zktest.Op{zktest.OpConnect}
				}
				hit := own.Inject(rule)
				used := make(chan error, 1)
				go func() { used <- create.use(ctx, b, p) }()
				require.NoError(t, hit.Wait(b.Ctx))
				if what != "refused" {
					cancel()
				}
				require.Error(t, <-used)
				hit.Release()
				b.Until(func() bool {
					if (name == "lock" || name == "semaphore") && what != "refused" {
						own.ReapContainers() // the server removes a container that was created with its first child
					}
					for path := range own.State().Nodes {
						if strings.HasPrefix(path, b.Chroot+"/x") {
							return false
						}
					}
					return true
				}, "no node is left")
				require.NoError(t, p.Close())
			})
		}
	}
}

func TestDirectoriesInUseAreNotRemoved(t *testing.T) {
	t.Parallel()
	b, own := locktest.NewEmbedded(t)
	own.Inject(zktest.Rule{
		Match: zktest.Match{Prefix: b.Chroot + "/x/a/", Ops: creating},
		Skip:  1, Times: zktest.Always, Do: zktest.FailWith(zktest.ErrNoAuth),
	})
	own.Inject(zktest.Rule{
		Match: zktest.Match{Prefix: b.Chroot + "/x/a", Ops: []zktest.Op{zktest.OpDelete}},
		Do:    zktest.Call(func(zktest.Request) { _ = own.Create(b.Chroot+"/x/a/other", nil) }),
	})
	_, err := b.Pool().Lock(b.Ctx, "x/a")
	require.ErrorIs(t, err, lockpool.ErrNoPermission)
	require.Equal(t, []string{"other"}, b.Children("x/a"))
}

// A connection breaks before a directory is created. Then the name is a plain lock's, whose
// holder loses nothing when the call that wanted a directory there is refused.
func TestPlainLockIsNotRemovedAsADirectory(t *testing.T) {
	locktest.Once(t)
	for name, create := range map[string]creator{"plain": creators["plain"], "limit": creators["limit"]} {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, own *zktest.Server) {
				p, others := b.Pool(), b.Pool()
				b.Unlock(b.Lock(others, "x/other"))
				var l *lockpool.Lock
				creates := zktest.Match{Prefix: b.Chroot + "/x/s", Ops: []zktest.Op{zktest.OpCreateContainer}}
				own.Inject(zktest.Rule{Match: creates, Do: zktest.ResetBeforeApply()})
				own.Inject(zktest.Rule{Match: creates, Do: zktest.Call(func(zktest.Request) { l, _ = others.Lock(b.Ctx, "x/s", lockpool.Plain()) })})
				require.ErrorIs(t, create.use(b.Ctx, b, p), lockpool.ErrKindMismatch)
				require.NoError(t, p.Close()) // waits for the work in the background
				require.NoError(t, l.Verify(b.Ctx))
				b.Unlock(l)
			})
		})
	}
}

func TestLockIsExclusiveWhileItsQueueIsRemoved(t *testing.T) {
	t.Parallel()
	own := locktest.StartServer(t, zktest.ContainerInterval(time.Millisecond))
	b := locktest.NewOn(t, own)
	p, other := b.Pool(), b.Pool()
	var inside atomic.Int32
	var all sync.WaitGroup
	for _, pool := range []*lockpool.Pool{p, other} {
		all.Go(func() {
			for range 100 {
				assert.NoError(t, pool.Do(b.Ctx, "a/b", func(context.Context) error {
					assert.EqualValues(t, 1, inside.Add(1), "holders")
					inside.Add(-1)
					return nil
				}))
			}
		})
	}
	all.Wait()
	b.Until(func() bool {
		exists, _, err := b.Admin.Exists(b.Chroot)
		require.NoError(t, err)
		return !exists
	}, "the queue and its parents are removed")
}

// requestsFor returns how many requests arrive at the server while do runs, without the
// watch on a node that has been held for 20 ms.
func requestsFor(own *zktest.Server, do func()) int {
	return len(slices.DeleteFunc(locktest.Requests(own, do), func(r zktest.Request) bool { return r.Op == zktest.OpGetData }))
}

// A name that was never locked costs three requests, and one more for each further
// directory that is created. A name that exists costs no more than when it was known to, and
// a name that is often locked costs two, unless each contender has two nodes.
func TestNewNameCostsThreeRequests(t *testing.T) {
	for _, layout := range []zookeeper.Layout{zookeeper.LayoutCurator, zookeeper.LayoutKazoo} {
		t.Run(string(layout), func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, own *zktest.Server) {
				cfg := b.Config()
				cfg.Layout = layout
				p, other := b.PoolWith(cfg), b.PoolWith(cfg)
				b.Unlock(b.Lock(p, "chroot"))
				lock := func(p *lockpool.Pool, name string) int {
					return requestsFor(own, func() { b.Unlock(b.Lock(p, name)) })
				}
				for i := range 5 {
					require.Equal(t, 3, lock(p, fmt.Sprint("new", i)))
				}
				require.Equal(t, 5, lock(p, "x/y/z"))
				require.Equal(t, 3, lock(p, "x/y/a"))
				require.NoError(t, other.Ping(b.Ctx))
				for i := range 5 {
					require.Equal(t, 3, lock(other, fmt.Sprint("new", i)), "it exists")
					require.Equal(t, 3, lock(other, fmt.Sprint("new", i)), "it is known")
				}
				require.LessOrEqual(t, lock(other, "new-too"), 4, "the last one existed")
				require.Equal(t, 3, lock(other, "newer"))
				if layout == zookeeper.LayoutCurator {
					for range 30 {
						lock(p, "often")
					}
					require.Equal(t, 2, lock(p, "often"), "only to create the node, and to remove it")
				}
				for path, node := range own.State().Nodes {
					if strings.HasPrefix(path, b.Chroot+"/") {
						require.Zero(t, node.Stat.EphemeralOwner, path)
					}
				}
			})
		})
	}
}

// Another client creates the directory, and has a node in it, while the transaction that
// would create both is on its way.
func TestQueueThatAppearsIsNotNew(t *testing.T) {
	t.Parallel()
	b, own := locktest.NewEmbedded(t)
	p := b.Pool()
	b.Unlock(b.Lock(p, "chroot"))
	own.Inject(zktest.Rule{
		Match: zktest.Match{Prefix: b.Chroot + "/a/", Ops: []zktest.Op{zktest.OpMulti}},
		Do: zktest.Call(func(zktest.Request) {
			_ = own.Create(b.Chroot+"/a", nil)
			_ = own.Create(b.Chroot+"/a/lock-0000000000", nil)
		}),
	})
	_, err := p.TryLock(b.Ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrLocked)
	require.Len(t, b.Children("a"), 1)
	require.NoError(t, own.Delete(b.Chroot+"/a/lock-0000000000"))
	b.Unlock(b.Lock(p, "a"))
}

// A server before 3.5 knows no containers, in a transaction or on their own.
func TestServerWithoutContainers(t *testing.T) {
	t.Parallel()
	b, own := locktest.NewEmbedded(t)
	p := b.Pool()
	own.Inject(zktest.Rule{
		Match: zktest.Match{Prefix: b.Chroot, Ops: []zktest.Op{zktest.OpMulti}}, Do: zktest.FailWith(zktest.ErrBadArguments),
	})
	own.Inject(zktest.Rule{
		Match: zktest.Match{Ops: []zktest.Op{zktest.OpCreateContainer}}, Times: zktest.Always, Do: zktest.FailWith(zktest.ErrUnimplemented),
	})
	b.Unlock(b.Lock(p, "a/b"))
	b.Unlock(b.Lock(p, "a/c"))
	require.Equal(t, 3, requestsFor(own, func() { b.Unlock(b.Lock(p, "a/d")) }))
	own.ReapContainers()
	require.Equal(t, []string{"b", "c", "d"}, b.Children("a"))
}

// The directories of the waits for plain locks go like the directories of queues.
func TestDirectoriesOfWaitsGo(t *testing.T) {
	t.Parallel()
	b, own := locktest.NewEmbedded(t)
	s := sessionOf(b, zookeeper.LayoutCurator)
	joined, err := s.Join(b.Ctx, driver.Waits+"/orders/7", driver.Request{Kind: driver.Exclusive})
	require.NoError(t, err)
	require.NoError(t, s.Leave(b.Ctx, driver.Waits+"/orders/7", joined.Node))
	require.Equal(t, []string{"7"}, b.Children(driver.Waits+"/orders"))
	for range 3 {
		own.ReapContainers()
	}
	exists, _, err := b.Admin.Exists(b.Chroot + "/" + driver.Waits)
	require.NoError(t, err)
	require.False(t, exists)
}

// A listing over the limit is an error that names the limit. The connection stays, and other
// locks of the session stay held.
func TestListingBeyondMaxPacketIsAnError(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	cfg := b.Config()
	cfg.MaxPacket = 64 << 10
	p := b.PoolWith(cfg, lockpool.WithMaxSessions(1))
	other := b.Lock(p, "other")
	b.Unlock(b.Lock(p, "a"))
	remove := b.CreateContenders("a", 2000)
	for range 3 {
		_, err := p.Lock(b.Ctx, "a")
		require.ErrorContains(t, err, "the listing of "+b.Chroot+"/a is longer than max_packet=65536 bytes")
		require.ErrorContains(t, err, "raise max_packet")
		require.Len(t, b.Children("a"), 2000, "a node of the pool is left")
	}
	remove()
	require.Equal(t, 1, other.Depth())
	b.Unlock(b.Lock(p, "a"))
	b.Unlock(other)
	require.Equal(t, 1, p.Stats().OpenSessions)
}
