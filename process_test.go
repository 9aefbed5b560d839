package lockpool_test

// This file tests locks of several processes.

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/locktest"
)

// roles are what the test binary does as another process.
var roles = map[string]func() int{
	"holder": holderProcess,
	"leaver": leaverProcess,
	"rester": resterProcess,
}

// process is the test binary in one of the roles.
type process struct {
	cmd   *exec.Cmd
	lines *bufio.Reader
	stdin io.Closer
}

func start(t testing.TB, role string, args ...string) *process {
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe, "-test.run=^$")
	cmd.Env = append(os.Environ(), "LOCKPOOL_TEST_ROLE="+role, "LOCKPOOL_TEST_ARGS="+strings.Join(args, " "))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return &process{cmd, bufio.NewReader(stdout), stdin}
}

func (p *process) line(t testing.TB) string {
	line, err := p.lines.ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSpace(line)
}

func openArgs(sessionTimeout time.Duration) (*lockpool.Pool, []string) {
	args := strings.Fields(os.Getenv("LOCKPOOL_TEST_ARGS"))
	connector, err := zookeeper.NewConnector(zookeeper.Config{
		Servers: []string{args[0]}, Chroot: args[1], SessionTimeout: sessionTimeout,
	})
	if err != nil {
		panic(err)
	}
	pool, err := lockpool.OpenConnector(connector)
	if err != nil {
		panic(err)
	}
	return pool, args[2:]
}

// killedTimeout is the session timeout of processes that are killed.
const killedTimeout = 8 * time.Second

// holderProcess locks, reports that, and ends with its standard input.
func holderProcess() int {
	pool, _ := openArgs(killedTimeout)
	if _, err := pool.Lock(context.Background(), "a"); err != nil {
		panic(err)
	}
	fmt.Println("held")
	_, _ = io.ReadAll(os.Stdin)
	return 0
}

// resterProcess leaves a lock to rest, reports that, and ends with its standard input.
func resterProcess() int {
	pool, _ := openArgs(killedTimeout)
	err := pool.Do(context.Background(), "a", func(context.Context) error { return nil }, lockpool.HoldAtLeast(time.Hour))
	if err != nil {
		panic(err)
	}
	fmt.Println("rests")
	_, _ = io.ReadAll(os.Stdin)
	return 0
}

// A process that is killed keeps what it holds, and what rests, until its session expires.
func TestKilledProcessKeepsItsLockForTheSessionTimeout(t *testing.T) {
	t.Parallel()
	for role, says := range map[string]string{"holder": "held", "rester": "rests"} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			b := locktest.New(t)
			p := start(t, role, b.Addr, b.Chroot)
			require.Equal(t, says, p.line(t))
			w := b.Enqueue(b.Pool(), "a", 2)
			killed := time.Now()
			require.NoError(t, p.cmd.Process.Kill())
			_ = p.cmd.Wait()
			l := w.Granted()
			// On a busy machine, the last ping may be much older than the end. The bubbles test
			// that the session lasts no longer: a busy machine only delays what happens here.
			require.Greater(t, time.Since(killed), killedTimeout/4)
			b.Unlock(l)
		})
	}
}

// leaverProcess holds a lock until a SIGTERM, and then gives the work under it some
// time, args[0], to end. The work ends with the standard input or with the lock.
func leaverProcess() int {
	pool, args := openArgs(zookeeper.DefaultSessionTimeout)
	patience, err := time.ParseDuration(args[0])
	if err != nil {
		panic(err)
	}
	finish := make(chan struct{})
	go func() { // ends with the process
		_, _ = io.ReadAll(os.Stdin)
		close(finish)
	}()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	worked := make(chan error)
	go func() {
		worked <- pool.Do(context.Background(), "a", func(work context.Context) error {
			fmt.Println("held")
			select {
			case <-finish:
				return nil
			case <-work.Done():
				return context.Cause(work)
			}
		})
	}()

	<-ctx.Done()
	fmt.Println("stopping")
	grace, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	fmt.Println("shut down:", pool.Shutdown(grace))
	fmt.Println("worked:", <-worked)
	return 0
}

func TestProcessShutsDownOnSIGTERM(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no SIGTERM")
	}
	t.Parallel()
	// If the process just died, its session of 15 s would hold the lock for 10 s or
	// more.
	const atOnce = 5 * time.Second

	t.Run("lets its work finish, then unlocks", func(t *testing.T) {
		t.Parallel()
		b := locktest.New(t)
		leaver := start(t, "leaver", b.Addr, b.Chroot, locktest.Patience.String())
		require.Equal(t, "held", leaver.line(t))
		w := b.Enqueue(b.Pool(), "a", 2)
		require.NoError(t, leaver.cmd.Process.Signal(syscall.SIGTERM))
		require.Equal(t, "stopping", leaver.line(t))
		w.StillWaits()
		finished := time.Now()
		require.NoError(t, leaver.stdin.Close())
		l := w.Granted()
		require.Less(t, time.Since(finished), atOnce)
		require.Equal(t, "shut down: <nil>", leaver.line(t))
		require.Equal(t, "worked: <nil>", leaver.line(t))
		require.NoError(t, leaver.cmd.Wait())
		b.Unlock(l)
	})

	t.Run("waits for its work until the deadline", func(t *testing.T) {
		t.Parallel()
		const grace = 500 * time.Millisecond
		b := locktest.New(t)
		leaver := start(t, "leaver", b.Addr, b.Chroot, grace.String())
		require.Equal(t, "held", leaver.line(t))
		w := b.Enqueue(b.Pool(), "a", 2)
		told := time.Now()
		require.NoError(t, leaver.cmd.Process.Signal(syscall.SIGTERM))
		l := w.Granted()
		require.Greater(t, time.Since(told), grace)
		require.Less(t, time.Since(told), grace+atOnce)
		require.Equal(t, "stopping", leaver.line(t))
		require.Equal(t, "shut down: lockpool: shutdown: closed while locks were held: context deadline exceeded", leaver.line(t))
		require.Contains(t, leaver.line(t), "worked: "+lockpool.ErrPoolClosed.Error())
		require.NoError(t, leaver.cmd.Wait())
		require.Less(t, time.Since(told), grace+atOnce)
		b.Unlock(l)
	})
}
