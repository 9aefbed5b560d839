package etcdtest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/lockpool/lockpool"
)

// locker is a process that takes one lock.
type locker interface {
	lock(ctx context.Context) error
	unlock(ctx context.Context) error
}

type ours struct {
	p *lockpool.Pool
	l *lockpool.Lock
}

func (o *ours) lock(ctx context.Context) (err error) { o.l, err = o.p.Lock(ctx, "bench"); return err }
func (o *ours) unlock(ctx context.Context) error     { return o.l.Unlock(ctx) }

type theirs struct{ m *concurrency.Mutex }

func (t *theirs) lock(ctx context.Context) error   { return t.m.Lock(ctx) }
func (t *theirs) unlock(ctx context.Context) error { return t.m.Unlock(ctx) }

func lockers(b *testing.B, endpoints []string, own bool, n int) (all []locker) {
	for range n {
		if own {
			all = append(all, &ours{p: open(b, endpoints)})
			continue
		}
		client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop()})
		require.NoError(b, err)
		b.Cleanup(func() { _ = client.Close() })
		session, err := concurrency.NewSession(client)
		require.NoError(b, err)
		b.Cleanup(func() { _ = session.Close() })
		all = append(all, &theirs{concurrency.NewMutex(session, "bench")})
	}
	return all
}

func BenchmarkAlone(b *testing.B) {
	endpoints := StartProcess(b, 1)
	for _, own := range []bool{true, false} {
		b.Run(map[bool]string{true: "lockpool", false: "Mutex"}[own], func(b *testing.B) {
			l := lockers(b, endpoints, own, 1)[0]
			for b.Loop() {
				require.NoError(b, l.lock(b.Context()))
				require.NoError(b, l.unlock(b.Context()))
			}
		})
	}
}

func BenchmarkFourProcesses(b *testing.B) {
	endpoints := StartProcess(b, 1)
	for _, own := range []bool{true, false} {
		b.Run(map[bool]string{true: "lockpool", false: "Mutex"}[own], func(b *testing.B) {
			all := lockers(b, endpoints, own, 4)
			var turns atomic.Int64
			var done sync.WaitGroup
			ctx, cancel := context.WithTimeout(b.Context(), 3*time.Second)
			defer cancel()
			for _, l := range all {
				done.Go(func() {
					for ctx.Err() == nil {
						if l.lock(ctx) == nil {
							turns.Add(1)
							_ = l.unlock(context.Background())
						}
					}
				})
			}
			done.Wait()
			b.ReportMetric(float64(turns.Load())/3, "turns/s")
		})
	}
}
