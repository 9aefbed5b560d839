package main

// This file tests jobs while lockpool is stopped or killed.

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// A stopped lockpool can end nothing, so the children are stopped as well.
func TestChildrenStopWithLockpool(t *testing.T) {
	t.Parallel()
	locktest.Once(t)
	server := zktest.Start(t)
	s := newShellOn(locktest.NewOn(t, server))
	p := s.start("run", "job", "--", "sh", "-c", "while :; do echo tick; sleep 0.02; done").prints("tick")
	ticks := func() int { return strings.Count(p.stdout.String(), "tick") }
	p.signal(syscall.SIGSTOP)
	time.Sleep(400 * time.Millisecond)
	stopped := ticks()
	time.Sleep(200 * time.Millisecond)
	require.Equal(t, stopped, ticks())
	p.signal(syscall.SIGCONT)
	s.Until(func() bool { return ticks() > stopped+5 }, "the children have been continued")

	p.signal(syscall.SIGSTOP)
	time.Sleep(400 * time.Millisecond)
	stopped = ticks()
	node := s.Chroot + "/job/" + s.Children("job")[0]
	require.NoError(t, server.ExpireSession(server.State().Nodes[node].Stat.EphemeralOwner))
	p.signal(syscall.SIGCONT)
	require.Equal(t, 117, p.code())
	require.Equal(t, stopped, ticks(), "the children ran without the lock")
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
	time.Sleep(50 * time.Millisecond) // until the node is watched
	require.NoError(t, s.Admin.Delete(s.Chroot+"/job/"+s.Children("job")[0], -1))
	require.Equal(t, 117, p.code())
	require.True(t, free(t, script))
}
