//go:build unix

package main

// This file tests the command when the lock is lost: silence, outages and removals.

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

var rounds = flag.Int("rounds", 6, "the number of outages, of removals and of expiries that holders go through")

// script returns a script ignoring SIGTERM, as its children do, and running until killed.
// The script prints "beside" if a process of another script is still running: each process
// holds the lock of one file.
func script(t *testing.T) string {
	marker := filepath.Join(t.TempDir(), "marker")
	return fmt.Sprintf(`exec 9>>%s; trap "" TERM; flock -n 9 && echo alone || echo beside; sleep 60 & sleep 61`, marker)
}

// free reports whether no process of the script is running.
func free(t *testing.T, script string) bool {
	file, _, _ := strings.Cut(strings.TrimPrefix(script, "exec 9>>"), ";")
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

// While no server answers, a command listening to SIGTERM gets the grace period, and a
// command ignoring SIGTERM is killed before the lease ends.
func TestSilentServers(t *testing.T) {
	t.Parallel()
	t.Run("paused", func(t *testing.T) { testSilence(t, locktest.Server.Pause, locktest.Server.Resume) })
	t.Run("killed", func(t *testing.T) {
		testSilence(t, locktest.Server.Kill, func(s locktest.Server) error { return s.Start(t.Context()) })
	})
}

const notice = "the service does not answer, and the lock was about to expire; sh was ended"

func testSilence(t *testing.T, begin, end func(locktest.Server) error) {
	t.Parallel()
	const timeout = 10 * time.Second
	s := newShellOn(locktest.NewOn(t, locktest.StartServer(t)))
	stubborn := script(t)
	killed := s.start("run", "--session-timeout", timeout.String(), "stubborn", "--", "sh", "-c", stubborn).prints("alone")
	asked := s.start("run", "--session-timeout", timeout.String(), "--grace", "2s", "polite", "--",
		"sh", "-c", `trap "echo asked; exit 5" TERM; echo started; while :; do sleep 0.02; done`).prints("started")
	time.Sleep(timeout * 2 / 5) // a new session has a longer lease
	clock := locktest.StartClock()
	require.NoError(t, begin(s.Server))
	asked.signal(syscall.SIGCONT) // as systemd does, when it stops a service
	asked.prints("asked")
	s.Until(func() bool { return free(t, stubborn) }, "the children are dead")
	for _, p := range []*process{killed, asked} {
		s.Until(func() bool { return strings.Contains(p.stderr.String(), notice) }, "a notice")
	}
	clock.Took(t, timeout/10, timeout*95/100, "the life without an answer")
	for _, p := range []*process{killed, asked} {
		require.Equal(t, 117, p.code())
		require.Equal(t, 1, strings.Count(p.stderr.String(), notice))
	}
	require.NoError(t, end(s.Server))
	s.AwaitQueue("stubborn", 0)
	s.AwaitQueue("polite", 0)
}

// TestNeverBesideNextHolder lets each holder go through an outage while the next one waits.
// The next must not get the lock before the children of the first are dead. A surviving
// holder is killed.
func TestNeverBesideNextHolder(t *testing.T) {
	t.Parallel()
	const timeout = 4 * time.Second
	locktest.Once(t)
	var outages []func(server *zktest.Server, proxy *zktest.Proxy)
	for _, dir := range []zktest.Direction{zktest.Both, zktest.Inbound, zktest.Outbound} {
		outages = append(outages, func(_ *zktest.Server, proxy *zktest.Proxy) { proxy.Partition(zktest.Selector{}, dir) })
	}
	server := zktest.Start(t, zktest.Members(3), zktest.TickTime(100*time.Millisecond))
	outages = append(outages,
		func(server *zktest.Server, _ *zktest.Proxy) { require.NoError(t, server.PauseMember(1)) },
		func(server *zktest.Server, _ *zktest.Proxy) { require.NoError(t, server.Isolate(1)) },
		func(server *zktest.Server, _ *zktest.Proxy) { require.NoError(t, server.Pause()) },
	)
	s := newShellOn(locktest.NewOn(t, server))
	script := script(t)
	random := rand.New(rand.NewPCG(uint64(*rounds), 1))

	// Both reach the first member alone, and only through a proxy.
	proxies := []*zktest.Proxy{zktest.StartProxy(t, server.Members()[0]), zktest.StartProxy(t, server.Members()[0])}
	start := func(i int) *process {
		return s.start("run", "--session-timeout", timeout.String(), "--server", proxies[i%2].Addr()+s.Chroot, "job", "--", "sh", "-c", script)
	}
	holder := start(0).prints("alone")
	time.Sleep(timeout * 2 / 5) // a new session has a longer lease
	for i := range *rounds {
		next := start(i + 1)
		s.Until(func() bool { return len(s.Children("job")) == 2 || closed(holder.ended) }, "the next one waits")
		outage := timeout * 5 / 4
		if i >= len(outages) {
			outage = time.Duration(random.Int64N(int64(2 * timeout)))
		}
		about := fmt.Sprintf("round %d, outage %d of %s", i, i%len(outages), outage)
		outages[i%len(outages)](server, proxies[i%2])
		time.Sleep(outage)
		proxies[i%2].Heal()
		server.HealMembers()
		_ = server.ResumeMember(1) // if paused
		_ = server.Resume()

		if i < len(outages) { // outages longer than the timeout
			require.Equal(t, 117, holder.code(), "%s: %s", about, holder.stderr.String())
		} else {
			select {
			case <-holder.ended:
				require.Equal(t, 117, holder.code(), "%s: %s", about, holder.stderr.String())
			case <-time.After(timeout / 2):
				holder.signal(syscall.SIGKILL)
			}
		}
		s.Until(func() bool {
			if next.stdout.String() != "" {
				return true
			}
			select {
			case <-next.ended: // granted the lock in the outage, and lost it again
				require.Equal(t, 117, next.code(), "%s: %s", about, next.stderr.String())
				next = start(i + 1)
			default:
			}
			return false
		}, "the next holder has the lock: %s", about)
		require.Equal(t, "alone\n", next.stdout.String(), about)
		holder = next
	}
	holder.signal(syscall.SIGKILL)
	s.AwaitQueue("job", 0)
	require.True(t, free(t, script))
}

// No holder can know of the removal of the node before the next holder does. The overlap of
// the two is measured.
func TestLossKillsAtOnce(t *testing.T) {
	t.Parallel()
	locktest.Once(t)
	server := zktest.Start(t)
	for name, remove := range map[string]func(s *shell, node string) error{
		"removed by hand": func(s *shell, node string) error { return s.Admin.Delete(node, -1) },
		"session expired": func(s *shell, node string) error {
			return server.ExpireSession(server.State().Nodes[node].Stat.EphemeralOwner)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShellOn(locktest.NewOn(t, server))
			// In nanoseconds, when the script began, and when no other one ran.
			marker := filepath.Join(t.TempDir(), "marker")
			script := fmt.Sprintf(`date +%%s%%N; exec 9>>%s; flock 9; date +%%s%%N; echo held; sleep 60`, marker)
			start := func() *process { return s.start("run", "--session-timeout", "40s", "job", "--", "sh", "-c", script) }
			var worst time.Duration
			beside, holder := 0, start().prints("held")
			for range *rounds {
				next := start()
				s.AwaitQueue("job", 2)
				time.Sleep(50 * time.Millisecond) // until the holder's node is watched
				require.NoError(t, remove(s, s.Chroot+"/job/"+s.Children("job")[0]))
				require.Equal(t, 117, holder.code())
				require.Contains(t, holder.stderr.String(), "lock lost")
				require.Contains(t, holder.stderr.String(), "sh was ended")
				lines := strings.Fields(next.prints("held").stdout.String())
				began, err := strconv.ParseInt(lines[0], 10, 64)
				require.NoError(t, err)
				alone, err := strconv.ParseInt(lines[1], 10, 64)
				require.NoError(t, err)
				overlap := time.Duration(alone - began)
				worst = max(worst, overlap)
				if overlap > 5*time.Millisecond { // the starts of two processes in between
					beside++
				}
				holder = next
			}
			t.Logf("in %d of %d rounds the next command ran beside the one before, for at most %s", beside, *rounds, worst)
			require.Less(t, worst, 8*time.Second, "a silent server ends the holder no earlier")
		})
	}
}

func TestHoldAtLeast(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	clock := locktest.StartClock()
	p := s.start("run", "--hold-at-least", "1s", "--revocable", "job", "--", "sh", "-c", `trap "exit 3" TERM; echo hi; while :; do sleep 0.02; done`).prints("hi")
	waiter := s.start("run", "job", "--", "echo", "granted")
	require.NoError(t, s.Pool().Revoke(s.Ctx, "job")) // which ends the command, and not the rest
	require.Equal(t, 3, p.code())
	waiter.code()
	clock.Took(t, time.Second, locktest.Patience/2, "the hold")

	ended := func(p *process) { // whose command prints its process ID
		s.Until(func() bool {
			pid, err := strconv.Atoi(strings.TrimSpace(p.stdout.String()))
			return err == nil && syscall.Kill(pid, 0) == syscall.ESRCH
		}, "the command has ended")
	}
	p = s.start("run", "--hold-at-least", "1m", "job", "--", "sh", "-c", "echo $$; exit 3")
	ended(p)
	s.Until(func() bool { return s.WatchedIn("job") == 1 }, "the node is watched")
	require.NoError(t, s.Admin.Delete(s.Chroot+"/job/"+s.Children("job")[0], -1))
	require.Equal(t, 117, p.code())
	require.Contains(t, p.stderr.String(), "was lost when sh had ended")

	// A signal cuts the rest short, and not the wait for the release.
	server := zktest.Start(t)
	server.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpDelete}}, Do: zktest.DelayApply(200 * time.Millisecond)})
	s = newShellOn(locktest.NewOn(t, server))
	p = s.start("run", "--hold-at-least", "1m", "job", "--", "sh", "-c", "echo $$")
	ended(p)
	p.signal(syscall.SIGTERM)
	require.Zero(t, p.code())
}

func TestRevocable(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	pool := s.Pool()
	p := s.start("run", "--revocable", "job", "--", "sh", "-c", `trap "echo asked; exit 4" TERM; echo started; while :; do sleep 0.02; done`).prints("started")
	waiter := s.start("run", "--revocable", "job", "--", "true")
	s.AwaitQueue("job", 2)
	require.NoError(t, pool.Revoke(s.Ctx, "job"))
	require.Equal(t, 4, p.code())
	require.Contains(t, p.stdout.String(), "asked")
	require.Zero(t, waiter.code())

	// The notice tells of the loss, and not of the request before.
	p = s.start("run", "--revocable", "job", "--", "sh", "-c", `trap "echo asked" TERM; echo started; while :; do sleep 0.02; done`).prints("started")
	require.NoError(t, pool.Revoke(s.Ctx, "job"))
	p.prints("asked")
	require.NoError(t, s.Admin.Delete(s.Chroot+"/job/"+s.Children("job")[0], -1))
	require.Equal(t, 117, p.code())
	require.Contains(t, p.stderr.String(), "lockpool: lock lost: ")
}

func TestMaxHold(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	_, stderr := s.run(143, "run", "--max-hold", "50ms", "--revocable", "job", "--", "sleep", "60") // which SIGTERM ends
	require.Contains(t, stderr, "a lock is held for too long")

	loop := `trap "echo asked; exit 4" TERM; echo started; while :; do sleep 0.02; done`
	p := s.start("run", "--max-hold", "50ms", "job", "--", "sh", "-c", loop).prints("started")
	s.Until(func() bool { return strings.Contains(p.stderr.String(), "lock=job kind=mutex for=50ms") }, "the warning")
	p.signal(syscall.SIGTERM) // for the command, which was not asked before
	require.Equal(t, 4, p.code())
	require.Equal(t, "started\nasked\n", p.stdout.String())
}

func TestGraceThatServersDoNotGrant(t *testing.T) {
	t.Parallel()
	locktest.Once(t)
	s := newShellOn(locktest.NewOn(t, zktest.Start(t, zktest.SessionTimeouts(time.Second, 4*time.Second))))
	s.says(118, "too short for --grace", "run", "--session-timeout", "14s", "--grace", "4s", "job", "--", "echo", "hi")
}
