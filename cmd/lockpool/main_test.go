package main

// This file has the helpers of the tests: lockpool as a process, run from a shell.

import (
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/locktest"
)

// asCommand, in the environment, makes the test's program the command itself.
const asCommand = "LOCKPOOL_TEST_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP) // else children of a test under nohup ignore the signal
	locktest.Main(m)
}

// shell is a user of lockpool in a shell.
type shell struct {
	*locktest.Bench
	env   []string
	looks sync.RWMutex // a look at the queues has the write lock, a pause of work a read lock
}

func newShell(t *testing.T) *shell { return newShellOn(locktest.New(t)) }

// newShellOn returns a shell whose LOCKPOOL_SERVER is the bench's server.
func newShellOn(b *locktest.Bench) *shell {
	return &shell{Bench: b, env: []string{asCommand + "=1", "LOCKPOOL_SERVER=" + b.Addr + b.Chroot, "GORACE=atexit_sleep_ms=1", "OTEL_TRACES_EXPORTER="}}
}

// process is a running lockpool.
type process struct {
	*exec.Cmd
	s              *shell
	stdout, stderr locktest.Log
	ended          chan struct{}
}

// command returns a lockpool, not started yet.
func (s *shell) command(args ...string) *process {
	self, err := os.Executable()
	require.NoError(s, err)
	p := &process{Cmd: exec.Command(self, args...), s: s, ended: make(chan struct{})}
	p.Env = append(os.Environ(), s.env...)
	p.Stdout, p.Stderr = &p.stdout, &p.stderr
	return p
}

func (p *process) start() *process {
	require.NoError(p.s, p.Start())
	go func() { // ends with the process, and all sharers of the output
		_ = p.Wait() // the state says how the process ended
		close(p.ended)
	}()
	p.s.Cleanup(func() {
		_ = p.Process.Signal(syscall.SIGTERM) // perhaps ended
		select {
		case <-p.ended:
		case <-time.After(locktest.Patience):
			_ = p.Process.Kill()
			<-p.ended
		}
	})
	return p
}

func (s *shell) start(args ...string) *process { return s.command(args...).start() }

// run runs lockpool, requires an exit code, and returns the output.
func (s *shell) run(code int, args ...string) (stdout, stderr string) {
	s.Helper()
	p := s.start(args...)
	require.Equal(s, code, p.code(), "%s%s", &p.stdout, &p.stderr)
	return p.stdout.String(), p.stderr.String()
}

// code waits for the end of the process, and returns the exit code.
func (p *process) code() int {
	p.s.Helper()
	select {
	case <-p.ended:
	case <-time.After(locktest.Patience):
		require.FailNow(p.s, "lockpool does not end", "%s", p.stderr.String())
	}
	return p.ProcessState.ExitCode()
}

// prints waits until the child has printed a text.
func (p *process) prints(text string) *process {
	p.s.Helper()
	p.s.Until(func() bool { return strings.Contains(p.stdout.String(), text) }, "%q printed", text)
	return p
}

func (p *process) signal(sig syscall.Signal) { require.NoError(p.s, p.Process.Signal(sig)) }
