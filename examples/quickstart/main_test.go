package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockpool/lockpool/testing/zktest"
)

const programEnv = "LOCKPOOL_QUICKSTART_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(programEnv) != "" { // the program, or the service it started
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// program is the quickstart itself: the test binary, with the race detector if
// the tests have it. Its temporary directory is one of its own.
func program(t *testing.T, args ...string) (cmd *exec.Cmd, stdout, stderr *output, tmp string) {
	exe, err := os.Executable()
	require.NoError(t, err)
	stdout, stderr, tmp = new(output), new(output), t.TempDir()
	// Wait waits until nobody is left who could write there: a process that
	// outlives the program makes the test fail.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	cmd = exec.CommandContext(ctx, exe, args...)
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = append(os.Environ(), programEnv+"=1", "TMPDIR="+tmp)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	return cmd, stdout, stderr, tmp
}

type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func empty(t *testing.T, dir string) bool {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	return len(entries) == 0
}

func checkStory(t *testing.T, args ...string) {
	cmd, stdout, stderr, tmp := program(t, args...)
	cmd.Env = append(cmd.Env, "PATH=") // not even programs
	begin := time.Now()
	err := cmd.Run()
	took := time.Since(begin)
	t.Logf("took %s:\n%s", took, stdout)
	require.NoError(t, err, stderr.String())
	require.Empty(t, stderr.String())
	require.Less(t, took, 15*time.Second)
	require.True(t, empty(t, tmp), "something is left in the temporary directory")

	require.Contains(t, stdout.String(), "refunds   tries orders/42: busy\n")
	require.Regexp(t, `refunds   gives up: lockpool: lock "orders/42": waiting behind .+: context deadline exceeded \(it is that of quickstart\S*, process \d+ on .+\)\n`, stdout)
	require.Regexp(t, `billing   enters orders/42 again, without waiting \(.+\): depth 2\n`, stdout)
	for _, row := range []string{
		`(?m)^billing   orders/42  ·*█+ +waited    0 ms  acquired$`,
		`(?m)^shipping  orders/42  .*░█+ +waited +\d+ ms  acquired$`,
		`(?m)^refunds   orders/42  .*░█+ +waited +\d+ ms  acquired$`,
		`(?m)^refunds   orders/42   *· +waited    0 ms  busy$`,
		`(?m)^refunds   orders/42   *·*░+·* +waited +\d+ ms  timeout$`,
	} {
		require.Regexp(t, row, stdout)
	}
}

// A newcomer has Go, and nothing else.
func TestTheStoryOnAServerOfItsOwn(t *testing.T) {
	t.Parallel()
	checkStory(t)
}

func TestTheStoryOnAServerThatRuns(t *testing.T) {
	t.Parallel()
	server := zktest.StartReal(t)
	checkStory(t, "-zookeeper", server.Addr())
	require.Eventually(t, func() bool {
		n, err := server.Stat(t.Context(), "zk_num_alive_connections")
		return err == nil && n == 1 // the question itself
	}, 5*time.Second, 50*time.Millisecond, "connections are left")
}

func TestNothingIsLeftRunningWhenItIs(t *testing.T) {
	t.Parallel()
	for name, signal := range map[string]os.Signal{"interrupted": os.Interrupt, "killed": os.Kill} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd, stdout, stderr, tmp := program(t)
			require.NoError(t, cmd.Start())
			require.Eventually(t, func() bool {
				return strings.Contains(stdout.String(), "waits at most") // one holds, two wait
			}, 30*time.Second, 10*time.Millisecond)

			begin := time.Now()
			require.NoError(t, cmd.Process.Signal(signal))
			var exit *exec.ExitError
			require.ErrorAs(t, cmd.Wait(), &exit)
			require.Less(t, time.Since(begin), 5*time.Second)
			if signal == os.Interrupt {
				require.Equal(t, 1, exit.ExitCode())
				require.True(t, empty(t, tmp), "the server is stopped before the program ends")
				require.Regexp(t, `^quickstart: stopped: .+\n$`, stderr)
			} else {
				require.Eventually(t, func() bool { return empty(t, tmp) }, 10*time.Second, 50*time.Millisecond)
				require.Empty(t, stderr)
			}
		})
	}
}

func TestWhatCanNotWorkIsAClearError(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"an argument", []string{"127.0.0.1:2181"}, 2, `unexpected argument "127.0.0.1:2181"`},
		{"an unknown flag", []string{"-zk", "127.0.0.1:2181"}, 2, "not defined: -zk"},
		{"no address", []string{"-zookeeper", ""}, 2, "the name is empty"},
		{"a bad port", []string{"-zookeeper", "127.0.0.1:zk"}, 2, "the port is not a number"},
		{"a path", []string{"-zookeeper", "127.0.0.1:2181/locks"}, 2, "not of the form HOST:PORT"},
		{"nobody there", []string{"-zookeeper", "127.0.0.1:1"}, 1, "connection refused"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			cmd, stdout, stderr, _ := program(t, test.args...)
			var exit *exec.ExitError
			require.ErrorAs(t, cmd.Run(), &exit)
			require.Equal(t, test.code, exit.ExitCode())
			require.Contains(t, stderr.String(), test.want)
			if test.code == 2 {
				require.Contains(t, stderr.String(), "usage: quickstart [-zookeeper HOST:PORT]")
			}
			require.Empty(t, stdout)
		})
	}
}
