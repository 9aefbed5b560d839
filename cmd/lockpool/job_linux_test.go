package main

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// While lockpool is stopped it can end nothing, so its children are stopped as well.
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
