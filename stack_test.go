//go:build !race

package lockpool_test

// This file tests the stacks of waiters.

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/memory"
)

// A stack doubles when a call needs more than is left. Beside 1 kB of the caller, a wait for a
// local turn fits into 4 kB, and a wait for the service into 8 kB. The stacks of other tests are
// not to be counted, and stacks begin small only if the runtime does not adapt the first size to
// the other stacks: the test runs in a process of its own.
func TestStackOfAWaiter(t *testing.T) {
	const waiters, setting = 500, "adaptivestackstart=0"
	if !strings.Contains(os.Getenv("GODEBUG"), setting) {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestStackOfAWaiter$")
		cmd.Env = append(os.Environ(), "GODEBUG="+setting)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return
	}
	for name, c := range map[string]struct{ turns, most int }{"local": {1000, 4 << 10}, "service": {0, 8 << 10}} {
		t.Run(name, func(t *testing.T) {
			p, err := lockpool.OpenConnector(memory.New(), lockpool.WithLocalTurns(c.turns))
			require.NoError(t, err)
			l, err := p.Lock(t.Context(), "a")
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			before := stacksInUse()
			var all sync.WaitGroup
			for i := range waiters {
				if i == 1 {
					time.Sleep(20 * time.Millisecond) // later calls look for their places in the program, as waits are long
				}
				all.Go(func() { callDeep(func() { _, _ = p.Lock(ctx, "a") }) })
			}
			for p.Stats().Waiting < waiters {
				time.Sleep(time.Millisecond)
			}
			require.Less(t, (stacksInUse()-before)/waiters, c.most*5/4)
			cancel()
			all.Wait()
			require.NoError(t, l.Unlock(t.Context()))
			require.NoError(t, p.Close())
		})
	}
}

// callDeep calls f with 1 kB of the stack in use.
//
//go:noinline
func callDeep(f func()) {
	var frame [1000]byte
	f()
	runtime.KeepAlive(&frame)
}

func stacksInUse() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.StackInuse)
}
