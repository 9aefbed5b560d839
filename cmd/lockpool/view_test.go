package main

// This file tests the commands that show locks, and dev.

import (
	"bufio"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/cmd/lockpool/insights"
	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// prints requires lockpool to succeed, and returns the output.
func (s *shell) prints(args ...string) string {
	s.Helper()
	stdout, stderr := s.run(0, args...)
	require.Empty(s, stderr)
	return stdout
}

// says requires lockpool to end with the exit code, and an error that contains the text.
func (s *shell) says(code int, text string, args ...string) {
	s.Helper()
	stdout, stderr := s.run(code, args...)
	require.Empty(s, stdout)
	require.Contains(s, stderr, text)
}

// fails requires lockpool to end with the exit code and one line.
func (s *shell) fails(code int, line string, args ...string) {
	s.Helper()
	stdout, stderr := s.run(code, args...)
	require.Empty(s, stdout)
	require.Equal(s, "lockpool: "+line+"\n", stderr)
}

// contender adds a contender to a queue, as a process on another machine would, and returns
// the node. holds are the locks held: names, each with a node.
func (s *shell) contender(conn *zk.Conn, name, owner string, pid int, holds ...string) (node string) {
	s.Helper()
	data := fmt.Sprintf(`{"owner":%q,"host":"web%d","pid":%d}`, owner, pid/100, pid)
	if len(holds) > 0 {
		var list []string
		for i := 0; i < len(holds); i += 2 {
			list = append(list, fmt.Sprintf(`{"lock":%q,"node":%q}`, holds[i], holds[i+1]))
		}
		data = fmt.Sprintf(`%s,"ask":"%d","at":"main.serve (main.go:57)","holds":[%s]}`, data[:len(data)-1], pid, strings.Join(list, ","))
	}
	return s.join(conn, name, data)
}

// join adds a node with the data to a queue.
func (s *shell) join(conn *zk.Conn, name, data string) (node string) {
	s.Helper()
	path := ""
	for part := range strings.SplitSeq(s.Chroot[1:]+"/"+name, "/") {
		path += "/" + part
		if _, err := conn.Create(path, nil, 0, zk.WorldACL(zk.PermAll)); !errors.Is(err, zk.ErrNodeExists) {
			require.NoError(s, err)
		}
	}
	node, err := conn.CreateProtectedEphemeralSequential(path+"/lock-", []byte(data), zk.WorldACL(zk.PermAll))
	require.NoError(s, err)
	return node[len(path)+1:]
}

// contend makes billing hold an order's lock. Two processes wait for the lock. One of them,
// cart, holds the stock; a third process waits for the stock. The process cron keeps a lock.
func (s *shell) contend(conn *zk.Conn) {
	s.contender(conn, "orders/42", "billing", 101)
	stock := s.contender(conn, "stock/7", "cart", 202)
	s.contender(conn, "orders/42", "cart", 202, "stock/7", stock)
	s.contender(conn, "orders/42", "shop", 303)
	s.contender(conn, "stock/7", "depot", 404)
	cron := s.contender(conn, "cron/backup", "cron", 505)
	_, err := conn.Set(s.Chroot+"/cron/backup/"+cron, []byte(`{"owner":"cron","host":"web5","pid":505,"kept":true}`), -1)
	require.NoError(s, err)
}

var (
	durations = regexp.MustCompile(` +(≤?)\d+s\b`)
	ids       = regexp.MustCompile(`(_c_)[0-9a-f]{32}|0x[0-9a-f]+|(token +)\d+|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \w+`)
)

// normalized replaces what differs from run to run.
func normalized(text string) string {
	text = durations.ReplaceAllString(text, " ${1}0s")
	return strings.TrimRight(ids.ReplaceAllString(text, "$1$2*"), "\n") + "\n"
}

func TestLocksAreListedAndShown(t *testing.T) {
	s := newShell(t)
	require.Empty(t, s.prints("ls"))
	require.Equal(t, "stock/7: 0 holders, 0 waiters\n", s.prints("show", "stock/7"))
	s.contend(s.Dial())
	require.Equal(t, `
NAME         KIND   HOLDERS  WAITERS  HELD  WAITING
cron/backup  mutex        1        0  kept        -
orders/42    mutex        1        2 ≤0s 0s
stock/7      mutex        1        1 ≤0s 0s
`[1:], normalized(s.prints("ls")))
	require.Equal(t, 2, strings.Count(s.prints("ls", "stock"), "\n"), "the title and one lock")
	require.Equal(t, `
stock/7: 1 holder, 1 waiter

holds for ≤0s: cart, process 202 on web2 (mutex)
  asked    *
  token    *
  session  *
  node     _c_*-lock-0000000000

waits for 0s: depot, process 404 on web4 (mutex)
  asked    *
  token    *
  session  *
  node     _c_*-lock-0000000001

to ask the holders for the lock: lockpool revoke stock/7
to take the lock from them: lockpool break stock/7
`[1:], normalized(s.prints("show", "stock/7")))
	require.Contains(t, normalized(s.prints("show", "cron/backup")), "\nholds for ≤0s: cron, process 505 on web5 (mutex, kept)\n")
	s.fails(118, `queue of "a//b": invalid lock name: it has an empty part (two slashes, or one at either end)`, "show", "a//b")
}

func TestKindsAreTold(t *testing.T) {
	s := newShell(t)
	pool := s.Pool()
	permits, _, _ := s.Acquire(pool.Semaphore("s", 3), 2), s.Lock(pool, "reads", lockpool.Shared()), s.Lock(pool, "plain", lockpool.Plain())
	others := s.Pool()
	waiter := s.EnqueueForPermits(others.Semaphore("s", 3), 2, 1)
	s.AwaitWaiting(others, 1)
	require.Equal(t, `
NAME   KIND       HOLDERS  WAITERS  HELD  WAITING
plain  plain            1        0 ≤0s        -
reads  read             1        0 ≤0s        -
s      semaphore        1        1 ≤0s 0s
`[1:], normalized(s.prints("ls")))
	out := s.prints("show", "s")
	require.Equal(t, 2, strings.Count(out, "(semaphore, 2 permits)"), out)
	require.Contains(t, s.prints("show", "s", "--json"), `"permits": 2,`)
	s.Unlock(permits)
	s.Unlock(waiter.Granted())
}

func TestJSONIsStable(t *testing.T) {
	s := newShell(t)
	require.JSONEq(t, `{"locks": []}`, s.prints("ls", "--json"))
	require.JSONEq(t, `{"name": "free", "contenders": [], "foreign": []}`, s.prints("show", "free", "--json"))
	began := time.Now().Add(-time.Second)
	conn := s.Dial()
	s.contender(conn, "a", "billing", 101)
	s.contender(conn, "a", "shop", 202)
	kept := s.contender(conn, "b", "cron", 303)
	_, err := conn.Set(s.Chroot+"/b/"+kept, []byte(`{"host":"web3","pid":303,"kept":true}`), -1)
	require.NoError(t, err)
	_, err = conn.Create(s.Chroot+"/a/other", nil, 0, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)

	// scrubbed returns the output with everything different from run to run replaced by its
	// type.
	scrubbed := func(args ...string) string {
		text := s.prints(args...)
		for _, at := range regexp.MustCompile(`\d{4}-[^"]*Z`).FindAllString(text, -1) {
			asked, err := time.Parse(time.RFC3339, at)
			require.NoError(t, err)
			require.WithinRange(t, asked, began, time.Now().Add(time.Second))
			text = strings.Replace(text, at, "time", 1)
		}
		text = regexp.MustCompile(`"token": \d+`).ReplaceAllString(text, `"token": 1`)
		return ids.ReplaceAllString(text, "$1*")
	}
	require.JSONEq(t, `{"locks": [
		{"name": "a", "kind": "mutex", "holders": 1, "kept": 0, "waiters": 1, "first_holder_asked": "time", "first_waiter_asked": "time"},
		{"name": "b", "kind": "mutex", "holders": 1, "kept": 1, "waiters": 0, "first_holder_asked": "time", "first_waiter_asked": null}
	]}`, scrubbed("ls", "--json"))
	require.JSONEq(t, `{"name": "a", "foreign": ["other"], "contenders": [
		{"holds": true, "kind": "mutex", "asked": "time", "owner": "billing", "host": "web1", "pid": 101, "token": 1, "session": "*", "node": "_c_*-lock-0000000000"},
		{"holds": false, "kind": "mutex", "asked": "time", "owner": "shop", "host": "web2", "pid": 202, "token": 1, "session": "*", "node": "_c_*-lock-0000000001"}
	]}`, scrubbed("show", "a", "--json"))
	require.JSONEq(t, `{"name": "b", "foreign": [], "contenders": [
		{"holds": true, "kept": true, "kind": "mutex", "asked": "time", "host": "web3", "pid": 303, "token": 1, "session": "*", "node": "_c_*-lock-0000000000"}
	]}`, scrubbed("show", "b", "--json"))
}

func TestWaits(t *testing.T) {
	s := newShell(t)
	require.Equal(t, "0 waiters, 0 deadlocks\n", s.prints("waits"))
	require.JSONEq(t, `{"parties": [], "deadlocks": [], "unread": []}`, s.prints("waits", "--format", "json"))
	s.fails(118, "there is no format png; use text, json, dot or svg", "waits", "--format", "png")
	s.contend(s.Dial())
	require.Equal(t, `
orders/42: 1 holder, 2 waiters
billing, process 101 on web1 holds it for ≤0s (mutex)
├─ cart, process 202 on web2 waits for 0s (mutex)
│  in main.serve (main.go:57)
│  holds stock/7, which others wait for:
│  └─ depot, process 404 on web4 waits for 0s (mutex)
└─ shop, process 303 on web3 waits for 0s (mutex)
to ask the holders for the lock: lockpool revoke orders/42
to take the lock from them: lockpool break orders/42

3 waiters, 0 deadlocks
`[1:], normalized(s.prints("waits")))
	require.Equal(t, `
stock/7: 1 holder, 1 waiter
cart, process 202 on web2 holds it for ≤0s (mutex)
└─ depot, process 404 on web4 waits for 0s (mutex)
to ask the holders for the lock: lockpool revoke stock/7
to take the lock from them: lockpool break stock/7

1 waiter, 0 deadlocks
`[1:], normalized(s.prints("waits", "stock")))
	text := regexp.MustCompile(`\d{4}-[^"]*Z`).ReplaceAllString(s.prints("waits", "--format", "json"), "time")
	require.JSONEq(t, `{"deadlocks": [], "unread": [], "parties": [
		{"owner": "cron", "host": "web5", "pid": 505, "waits_for": null, "behind": [],
			"holds": [{"lock": "cron/backup", "kind": "mutex", "kept": true, "asked": "time", "session": "*", "node": "_c_*-lock-0000000000"}]},
		{"owner": "billing", "host": "web1", "pid": 101, "waits_for": null, "behind": [],
			"holds": [{"lock": "orders/42", "kind": "mutex", "asked": "time", "session": "*", "node": "_c_*-lock-0000000000"}]},
		{"owner": "cart", "host": "web2", "pid": 202, "behind": [1],
			"waits_for": {"lock": "orders/42", "kind": "mutex", "asked": "time", "at": "main.serve (main.go:57)", "session": "*", "node": "_c_*-lock-0000000001"},
			"holds": [{"lock": "stock/7", "kind": "mutex", "asked": "time", "session": "*", "node": "_c_*-lock-0000000000"}]},
		{"owner": "shop", "host": "web3", "pid": 303, "behind": [2], "holds": [],
			"waits_for": {"lock": "orders/42", "kind": "mutex", "asked": "time", "session": "*", "node": "_c_*-lock-0000000002"}},
		{"owner": "depot", "host": "web4", "pid": 404, "behind": [2], "holds": [],
			"waits_for": {"lock": "stock/7", "kind": "mutex", "asked": "time", "session": "*", "node": "_c_*-lock-0000000001"}}
	]}`, ids.ReplaceAllString(text, "$1*"))
	require.Contains(t, s.prints("waits", "--format", "dot"), `[label=" waits for stock/7 "]`)
	require.Contains(t, normalized(s.prints("show", "orders/42")), "\n  asked in  main.serve (main.go:57)\n")
	svg := s.prints("waits", "--format", "svg")
	require.NoError(t, xml.Unmarshal([]byte(svg), new(struct {
		XMLName xml.Name `xml:"http://www.w3.org/2000/svg svg"`
	})))
	require.Contains(t, svg, ">depot<")
	s.env = append(s.env, "PATH=")
	s.fails(119, `drawing with Graphviz: exec: "dot": executable file not found in $PATH; install Graphviz, or use --format dot`, "waits", "--format", "svg")
}

// What cannot be read is said, and the rest shown.
func TestMissingRightsHideOnlyWhatTheyAreMissingOn(t *testing.T) {
	s := newShell(t)
	s.contender(s.Dial(), "a", "billing", 101)
	s.Restrict("/secret", zk.PermCreate)
	for _, args := range [][]string{{"ls"}, {"waits"}} {
		stdout, stderr := s.run(119, args...)
		require.NotEmpty(t, stdout)
		require.Equal(t, "lockpool: no permission to read secret; ask for the right, or give (other) credentials with --credentials-file or LOCKPOOL_CREDENTIALS\n", stderr)
	}
	sc := s.screen(90, 16, "top")
	sc.contains("1 lock, 0 waiters, 1 name not read for want of rights")
	sc.quits("q")
}

// Names obeyed by a terminal, or shown as something else, are escaped wherever they are
// printed.
func TestHostileNamesAreEscaped(t *testing.T) {
	s := newShell(t)
	conn := s.Dial()
	const hostile = "a \"b\u202etxt.\u00adexe"
	s.contender(conn, hostile, "evil\u202e", 101)
	s.contender(conn, strings.Repeat("long", 200), "long", 202)
	_, err := conn.Create(s.Chroot+"/"+hostile+"/\u2028foreign", nil, 0, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	const escaped = `"a \"b\u202etxt.\u00adexe"`
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"ls"}, escaped + "  mutex"},
		{[]string{"ls", "--json"}, `"name": ` + escaped},
		{[]string{"waits"}, "0 waiters"},
		{[]string{"waits", "--format", "json"}, `"lock": ` + escaped},
		{[]string{"show", hostile}, `lockpool knows: "\u2028foreign"`},
		{[]string{"show", hostile, "--json"}, `"\u2028foreign"`},
		{[]string{"break", "--yes", hostile}, escaped + " is taken from process 101 on web1"},
	} {
		out := s.prints(test.args...)
		require.Contains(t, out, test.want)
		require.NotContains(t, out, "\u202e")
		require.NotContains(t, out, "longlong", "it is no name of a lock")
	}
	_, stderr := s.run(118, "show", "//\u202e\x1b[31m")
	require.NotContains(t, stderr, "\u202e")
	require.NotContains(t, stderr, "\x1b")
}

func TestBreakTakesTheLock(t *testing.T) {
	s := newShell(t)
	s.fails(118, "there is no terminal to ask on; give --yes to break without being asked", "break", "orders/42")
	s.fails(118, "there is no terminal to ask on; give --yes to revoke without being asked", "revoke", "orders/42")
	s.fails(1, "nobody holds orders/42", "break", "--yes", "orders/42")
	s.fails(118, "accepts between 1 and 2 arg(s), received 3; see lockpool --help", "break", "--yes", "a", "b", "c")
	conn := s.Dial()
	s.contender(conn, "orders/42", "billing", 101)
	second := s.contender(conn, "orders/42", "shop", 202)
	third := s.contender(conn, "orders/42", "cart", 303)
	s.fails(1, "orders/42 has no holder or waiter with the node nonsense", "break", "--yes", "orders/42", "nonsense")
	require.Equal(t, "orders/42 is taken from billing, process 101 on web1\n", s.prints("break", "--yes", "orders/42"))
	require.Equal(t, []string{second, third}, s.Children("orders/42"))
	require.Equal(t, "orders/42 is taken from cart, process 303 on web3, which waits\n", s.prints("break", "-y", "orders/42", third))
	require.Equal(t, []string{second}, s.Children("orders/42"))
}

func TestRevokeAsks(t *testing.T) {
	s := newShell(t)
	pool := s.Pool()
	lock := s.Lock(pool, "orders/42")
	require.Regexp(t, `^orders/42 is asked back from \S+, process \d+ on \S+\n$`, s.prints("revoke", "--yes", "orders/42"))
	s.AwaitRevocation(lock)
	s.Unlock(lock)
}

// A kept lock is demanded as a held one is, and the pool gives the lock up at once.
func TestKeptLocksAreDemanded(t *testing.T) {
	s := newShell(t)
	pool := s.Pool(lockpool.WithLocalTurns(1000), lockpool.WithKeptLocks(0, time.Hour))
	for demand, said := range map[string]string{"revoke": "asked back from", "break": "taken from"} {
		for range 2 {
			s.Unlock(s.Lock(pool, demand))
		}
		require.Contains(t, s.prints("show", demand), "(mutex, kept)\n")
		require.Contains(t, s.prints(demand, "--yes", demand), demand+" is "+said)
		s.Until(func() bool { return len(s.Children(demand)) == 0 && pool.Stats().Kept == 0 }, "the lock is free")
	}
}

// Dev serves until a signal.
func TestDev(t *testing.T) {
	locktest.Once(t)
	s := newShell(t)
	dev := s.start("dev", "--port", "0")
	s.Until(func() bool { return strings.Contains(dev.stdout.String(), "\n") }, "a connect string")
	addr := strings.TrimSpace(dev.stdout.String())
	require.Empty(t, s.prints("ls", "--server", addr+"/locks"))
	_, stderr := s.run(119, "dev", "--port", addr[strings.LastIndex(addr, ":")+1:])
	require.Contains(t, stderr, "choose another port with --port")
	require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
	dev.signal(syscall.SIGTERM)
	require.Zero(t, dev.code())
}

// diagnosis returns what doctor says, except of slow writes, and requires an exit code.
func (s *shell) diagnosis(code int, args ...string) (r report) {
	s.Helper()
	p := s.start(append([]string{"doctor", "--json"}, args...)...)
	got := p.code()
	require.NoError(s, json.Unmarshal([]byte(p.stdout.String()), &r), &p.stderr)
	require.Empty(s, p.stderr.String())
	slow := func(f finding) bool { return strings.HasPrefix(f.What, "a write took ") } // on a slow machine
	if slices.ContainsFunc(r.Findings, slow) {
		r.Findings, code = slices.DeleteFunc(r.Findings, slow), 1
	}
	require.Equal(s, code, got, "%s", &p.stdout)
	return r
}

// whats returns the findings of a level.
func (r report) whats(level string) (found []string) {
	for _, f := range r.Findings {
		if f.Level == level {
			found = append(found, f.What)
		}
	}
	return found
}

func TestDoctor(t *testing.T) {
	s := newShell(t)
	r := s.diagnosis(0)
	require.Equal(t, s.Addr, r.Servers[0].Address)
	require.Regexp(t, `^3\.\d+\.\d+`, r.Servers[0].Version)
	require.Equal(t, "standalone", r.Servers[0].Mode)
	require.Equal(t, &rightsReport{true, true, true, true, true}, r.Rights)
	require.True(t, *r.Contains)
	require.Equal(t, 1, *r.Voters)
	require.Equal(t, 15000., r.Session.Asked)
	require.Equal(t, min(15000, r.Session.Max), r.Session.Granted)
	require.Positive(t, r.Latency.ReadMedian)
	require.LessOrEqual(t, r.Latency.WriteMedian, r.Latency.WriteWorst)
	require.InDelta(t, 0, *r.Clock, *r.ClockError, "it is the same clock")
	require.Contains(t, r.whats(advice), "the service survives the loss of no server")
	exists, _, err := s.Admin.Exists(s.Chroot)
	require.NoError(t, err)
	require.False(t, exists, "the chroot was created for the moment")

	text := s.prints("doctor", "--session-timeout", "40s") // a slow write is less than 0.15 of it
	require.Regexp(t, `rights +on `+s.Chroot+`: CREATE, READ, WRITE, DELETE, ADMIN \(found out by creating and removing `+s.Chroot+`/doctor-\w+\)`, text)
	require.Contains(t, text, "\nadvice: the service survives the loss of no server\n  why: ")
}

func TestDoctorFindsTimeouts(t *testing.T) {
	s := newShellOn(locktest.NewOn(t, locktest.StartServer(t, zktest.TickTime(2*time.Second), zktest.SessionTimeouts(3*time.Second, 5*time.Second))))
	r := s.diagnosis(1)
	require.Equal(t, &sessionReport{15000, 5000, 3000, 5000}, r.Session)
	require.Contains(t, r.whats(advice), "the session timeout is 5s instead of 15s")
	require.Equal(t, []string{"minSessionTimeout is 3s, with ticks of 2s at " + s.Addr}, r.whats(wrong))
	r = s.diagnosis(1, "--session-timeout", "1s")
	require.Contains(t, r.whats(advice), "the session timeout is only 3s")
}

func TestDoctorFindsMissingRights(t *testing.T) {
	s := newShell(t)
	s.Restrict("/create", zk.PermRead|zk.PermWrite|zk.PermDelete)
	s.Restrict("/read", zk.PermCreate)
	s.Restrict("/none")
	at := func(dir string) []string { return []string{"--server", s.Addr + s.Chroot + dir} }
	r := s.diagnosis(1, at("/create")...)
	require.Equal(t, &rightsReport{Read: true, Write: true}, r.Rights)
	require.Equal(t, []string{"the right CREATE is missing on " + s.Chroot + "/create"}, r.whats(wrong))
	r = s.diagnosis(1, at("/read")...)
	require.Equal(t, &rightsReport{Create: true}, r.Rights)
	require.Equal(t, []string{"the right READ is missing on " + s.Chroot + "/read"}, r.whats(wrong))
	require.Contains(t, strings.Join(r.whats(advice), "\n"), "could not be removed")
	r = s.diagnosis(1, at("/none/below")...)
	require.Equal(t, []string{"the right CREATE is missing on " + s.Chroot + "/none"}, r.whats(wrong))
	require.Nil(t, r.Rights)

	s.env = append(s.env, "LOCKPOOL_CREDENTIALS=admin:x")
	r = s.diagnosis(0, at("/none/below")...)
	require.Equal(t, &rightsReport{true, true, true, true, true}, r.Rights)
	require.Contains(t, r.whats(advice), "the password is sent without TLS")
	text, _ := json.Marshal(r)
	require.NotContains(t, string(text), "admin:x")
}

func TestDoctorAsksEachServer(t *testing.T) {
	locktest.Once(t)
	server := zktest.Start(t, zktest.Members(3), zktest.FourLetterWords("ruok"))
	s := newShellOn(locktest.NewOn(t, server))
	members := server.Members()
	r := s.diagnosis(0, "--server", server.ConnectString()+"/locks")
	require.Equal(t, 3, *r.Voters)
	require.Empty(t, r.Findings)
	require.Equal(t, serverReport{Address: members[0]}, r.Servers[0], "srvr is not allowed")

	stopped := 5 - max(2, server.Leader()) // a follower, and not the first, the bench's own
	require.NoError(t, server.StopMember(stopped))
	r = s.diagnosis(1, "--server", server.ConnectString()+"/locks")
	require.Len(t, r.whats(wrong), 1)
	require.Contains(t, r.whats(wrong)[0], members[stopped-1]+" cannot be used: ")
	require.NotNil(t, r.Rights, "the others are examined")
	r = s.diagnosis(0, "--server", members[server.Leader()-1])
	require.Contains(t, r.whats(advice), "the connect string lists 1 of 3 voters")

	r = s.diagnosis(1, "--server", "127.0.0.1:1")
	require.Equal(t, []string{"127.0.0.1:1 cannot be used: connect: connection refused"}, r.whats(wrong))
}

// Doctor says in one line what is wrong with a server, and what to do.
func TestDoctorSaysWhatIsWrong(t *testing.T) {
	locktest.Once(t)
	t.Parallel()
	real := func(t *testing.T, servers int, properties map[string]string) string {
		return zktest.StartRealEnsemble(t, servers, zktest.Properties(properties)).Member(0).Addr()
	}
	for name, of := range map[string]struct {
		addr func(t *testing.T) string
		says string
	}{
		"authentication": {func(t *testing.T) string {
			return real(t, 1, map[string]string{"enforce.auth.enabled": "true", "enforce.auth.schemes": "digest"})
		}, "serves only authenticated clients: set"},
		"local sessions": {func(t *testing.T) string { return real(t, 3, map[string]string{"localSessionsEnabled": "true"}) }, "set localSessionsUpgradingEnabled=true"},
		"quota": {func(t *testing.T) string {
			addr := real(t, 1, map[string]string{"enforceQuota": "true"})
			conn, events, err := zk.Connect([]string{addr}, time.Minute)
			require.NoError(t, err)
			defer conn.Close()
			require.NoError(t, opened(t.Context(), events))
			for _, node := range []string{"/locks", "/zookeeper/quota/locks", "/zookeeper/quota/locks/zookeeper_limits", "/zookeeper/quota/locks/zookeeper_stats"} {
				_, err := conn.Create(node, []byte("count=1,bytes=-1=;byteHardLimit=-1;countHardLimit=1"), 0, zk.WorldACL(zk.PermAll))
				require.NoError(t, err)
			}
			return addr
		}, "raise the quota"},
		"no majority": {func(t *testing.T) string {
			s := zktest.Start(t, zktest.Members(3))
			require.NoError(t, s.StopMember(1))
			require.NoError(t, s.StopMember(2))
			time.Sleep(5 * time.Second) // until the third notices
			return s.ConnectString()
		}, "the ensemble has no majority"},
		"an SSH server": {func(t *testing.T) string {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			t.Cleanup(func() { l.Close() })
			go func() { // ends with the listener
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					fmt.Fprint(conn, "SSH-2.0-OpenSSH_9.2\r\n")
					t.Cleanup(func() { conn.Close() })
				}
			}()
			return l.Addr().String()
		}, "looks like SSH; ZooKeeper's client port is usually 2181"},
		"ClickHouse Keeper": {func(t *testing.T) string { return zktest.Start(t, zktest.Keeper()).ConnectString() }, "is ClickHouse Keeper"},
		"a leader that hangs": {func(t *testing.T) string {
			return zktest.Start(t, zktest.Members(3), zktest.TickTime(2*time.Second)).ConnectString()
		},
			"notices after 10s, and sessions of 15s are given up after 6.75s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShellOn(&locktest.Bench{TB: t})
			p := s.start("doctor", "--server", of.addr(t)+"/locks")
			p.code()
			require.Contains(t, p.stdout.String(), of.says)
		})
	}
}

func TestSilentServersEndCommands(t *testing.T) {
	t.Parallel() // the command waits
	s := newShellOn(locktest.NewOn(t, locktest.StartServer(t)))
	require.NoError(t, s.Server.Pause())
	defer func() { require.NoError(t, s.Server.Resume()) }()
	ls, doctor := s.start("ls"), s.start("doctor", "--json")
	require.Equal(t, 119, ls.code())
	require.Contains(t, ls.stderr.String(), "; the service did not answer in time; check --server or LOCKPOOL_SERVER")
	require.Equal(t, 1, strings.Count(ls.stderr.String(), "\n"), ls.stderr.String())
	require.Equal(t, 1, doctor.code())
	require.Contains(t, doctor.stdout.String(), "did not answer within")
}

// What people see of each other's lockpool run.
func TestRunsAreSeenAndBroken(t *testing.T) {
	s := newShell(t)
	first := s.start("run", "cron/backup", "--", "sh", "-c", "echo started; sleep 60")
	s.Until(func() bool { return first.stdout.String() != "" }, "the lock")
	second := s.start("run", "cron/backup", "--", "echo", "second")
	s.AwaitQueue("cron/backup", 2)
	require.Regexp(t, `^cron/backup: 1 holder, 1 waiter

holds for ≤\d+s: sh, process `+strconv.Itoa(first.Process.Pid)+` on \S+ \(mutex\)
(  .*\n)+
waits for \d+s: echo, process `+strconv.Itoa(second.Process.Pid)+` on `, s.prints("show", "cron/backup"))
	require.Regexp(t, `^cron/backup is taken from sh, process \d+ on \S+\n$`, s.prints("break", "--yes", "cron/backup"))
	require.Equal(t, 117, first.code())
	require.Zero(t, second.code())
	require.Equal(t, "second\n", second.stdout.String())
}

// What a shell would misunderstand is quoted, and what quotes would not help is left out.
func TestRemedies(t *testing.T) {
	t.Parallel()
	require.Contains(t, remedies("orders/42"), "lockpool break orders/42\n")
	require.Contains(t, remedies("a b;$(rm x)"), "lockpool break 'a b;$(rm x)'\n")
	for _, name := range []string{"it's", "--yes", "a\nb", "a\x1b[2Jb"} {
		require.Empty(t, remedies(name))
	}
}

// Callers that wait in the memory of another process count as waiters.
func TestCallersInMemoryAreCounted(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.holder("job")
	pool := s.Pool(lockpool.WithLocalTurns(1000))
	for range 5 {
		go func() { _, _ = pool.Lock(s.Ctx, "job") }() // ends with the pool
	}
	s.Until(func() bool { return strings.Contains(s.prints("show", "job"), "job: 1 holder, 5 waiters\n") }, "five waiters")
	require.Contains(t, s.prints("show", "job"), "(mutex, with 4 callers behind in memory)\n")
	require.Regexp(t, `job +mutex +1 +5 `, s.prints("ls"))
	require.Contains(t, s.prints("show", "--json", "job"), `"callers": 4`)
	require.Contains(t, s.prints("waits"), "\n5 waiters, 0 deadlocks\n")
}

// costs makes two pools publish what their calls have cost, and a third client write nonsense.
func (s *shell) costs(conn *zk.Conn) {
	const one = `{"owner":"billing","host":"web1","pid":101,"over":60000000000,"local_turns":true,"costs":[
{"lock":"orders/17","kind":"mutex","at":"main.refund (refund.go:24)","holds":6,"held":24000000000,"waits":6,"waited":120000000000},
{"lock":"orders/18","kind":"mutex","at":"main.refund (refund.go:24)","holds":60,"held":600000000,"asks":60,"asked":60000000}]}`
	s.join(conn, driver.Costs, one)
	s.join(conn, driver.Costs, strings.NewReplacer("billing", "cart", `:101`, `:202`, `"asks":60,`, `"asks":6000,"again":-1,`).Replace(one))
	for _, data := range []string{"", "{", one[:100], strings.Replace(one, "60000000000", "0", 1), strings.Replace(one, "orders/17", `\u001b[2J`, 1), strings.Replace(one, "600", "-1e300", 1)} {
		s.join(conn, driver.Costs, data)
	}
}

func TestInsights(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	conn := s.Dial()
	require.Equal(t, "No pool has published costs: one does a minute after its calls have begun to wait, if they have waited for a second in all.\n", s.prints("insights"))
	for i := range 4 {
		s.join(conn, driver.Costs, fmt.Sprintf(`{"host":"web1","pid":1,"over":1000000000,"costs":[{"lock":"orders/%d","holds":1,"held":1}]}`, i))
	}
	s.costs(conn)
	text := s.prints("insights")
	require.Contains(t, text, "\norders/*: 4.")
	require.Contains(t, text, "Behind main.refund (refund.go:24): ")
	require.Contains(t, text, "\nAdvice for orders/17: it has 100 % of the waits for the 6 known locks of orders/*. Divided into two locks: a mean wait of ")
	require.NotContains(t, text, "\x1b")
	require.Contains(t, s.prints("insights", "stock"), ": 0.00 calls waited at a time.\n")
	var told insights.Insights
	require.NoError(t, json.Unmarshal([]byte(s.prints("insights", "orders", "--json")), &told))
	require.Equal(t, "hot", told.Advice[0].Rule)
	require.Equal(t, 6, told.Locks[0].Locks)
	for pid := range 3 {
		s.contender(conn, "orders/17", "shop", 100+pid)
	}
	for _, text := range []string{s.prints("waits"), s.prints("show", "orders/17")} {
		require.Contains(t, text, "(mutex, usually for 4s)")
		require.Regexp(t, `waits for \d+s, and about 4s more`, text)
		require.Regexp(t, `waits for \d+s, and about 8s more`, text)
	}
	site := s.visitor(s.serve())
	for address, text := range map[string]string{"/events": "Advice for orders/17: ", "/events?lock=orders/17": "s, and about 8s more"} {
		seen := bufio.NewScanner(site.send("GET", address, "").Body)
		require.True(t, seen.Scan())
		require.Contains(t, seen.Text(), text)
	}
}

// Clients that say nothing of themselves are shown with the address that the server knows.
func TestStrangersHaveAddresses(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.join(s.Dial(), "a", "10.0.0.1")
	s.join(s.Dial(), "a", "")
	text := s.prints("show", "a")
	found := regexp.MustCompile(`s: a process on (127\.0\.0\.1:\d+) \(mutex\)`).FindAllStringSubmatch(text, -1)
	require.Len(t, found, 2, text)
	require.NotEqual(t, found[0][1], found[1][1])
	require.Regexp(t, `\na process on `+regexp.QuoteMeta(found[0][1])+` holds it for`, s.prints("waits"))
	s.screen(100, 12, "top").contains("a process on " + found[0][1])
	page := s.visitor(s.serve()).send("GET", "/events?lock=a", "")
	for seen := bufio.NewScanner(page.Body); !strings.Contains(seen.Text(), found[1][1]); {
		require.True(t, seen.Scan())
	}
}
