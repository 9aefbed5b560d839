//go:build unix

package main

// This file tests the command run.

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/locktest"
)

func TestRunIsTransparent(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	for _, test := range []struct {
		script string
		code   int
	}{
		{"exit 0", 0},
		{"exit 7", 7},
		{"exit 117", 117}, // even one of ours
		{"kill -TERM $$", 143},
		{"kill -KILL $$", 137},
	} {
		_, stderr := s.run(test.code, "run", "job", "--", "sh", "-c", test.script)
		require.Empty(t, stderr)
	}

	p := s.command("run", "a/job", "--", "sh", "-c", `cat; echo "$LOCKPOOL_NAME $LOCKPOOL_TOKEN" >&2; pwd`)
	p.Stdin, p.Dir = strings.NewReader("to the child\n"), t.TempDir()
	require.Zero(t, p.start().code())
	require.Equal(t, "to the child\n"+p.Dir+"\n", p.stdout.String())
	name, token, _ := strings.Cut(strings.TrimSpace(p.stderr.String()), " ")
	require.Equal(t, "a/job", name)
	first, err := strconv.ParseInt(token, 10, 64)
	require.NoError(t, err)

	stdout, _ := s.run(0, "run", "a/job", "--", "sh", "-c", "echo $LOCKPOOL_TOKEN")
	second, err := strconv.ParseInt(strings.TrimSpace(stdout), 10, 64)
	require.NoError(t, err)
	require.Greater(t, second, first)
}

// A wait is silent for two seconds, and then says who holds the lock.
func TestRunTellsWhoHoldsTheLock(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	first := s.start("run", "--owner", "night shift", "job", "--", "sh", "-c", "echo started; sleep 60")
	first.prints("started")
	second := s.start("run", "--verbose", "job", "--", "true")
	s.Until(func() bool { return second.stderr.String() != "" }, "the holder")
	require.Regexp(t, `^lockpool: waiting for job, which is held by night shift, process `+strconv.Itoa(first.Process.Pid)+` on \S+\n$`, second.stderr.String())
	silent := s.start("run", "--timeout", "3s", "job", "--", "true")
	require.Equal(t, 116, silent.code())
	require.NotContains(t, silent.stderr.String(), "waiting for")
	first.signal(syscall.SIGTERM)
	require.Zero(t, second.code())
}

func TestCommandThatCannotRun(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.fails(127, "cannot run no-such-command: executable file not found in $PATH", "run", "job", "--", "no-such-command")
	s.run(126, "run", "job", "--", "/")
	text := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(text, []byte("no program"), 0o700))
	s.says(126, "exec format error", "run", "job", "--", text)
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	const write = "write a name, --, and a command: lockpool run NAME -- COMMAND; see lockpool run --help"
	for _, args := range [][]string{{}, {"job"}, {"job", "true"}, {"job", "--"}, {"--", "job"}, {"--", "-job", "true"}, {"--", "-job", "--"}} {
		s.fails(118, write, append([]string{"run"}, args...)...)
	}
	s.fails(118, `invalid argument "256" for "-E, --exit-busy" flag: strconv.ParseUint: parsing "256": value out of range; see lockpool --help`,
		"run", "--exit-busy", "256", "job", "--", "true")
	s.says(118, "longer than 200 bytes", "run", "--owner", strings.Repeat("x", 201), "job", "--", "true")
	long := filepath.Join(t.TempDir(), strings.Repeat("x", 199)+"€")
	require.NoError(t, os.Symlink("/bin/true", long))
	s.run(0, "run", "job", "--", long)
	s.says(118, "a//b is not the name of a lock: it has an empty part", "history", "--txnlog", "/", "a//b")
	s.says(118, "--chroot locks begins without a slash; write /locks", "history", "--txnlog", "/", "--chroot", "locks")
	s.fails(118, `unknown command "lss" for "lockpool"; Did you mean this?; ls; see lockpool --help`, "lss")

	require.Equal(t, "-job -- -x\n", s.prints("run", "--", "-job", "--", "sh", "-c", `echo "$LOCKPOOL_NAME" "$@"`, "sh", "--", "-x"))
}

// holder starts a lockpool whose child holds the lock, and echoes the input.
func (s *shell) holder(args ...string) *process {
	return s.start(append(append([]string{"run"}, args...), "--", "sh", "-c", "echo started; sleep 60")...).prints("started")
}

func TestNotAcquired(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	holder := s.holder("job")
	s.says(116, "job is held by sh, process ", "run", "--try", "job", "--", "echo", "hi")
	s.holder("--once", "today", "--owner", "nightly", "report")
	s.says(116, "report is held by nightly, process ", "run", "--try", "--once", "today", "report", "--", "true")

	clock := locktest.StartClock()
	_, stderr := s.run(116, "run", "--timeout", "2s", "job", "--", "echo", "hi")
	clock.Took(t, 2*time.Second, locktest.Patience/2, "the wait")
	require.Contains(t, stderr, "job is held by sh, process ")
	require.Equal(t, 1, strings.Count(stderr, "\n"))

	_, stderr = s.run(5, "run", "--timeout", "0", "--quiet", "-E", "5", "job", "--", "true")
	require.Empty(t, stderr)

	waiter := s.start("run", "job", "--", "echo", "granted")
	s.AwaitQueue("job", 2)
	holder.signal(syscall.SIGTERM)
	require.Equal(t, 143, holder.code())
	require.Zero(t, waiter.code())
	require.Equal(t, "granted\n", waiter.stdout.String())
}

func TestSharedAndPermits(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.holder("--shared", "read")
	s.holder("--shared", "read")
	s.run(116, "run", "--try", "read", "--", "true")

	s.holder("--permits", "2/3", "gpu")
	s.run(116, "run", "--try", "--permits", "2/3", "gpu", "--", "true")
	require.Equal(t, "ok\n", s.prints("run", "--try", "--permits", "1/3", "gpu", "--", "sh", "-c", "test $LOCKPOOL_TOKEN -gt 0 && echo ok"))
	s.says(119, "semaphore", "run", "--try", "gpu", "--", "true")
}

func TestServiceThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.env = append(s.env, "LOCKPOOL_SERVER=127.0.0.1:1")
	s.says(119, "check --server", "run", "--timeout", "300ms", "job", "--", "true")
	_, stderr := s.run(3, "run", "--try", "--timeout", "300ms", "--exit-failed", "3", "job", "--", "true")
	require.Equal(t, 1, strings.Count(stderr, "check --server"), stderr)
}

func TestSignalEndsTheWait(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	holder := s.holder("job")
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		waiter := s.start("run", "job", "--", "echo", "granted")
		s.AwaitQueue("job", 2)
		waiter.signal(sig)
		require.Equal(t, 128+int(sig), waiter.code())
		require.Empty(t, waiter.stdout.String()+waiter.stderr.String())
		require.Len(t, s.Children("job"), 1)
	}
	holder.signal(syscall.SIGTERM)
}

func TestSignalsArePassedToTheGroupOnce(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	// Neither name contains the other, so each is awaited for itself.
	const script = `trap "echo $0 usr1" USR1; trap "echo $0 usr2" USR2; trap "echo $0 hup" HUP; trap "echo $0 term; exit 3" TERM; echo $0 ready; while :; do sleep 0.02; done`
	p := s.start("run", "job", "--", "bash", "-c", `bash -c '`+script+`' inner & `+script, "outer")
	p.prints("outer ready").prints("inner ready")
	for _, sig := range []string{"USR1", "USR2", "HUP", "TERM"} {
		p.signal(map[string]syscall.Signal{"USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2, "HUP": syscall.SIGHUP, "TERM": syscall.SIGTERM}[sig])
		p.prints("outer " + strings.ToLower(sig))
		if sig != "TERM" { // after TERM, lockpool kills what is left of the group
			p.prints("inner " + strings.ToLower(sig))
		}
	}
	require.Equal(t, 3, p.code())
	require.Equal(t, 1, strings.Count(p.stdout.String(), "outer usr1"), p.stdout.String())
}

func TestChildrenDieWithLockpool(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	script := script(t)
	p := s.start("run", "--session-timeout", "4s", "job", "--", "sh", "-c", script).prints("alone")
	require.False(t, free(t, script))
	clock := locktest.StartClock()
	p.signal(syscall.SIGKILL)
	s.Until(func() bool { return free(t, script) }, "the children are dead")
	clock.Took(t, 0, 2*time.Second, "the death of the children") // half of the session timeout
	s.AwaitQueue("job", 0)
}

// Children left behind by the command end before the lock is free.
func TestChildrenDieWithTheCommand(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	script := script(t)
	p := s.command("run", "job", "--", "sh", "-c", strings.TrimSuffix(script, "sleep 61")+"exit 3")
	p.Stdout = nil // else lockpool's end is the end of all sharers of the output
	require.Equal(t, 3, p.start().code())
	require.True(t, free(t, script))
}

func TestKilledChild(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	p := s.start("run", "job", "--", "sh", "-c", "echo $$; sleep 60").prints("\n")
	pid, err := strconv.Atoi(strings.TrimSpace(p.stdout.String()))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	require.Equal(t, 137, p.code())
	require.Empty(t, s.Children("job"))
}

func TestOnce(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	once := func(code int, key, script string, flags ...string) (stdout, stderr string) {
		return s.run(code, append(append([]string{"run", "--once", key}, flags...), "job", "--", "sh", "-c", script)...)
	}
	once(3, "monday", "exit 3") // a failed run is not done
	stdout, _ := once(0, "monday", "echo hi")
	require.Equal(t, "hi\n", stdout)
	stdout, stderr := once(115, "monday", "echo hi")
	require.Empty(t, stdout)
	require.Contains(t, stderr, `the run for "monday" finished at `)
	_, stderr = once(0, "monday", "echo hi", "--quiet", "--exit-done", "0")
	require.Empty(t, stderr)
	stdout, _ = once(0, "tuesday", "echo hi")
	require.Equal(t, "hi\n", stdout)
	stdout, _ = once(118, "", "echo hi") // perhaps of a failed command
	require.Empty(t, stdout)

	// All waiters for the first run find the run done.
	p := s.start("run", "--once", "friday", "job", "--", "sh", "-c", "echo started; sleep 0.5").prints("started")
	waiter := s.start("run", "--once", "friday", "job", "--", "true")
	require.Zero(t, p.code())
	require.Equal(t, 115, waiter.code())

	// The next one takes up a killed run.
	p = s.start("run", "--session-timeout", "4s", "--once", "sunday", "job", "--", "sh", "-c", "echo started; sleep 60").prints("started")
	waiter = s.start("run", "--once", "sunday", "job", "--", "echo", "taken up")
	s.AwaitQueue("job/run:sunday", 2)
	p.signal(syscall.SIGKILL)
	require.Zero(t, waiter.code())
	require.Equal(t, "taken up\n", waiter.stdout.String())
}
