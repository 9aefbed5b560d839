//go:build unix

package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const programEnv = "LOCKPOOL_FENCING_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(programEnv) != "" { // the program, or a worker it started
		main()
		return
	}
	os.Exit(m.Run())
}

// program is the example itself: the test binary. Its temporary directory is
// one of its own.
func program(t *testing.T) (cmd *exec.Cmd, stdout, stderr *output, tmp string) {
	exe, err := os.Executable()
	require.NoError(t, err)
	stdout, stderr, tmp = new(output), new(output), t.TempDir()
	// Wait waits until nobody is left who could write there: a worker that
	// outlives the program makes the test fail.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	cmd = exec.CommandContext(ctx, exe)
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = append(os.Environ(), programEnv+"=1", "TMPDIR="+tmp, "PATH=") // not even programs
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

func requireEmpty(t *testing.T, dir string) {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
}

func TestTheLateWriteOfAPausedHolderIsRefused(t *testing.T) {
	t.Parallel()
	cmd, stdout, stderr, tmp := program(t)
	err := cmd.Run()
	t.Logf("\n%s", stdout)
	require.NoError(t, err, stderr.String())
	require.Empty(t, stderr.String())
	requireEmpty(t, tmp)
	require.Regexp(t, `(?s)`+strings.Join([]string{
		`A  holds the lock, with token \d+\n`,
		`A  is PAUSED`,
		`B  holds the lock, with token \d+\n`,
		`B  has written it`,
		`A  WAKES`,
		`A  writes the balance 70 with token \d+\n`,
		`A  is refused`,
		`A  sees that its context has ended: lock lost: `,
		`The balance is 150, with token \d+: what B wrote\.\n$`,
	}, `.*`), stdout)
}

func TestNothingIsLeftWhenItIsInterruptedDuringThePause(t *testing.T) {
	t.Parallel()
	cmd, stdout, stderr, tmp := program(t)
	require.NoError(t, cmd.Start())
	require.Eventually(t, func() bool { return strings.Contains(stdout.String(), "B  asks") }, 30*time.Second, time.Millisecond)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	require.Equal(t, 1, exit.ExitCode())
	require.Contains(t, stderr.String(), "fencing: B ended before it has read")
	requireEmpty(t, tmp)
}

func TestARowRefusesWhoeverIsOlderThanItsLastGuest(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db, err := openDatabase(filepath.Join(t.TempDir(), "db"))
	require.NoError(t, err)
	defer db.Close()
	_, err = db.ExecContext(ctx, schema+`; INSERT INTO account (id, balance) VALUES (1, 100)`)
	require.NoError(t, err)

	balance, err := readBalance(ctx, db, 1, 5)
	require.NoError(t, err)
	require.EqualValues(t, 100, balance)
	require.NoError(t, writeBalance(ctx, db, 1, 110, 5))
	require.NoError(t, writeBalance(ctx, db, 1, 120, 5), "a holder may write more than once")

	balance, err = readBalance(ctx, db, 1, 9)
	require.NoError(t, err)
	require.EqualValues(t, 120, balance)
	require.ErrorIs(t, writeBalance(ctx, db, 1, 130, 5), errLate, "9 has read, and is about to write")
	_, err = readBalance(ctx, db, 1, 8)
	require.ErrorIs(t, err, errLate)
	require.NoError(t, writeBalance(ctx, db, 1, 170, 9))
	balance, err = readBalance(ctx, db, 1, 9)
	require.NoError(t, err)
	require.EqualValues(t, 170, balance)
}
