package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/zktest"
)

var program string // lockpool, as users have it

func TestMain(m *testing.M) { os.Exit(runAll(m)) }

func runAll(m *testing.M) int {
	dir, err := os.MkdirTemp("", "lockpool")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "lockpool")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// shell is a person at a shell, with LOCKPOOL_SERVER set.
type shell struct {
	t      *testing.T
	server string
	dir    string
}

func newShell(t *testing.T, server string) *shell {
	return &shell{t, server, t.TempDir()}
}

// run runs lockpool without a terminal.
func (s *shell) run(args ...string) (stdout, stderr string, code int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "LOCKPOOL_SERVER="+s.server, "TZ=UTC")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		require.NoError(s.t, err)
	}
	require.LessOrEqual(s.t, strings.Count(errs.String(), "\n"), 1, "an error is one line: %s", errs.String())
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// prints requires lockpool to succeed.
func (s *shell) prints(args ...string) string {
	s.t.Helper()
	stdout, stderr, code := s.run(args...)
	require.Zero(s.t, code, stderr)
	require.Empty(s.t, stderr)
	return stdout
}

// contender adds a node to a queue, as the given process would.
func contender(t *testing.T, conn *zk.Conn, name, owner string, pid int) (node string) {
	t.Helper()
	path := ""
	for part := range strings.SplitSeq("locks/"+name, "/") {
		path += "/" + part
		if _, err := conn.Create(path, nil, 0, zk.WorldACL(zk.PermAll)); !errors.Is(err, zk.ErrNodeExists) {
			require.NoError(t, err)
		}
	}
	data := fmt.Sprintf(`{"owner":%q,"host":"web%d","pid":%d}`, owner, pid/100, pid)
	node, err := conn.CreateProtectedEphemeralSequential(path+"/lock-", []byte(data), zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	return node[len(path)+1:]
}

func dial(t *testing.T, s *zktest.Server) *zk.Conn {
	conn, _, err := zk.Connect([]string{s.Addr()}, 10*time.Second, zk.WithLogger(silent{}))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	return conn
}

var (
	durations = regexp.MustCompile(` +(≤?)\d+s\b`)
	nodes     = regexp.MustCompile(`_c_[0-9a-f]{32}`)
	ids       = regexp.MustCompile(`0x[0-9a-f]+|(token  +)\d+|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}`)
)

// normalized replaces what differs from run to run.
func normalized(text string) string {
	text = durations.ReplaceAllString(text, " ${1}0s")
	text = nodes.ReplaceAllString(text, "_c_*")
	return strings.TrimSpace(ids.ReplaceAllString(text, "$1*")) + "\n"
}

// A shop's lock is held by billing. Two processes wait for it, of which cart holds the
// stock, for which a third waits.
func contention(t *testing.T, conn *zk.Conn) {
	contender(t, conn, "orders/42", "billing", 101)
	contender(t, conn, "stock/7", "cart", 202)
	contender(t, conn, "orders/42", "cart", 202)
	contender(t, conn, "orders/42", "shop", 303)
	contender(t, conn, "stock/7", "depot", 404)
	contender(t, conn, "cron/backup", "cron", 505)
}

func TestLocksAreListedAndShown(t *testing.T) {
	t.Parallel()
	server := zktest.Start(t)
	sh := newShell(t, server.ConnectString()+"/locks")
	require.Empty(t, sh.prints("ls"))
	contention(t, dial(t, server))
	require.Equal(t, `
NAME         KIND   HOLDERS  WAITERS  HELD  WAITING
cron/backup  mutex        1        0 ≤0s        -
orders/42    mutex        1        2 ≤0s 0s
stock/7      mutex        1        1 ≤0s 0s
`[1:], normalized(sh.prints("ls")))
	require.Equal(t, 2, strings.Count(sh.prints("ls", "stock"), "\n"), "the title and one lock")
	require.Equal(t, `
stock/7: 1 holder, 1 waiter

holds for ≤0s: cart, process 202 on web2 (mutex)
  asked    * UTC
  token    *
  session  *
  node     _c_*-lock-0000000000

waits for 0s: depot, process 404 on web4 (mutex)
  asked    * UTC
  token    *
  session  *
  node     _c_*-lock-0000000001
`[1:], normalized(sh.prints("show", "stock/7")))
}

// terminal is a terminal in which one command runs.
type terminal struct {
	t      *testing.T
	socket string
}

// terminal runs lockpool in a terminal of the given size.
func (s *shell) terminal(width, height int, args ...string) *terminal {
	s.t.Helper()
	dir, err := os.MkdirTemp("", "tmux") // the path of a socket is short
	require.NoError(s.t, err)
	s.t.Cleanup(func() { os.RemoveAll(dir) })
	term := &terminal{s.t, filepath.Join(dir, "s")}
	cmd := fmt.Sprintf("LOCKPOOL_SERVER=%s TZ=UTC %s %s; echo exit code $?; exec cat", s.server, program, strings.Join(args, " "))
	term.tmux("-f", "/dev/null", "new-session", "-d", "-x", fmt.Sprint(width), "-y", fmt.Sprint(height), "exec sh -c '"+cmd+"'")
	s.t.Cleanup(func() { term.tmux("kill-server") })
	return term
}

func (term *terminal) tmux(args ...string) string {
	term.t.Helper()
	cmd := exec.Command("tmux", append([]string{"-u", "-S", term.socket}, args...)...)
	out, err := cmd.CombinedOutput()
	require.NoError(term.t, err, "tmux %v: %s", args, out)
	return string(out)
}

func (term *terminal) press(keys ...string) {
	term.t.Helper()
	term.tmux(append([]string{"send-keys"}, keys...)...)
}

// shows waits until the screen is as wanted, apart from what differs from run to run.
func (term *terminal) shows(want string) {
	term.t.Helper()
	term.until(func(screen string) bool { return screen == want[1:] }, want)
}

// contains waits until a part of the screen is as wanted.
func (term *terminal) contains(want string) {
	term.t.Helper()
	term.until(func(screen string) bool { return strings.Contains(screen, want) }, want)
}

func (term *terminal) until(ok func(screen string) bool, want string) {
	term.t.Helper()
	var screen string
	for range 200 {
		if screen = normalized(term.tmux("capture-pane", "-p")); ok(screen) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	require.Equal(term.t, want, screen)
}

func TestTopIsLive(t *testing.T) {
	t.Parallel()
	server := zktest.Start(t)
	sh := newShell(t, server.ConnectString()+"/locks")
	conn := dial(t, server)
	contention(t, conn)
	term := sh.terminal(90, 16, "top")
	term.shows(`
3 locks, 3 waiters
   WAITERS  WAITING  HOLDERS  HELD  NAME         HOLDER
>        2 0s        1 ≤0s  orders/42    billing, process 101 on web1
         1 0s        1 ≤0s  stock/7      cart, process 202 on web2
         0        -        1 ≤0s  cron/backup  cron, process 505 on web5

orders/42: 1 holder, 2 waiters
billing, process 101 on web1 holds it for ≤0s (mutex)
├─ cart, process 202 on web2 waits for 0s (mutex)
│  holds stock/7, which others wait for:
│  └─ depot, process 404 on web4 waits for 0s (mutex)
└─ shop, process 303 on web3 waits for 0s (mutex)



↑↓ move  enter show  r revoke  b break  q quit
`)
	longest := func() (seconds int) {
		waits := regexp.MustCompile(`shop.* waits for (\d+)s`).FindStringSubmatch(term.tmux("capture-pane", "-p"))
		require.Len(t, waits, 2)
		fmt.Sscan(waits[1], &seconds)
		return seconds
	}
	before := longest()
	require.Eventually(t, func() bool { return longest() >= before+2 }, 10*time.Second, 50*time.Millisecond, "waits grow")

	// The lock with most waiters goes to the top, and the cursor stays on its lock.
	term.press("Down")
	for pid := 606; pid < 609; pid++ {
		contender(t, conn, "cron/backup", "cron", pid)
	}
	term.contains("         3 0s        1 ≤0s  cron/backup")
	term.contains(">        1 0s        1 ≤0s  stock/7")
	term.press("Down", "Enter")
}
