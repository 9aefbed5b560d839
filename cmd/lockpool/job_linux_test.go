package main

// This file tests jobs while lockpool is stopped or killed.

import (
	"fmt"
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

func size(t *testing.T, file string) int64 {
	info, err := os.Stat(file)
	require.NoError(t, err)
	return info.Size()
}

// A stopped lockpool can end nothing, so the children are stopped as well.
func TestChildrenStopWithLockpool(t *testing.T) {
	t.Parallel()
	locktest.Once(t)
	server := zktest.Start(t)
	s := newShellOn(locktest.NewOn(t, server))
	file := filepath.Join(t.TempDir(), "ticks") // a pipe would have unread ticks
	// Some shells call vfork for a command outside a subshell. If the signal then stops the new
	// process, the shell stands still, but is not said to be stopped.
	p := s.start("run", "job", "--", "sh", "-c", "echo >"+file+"; echo $$; while :; do echo >>"+file+"; (sleep 0.02); done").prints("\n")
	child, err := strconv.Atoi(strings.TrimSpace(p.stdout.String()))
	require.NoError(t, err)
	stop := func() (ticks int64) {
		p.signal(syscall.SIGSTOP)
		s.Until(func() bool { return isStopped(child) }, "the children are stopped: %s", &p.stderr)
		return size(t, file)
	}
	stopped := stop()
	p.signal(syscall.SIGCONT)
	s.Until(func() bool { return size(t, file) > stopped }, "the children have been continued")

	waiter := s.start("run", "job", "--", "sh", "-c", "echo $$; sleep 60")
	s.AwaitQueue("job", 2)
	waiter.signal(syscall.SIGSTOP)
	var guard int
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", waiter.Process.Pid))
	require.NoError(t, err)
	for _, children := range threads {
		pids, err := os.ReadFile(children)
		require.NoError(t, err)
		_, _ = fmt.Sscan(string(pids), &guard) // other threads have no children
	}
	require.NotZero(t, guard)
	s.Until(func() bool { return isStopped(guard) }, "the guard is stopped")
	waiter.signal(syscall.SIGCONT)

	stopped = stop()
	node := s.Chroot + "/job/" + s.Children("job")[0]
	require.NoError(t, server.ExpireSession(server.State().Nodes[node].Stat.EphemeralOwner))
	p.signal(syscall.SIGCONT)
	require.Equal(t, 117, p.code())
	require.Equal(t, stopped, size(t, file), "the children ran without the lock")

	waiter.prints("\n")
	child, err = strconv.Atoi(strings.TrimSpace(waiter.stdout.String()))
	require.NoError(t, err)
	waiter.signal(syscall.SIGSTOP)
	s.Until(func() bool { return isStopped(child) }, "the children are stopped, although the guard was during the wait")
	waiter.signal(syscall.SIGCONT) // a stopped process does not end
}

// A signal after the command's end, and before lockpool knows of the end, ends the rest.
func TestSignalEndsTheRest(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	for range 3 {
		p := s.start("run", "--hold-at-least", "1m", "job", "--", "setsid", "sh", "-c", "echo $$; sleep 0.2").prints("\n")
		p.signal(syscall.SIGSTOP)
		child, err := strconv.Atoi(strings.TrimSpace(p.stdout.String()))
		require.NoError(t, err)
		s.Until(func() bool { return isOver(child) }, "the command has ended")
		p.signal(syscall.SIGTERM)
		p.signal(syscall.SIGCONT)
		clock := locktest.StartClock()
		require.Zero(t, p.code())
		clock.Took(t, 0, 50*time.Second, "the release")
	}
}

// A command outside the group dies with lockpool, though its children do not, and after a
// loss.
func TestCommandOutsideItsGroupDiesWithLockpool(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	script, _, _ := strings.Cut(script(t), "sleep 60")
	script += "exec sleep 60"
	p := s.start("run", "--session-timeout", "4s", "job", "--", "setsid", "sh", "-c", script).prints("alone")
	p.signal(syscall.SIGKILL)
	s.Until(func() bool { return free(t, script) }, "the command is dead")
	s.AwaitQueue("job", 0)

	p = s.start("run", "job", "--", "setsid", "sh", "-c", script).prints("alone")
	s.Until(func() bool { return s.WatchedIn("job") == 1 }, "the node is watched")
	require.NoError(t, s.Admin.Delete(s.Chroot+"/job/"+s.Children("job")[0], -1))
	require.Equal(t, 117, p.code())
	require.True(t, free(t, script))
}
