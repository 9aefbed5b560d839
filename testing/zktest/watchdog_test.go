//go:build unix

package zktest

// This file has the tests of the watchdog.

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// ownerEnv makes the test binary start a server and then end in the named way.
const ownerEnv = "ZKTEST_OWNER"

func runOwner(how string) {
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt) // even if go test runs with SIGINT ignored
	var s *RealServer
	var err error
	link := "-"
	if how == "separated" {
		var e *RealEnsemble
		if e, err = RunRealEnsemble(context.Background(), 1, Separated()); err == nil {
			s, link = e.Member(0), e.network.link
		}
	} else {
		s, err = RunReal(context.Background())
	}
	if err != nil {
		panic(err)
	}
	pid := s.PID()
	switch how {
	case "paused":
		err = s.Pause()
	case "stopped":
		err = s.Stop(context.Background())
	}
	if err != nil {
		panic(err)
	}
	fmt.Println(pid, s.watchdog.cmd.Process.Pid, s.dir, link)
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	switch how {
	case "panic":
		panic("requested by the test")
	case "exit":
		os.Exit(0)
	case "interrupt":
		<-interrupted
		os.Exit(130)
	}
	select {}
}

func TestRealServerDoesNotOutliveItsOwner(t *testing.T) {
	t.Parallel()
	kill := func(owner *os.Process) error { return owner.Kill() }
	for _, test := range []struct {
		name, how string
		end       func(*os.Process) error
	}{
		{"killed", "wait", kill},
		{"killed with the server paused", "paused", kill},
		{"killed with the server stopped", "stopped", kill},
		{"killed with a network", "separated", kill},
		{"panicked", "panic", nil},
		{"exited", "exit", nil},
		// Ctrl-C sends the signal to the whole process group.
		{"interrupted", "interrupt", func(owner *os.Process) error { return syscall.Kill(-owner.Pid, syscall.SIGINT) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			self, err := os.Executable()
			require.NoError(t, err)
			owner := exec.Command(self)
			owner.Env = append(os.Environ(), ownerEnv+"="+test.how)
			owner.SysProcAttr = ownGroup()
			in, err := owner.StdinPipe()
			require.NoError(t, err)
			out, err := owner.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, owner.Start())
			defer owner.Process.Kill()

			var server, dog int
			var dir, link string
			_, err = fmt.Fscan(out, &server, &dog, &dir, &link)
			require.NoError(t, err)
			require.Equal(t, test.how == "stopped", hasEnded(server))
			require.False(t, hasEnded(dog))
			require.DirExists(t, dir)
			require.Equal(t, test.how == "separated", isLink(link))

			_, err = in.Write([]byte("\n"))
			require.NoError(t, err)
			if test.end != nil {
				require.NoError(t, test.end(owner.Process))
			}
			// This also waits until no process holds the owner's output.
			_, err = bufio.NewReader(out).ReadString(0)
			require.Error(t, err)
			_ = owner.Wait()

			require.Eventually(t, func() bool {
				_, err := os.Stat(dir)
				return hasEnded(server) && hasEnded(dog) && !isLink(link) && errors.Is(err, os.ErrNotExist)
			}, testTimeout, pollInterval)
		})
	}
}

func isLink(name string) bool {
	_, err := net.InterfaceByName(name)
	return err == nil
}

// hasEnded reports whether a process has ended. An orphan not reaped may remain as a
// zombie.
func hasEnded(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	state, err := exec.Command("ps", "-o", "stat=", "-p", fmt.Sprint(pid)).Output()
	return err != nil || strings.HasPrefix(strings.TrimSpace(string(state)), "Z")
}
