package docs

// This file has the servers that lockpool was tried on, as docs/reliability.md says.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// trials are the columns of the table. Each is tried with pools of several sessions.
var trials = []struct {
	name string
	try  func(ctx context.Context, addr string, open func(addr string) *lockpool.Pool) error
}{
	{"queue", func(ctx context.Context, addr string, open func(addr string) *lockpool.Pool) error {
		return takeTurns(ctx, addr, open, func(p *lockpool.Pool, work func(context.Context) error) error { return p.Do(ctx, "queue", work) })
	}},
	{"plain", func(ctx context.Context, addr string, open func(addr string) *lockpool.Pool) error {
		return takeTurns(ctx, addr, open, func(p *lockpool.Pool, work func(context.Context) error) error {
			return p.Do(ctx, "plain", work, lockpool.Plain())
		})
	}},
	{"semaphore", func(ctx context.Context, addr string, open func(addr string) *lockpool.Pool) error {
		return takeTurns(ctx, addr, open, func(p *lockpool.Pool, work func(context.Context) error) error {
			return p.Semaphore("semaphore", 3).Do(ctx, 2, work) // one holder at a time
		})
	}},
	{"`Once`", func(ctx context.Context, addr string, open func(addr string) *lockpool.Pool) error {
		ran := 0
		for range 3 {
			err := open(addr).Once(ctx, "job", "key", func(context.Context) error { ran++; return nil })
			if err != nil && !errors.Is(err, lockpool.ErrDone) {
				return err
			}
		}
		if ran != 1 {
			return fmt.Errorf("a job ran %d times", ran)
		}
		return nil
	}},
}

// takeTurns has four pools take turns, and returns an error unless each turn was alone.
func takeTurns(ctx context.Context, addr string, open func(addr string) *lockpool.Pool, turn func(p *lockpool.Pool, work func(context.Context) error) error) error {
	var inside atomic.Int32
	var all sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		p := open(addr)
		all.Go(func() {
			for range 10 {
				errs[i] = errors.Join(errs[i], turn(p, func(context.Context) error {
					defer inside.Add(-1)
					if n := inside.Add(1); n > 1 {
						return fmt.Errorf("%d holders", n)
					}
					time.Sleep(time.Millisecond)
					return nil
				}))
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// partition cuts a holder off. The holder must be told before another is granted the lock.
func partition(t *testing.T, addr string, open func(addr string) *lockpool.Pool, brief func(addr string) *lockpool.Pool) {
	proxy, clock := zktest.StartProxy(t, addr), locktest.StartClock()
	held, err := brief(proxy.Addr()).Lock(t.Context(), "partition")
	require.NoError(t, err)
	time.Sleep(100 * time.Millisecond)
	proxy.Partition(zktest.Selector{}, zktest.Both)
	next, err := open(addr).Lock(t.Context(), "partition")
	require.NoError(t, err)
	select {
	case <-held.Lost():
	case <-time.After(3 * clock.Late()): // the timer of a late machine ends the lease late
		require.Fail(t, "there are two holders")
	}
	proxy.Heal()
	require.ErrorIs(t, held.Unlock(t.Context()), lockpool.ErrLockLost)
	require.NoError(t, next.Unlock(t.Context()))
}

// The table in docs/reliability.md has each server on which all of this was tried. A machine may
// have other versions of ZooKeeper than the page.
func TestServersOfThePage(t *testing.T) {
	newer, err := exec.Command("../../../.ci/newer-zookeeper").Output()
	require.NoError(t, err)
	command := filepath.Join(t.TempDir(), "lockpool")
	out, err := exec.Command("go", "build", "-o", command, "../../../cmd/lockpool").CombinedOutput()
	require.NoError(t, err, "%s", out)
	page, err := os.ReadFile("../../../docs/reliability.md")
	require.NoError(t, err)
	home, set := os.LookupEnv("ZOOKEEPER_HOME")
	start := func(home string) string {
		require.NoError(t, os.Setenv("ZOOKEEPER_HOME", home)) // no other test runs meanwhile
		return zktest.StartReal(t).Addr()
	}
	servers := map[string]string{
		"ZooKeeper, installed": start(home), "ZooKeeper, newer": start(strings.TrimSpace(string(newer))),
		"zktest": zktest.Start(t).ConnectString(), "zktest.Keeper()": zktest.Start(t, zktest.Keeper()).ConnectString(),
	}
	if require.NoError(t, os.Setenv("ZOOKEEPER_HOME", home)); !set {
		require.NoError(t, os.Unsetenv("ZOOKEEPER_HOME"))
	}
	for name, addr := range servers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			with := func(session time.Duration) func(addr string) *lockpool.Pool {
				return func(addr string) *lockpool.Pool {
					connector, err := zookeeper.NewConnector(zookeeper.Config{Servers: []string{addr}, Chroot: "/locks", SessionTimeout: session})
					require.NoError(t, err)
					return locktest.Open(t, connector)
				}
			}
			open := with(20 * time.Second)
			for _, trial := range trials {
				require.NoError(t, trial.try(t.Context(), addr, open), trial.name)
			}
			partition(t, addr, open, with(4*time.Second))
			said, err := exec.Command(command, "doctor", "--server", addr+"/locks").CombinedOutput()
			require.NoError(t, err, "%s", said)
			version := regexp.MustCompile(addr + `: (?:ClickHouse Keeper v)?([\d.]+)`).FindStringSubmatch(string(said))
			require.NotNil(t, version, "%s", said)
			service, isZooKeeper := strings.CutPrefix(name, "ZooKeeper, ")
			if service = "`" + service + "`"; isZooKeeper {
				service = "ZooKeeper " + version[1]
			}
			row := "| " + service + " |" + strings.Repeat("yes|", len(trials)+2) + "\n"
			if isZooKeeper && !strings.Contains(string(page), service) {
				t.Logf("docs/reliability.md lacks %s", row)
				return
			}
			require.Contains(t, string(page), row)
		})
	}
}
