package zookeeper_test

// This file has tests of answers that say no.

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// Calls that write, each with the operations that say what the call is for.
var writers = map[string]struct {
	ops []zktest.Op
	do  func(b *locktest.Bench, p *lockpool.Pool, refuse func()) error
}{
	"Lock": {creating, func(b *locktest.Bench, p *lockpool.Pool, refuse func()) error {
		refuse()
		_, err := p.Lock(b.Ctx, "a")
		return err
	}},
	"Lock of a known name": {creating, func(b *locktest.Bench, p *lockpool.Pool, refuse func()) error {
		b.Unlock(b.Lock(p, "a"))
		refuse()
		_, err := p.Lock(b.Ctx, "a")
		return err
	}},
	"Plain": {creating, func(b *locktest.Bench, p *lockpool.Pool, refuse func()) error {
		refuse()
		_, err := p.Lock(b.Ctx, "a", lockpool.Plain())
		return err
	}},
	"Acquire": {creating, func(b *locktest.Bench, p *lockpool.Pool, refuse func()) error {
		refuse()
		_, err := p.Semaphore("a", 2).Acquire(b.Ctx, 2)
		return err
	}},
	"SetLimit": {creating, func(b *locktest.Bench, p *lockpool.Pool, refuse func()) error {
		refuse()
		return p.Semaphore("a", 0).SetLimit(b.Ctx, 2)
	}},
	"Once": {[]zktest.Op{zktest.OpMulti}, func(b *locktest.Bench, p *lockpool.Pool, refuse func()) error {
		return p.Once(b.Ctx, "a", "key", func(context.Context) error { refuse(); return nil })
	}},
	"Unlock": {[]zktest.Op{zktest.OpDelete}, func(b *locktest.Bench, p *lockpool.Pool, refuse func()) error {
		l := b.Lock(p, "a")
		refuse()
		return l.Unlock(b.Ctx)
	}},
	"Unlock of a plain lock": {[]zktest.Op{zktest.OpDelete}, func(b *locktest.Bench, p *lockpool.Pool, refuse func()) error {
		l := b.Lock(p, "a", lockpool.Plain())
		refuse()
		return l.Unlock(b.Ctx)
	}},
	"Unlock of permits": {[]zktest.Op{zktest.OpDelete, zktest.OpMulti}, func(b *locktest.Bench, p *lockpool.Pool, refuse func()) error {
		l, err := p.Semaphore("a", 2).Acquire(b.Ctx, 2)
		require.NoError(b, err)
		refuse()
		return l.Unlock(b.Ctx)
	}},
	"Unlock of an exclusive lock that is held shared, too": {[]zktest.Op{zktest.OpMulti}, func(b *locktest.Bench, p *lockpool.Pool, refuse func()) error {
		h := b.Handle(p)
		l := b.Lock(h, "a")
		b.Lock(h, "a", lockpool.Shared())
		refuse()
		return l.Unlock(b.Ctx)
	}},
	"Revoke": {[]zktest.Op{zktest.OpSetData}, func(b *locktest.Bench, p *lockpool.Pool, refuse func()) error {
		b.Lock(b.Pool(), "a")
		refuse()
		return p.Revoke(b.Ctx, "a")
	}},
}

// What the server answers is an answer: a call ends with the error, and is not repeated until
// the context ends, whatever the reason of the server is.
func TestEveryRefusalEndsTheCall(t *testing.T) {
	for _, code := range []zktest.Code{
		-1, -2, -3, -5, -6, -7, -8, -9, -12, -13, -14, -100, -102, -113, -114, -115, -116, -117, -119, -120, -121, -122, -123, -125, -126, -128, -1000,
	} {
		for name, call := range writers {
			t.Run(fmt.Sprint(name, code), func(t *testing.T) {
				locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
					p := b.Pool()
					refused := 0
					began := time.Now()
					err := call.do(b, p, func() {
						began = time.Now()
						server.Inject(zktest.Rule{
							Match: zktest.Match{Prefix: b.Chroot, Ops: call.ops, Where: func(zktest.Request) bool { refused++; return true }},
							Times: zktest.Always, Do: zktest.FailWith(code),
						})
					})
					require.Error(t, err)
					require.NotErrorIs(t, err, context.DeadlineExceeded)
					require.NotErrorIs(t, err, driver.ErrSessionLost)
					require.NotErrorIs(t, err, lockpool.ErrUnavailable)
					require.Less(t, time.Since(began), time.Second, err)
					require.LessOrEqual(t, refused, 8, err)
					t.Log(err)
				})
			})
		}
	}
}

// A request for which the servers close the connection each time, perhaps because it is longer
// than their jute.maxbuffer, fails soon, and breaks few connections of the session's other users.
func TestRequestThatClosesConnectionsFails(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		p := b.Pool(lockpool.WithMaxSessions(1))
		b.Unlock(b.Lock(p, "long99"))
		closes := server.Inject(zktest.Rule{
			Match: zktest.Match{Prefix: b.Chroot + "/long", Ops: zktest.Creates}, Times: zktest.Always, Do: zktest.ResetBeforeApply(),
		})
		var others sync.WaitGroup
		ctx, cancel := context.WithCancel(b.Ctx)
		for i := range 8 {
			others.Go(func() {
				for ctx.Err() == nil {
					assert.NoError(t, p.Do(b.Ctx, fmt.Sprint("other", i), func(context.Context) error { return nil }))
					time.Sleep(time.Millisecond)
				}
			})
		}
		began := time.Now()
		var callers sync.WaitGroup
		for i := range 20 {
			callers.Go(func() {
				_, err := p.Lock(b.Ctx, fmt.Sprint("long", 100+i))
				assert.ErrorContains(t, err, "jute.maxbuffer")
			})
		}
		callers.Wait()
		require.Less(t, time.Since(began), 10*time.Second) // by chance, as the connections below
		require.LessOrEqual(t, closes.Fired(), 20)
		for range 3 { // beside requests of the same size, which are answered
			_, err := p.Lock(b.Ctx, "long99")
			require.ErrorContains(t, err, "jute.maxbuffer")
		}
		require.LessOrEqual(t, closes.Fired(), 40)
		cancel()
		others.Wait()
		closes.Remove()
		time.Sleep(10 * time.Second) // no such request is sent before
		b.Unlock(b.Lock(p, "long99"))
	})
}

// If it is the network that breaks each connection before the answer, no request is to blame.
func TestBrokenNetworkIsNoRefusal(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		p := b.Pool(lockpool.WithMaxSessions(1))
		server.Inject(zktest.Rule{Match: zktest.Match{Prefix: b.Chroot, Ops: creating}, Times: zktest.Always, Do: zktest.DelayApply(150 * time.Millisecond)})
		began := time.Now()
		go func() {
			for range 15 {
				time.Sleep(100 * time.Millisecond)
				server.Reset(zktest.Selector{})
			}
		}()
		b.Unlock(b.Lock(p, "a"))
		require.Greater(t, time.Since(began), 1500*time.Millisecond, "The connections were broken.")
		b.Unlock(b.Lock(p, "b"))
	})
}

// After a removal that is answered, but neither carried out nor refused, the next waiter does not
// wait for the end of the session, which holds another lock.
func TestUnclearRemovalIsRepeatedLater(t *testing.T) {
	for _, opts := range [][]lockpool.LockOption{nil, {lockpool.Plain()}} {
		for breaks := range 2 {
			t.Run(fmt.Sprint(len(opts), breaks), func(t *testing.T) {
				locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
					p := b.Pool(lockpool.WithMaxSessions(1))
					b.Lock(p, "leader")
					l := b.Lock(p, "a", opts...)
					deletes := zktest.Match{Prefix: b.Chroot + "/a", Ops: []zktest.Op{zktest.OpDelete}}
					server.Inject(zktest.Rule{Match: deletes, Times: 4 * breaks, Do: zktest.ResetBeforeApply()})
					server.Inject(zktest.Rule{Match: deletes, Times: 4 - 3*breaks, Do: zktest.FailWith(-1)})
					err := l.Unlock(b.Ctx)
					require.NotErrorIs(t, err, lockpool.ErrNoPermission)
					if breaks > 0 {
						require.NoError(t, err)
					}
					began := time.Now()
					b.Lock(b.Pool(), "a", opts...)
					require.Less(t, time.Since(began), 2*time.Second)
				})
			})
		}
	}
}

// The same for the nodes of several permits: each of them is removed later.
func TestUnclearRemovalOfPermitsIsRepeatedLater(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		p := b.Pool(lockpool.WithMaxSessions(1))
		b.Lock(p, "leader")
		l := b.Acquire(p.Semaphore("a", 3), 3)
		removals := zktest.Match{Prefix: b.Chroot + "/a/leases/", Ops: []zktest.Op{zktest.OpMulti, zktest.OpDelete}}
		server.Inject(zktest.Rule{Match: removals, Times: 5, Do: zktest.FailWith(-1)})
		require.Error(t, l.Unlock(b.Ctx))
		time.Sleep(2 * time.Second)
		require.Empty(t, b.Children("a/leases"))
	})
}

// A lock that became shared stays so, though the answer is lost, and with it the answer to the
// question whether it did.
func TestLostAnswersToADowngrade(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		h := b.Handle(b.Pool())
		exclusive, shared := b.Lock(h, "a"), b.Lock(h, "a", lockpool.Shared())
		inject := func(times int, op zktest.Op, do zktest.Action) {
			server.Inject(zktest.Rule{Match: zktest.Match{Prefix: b.Chroot + "/a", Ops: []zktest.Op{op}}, Times: times, Do: do})
		}
		inject(1, zktest.OpMulti, zktest.ResetAfterApply())
		inject(4, zktest.OpMulti, zktest.FailWith(-1))
		inject(4, zktest.OpExists, zktest.ResetBeforeApply())
		b.Unlock(exclusive)
		b.Unlock(shared)
		require.Empty(t, b.Contenders("/"))
	})
}

// Nodes of another program whose names end in numbers may have long data, which is not read.
func TestDataOfNumberedNodesIsNotRead(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		b.Unlock(b.Lock(b.Pool(), "jobs"))
		for i := range 60 {
			require.NoError(t, server.Create(fmt.Sprintf("%s/jobs/entry-%010d", b.Chroot, i), make([]byte, 500_000)))
		}
		p := b.Pool()
		server.Throttle(zktest.Selector{}, 20_000, 10*time.Millisecond)
		began := time.Now()
		b.Unlock(b.Lock(p, "jobs"))
		require.Less(t, time.Since(began), time.Second)
	})
}

// realWith returns a bench on a real server with a configuration of its own.
func realWith(t *testing.T, properties map[string]string) *locktest.Bench {
	locktest.Once(t)
	t.Parallel()
	return locktest.NewOn(t, zktest.StartReal(t, zktest.Properties(properties)))
}

// With enableEagerACLCheck a server refuses a write before it has answered earlier requests.
// The others on the session do not notice.
func TestEagerRefusalBreaksNoConnection(t *testing.T) {
	b := realWith(t, map[string]string{"enableEagerACLCheck": "true"})
	b.Restrict("/forbidden", zk.PermRead)
	var log locktest.Log
	cfg := b.Config()
	cfg.SessionTimeout = 40 * time.Second
	cfg.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	p := b.PoolWith(cfg, lockpool.WithMaxSessions(1))
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			for range 20 {
				if i%2 == 0 {
					_, err := p.Lock(b.Ctx, "forbidden")
					assert.ErrorIs(t, err, lockpool.ErrNoPermission)
				} else {
					assert.NoError(t, p.Do(b.Ctx, fmt.Sprint("other", i), func(context.Context) error { return nil }))
				}
			}
		})
	}
	all.Wait()
	require.NotContains(t, log.String(), "has ended")
}

func TestQuotaIsNamed(t *testing.T) {
	b := realWith(t, map[string]string{"enforceQuota": "true"})
	b.Unlock(b.Lock(b.Pool(), "a"))
	quota := "/zookeeper/quota" + b.Chroot
	for _, node := range []string{quota, quota + "/zookeeper_limits", quota + "/zookeeper_stats"} {
		_, err := b.Admin.Create(node, []byte("count=1,bytes=-1=;byteHardLimit=-1;countHardLimit=1"), 0, zk.WorldACL(zk.PermAll))
		require.NoError(t, err)
	}
	for _, opts := range [][]lockpool.LockOption{nil, {lockpool.Plain()}} {
		_, err := b.Pool().Lock(b.Ctx, "b", opts...)
		require.ErrorIs(t, err, lockpool.ErrNoPermission)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "quota")
	}
}

// A server that serves only authenticated clients is found out before the first lock.
func TestEnforcedAuthenticationIsNamed(t *testing.T) {
	locktest.Once(t)
	t.Parallel()
	own := zktest.StartReal(t, zktest.Properties(map[string]string{"enforce.auth.enabled": "true", "enforce.auth.schemes": "digest"}))
	cfg := zookeeper.Config{Servers: []string{own.Addr()}}
	_, err := connector(t, cfg).Connect(t.Context())
	require.ErrorIs(t, err, driver.ErrPermanent)
	require.ErrorContains(t, err, "serves only authenticated clients: set Config.Digest")
	cfg.Digest = zookeeper.Digest{User: "lockpool", Password: "s3cret"}
	s, err := connector(t, cfg).Connect(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.Close(t.Context()))
}
