package main

// This file tests the command top in a terminal of tmux.

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
)

// screen is a terminal of tmux with a running lockpool.
type screen struct {
	s      *shell
	socket string
}

// screen runs lockpool in a terminal of the given size. The exit code is printed.
func (s *shell) screen(width, height int, args ...string) *screen {
	s.Helper()
	self, err := os.Executable()
	require.NoError(s, err)
	dir, err := os.MkdirTemp("", "tmux") // the path of a socket must be short
	require.NoError(s, err)
	s.Cleanup(func() { require.NoError(s, os.RemoveAll(dir)) })
	sc := &screen{s, filepath.Join(dir, "socket")}
	command := fmt.Sprintf("%s %s %s; echo exit code $?; exec sleep 1000", strings.Join(s.env, " "), self, strings.Join(args, " "))
	sc.tmux("-f", "/dev/null", "new-session", "-d", "-x", strconv.Itoa(width), "-y", strconv.Itoa(height), "exec sh -c '"+command+"'")
	s.Cleanup(func() { sc.tmux("kill-server") })
	return sc
}

func (sc *screen) tmux(args ...string) string {
	sc.s.Helper()
	out, err := exec.Command("tmux", append([]string{"-u", "-S", sc.socket}, args...)...).CombinedOutput()
	require.NoError(sc.s, err, "tmux %v: %s", args, out)
	return string(out)
}

func (sc *screen) press(keys ...string) {
	sc.s.Helper()
	sc.tmux(append([]string{"send-keys"}, keys...)...)
}

// text returns what the screen shows.
func (sc *screen) text() string {
	sc.s.Helper()
	return sc.tmux("capture-pane", "-p")
}

// shows waits until the screen is as wanted, apart from what differs from run to run.
func (sc *screen) shows(want string) {
	sc.s.Helper()
	sc.until(want, func(text string) bool { return text == want[1:] })
}

// contains waits until the screen contains all of the texts.
func (sc *screen) contains(want ...string) {
	sc.s.Helper()
	for _, w := range want {
		sc.until(w, func(text string) bool { return strings.Contains(text, w) })
	}
}

// quits presses a key that ends lockpool.
func (sc *screen) quits(key string) {
	sc.s.Helper()
	sc.press(key)
	sc.contains("exit code 0")
}

func (sc *screen) until(want string, ok func(text string) bool) {
	sc.s.Helper()
	var text string
	for end := time.Now().Add(locktest.Patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if text = normalized(sc.text()); ok(text) {
			return
		}
	}
	require.Equal(sc.s, want, text)
}

func TestTopIsLive(t *testing.T) {
	t.Parallel() // top waits
	s := newShell(t)
	conn := s.Dial()
	s.contend(conn)
	sc := s.screen(90, 16, "top")
	sc.shows(`
3 locks, 3 waiters
   WAITERS  WAITING  HOLDERS  HELD  NAME         HOLDER
>        2 0s        1 ≤0s  orders/42    billing, process 101 on web1
         1 0s        1 ≤0s  stock/7      cart, process 202 on web2
         0        -        1  kept  cron/backup  cron, process 505 on web5

orders/42: 1 holder, 2 waiters
billing, process 101 on web1 holds it for ≤0s (mutex)
├─ cart, process 202 on web2 waits for 0s (mutex)
│  in main.serve (main.go:57)
│  holds stock/7, which others wait for:
│  └─ depot, process 404 on web4 waits for 0s (mutex)
└─ shop, process 303 on web3 waits for 0s (mutex)


↑↓ move  enter show  / find  r revoke  b break  q quit
`)
	seconds := func(what string) int {
		found := regexp.MustCompile(what + ` for ≤?(\d+)s`).FindStringSubmatch(sc.text())
		require.Len(t, found, 2)
		n, err := strconv.Atoi(found[1])
		require.NoError(t, err)
		return n
	}
	before := seconds("shop.* waits")
	s.Until(func() bool { return seconds("shop.* waits") >= before+2 }, "waits that grow")

	// The lock with most waiters goes to the top, and the cursor stays on the same lock.
	sc.press("Down")
	sc.contains(">        1 0s        1 ≤0s  stock/7")
	var waiters []string
	for pid := 606; pid < 609; pid++ {
		waiters = append(waiters, s.contender(conn, "cron/backup", "cron", pid))
	}
	sc.contains("         3 0s        1  kept  cron/backup")
	sc.contains(">        1 0s        1 ≤0s  stock/7")

	// A lock gone from the list is not shown any more.
	sc.press("Home")
	sc.contains("cron, process 505 on web5 holds it for ≤0s (mutex, kept)")
	for _, node := range append(waiters, s.Children("cron/backup")[0]) {
		require.NoError(t, conn.Delete(s.Chroot+"/cron/backup/"+node, -1))
	}
	sc.contains("2 locks, 3 waiters", ">        2 0s        1 ≤0s  orders/42")
	require.NotContains(t, sc.text(), "cron/backup")

	// The time since a grant is known if the grant was seen: less than the time since the request.
	require.NoError(t, conn.Delete(s.Chroot+"/orders/42/"+s.Children("orders/42")[0], -1))
	sc.contains("cart, process 202 on web2 holds it")
	require.Less(t, seconds("cart.* holds it"), seconds("shop.* waits"))

	sc.quits("q")
}

func TestTopActsOnWhatIsSelected(t *testing.T) {
	t.Parallel() // top waits
	s := newShell(t)
	conn := s.Dial()
	s.contend(conn)
	lock := s.Lock(s.Pool(), "held/by/us")
	sc := s.screen(100, 16, "top")

	// In the list, demands are about the holders.
	sc.contains("4 locks")
	sc.press("End", "r")
	sc.contains("Ask for held/by/us back from ")
	sc.press("y")
	<-lock.Revoked()
	sc.contains("held/by/us is asked back from ")
	s.Unlock(lock)
	sc.press("Home", "b")
	sc.contains("Take orders/42 from billing, process 101 on web1? y/n")
	sc.press("n")
	sc.contains("Nothing was done.")
	require.Len(t, s.Children("orders/42"), 3)

	// In a lock, they are about one contender.
	sc.press("Enter", "Down", "Down")
	sc.shows(`
3 locks, 3 waiters
orders/42: 1 holder, 2 waiters
  billing, process 101 on web1 holds it for ≤0s (mutex)
  ├─ cart, process 202 on web2 waits for 0s (mutex)
  │  in main.serve (main.go:57)
  │  holds stock/7, which others wait for:
  │  └─ depot, process 404 on web4 waits for 0s (mutex)
> └─ shop, process 303 on web3 waits for 0s (mutex)



asked    *
token    *
session  *
node     _c_*-lock-0000000002
↑↓ move  r revoke  b break  esc back  q quit
`)
	sc.press("b", "y")
	sc.contains("orders/42 is taken from shop, process 303 on web3, which waits", "orders/42: 1 holder, 1 waiter")
	sc.press("Home", "b", "y")
	sc.contains("orders/42 is taken from billing, process 101 on web1", "cart, process 202 on web2 holds it")
	sc.press("Escape")
	sc.contains("3 locks, 1 waiter", "enter show")
	sc.quits("C-c")
}

// deadlocked are the contenders of a deadlock, with others waiting for them, and of a
// handle waiting for permits beside.
func (s *shell) deadlocked(conn *zk.Conn) {
	a, b := s.contender(conn, "a", "one", 101), s.contender(conn, "b", "two", 202)
	s.contender(conn, "a", "two", 202, "b", b)
	s.contender(conn, "b", "one", 101, "a", a)
	s.contender(conn, "b", "three", 303)
	c := s.contender(conn, "c", "four", 404)
	s.contender(conn, "c", "five", 505)
	s.contender(conn, "a", "four", 404, "c", c)
}

// The tree follows waiters with other locks, and ends where the tree would go round.
func TestTreeEndsAtDeadlocks(t *testing.T) {
	s := newShell(t)
	s.deadlocked(s.Dial())
	require.Equal(t, `
a: 1 holder, 2 waiters
one, process 101 on web1 holds it for ≤0s (mutex)
  and waits for b, which two, process 202 on web2 holds: deadlock
├─ two, process 202 on web2 waits for 0s (mutex)
│  in main.serve (main.go:57)
│  holds b, which others wait for:
│  ├─ one, process 101 on web1 waits for 0s (mutex)
│  │  in main.serve (main.go:57)
│  │  holds a, which is above: deadlock
│  └─ three, process 303 on web3 waits for 0s (mutex)
└─ four, process 404 on web4 waits for 0s (mutex)
   in main.serve (main.go:57)
   holds c, which others wait for:
   └─ five, process 505 on web5 waits for 0s (mutex)
to ask the holders for the lock: lockpool revoke a
to take the lock from them: lockpool break a

5 waiters, 1 deadlock
`[1:], normalized(s.prints("waits")))
	sc := s.screen(90, 30, "top")
	sc.contains("3 locks, 5 waiters, 1 deadlock", "holds a, which is above: deadlock")
	sc.quits("q")
}

func TestTopInSmallTerminals(t *testing.T) {
	t.Parallel() // top waits
	s := newShell(t)
	conn := s.Dial()
	for i := range 30 {
		s.contender(conn, fmt.Sprintf("locks/%02d", i), strings.Repeat("long", 40), 100+i)
	}
	s.contender(conn, "名前/"+strings.Repeat("名", 60), "名前", 101)
	sc := s.screen(60, 8, "top")
	sc.shows(`
31 locks, 0 waiters
   WAITERS  WAITING  HOLDERS  HELD  NAME      HOLDER
>        0        -        1 ≤0s  locks/00  longlonglongl…
         0        -        1 ≤0s  locks/01  longlonglongl…
         0        -        1 ≤0s  locks/02  longlonglongl…
         0        -        1 ≤0s  locks/03  longlonglongl…
         0        -        1 ≤0s  locks/04  longlonglongl…
↑↓ move  enter show  / find  r revoke  b break  q quit
`)
	sc.press("End")
	sc.contains(">        0        -        1 ≤0s  名前/名…名名名名名名")
	sc.press("PageUp")
	sc.contains(">        0        -        1 ≤0s  locks/26")
	sc.press("Enter")
	sc.contains("> longlong")
	sc.tmux("resize-window", "-x", "19", "-y", "3")
	sc.contains("too small")
	sc.tmux("resize-window", "-x", "44", "-y", "5")
	sc.shows(`
31 locks, 0 waiters
locks/26: 1 holder, 0 waiters
> longlonglonglonglonglonglonglonglonglongl…

↑↓ move  r revoke  b break  esc back  q quit
`)
	sc.tmux("resize-window", "-x", "120", "-y", "30")
	sc.contains("node     _c_*-lock-0000000000")

	// A usual name is whole on a usual terminal. Keys are text while a filter is typed.
	name := "tenants/0123456789/quarter/orders/0123456"
	s.contender(conn, name, "billing", 101)
	sc.tmux("resize-window", "-x", "80", "-y", "24")
	sc.press("Escape")
	sc.contains("32 locks")
	sc.press("/", "q", "u", "a", "x", "BSpace")
	sc.contains("1 lock with \"qua\", 0 waiters", ">        0        -        1 ≤0s  "+name, "/qua_")
	sc.press("x", "Enter")
	sc.contains("No lock with \"quax\" in the name")
	sc.press("Down", "Enter", "b", "Escape")
	sc.contains("32 locks, 0 waiters")
	sc.quits("q")
}

func TestTopSurvivesAnOutage(t *testing.T) {
	t.Parallel() // top waits
	s := newShellOn(locktest.NewOn(t, locktest.StartServer(t)))
	conn := s.Dial()
	s.contend(conn)
	sc := s.screen(100, 16, "top", "orders")
	sc.contains("1 lock below orders, 2 waiters\n")
	require.NoError(t, s.Server.Stop(s.Ctx))
	sc.contains("1 lock below orders, 2 waiters, seen 0s ago")
	require.NoError(t, s.Server.Start(s.Ctx))
	s.Until(func() bool { _, _, err := conn.Exists("/"); return err == nil }, "it has connected again")
	sc.contains("1 lock below orders, 2 waiters\n")
	sc.quits("q")
}

func TestTopSaysWhatIsWrong(t *testing.T) {
	top := &top{now: time.Now()}
	top.update(survey{queues: []lockpool.Queue{{Name: "a"}}, began: top.now})
	top.update(survey{err: errors.New("no answer\x1b[2J")})
	require.Equal(t, `1 lock, 0 waiters, seen 0s ago: no answer\x1b[2J`, top.title())
}

// Looking is bounded: one look a second, or less if a look takes long.
func TestTopDoesNotHammer(t *testing.T) {
	require.Equal(t, time.Second, survey{took: time.Millisecond}.rest())
	require.Equal(t, 9*time.Second, survey{took: time.Second}.rest())
}

func TestTopNeedsATerminal(t *testing.T) {
	t.Parallel() // top waits
	s := newShell(t)
	s.fails(118, "top needs a terminal; use lockpool ls or lockpool show", "top")
	sc := s.screen(100, 10, "top", "--server", "127.0.0.1:1")
	sc.contains("exit code 119")
}

// Break and revoke ask on a terminal.
func TestBreakAsksFirst(t *testing.T) {
	s := newShell(t)
	conn := s.Dial()
	s.contender(conn, "orders/42", "billing", 101)
	sc := s.screen(100, 10, "break", "orders/42")
	sc.contains("Take orders/42 from billing, process 101 on web1?\n[y/N]")
	sc.press("Enter")
	sc.contains("exit code 1\n")
	require.Len(t, s.Children("orders/42"), 1)
	sc = s.screen(100, 10, "break", "orders/42")
	sc.contains("[y/N]")
	sc.press("y", "Enter")
	sc.contains("orders/42 is taken from billing, process 101 on web1\nexit code 0")
	require.Empty(t, s.Children("orders/42"))
}

// Only top asks a terminal for its abilities: other commands would take the user's input,
// or the answers of the terminal, from the command they run.
func TestCommandsLeaveTheTerminalAlone(t *testing.T) {
	s := newShell(t)
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command("script", "-qec", self+" show orders/42", "/dev/null")
	cmd.Env = append(append(os.Environ(), s.env...), "TERM=xterm")
	out, err := cmd.Output()
	require.NoError(t, err)
	require.Equal(t, "orders/42: 0 holders, 0 waiters\r\n", string(out))
}
