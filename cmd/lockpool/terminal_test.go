//go:build unix

package main

// This file tests the command in a terminal: job control and its signals.

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// terminal is a terminal with a running program.
type terminal struct {
	s      *shell
	pty    *os.File
	screen locktest.Log
	read   int // what of the screen has been read
}

func (s *shell) terminal(t *testing.T, args ...string) *terminal {
	dir := t.TempDir()
	self, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, os.Symlink(self, filepath.Join(dir, "lockpool")))
	cmd := exec.Command(args[0], args[1:]...)
	if args[0] == "lockpool" {
		cmd = exec.Command(filepath.Join(dir, "lockpool"), args[1:]...)
	}
	cmd.Env = append(append(os.Environ(), s.env...), "PATH="+dir+":"+os.Getenv("PATH"), "PS1=$ ", "TERM=dumb")
	term := &terminal{s: s}
	term.pty, err = pty.Start(cmd)
	require.NoError(t, err)
	copied := make(chan struct{})
	go func() { // ends when no process has the terminal
		defer close(copied)
		buf := make([]byte, 4096)
		for {
			n, err := term.pty.Read(buf)
			_, _ = term.screen.Write(buf[:n])
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // to hang up
		_ = cmd.Wait()         // killed
		<-copied
		_ = term.pty.Close()
		if t.Failed() {
			t.Log(term.screen.String())
		}
	})
	return term
}

// types types a text.
func (term *terminal) types(text string) {
	_, err := term.pty.WriteString(text)
	require.NoError(term.s, err)
}

// shows waits until the terminal shows a text after everything shown before.
func (term *terminal) shows(text string) {
	term.s.Helper()
	term.s.Until(func() bool {
		rest := term.screen.String()[term.read:]
		i := strings.Index(rest, text)
		if i >= 0 {
			term.read += i + len(text)
		}
		return i >= 0
	}, "%q shown", text)
}

const (
	ctrlC = "\x03"
	ctrlZ = "\x1a"
)

func TestTerminal(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	term := s.terminal(t, "bash", "--norc", "--noediting", "-i")
	term.shows("$ ")
	term.types("lockpool run job -- cat\n")
	s.AwaitQueue("job", 1)
	term.types("hello\n")
	term.shows("hello\r\nhello\r\n") // the terminal's echo, and cat's
	term.types(ctrlZ)
	term.shows("Stopped")
	term.types("echo still $((40+2))\n")
	term.shows("still 42")
	term.types("fg\n")
	term.shows("lockpool run job -- cat\r\n")
	term.types("again\n")
	term.shows("again\r\nagain\r\n")
	term.types(ctrlC)
	term.shows("$ ")
	term.types("echo code $?\n")
	term.shows("code 130")
	s.AwaitQueue("job", 0)

	// In the background, a reading child is stopped, until brought to the foreground.
	term.types("set -b; lockpool run job -- cat &\n")
	term.shows("Stopped")
	term.types("fg\n")
	term.shows("lockpool run job -- cat\r\n")
	term.types("hello\n")
	term.shows("hello\r\nhello\r\n")

	// The end of the input is the child's as well.
	term.types("\x04")
	term.types("echo code $?\n")
	term.shows("code 0")

	text := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(text, []byte("no program"), 0o700))
	term.types("lockpool run job -- " + text + "\n")
	term.shows("exec format error")
	term.types("echo code $?\n")
	term.shows("code 126")

	// Ctrl-C ends scripts.
	interrupt := func(awaitStart func()) {
		term.types("bash -c 'lockpool run job -- bash -c \"echo running; sleep 60\"; echo af\"\"ter'\n")
		awaitStart()
		term.types(ctrlC)
		before := term.read
		term.types("echo code $?\n")
		term.shows("code 130")
		require.NotContains(t, term.screen.String()[before:], "after")
	}
	interrupt(func() { term.shows("\nrunning") })
	holder := s.holder("job")
	interrupt(func() { s.AwaitQueue("job", 2) })
	holder.signal(syscall.SIGTERM)
	require.Equal(t, 143, holder.code())

	// Pagers read the keyboard, until the command does.
	term.types("lockpool run job -- sh -c 'echo ready; sleep 60' | sh -c 'read x; read y </dev/tty; echo $x $y'\n")
	s.AwaitQueue("job", 1)
	term.types("hello\n")
	term.shows("ready hello")
	term.types(ctrlC)
	s.AwaitQueue("job", 0)
	term.types("lockpool run job -- sh -c 'read x </dev/tty; echo got $x' | cat\n")
	s.AwaitQueue("job", 1)
	term.types("hello\n")
	term.shows("got hello")
}

// A job continued after the loss of the lock is killed, and runs no more.
func TestStoppedJobIsLost(t *testing.T) {
	t.Parallel()
	locktest.Once(t)
	server := zktest.Start(t)
	s := newShellOn(locktest.NewOn(t, server))
	term := s.terminal(t, "bash", "--norc", "--noediting", "-i")
	term.types("lockpool run --session-timeout 4s job -- sh -c 'trap \"\" TSTP; while :; do echo ti\"\"ck; sleep 0.1; done'\n")
	term.shows("tick")
	term.types(ctrlZ) // ignored by the child
	term.shows("tick")
	term.types(ctrlC)
	term.types("echo code $?\n")
	term.shows("code 130")

	term.types("lockpool run --session-timeout 4s job -- bash -c 'while :; do echo ti\"\"ck; sleep 0.05; done'\n")
	term.shows("tick")
	term.types(ctrlZ)
	term.shows("Stopped")
	node := s.Chroot + "/job/" + s.Children("job")[0]
	require.NoError(t, server.ExpireSession(server.State().Nodes[node].Stat.EphemeralOwner))
	s.AwaitQueue("job", 0)
	term.types("fg; echo code $?\n")
	stopped := term.read
	term.shows("code 117")
	require.NotContains(t, term.screen.String()[stopped:], "tick\r\n")
}

// Where no shell could continue lockpool, neither lockpool nor the child is stopped.
func TestTerminalWithoutShell(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	term := s.terminal(t, "lockpool", "run", "job", "--", "sh", "-c", "echo started; exec cat")
	term.shows("started")
	term.types(ctrlZ)
	term.types("hello\n")
	term.shows("hello\r\nhello\r\n")
	term.types(ctrlC)
	s.AwaitQueue("job", 0)
}
