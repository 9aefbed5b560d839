package lockpool_test

// This file tests locks of several processes.

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/locktest"
)

var contention = flag.Duration("contention", 3*time.Second, "how long the processes of TestManyProcesses contend")

// roles are what the test binary does as another process.
var roles = map[string]func() int{
	"holder":    holderProcess,
	"contender": contenderProcess,
	"leaver":    leaverProcess,
	"rester":    resterProcess,
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

// holderProcess locks, reports that, and ends with its standard input.
func holderProcess() int {
	pool, _ := openArgs(2 * time.Second)
	if _, err := pool.Lock(context.Background(), "a"); err != nil {
		panic(err)
	}
	fmt.Println("held")
	_, _ = io.ReadAll(os.Stdin)
	if err := pool.Close(); err != nil {
		panic(err)
	}
	return 0
}

// resterProcess leaves a lock to rest, reports that, and ends with its standard input.
func resterProcess() int {
	pool, _ := openArgs(2 * time.Second)
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
		b := locktest.New(t)
		p := start(t, role, b.Addr, b.Chroot)
		require.Equal(t, says, p.line(t))
		w := b.Enqueue(b.Pool(), "a", 2)
		killed := time.Now()
		require.NoError(t, p.cmd.Process.Kill())
		_ = p.cmd.Wait()
		l := w.Granted()
		// The last ping may be a third of the timeout of 2 s older than the end. The bubbles test
		// that the session lasts no longer: a busy machine only delays what happens here.
		require.Greater(t, time.Since(killed), time.Second)
		b.Unlock(l)
	}
}

func TestProcessThatClosesItsPoolUnlocksAtOnce(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	holder := start(t, "holder", b.Addr, b.Chroot)
	require.Equal(t, "held", holder.line(t))
	w := b.Enqueue(b.Pool(), "a", 2)
	asked := time.Now()
	require.NoError(t, holder.stdin.Close())
	l := w.Granted()
	require.Less(t, time.Since(asked), time.Second)
	require.NoError(t, holder.cmd.Wait())
	b.Unlock(l)
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

// contenderProcess contends for one lock with many goroutines, which count in a
// file that only the holder may touch.
func contenderProcess() int {
	// The default timeout: this tests contention, not sessions that expire because
	// 20 processes with the race detector are slow.
	pool, args := openArgs(zookeeper.DefaultSessionTimeout)
	goroutines, err1 := strconv.Atoi(args[0])
	duration, err2 := time.ParseDuration(args[1])
	if err1 != nil || err2 != nil {
		panic(args)
	}
	file := args[2]
	var wg sync.WaitGroup
	turns := make([]int, goroutines)
	end := time.Now().Add(duration)
	for i := range goroutines {
		wg.Go(func() {
			for time.Now().Before(end) {
				err := pool.Do(context.Background(), "a", func(context.Context) error {
					turns[i]++
					return countInside(file)
				})
				if err != nil {
					panic(err)
				}
			}
		})
	}
	wg.Wait()
	if err := pool.Close(); err != nil {
		panic(err)
	}
	total := 0
	for _, n := range turns {
		total += n
	}
	fmt.Println(total)
	return 0
}

// countInside adds one to the number in the file. It fails if another process does
// so at the same time.
func countInside(file string) error {
	guard, err := os.OpenFile(file+".inside", os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("two holders: %w", err)
	}
	defer os.Remove(guard.Name())
	defer guard.Close()
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(string(text))
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(strconv.Itoa(n+1)), 0o600)
}

// 20 processes with 50 goroutines each on one lock.
func TestManyProcesses(t *testing.T) {
	own := locktest.StartServer(t)
	b := locktest.NewOn(t, own)
	ctx, cancel := context.WithTimeout(context.Background(), *contention+2*time.Minute)
	defer cancel()
	b.Ctx = ctx
	file := t.TempDir() + "/count"
	require.NoError(t, os.WriteFile(file, []byte("0"), 0o600))
	connections, watches := b.Stat(own, "zk_num_alive_connections"), b.Stat(own, "zk_watch_count")
	var processes []*process
	for range 20 {
		processes = append(processes, start(t, "contender", b.Addr, b.Chroot, "50", contention.String(), file))
	}
	total := 0
	for _, p := range processes {
		n, err := strconv.Atoi(p.line(t))
		require.NoError(t, err)
		require.NotZero(t, n, "a process never held the lock")
		require.NoError(t, p.cmd.Wait())
		total += n
	}
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, strconv.Itoa(total), string(text), "an update of the counter was lost")
	require.Empty(t, b.Children("a"))
	require.Equal(t, watches, b.Stat(own, "zk_watch_count"))
	b.Until(func() bool { return b.Stat(own, "zk_num_alive_connections") == connections }, "the connections are closed")
	t.Logf("%d turns", total)
}
