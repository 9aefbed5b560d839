package memory_test

// This file has the benchmark of a lock in memory.

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/memory"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/zktest"
)

// BenchmarkLock measures a turn with an uncontended lock, and with a lock wanted by 64
// goroutines, each with a handle: in memory, with a sync.Mutex, and on the embedded
// ZooKeeper server.
func BenchmarkLock(b *testing.B) {
	server := zktest.Start(b)
	for _, c := range []struct {
		name string
		open func(b *testing.B) *lockpool.Pool // nil for a sync.Mutex
	}{
		{"mutex", nil},
		{"memory", func(b *testing.B) *lockpool.Pool { return openPool(b, memory.New()) }},
		{"memory at service", func(b *testing.B) *lockpool.Pool { return openPool(b, memory.New(), lockpool.WithLocalTurns(0)) }},
		{"embedded", func(b *testing.B) *lockpool.Pool {
			connector, err := zookeeper.NewConnector(zookeeper.Config{Servers: []string{server.Addr()}})
			require.NoError(b, err)
			p, err := lockpool.OpenConnector(connector)
			require.NoError(b, err)
			b.Cleanup(func() { require.NoError(b, p.Close()) })
			return p
		}},
	} {
		turn := func(b *testing.B) func() {
			if c.open == nil {
				var mu sync.Mutex
				return func() {
					mu.Lock()
					defer mu.Unlock()
				}
			}
			p := c.open(b)
			return func() {
				l, err := p.Lock(b.Context(), "job")
				if err == nil {
					err = l.Unlock(b.Context())
				}
				if err != nil {
					b.Error(err)
				}
			}
		}
		b.Run(c.name+"/alone", func(b *testing.B) {
			take := turn(b)
			take()
			b.ReportAllocs()
			for b.Loop() {
				take()
			}
		})
		b.Run(c.name+"/64 goroutines", func(b *testing.B) {
			take := turn(b)
			take()
			b.SetParallelism(32)
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					take()
				}
			})
		})
	}
}
