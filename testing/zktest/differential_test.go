package zktest_test

// This file runs random scripts of requests on the embedded server and on a real one. The
// test compares every reply, every event and the event's place among the replies, and the
// final nodes. A script is generated from a seed before the run, so that both servers get
// the same script and a failure can be reproduced. If the servers diverge, the test prints
// the smallest part of the script that still shows the divergence.
//
// Error codes, paths, data, versions and counts are compared as they are. Zxids are
// compared by their distance from the start of the script, sessions by the order of their
// creation, children as a set. Times must only be possible. The generator avoids anything
// random inside the real server, and accidents of the implementation: see
// call.disturbsLaterReplies, call.unspecified and the comments in generator.

import (
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/zktest"
)

var (
	differentialTime = flag.Duration("differential", 0, "run random scripts in TestDifferential for this long")
	differentialSeed = flag.Uint64("seed", 0, "the seed of TestDifferential's only script or, with -differential, of the first")
	againstReal      = flag.Bool("against-real", false, "compare two real servers in TestDifferential, to test the test")
)

// fixedScripts is the number of scripts of a run without flags.
const fixedScripts = 50

func TestDifferential(t *testing.T) {
	t.Parallel()
	servers := [2]testServer{startRealServer(t, "real"), {name: "embedded", addr: startEmbedded}}
	if *againstReal {
		servers[1] = startRealServer(t, "another real")
	}
	for i, r := range regressions {
		t.Run(r.title, func(t *testing.T) { requireAgreement(t, r.script.numbered(), servers, uint64(1_000_000+i)) })
	}
	one := func(seed uint64) bool {
		return t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { requireAgreement(t, generate(seed), servers, seed) })
	}
	switch first := *differentialSeed; {
	case *differentialTime > 0:
		if first == 0 {
			first = rand.Uint64N(1e9)
		}
		t.Logf("the first seed is %d", first)
		seed := first
		for begin := time.Now(); time.Since(begin) < *differentialTime && one(seed); {
			seed++
		}
		t.Logf("%d scripts", seed-first)
	case first != 0:
		one(first)
	default:
		for seed := range uint64(fixedScripts) {
			one(seed + 1)
		}
	}
}

// testServer is one of the two servers.
type testServer struct {
	name    string
	addr    func(testing.TB) string // returns the address; may start a server for one script
	cleanUp bool                    // delete the nodes of each script
}

func startEmbedded(t testing.TB) string {
	return zktest.Start(t, zktest.ExtendedTypes(), zktest.ContainerInterval(time.Hour), zktest.SuperUser(superuser)).Addr()
}

// The credentials used by scripts. The super user can delete every node.
const (
	credentialU = "u:p"
	credentialV = "v:q"
	superuser   = "super:secret"
)

func digestID(credential string) string {
	user, _, _ := strings.Cut(credential, ":")
	sum := sha1.Sum([]byte(credential))
	return user + ":" + base64.StdEncoding.EncodeToString(sum[:])
}

// startRealServer starts a server without changes of its own.
func startRealServer(t testing.TB, name string) testServer {
	server := zktest.StartReal(t,
		zktest.Properties(map[string]string{"extendedTypesEnabled": "true"}),
		zktest.JVMFlags(
			"-Dznode.container.checkIntervalMs=3600000",
			"-Dzookeeper.forceSync=no"), // the nodes need not survive a crash
		zktest.SuperUser(superuser))
	return testServer{name: name, addr: func(testing.TB) string { return server.Addr() }, cleanUp: true}
}

// requireAgreement fails the test if the servers' answers differ.
func requireAgreement(t *testing.T, p script, servers [2]testServer, number uint64) {
	attempt := 0
	diverge := func(p script) *divergence {
		attempt++
		root := fmt.Sprintf("/d%d-%d", number, attempt)
		return p.compare([2][]string{p.run(t, servers[0], root), p.run(t, servers[1], root)})
	}
	d := diverge(p)
	if d == nil {
		return
	}
	t.Logf("the whole script diverges at step %d\n%s", d.script[min(d.at, len(p)-1)].id, d.show(servers))
	d = d.shrink(diverge)
	t.Fatalf("%s and %s give different answers; the smallest script that shows it:\n%s", servers[0].name, servers[1].name, d.show(servers))
}

// divergence is the first difference between the answers to a script.
type divergence struct {
	script  script
	at      int // the index of the step; len(script) for the final nodes
	answers [2]string
}

// compare returns nil if the answers are the same.
func (p script) compare(answers [2][]string) *divergence {
	for i := range len(p) + 1 {
		var at [2]string
		for j, a := range answers {
			if i < len(a) {
				at[j] = a[i]
			}
		}
		if at[0] != at[1] {
			return &divergence{p, i, at}
		}
	}
	return nil
}

func (d *divergence) show(servers [2]testServer) string {
	var b strings.Builder
	for _, s := range d.script[:min(d.at+1, len(d.script))] {
		fmt.Fprintf(&b, "  %v\n", s)
	}
	if d.at == len(d.script) {
		b.WriteString("  the final nodes\n")
	}
	for i, a := range d.answers {
		fmt.Fprintf(&b, "%s: %s\n", servers[i].name, a)
	}
	return b.String()
}

// shrinkTime bounds the search for a smaller script.
const shrinkTime = 3 * time.Minute

// shrink removes steps, calls and parts not needed for the divergence.
func (d *divergence) shrink(diverge func(script) *divergence) *divergence {
	s := &shrinker{d, diverge, time.Now().Add(shrinkTime)}
	s.try(d.script[:min(d.at+1, len(d.script))])
	for before := 0; before != s.d.script.size(); {
		before = s.d.script.size()
		s.removeSteps()
		s.removeCalls()
	}
	return s.d
}

// shrinker searches for a smaller script with a divergence.
type shrinker struct {
	d        *divergence // of the smallest script so far
	diverge  func(script) *divergence
	deadline time.Time
}

func (s *shrinker) try(p script) {
	if p.unspecified() || time.Now().After(s.deadline) {
		return
	}
	if smaller := s.diverge(p); smaller != nil {
		s.d = smaller
	}
}

// removeSteps tries to remove half of the steps, then fewer and fewer.
func (s *shrinker) removeSteps() {
	for n := max(1, len(s.d.script)/2); n > 0; n /= 2 {
		for i := len(s.d.script) - n; i >= 0; i -= n {
			i = min(i, len(s.d.script)-n)
			if i >= 0 {
				s.try(slices.Delete(slices.Clone(s.d.script), i, i+n))
			}
		}
	}
}

// removeCalls tries to remove single calls, and single parts of a multi.
func (s *shrinker) removeCalls() {
	for i := 0; i < len(s.d.script); i++ {
		for j := len(s.d.script[i].calls) - 1; j >= 0 && i < len(s.d.script); j-- {
			for k := len(s.d.script[i].calls[j].parts) - 1; k >= 0; k-- {
				p := s.d.script.clone()
				p[i].calls[j].parts = slices.Delete(p[i].calls[j].parts, k, k+1)
				s.try(p)
			}
			if len(s.d.script[i].calls) > 1 {
				p := s.d.script.clone()
				p[i].calls = slices.Delete(p[i].calls, j, j+1)
				s.try(p)
			}
		}
	}
}

// script is a sequence of steps of three clients.
type script []step

// numbered numbers the steps.
func (p script) numbered() script {
	for i := range p {
		p[i].id = i + 1
	}
	return p
}

func (p script) size() (n int) {
	for _, s := range p {
		n++
		for _, c := range s.calls {
			n += 1 + len(c.parts)
		}
	}
	return n
}

func (p script) clone() script {
	p = slices.Clone(p)
	for i := range p {
		p[i].calls = slices.Clone(p[i].calls)
		for j := range p[i].calls {
			p[i].calls[j].parts = slices.Clone(p[i].calls[j].parts)
		}
	}
	return p
}

// step is an action of one client.
type step struct {
	id      int // does not change when other steps are removed
	client  int
	act     act
	calls   []call // of sendRequests, sent in a single write
	collect bool   // then collect the events of all clients
}

type act int

const (
	sendRequests act = iota
	openNew          // abandon the session, if any, and open a new one
	drop             // end the connection
	attach           // end the connection, if any, and reattach to the session
	attachFast       // reattach while the old connection is open
	attachBad        // reattach with a wrong password
	killSession      // close the session over another connection
)

var actNames = [...]string{"send", "open a session", "drop the connection", "reattach", "reattach while connected", "reattach with a wrong password", "kill the session"}

func (s step) String() string {
	text := actNames[s.act]
	if s.act == sendRequests {
		calls := make([]string, len(s.calls))
		for i, c := range s.calls {
			calls[i] = c.String()
		}
		text = strings.Join(calls, "; ")
	}
	if s.collect {
		text += " (collect events)"
	}
	return fmt.Sprintf("%2d %c: %s", s.id, 'A'+s.client, text)
}

// call is a request. Paths are below the script's own node, unless they begin with an
// exclamation mark; $7 is the path created by step 7.
type call struct {
	op        zktest.Op
	xid       int32 // 0 for the next one
	path      string
	data      []byte
	acls      []acl
	flags     int32 // of a create; the mode of addWatch, the kind in removeWatches
	version   int32
	ttl       int64
	watch     bool
	since     int // of setWatches: the number of a step, 0 for the start, or now
	lists     [][]string
	parts     []call
	truncated int // the number of bytes missing at the end
}

// now is the zxid of the latest reply.
const now = -1

func (c call) String() string {
	show := func(text string) string { return strings.ReplaceAll(text, strconv.Quote(null), "null") }
	text := fmt.Sprintf("%v(%s", c.op, show(strconv.Quote(c.path)))
	arg := func(name string, value any, given bool) {
		if given {
			text += fmt.Sprintf(", %s %v", name, value)
		}
	}
	arg("data", strconv.Quote(string(c.data)), c.data != nil)
	arg("ACL", showACL(c.acls), c.acls != nil)
	arg("flags", c.flags, c.flags != 0)
	arg("version", c.version, c.version != 0)
	arg("ttl", c.ttl, c.ttl != 0)
	arg("watch", c.watch, c.watch)
	arg("since", c.since, c.lists != nil)
	arg("lists", show(fmt.Sprintf("%q", c.lists)), c.lists != nil)
	arg("parts", c.parts, c.parts != nil)
	arg("xid", c.xid, c.xid != 0)
	arg("without the last bytes:", c.truncated, c.truncated != 0)
	return text + ")"
}

// runner runs a script on one server.
type runner struct {
	t        testing.TB
	addr     string
	root     string
	base     int64 // the zxid at the start
	latest   int64 // the largest zxid so far
	clients  [3]scriptClient
	sessions []handshake    // all, in the order of their creation
	created  map[int]string // paths by the numbers of steps
	zxids    map[int]int64  // of the replies, by the numbers of steps
}

// scriptClient is one of the script's clients.
type scriptClient struct {
	conn    *client // nil while not connected
	session handshake
}

// protocolError ends a script: the server violates the protocol.
type protocolError struct{ message string }

// failureCatcher turns failures of the raw client into answers to compare.
type failureCatcher struct {
	testing.TB
	message string
}

func (c *failureCatcher) Errorf(format string, args ...any) { c.message = fmt.Sprintf(format, args...) }
func (c *failureCatcher) FailNow()                          { panic(protocolError{c.message}) }

// run returns the answers to the steps, followed by the final nodes.
func (p script) run(t testing.TB, c testServer, root string) (answers []string) {
	pl := &runner{t: &failureCatcher{TB: t}, addr: c.addr(t), root: root, created: map[int]string{}, zxids: map[int]int64{}}
	defer func() {
		switch r := recover().(type) {
		case nil:
		case protocolError:
			answers = append(answers, "protocol error: "+r.message)
		default:
			panic(r)
		}
	}()
	reader := open(pl.t, pl.addr, longTimeout)
	made := reader.pipeline(auth("digest", credentialU), auth("digest", credentialV), create(root, nil, persistent))
	require.Zero(t, made[2].Err)
	pl.base, pl.latest = made[2].Zxid, made[2].Zxid
	for _, s := range p {
		answers = append(answers, strings.ReplaceAll(pl.step(s), root, "~"))
	}
	answers = append(answers, strings.ReplaceAll(pl.finish(reader), root, "~"))
	if c.cleanUp {
		deleteTree(t, pl.addr, root)
	}
	return answers
}

// step runs one step and returns everything seen by the clients.
func (pl *runner) step(s step) string {
	p := &pl.clients[s.client]
	var answer []string
	if s.act != sendRequests || s.ends() {
		// Events not sent by the end of a connection are lost. The order of the events of a
		// session's end is unspecified and ignored, so they must not mix with others.
		answer = append(answer, pl.collectEvents(false)...)
		s.collect = true
	}
	switch s.act {
	case sendRequests:
		if p.conn == nil {
			return "not connected"
		}
		answer = append(answer, pl.sendRequests(p, s)...)
	case openNew:
		answer = append(answer, pl.drop(p)...)
		p.conn = open(pl.t, pl.addr, longTimeout)
		p.session = p.conn.credentials()
		pl.sessions = append(pl.sessions, p.session)
		answer = append(answer, fmt.Sprintf("%s of %v", pl.owner(p.session.Session), p.conn.welcome.Timeout))
	case drop:
		answer = append(answer, pl.drop(p)...)
	case attach:
		answer = append(answer, pl.drop(p)...)
		answer = append(answer, pl.attach(p, p.session)...)
	case attachFast:
		answer = append(answer, pl.attach(p, p.session)...)
	case attachBad:
		h := p.session
		h.Password = make([]byte, 16)
		answer = append(answer, pl.attach(p, h)...)
	case killSession:
		answer = append(answer, pl.attach(p, p.session)...)
		if p.conn != nil {
			answer = append(answer, pl.sendRequests(p, step{calls: []call{{op: zktest.OpCloseSession}}})...)
		}
	}
	if s.collect {
		answer = append(answer, pl.collectEvents(s.ends())...)
	}
	return strings.Join(answer, "\n\t")
}

// ends reports whether the step ends a session.
func (s step) ends() bool {
	return s.act == killSession || slices.ContainsFunc(s.calls, func(c call) bool { return c.op == zktest.OpCloseSession })
}

// sendRequests sends the step's requests and returns the answers.
func (pl *runner) sendRequests(p *scriptClient, s step) (answers []string) {
	requests := make([]request, len(s.calls))
	for i, c := range s.calls {
		requests[i] = pl.request(c)
	}
	p.conn.send(requests...)
	sent := slices.Clone(p.conn.pending)
	for _, r := range sent {
		reply, err := p.conn.tryReply()
		if errors.Is(err, errEnd) {
			break
		}
		require.NoError(pl.t, err)
		require.Equal(pl.t, r.Xid, reply.Xid, "the xid of a reply")
		pl.latest = max(pl.latest, reply.Zxid)
		pl.zxids[s.id] = reply.Zxid
		for _, made := range append(reply.Ops, reply) {
			if slices.Contains([]zktest.Op{zktest.OpCreate, zktest.OpCreate2, zktest.OpCreateContainer, zktest.OpCreateTTL}, made.Op) && made.Err == 0 {
				pl.created[s.id] = made.Path
			}
		}
		answers = append(answers, pl.events(reply.Events, r.Op == zktest.OpCloseSession)+pl.show(reply))
		switch {
		case r.Op == zktest.OpCloseSession, reply.Err == zktest.ErrUnimplemented && reply.Zxid == -1, reply.Err == zktest.ErrAuthFailed:
			answers = append(answers, pl.drain(p)...)
			return answers
		}
	}
	if len(p.conn.pending) > 0 {
		answers = append(answers, pl.drain(p)...)
	}
	return answers
}

// drop ends the connection, if any, and waits until the server has ended the connection as
// well: then the watches are removed.
func (pl *runner) drop(p *scriptClient) []string {
	if p.conn == nil {
		return nil
	}
	type halfCloser interface{ CloseWrite() error }
	require.NoError(pl.t, p.conn.conn.(halfCloser).CloseWrite())
	return pl.drain(p)
}

// drain reads everything until the server ends the connection.
func (pl *runner) drain(p *scriptClient) (answers []string) {
	for {
		reply, err := p.conn.tryReply()
		if err != nil {
			break
		}
		answers = append(answers, pl.events(reply.Events, false)+pl.show(reply))
	}
	missed := p.conn.events[len(p.conn.events)-p.conn.unreported:]
	p.conn.cut()
	p.conn = nil
	return append(answers, pl.events(missed, false)+"the end")
}

// attach connects with a session. The server then ends the old connection.
func (pl *runner) attach(p *scriptClient, h handshake) (answers []string) {
	if h.Session == 0 {
		return []string{"no session"}
	}
	next := connect(pl.t, pl.addr, h)
	if p.conn != nil {
		answers = pl.drain(p)
	}
	if next.welcome.Session == 0 {
		answers = append(answers, fmt.Sprintf("refused: %+v", next.welcome))
		p.conn = next
		return append(answers, pl.drain(p)...)
	}
	p.conn = next
	return append(answers, fmt.Sprintf("%s of %v, same password: %v", pl.owner(next.welcome.Session), next.welcome.Timeout,
		slices.Equal(h.Password, next.welcome.Password)))
}

// collectEvents returns the events received by all clients since the last read, sorted if
// their order is unspecified.
func (pl *runner) collectEvents(sorted bool) (answers []string) {
	for _, p := range pl.clients {
		if p.conn != nil {
			p.conn.send(ping())
		}
	}
	for i, p := range pl.clients {
		if p.conn == nil {
			continue
		}
		reply := p.conn.reply()
		pl.latest = max(pl.latest, reply.Zxid)
		if text := pl.events(reply.Events, sorted); text != "" {
			answers = append(answers, fmt.Sprintf("%c sees %s", 'A'+i, text))
		}
		if reply.Zxid != pl.latest || reply.Err != 0 {
			answers = append(answers, fmt.Sprintf("%c's ping: %s", 'A'+i, pl.show(reply)))
		}
	}
	return answers
}

// finish returns the final nodes, and ends all sessions.
func (pl *runner) finish(reader *client) string {
	answers := pl.collectEvents(false)
	var walk func(path string)
	walk = func(path string) {
		rs := reader.pipeline(exists(path, false), getData(path, false), getACL(path), getChildren2(path, false))
		line := path
		for _, r := range rs {
			line += " | " + pl.show(r)
		}
		answers = append(answers, line)
		slices.Sort(rs[3].Names)
		for _, name := range rs[3].Names {
			walk(path + "/" + name)
		}
	}
	walk(pl.root)
	for _, h := range pl.sessions {
		c := connect(pl.t, pl.addr, h)
		if c.welcome.Session != 0 {
			answers = append(answers, pl.owner(h.Session)+" is alive")
			c.do(closeSession())
		}
		c.waitEnd()
		c.cut()
	}
	for i := range pl.clients {
		if p := &pl.clients[i]; p.conn != nil {
			pl.drain(p)
		}
	}
	answers = append(answers, "finally "+pl.show(reader.do(getAllChildrenNumber(pl.root))))
	reader.do(closeSession())
	reader.waitEnd()
	reader.cut()
	return strings.Join(answers, "\n\t")
}

// deleteTree deletes the nodes of a script from a reused server.
func deleteTree(t testing.TB, addr, root string) {
	c := open(t, addr, longTimeout)
	require.Zero(t, c.do(auth("digest", superuser)).Err)
	var deletions []request
	var walk func(path string)
	walk = func(path string) {
		for _, name := range c.do(getChildren(path, false)).Names {
			walk(path + "/" + name)
		}
		deletions = append(deletions, remove(path, anyVersion))
	}
	if c.do(exists(root, false)).Err == 0 {
		walk(root)
	}
	for _, r := range c.do(multi(deletions...)).Ops {
		require.Zero(t, r.Err)
	}
	c.do(closeSession())
	c.waitEnd()
	c.cut()
}

// request returns the packet of a call.
func (pl *runner) request(c call) request {
	path := pl.path(c.path)
	r := request{Op: c.op}
	switch c.op {
	case zktest.OpCreate, zktest.OpCreate2, zktest.OpCreateContainer, zktest.OpCreateTTL:
		r = createRequest(c.op, path, c.data, c.acls, c.flags)
		if c.op == zktest.OpCreateTTL {
			r.Body = encoder(r.Body).long(c.ttl)
		}
	case zktest.OpDelete:
		r = remove(path, c.version)
	case zktest.OpCheck:
		r = checkVersion(path, c.version)
	case zktest.OpSetData:
		r = setData(path, c.data, c.version)
	case zktest.OpSetACL:
		r = setACL(path, c.version, c.acls...)
	case zktest.OpExists, zktest.OpGetData, zktest.OpGetChildren, zktest.OpGetChildren2:
		r = readRequest(c.op, path, c.watch)
	case zktest.OpAddWatch, zktest.OpCheckWatches, zktest.OpRemoveWatches:
		r = watchRequest(c.op, path, c.flags)
	case zktest.OpMulti, zktest.OpMultiRead:
		parts := make([]request, len(c.parts))
		for i, part := range c.parts {
			parts[i] = pl.request(part)
		}
		r = multiOf(c.op, parts)
	case zktest.OpAuth:
		r.Body = encoder{}.int(0).string(c.path).buffer(c.data)
	case zktest.OpSASL:
		r.Body = encoder{}.buffer(c.data)
	case zktest.OpReconfig:
		r.Body = encoder{}.string(null).string(null).string(null).long(-1)
	case zktest.OpSetWatches, zktest.OpSetWatches2:
		since := pl.latest
		if c.since != now {
			since = max(pl.base, pl.zxids[c.since])
		}
		lists := make([][]string, len(c.lists))
		for i, l := range c.lists {
			for _, p := range l {
				lists[i] = append(lists[i], pl.path(p))
			}
		}
		r.Body = encoder{}.long(since).lists(lists)
	case zktest.OpGetACL, zktest.OpSync, zktest.OpGetEphemerals, zktest.OpGetAllChildrenNumber, zktest.OpDeleteContainer:
		r = pathRequest(c.op, path)
	case zktest.OpPing:
		r = ping()
	}
	if c.xid != 0 {
		r.Xid = c.xid
	}
	r.Body = r.Body[:len(r.Body)-min(c.truncated, len(r.Body))]
	return r
}

// path returns the path of a call as sent.
func (pl *runner) path(path string) string {
	if path == null {
		return null
	}
	if absolute, ok := strings.CutPrefix(path, "!"); ok {
		return absolute
	}
	if rest, ok := strings.CutPrefix(path, "$"); ok {
		number, below, _ := strings.Cut(rest, "/")
		id, err := strconv.Atoi(number)
		require.NoError(pl.t, err)
		if below != "" {
			below = "/" + below
		}
		if made := pl.created[id]; made != "" {
			return made + below
		}
		return pl.root + "/" + path // a missing node
	}
	return pl.root + path
}

// show describes a reply.
func (pl *runner) show(r result) string {
	if r.Err != 0 {
		return fmt.Sprintf("error %d%s", r.Err, pl.zxid(r.Zxid))
	}
	words := []string{"ok" + pl.zxid(r.Zxid)}
	if r.Path != "" {
		words = append(words, strconv.Quote(r.Path))
	}
	if r.Op == zktest.OpGetData {
		words = append(words, pl.data(r.Data))
	}
	if r.Names != nil {
		slices.Sort(r.Names)
		words = append(words, fmt.Sprintf("%q", r.Names))
	}
	if r.ACL != nil {
		// The real server keeps identities in a set: their order is unspecified in
		// the reply to whoAmI, and where the scheme auth was replaced.
		if r.Op == zktest.OpWhoAmI || manyDigests(r.ACL) {
			slices.SortFunc(r.ACL, func(a, b acl) int { return strings.Compare(showACL([]acl{a}), showACL([]acl{b})) })
		}
		words = append(words, showACL(r.ACL))
	}
	if r.Stat != (zktest.Stat{}) {
		words = append(words, pl.stat(r.Stat))
	}
	if r.Count != 0 {
		words = append(words, strconv.Itoa(int(r.Count)))
	}
	for _, op := range r.Ops {
		words = append(words, fmt.Sprintf("[%d %s]", op.Op, pl.show(op)))
	}
	return strings.Join(words, " ")
}

func showACL(list []acl) string {
	if list == nil {
		return "null"
	}
	texts := make([]string, len(list))
	for i, a := range list {
		texts[i] = fmt.Sprintf("%s:%s:%d", a.Scheme, a.ID, a.Perms)
	}
	return strings.ReplaceAll(fmt.Sprint(texts), null, "null")
}

func manyDigests(acls []acl) bool {
	n := 0
	for _, a := range acls {
		if a.Scheme == "digest" {
			n++
		}
	}
	return n > 1
}

func (pl *runner) data(b []byte) string {
	if b == nil {
		return "null"
	}
	return strconv.Quote(string(b))
}

// zxid describes a zxid.
func (pl *runner) zxid(zxid int64) string {
	if zxid <= 0 {
		return fmt.Sprintf("@%d", zxid)
	}
	return fmt.Sprintf("@%+d", zxid-pl.base)
}

func (pl *runner) owner(session int64) string {
	i := slices.IndexFunc(pl.sessions, func(h handshake) bool { return h.Session == session })
	if i < 0 {
		return "unknown session"
	}
	return fmt.Sprintf("S%d", i+1)
}

func (pl *runner) stat(s zktest.Stat) string {
	text := fmt.Sprintf("{c%s m%s p%s v%d c%d a%d len %d children %d", pl.zxid(s.Czxid), pl.zxid(s.Mzxid), pl.zxid(s.Pzxid),
		s.Version, s.Cversion, s.Aversion, s.DataLength, s.NumChildren)
	if s.EphemeralOwner != 0 {
		text += " owner " + pl.owner(s.EphemeralOwner)
	}
	switch {
	case s.Ctime == 0 && s.Mtime == 0:
		text += " timeless"
	case s.Ctime <= 0 || s.Mtime < s.Ctime:
		text += " with impossible times"
	}
	return text + "}"
}

func (pl *runner) events(events []event, sorted bool) string {
	texts := make([]string, len(events))
	for i, e := range events {
		texts[i] = fmt.Sprintf("<%v %q> ", e.Type, e.Path)
	}
	if sorted {
		slices.Sort(texts)
	}
	return strings.Join(texts, "")
}

// generate returns the script of a seed.
func generate(seed uint64) script {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, seed)), parents: []string{""}}
	for client := range 3 {
		g.add(step{client: client, act: openNew})
	}
	g.authenticate(0)
	for _, path := range []string{"/a", "/b", "/a/c"} {
		g.add(step{client: g.IntN(3), calls: []call{{op: zktest.OpCreate, path: path, acls: world}}})
		g.parents = append(g.parents, path)
	}
	for range 20 + g.IntN(25) {
		if client := g.IntN(3); g.chance(85) {
			g.requests(client)
		} else {
			g.disconnect(client)
		}
	}
	return g.script
}

// generator generates scripts whose requests often succeed, and often fail narrowly.
// Comments say what is avoided.
type generator struct {
	*rand.Rand
	script script

	// The existing paths if all requests succeed: of possible parents, and of leaves.
	parents, leaves []string
	watched         []string // paths with a watch
}

func (g *generator) add(s step) {
	s.id = len(g.script) + 1
	g.script = append(g.script, s)
}

func (g *generator) chance(percent int) bool { return g.IntN(100) < percent }

// oneOf returns one of the values.
func oneOf[T any](g *generator, values ...T) T { return values[g.IntN(len(values))] }

// requests adds a step of requests.
func (g *generator) requests(client int) {
	s := step{client: client, collect: g.chance(50)}
	n := 1
	if g.chance(20) {
		n += 1 + g.IntN(4)
	}
	for range n {
		c := g.call()
		s.calls = append(s.calls, c)
		if c.disturbsLaterReplies() {
			break
		}
	}
	if n > 1 && !s.calls[len(s.calls)-1].disturbsLaterReplies() && g.chance(5) {
		s.calls = append(s.calls, call{op: zktest.OpCloseSession})
	}
	g.add(s)
	if s.ends() {
		g.othersRequest(client)
		g.reconnect(client)
	}
}

// disturbsLaterReplies reports whether the real server's replies to requests after the call
// depend on timing. The server checks a request before earlier ones are applied, against
// the state expected then. The expected state lacks a change of the ACL, includes the
// effect of a multi later found malformed, and treats a container requested with the flag
// ephemeral as an ephemeral.
func (c call) disturbsLaterReplies() bool {
	return c.op == zktest.OpSetACL || c.op == zktest.OpCreateContainer && c.flags&ephemeral != 0 || c.op == zktest.OpMulti && (c.truncated > 0 || slices.ContainsFunc(c.parts, func(part call) bool {
		return part.op != zktest.OpCreateTTL && (part.flags == ttl || part.flags == ttlSequential) || slices.Contains(reads, part.op)
	}))
}

// reads are operations not allowed in a multi; the generator sometimes adds one.
var reads = []zktest.Op{zktest.OpGetACL, zktest.OpGetData, zktest.OpSync}

// unspecified reports whether the real server's reply to a call is an accident of the
// implementation. No client can rely on such a reply.
func (c call) unspecified() bool {
	switch {
	case c.op == zktest.OpCreateTTL && c.ttl < 0 && c.flags != ttl && c.flags != ttlSequential:
		return true // makes the real server exit
	case c.op == zktest.OpCheckWatches && c.path == "!abc":
		return true // an error if the server has, or had, any recursive watch
	case c.op == zktest.OpMultiRead && len(c.parts) > 0 && !slices.ContainsFunc(c.parts, func(part call) bool { return part.op != zktest.OpDelete }):
		return true // an error whose reply has a record
	case len(c.acls) > 1 && slices.ContainsFunc(c.acls, func(a acl) bool { return a.Scheme == null || a.ID == null }):
		return true // an error if such an entry is compared with another one
	}
	return slices.ContainsFunc(c.parts, call.unspecified)
}

func (p script) unspecified() bool {
	return slices.ContainsFunc(p, func(s step) bool { return slices.ContainsFunc(s.calls, call.unspecified) })
}

// disconnect adds steps to end a connection or a session, and reconnect.
func (g *generator) disconnect(client int) {
	alone := func(c call) { g.add(step{client: client, calls: []call{c}, collect: g.chance(50)}) }
	switch g.IntN(9) {
	case 0, 1:
		g.add(step{client: client, act: drop})
	case 2:
		g.add(step{client: client, act: attachFast})
		g.afterReconnect(client)
		return
	case 3:
		g.add(step{client: client, act: attachBad})
	case 4:
		alone(call{op: zktest.OpCloseSession})
	case 5:
		g.add(step{client: client, act: killSession})
	case 6:
		alone(call{op: oneOf[zktest.Op](g, 55, 0, 1000)})
	case 7:
		// Replies to auth and sasl may overtake others, so they get their own step.
		alone(call{op: zktest.OpAuth, path: oneOf(g, "nope", "world", ""), data: []byte("u:p"), xid: oneOf(g, 0, xidAuth)})
	case 8:
		g.authenticate(client)
		return
	}
	g.othersRequest(client)
	g.reconnect(client)
}

// othersRequest adds requests of the other clients.
func (g *generator) othersRequest(client int) {
	for range g.IntN(4) {
		g.requests((client + 1 + g.IntN(2)) % 3)
	}
}

// reconnect connects again, if possible with the same session.
func (g *generator) reconnect(client int) {
	if g.chance(60) {
		g.add(step{client: client, act: attach})
		if g.chance(30) {
			g.requests(client)
		}
	}
	last := g.script[len(g.script)-1]
	if last.act != attach || g.chance(40) {
		g.add(step{client: client, act: openNew})
	}
	g.afterReconnect(client)
}

// afterReconnect adds what clients do when they are connected again.
func (g *generator) afterReconnect(client int) {
	if client == 0 && g.chance(80) || g.chance(10) {
		g.authenticate(client)
	}
	if g.chance(50) {
		g.add(step{client: client, calls: []call{g.setWatches()}, collect: g.chance(50)})
	}
}

func (g *generator) authenticate(client int) {
	c := call{op: zktest.OpAuth, path: "digest", data: []byte(oneOf(g, credentialU, credentialU, credentialV)), xid: oneOf(g, 0, xidAuth)}
	if g.chance(10) {
		c.path, c.data = oneOf(g, "digest", "ip"), []byte(oneOf(g, "", "u", "u:p:q"))
	}
	g.add(step{client: client, calls: []call{c}, collect: g.chance(50)})
}

// call returns any request, to be sent together with others.
func (g *generator) call() call {
	for {
		c := g.anyCall()
		if g.chance(3) {
			c.truncated = 1 + g.IntN(12)
		}
		if !c.unspecified() {
			return c
		}
	}
}

func (g *generator) anyCall() call {
	switch n := g.IntN(100); {
	case n < 42:
		return g.write()
	case n < 48:
		c := call{op: zktest.OpSetACL, path: g.path(), acls: g.acls(), version: g.version()}
		if c.path == "" && g.chance(90) {
			c.path = "/b"
		}
		return c
	case n < 66:
		c := call{op: oneOf(g, zktest.OpExists, zktest.OpGetData, zktest.OpGetChildren, zktest.OpGetChildren2), path: g.readPath(), watch: g.chance(60)}
		if c.watch {
			g.watched = append(g.watched, c.path)
		}
		return c
	case n < 69:
		return call{op: zktest.OpGetACL, path: g.readPath()}
	case n < 71:
		return call{op: zktest.OpSync, path: oneOf(g, g.path(), "!junk", "!", null)}
	case n < 80:
		return g.multi()
	case n < 83:
		c := call{op: zktest.OpMultiRead}
		for range g.IntN(5) {
			c.parts = append(c.parts, call{op: oneOf(g, zktest.OpGetData, zktest.OpGetChildren), path: g.readPath(), watch: g.chance(30)})
		}
		if g.chance(10) {
			c.parts = append(c.parts, call{op: zktest.OpDelete, path: g.path(), version: anyVersion})
		}
		return c
	case n < 86:
		return call{op: zktest.OpRemoveWatches, path: g.watchedPath(), flags: g.watchKind()}
	case n < 89:
		return call{op: zktest.OpCheckWatches, path: g.watchedPath(), flags: g.watchKind()}
	case n < 92:
		c := call{op: zktest.OpAddWatch, path: g.readPath(), flags: oneOf(g, modePersistent, modeRecursive)}
		if g.chance(10) {
			c.flags = oneOf[int32](g, -1, 2)
		}
		g.watched = append(g.watched, c.path)
		return c
	case n < 94:
		return g.setWatches()
	case n < 96:
		return call{op: zktest.OpGetEphemerals, path: oneOf(g, "", "/a", "!", "!/", "! /\t", null, g.path())}
	case n < 98:
		c := call{op: zktest.OpGetAllChildrenNumber, path: g.readPath()}
		if g.chance(5) {
			c.path = null
		}
		return c
	case n < 99:
		return call{op: zktest.OpWhoAmI}
	}
	return call{op: oneOf(g, zktest.OpPing, zktest.OpReconfig, zktest.OpDeleteContainer), path: "/a"}
}

// write returns a request, also allowed in a multi.
func (g *generator) write() call {
	for {
		if c := g.anyWrite(); !c.unspecified() {
			return c
		}
	}
}

func (g *generator) anyWrite() call {
	switch n := g.IntN(100); {
	case n < 60:
		return g.creation()
	case n < 75:
		c := call{op: zktest.OpDelete, path: g.path(), version: g.version()}
		if g.chance(50) {
			c.path = oneOf(g, append(g.leaves, g.parents[len(g.parents)-1])...)
		}
		if c.path == "" {
			c.path = "/a" // without the script's own node most requests would fail
		}
		if c.version <= 0 {
			gone := func(path string) bool { return path == c.path }
			g.parents, g.leaves = slices.DeleteFunc(g.parents, gone), slices.DeleteFunc(g.leaves, gone)
		}
		return c
	}
	return call{op: zktest.OpSetData, path: g.path(), data: g.data(), version: g.version()}
}

func (g *generator) creation() call {
	c := call{
		op:    oneOf(g, zktest.OpCreate, zktest.OpCreate, zktest.OpCreate2, zktest.OpCreate2, zktest.OpCreateContainer, zktest.OpCreateTTL),
		data:  g.data(),
		acls:  world,
		flags: oneOf(g, persistent, persistent, ephemeral, sequential, ephemeralSequential),
		ttl:   oneOf[int64](g, 1, 1000, 1<<40-1),
	}
	restricted := g.chance(25)
	if restricted {
		c.acls = g.acls()
	}
	switch c.op {
	case zktest.OpCreateContainer:
		c.flags = oneOf(g, container, container, container, persistent, ephemeral)
	case zktest.OpCreateTTL:
		c.flags = oneOf(g, ttl, ttl, ttlSequential, c.flags)
		if g.chance(10) {
			c.ttl = oneOf[int64](g, 0, -1, 1<<40)
		}
	}
	if g.chance(5) {
		c.flags = oneOf(g, -1, container, ttl, ttlSequential, 7, 9)
	}
	parent := oneOf(g, g.parents...)
	if p := g.path(); g.chance(10) && !strings.HasPrefix(p, "!") {
		parent = p
	}
	made := ""
	switch {
	case c.flags == sequential || c.flags == ephemeralSequential || c.flags == ttlSequential:
		c.path = parent + oneOf(g, "/", "/", "/a", "/n-", "/n-")
		made = fmt.Sprintf("$%d", len(g.script)+1)
	case g.chance(5):
		c.path = g.path()
	default:
		c.path = parent + oneOf(g, "/a", "/b", "/c", "/d")
		if strings.Count(c.path, "/") > 3 {
			c.path = oneOf(g, "/a", "/b", "/c", "/d")
		}
		made = c.path
	}
	switch {
	case made == "" || slices.Contains(g.parents, made) || slices.Contains(g.leaves, made):
	case restricted || c.flags == ephemeral || c.flags == ephemeralSequential:
		g.leaves = append(g.leaves, made)
	default:
		g.parents = append(g.parents, made)
	}
	return c
}

func (g *generator) multi() call {
	c := call{op: zktest.OpMulti}
	for range g.IntN(6) {
		part := g.write()
		if g.chance(20) {
			part = call{op: zktest.OpCheck, path: g.path(), version: g.version()}
		}
		c.parts = append(c.parts, part)
	}
	if g.chance(5) {
		c.parts = append(c.parts, call{op: oneOf(g, reads...), path: g.path()})
	}
	return c
}

func (g *generator) setWatches() call {
	c := call{op: oneOf(g, zktest.OpSetWatches, zktest.OpSetWatches2), since: oneOf(g, 0, now, 1+g.IntN(len(g.script))), xid: oneOf(g, 0, xidSetWatches)}
	n := 3
	if c.op == zktest.OpSetWatches2 {
		n = 5
	}
	c.lists = make([][]string, n)
	for i := range c.lists {
		for range g.IntN(3) {
			c.lists[i] = append(c.lists[i], g.readPath())
		}
	}
	return c
}

func (g *generator) watchKind() int32 {
	return oneOf(g, childWatch, dataWatch, anyWatch, childWatch, dataWatch, anyWatch, 0, 4)
}

// path returns a path for a write. ZooKeeper's own nodes, shared by all scripts, are used
// only where the write fails.
func (g *generator) path() string {
	switch n := g.IntN(100); {
	case n < 50:
		return oneOf(g, g.parents...)
	case n < 80:
		return oneOf(g, append(g.leaves, g.parents...)...)
	case n < 88:
		return oneOf(g, g.parents...) + oneOf(g, "/a", "/b", "/c", "/d")
	case n < 91:
		return fmt.Sprintf("$%d", 1+g.IntN(len(g.script)))
	case n < 95:
		return oneOf(g, "/a", "/b", "/c", "/d")
	}
	return oneOf(g, "!", "!abc", "/", "/a/", "/a//b", "/a/./b", "/..", "/x\x01", "/x\x00", "/x\u0085", "/x\ue000", "/x\ud7ff", "/x\ufff0",
		"!/zookeeper/config", "!/zookeeper/config/x", "!//")
}

// readPath returns a path for a read. It avoids the empty path, because only an accident of
// the real server makes it denote the root, and the root, because of the nodes of other
// scripts there.
func (g *generator) readPath() string {
	if g.chance(3) {
		return oneOf(g, "!/zookeeper", "!/zookeeper/config")
	}
	for {
		if p := g.path(); p != "!" {
			return p
		}
	}
}

// watchedPath returns a path probably watched.
func (g *generator) watchedPath() string {
	if len(g.watched) > 0 && g.chance(80) {
		return oneOf(g, g.watched[max(0, len(g.watched)-4):]...)
	}
	return g.readPath()
}

func (g *generator) version() int32 {
	return oneOf[int32](g, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 1, 1, 2, -2)
}

func (g *generator) data() []byte {
	return oneOf(g, nil, []byte{}, []byte("x"), []byte("data"), []byte("\x00\xff\n"))
}

func (g *generator) acls() []acl {
	perms := permAll
	if g.chance(40) {
		perms = oneOf(g, permRead, permWrite, permCreate, permDelete, permAdmin, permAll-permRead, permAll-permAdmin, permRead|permWrite, 0)
	}
	entry := func() acl {
		switch n := g.IntN(100); {
		case n < 50:
			return acl{perms, "world", "anyone"}
		case n < 65:
			return acl{perms, "auth", oneOf(g, "", null, "x")}
		case n < 85:
			return acl{perms, "digest", digestID(oneOf(g, credentialU, credentialV))}
		case n < 95:
			return acl{perms, "ip", oneOf(g, "127.0.0.1", "127.0.0.2", "127.0.0.0/8", "10.0.0.0/8")}
		}
		return oneOf(g, acl{perms, "world", "x"}, acl{perms, "digest", "none"}, acl{perms, "digest", "a:b:c"}, acl{perms, "digest", ":"},
			acl{perms, "digest", "a:"}, acl{perms, "ip", "127.0.0"}, acl{perms, "ip", "127.0.0.1/33"}, acl{perms, "ip", "127.0.0.1/x"},
			acl{perms, "nope", "x"}, acl{perms, "sasl", "x"}, acl{perms, null, null}, acl{perms, oneOf(g, "world", "digest", "ip"), null})
	}
	switch n := g.IntN(100); {
	case n < 2:
		return []acl{}
	case n < 4:
		return nil
	case n < 60:
		return []acl{entry()}
	case n < 65:
		a := entry()
		return []acl{a, a}
	}
	first := entry()
	perms = permRead
	return []acl{first, entry()}
}

// regressions are scripts on which the servers once diverged.
var regressions = []struct {
	title  string
	script script
}{
	{"sync returns a null path", script{
		{act: openNew},
		{calls: []call{{op: zktest.OpSync, path: null}}},
	}},
	{"a TTL node in a multi needs createTTL", script{
		{act: openNew},
		{calls: []call{{op: zktest.OpAddWatch, flags: modeRecursive}}},
		{calls: []call{{op: zktest.OpMulti, parts: []call{
			{op: zktest.OpCreate, path: "/a", acls: world},
			{op: zktest.OpCreate2, path: "/b", acls: world, flags: ttl},
		}}}},
		{calls: []call{{op: zktest.OpMulti, parts: []call{
			{op: zktest.OpDelete, path: "/none"},
			{op: zktest.OpCreateContainer, path: "/b", acls: world, flags: ttlSequential},
		}}}},
		{calls: []call{{op: zktest.OpMulti, parts: []call{
			{op: zktest.OpCreateTTL, path: "/b", acls: world, flags: ttl, ttl: 1},
		}}}},
	}},
	{"createTTL in a multi creates what the flags say", script{
		{act: openNew},
		{calls: []call{{op: zktest.OpMulti, parts: []call{
			{op: zktest.OpCreateTTL, path: "/a", acls: world, flags: persistent, ttl: 1},
			{op: zktest.OpCreateTTL, path: "/b", acls: world, flags: ephemeral, ttl: -1},
			{op: zktest.OpCreateTTL, path: "/c", acls: world, flags: container, ttl: 1},
		}}}},
		{calls: []call{{op: zktest.OpCreateTTL, path: "/d", acls: world, flags: persistent, ttl: 1}}},
	}},
	{"a check outside a multi is answered if it fails", script{
		{act: openNew},
		{calls: []call{{op: zktest.OpCheck, path: "/none", version: -1}}},
		{calls: []call{{op: zktest.OpCreate, path: "/a", acls: world}}},
		{calls: []call{{op: zktest.OpCheck, path: "/a", version: 1}}},
		{calls: []call{{op: zktest.OpCheck, path: "!a", version: 0}}},
		{calls: []call{{op: zktest.OpCheck, path: "/a", version: 0, truncated: 1}}},
		{calls: []call{{op: zktest.OpCreate, path: "/b", acls: []acl{{permAll &^ permRead, "world", "anyone"}}}}},
		{calls: []call{{op: zktest.OpCheck, path: "/b", version: 0}}},
	}},
	{"deleteContainer is refused to clients", script{
		{act: openNew},
		{calls: []call{{op: zktest.OpCreateContainer, path: "/a", acls: world, flags: container}}},
		{calls: []call{{op: zktest.OpCreate, path: "/a/b", acls: world}, {op: zktest.OpDelete, path: "/a/b"}}},
		{calls: []call{{op: zktest.OpDeleteContainer, path: "/a"}, {op: zktest.OpDeleteContainer, path: "/none"}, {op: zktest.OpDeleteContainer, path: null}}},
		{calls: []call{{op: zktest.OpDeleteContainer, path: "/a", truncated: 4}, {op: zktest.OpPing}}},
	}},
	{"digest needs credentials", script{
		{act: openNew},
		{calls: []call{{op: zktest.OpAuth, path: "digest", data: []byte{}}}},
		{calls: []call{{op: zktest.OpAuth, path: "ip"}}},
		{calls: []call{{op: zktest.OpWhoAmI}}},
		{calls: []call{{op: zktest.OpAuth, path: "digest"}}},
		{act: attach},
		{calls: []call{{op: zktest.OpAuth, path: "digest", data: []byte("u:p"), truncated: 1}}},
	}},
	{"SASL needs a token", script{
		{act: openNew},
		{calls: []call{{op: zktest.OpSASL, data: []byte{}}}},
		{calls: []call{{op: zktest.OpSASL, data: []byte("x")}}},
		{calls: []call{{op: zktest.OpSASL}}},
		{act: attach},
		{calls: []call{{op: zktest.OpSASL, truncated: 4}}},
		{act: attach},
		{calls: []call{{op: zktest.OpSASL, data: []byte("x"), truncated: 1}}},
	}},
	{"a null path has no children", script{
		{act: openNew},
		{calls: []call{{op: zktest.OpGetAllChildrenNumber, path: null}, {op: zktest.OpGetAllChildrenNumber, truncated: 1}}},
	}},
	{"an incomplete reconfig takes no zxid", script{
		{act: openNew},
		{calls: []call{{op: zktest.OpReconfig}, {op: zktest.OpReconfig, truncated: 1}, {op: zktest.OpReconfig, truncated: 100}, {op: zktest.OpReconfig}}},
	}},
	{"white space as the prefix of getEphemerals means all", script{
		{act: openNew},
		{calls: []call{{op: zktest.OpCreate, path: "/a", acls: world, flags: ephemeral}, {op: zktest.OpCreate, path: "/b", acls: world, flags: ephemeral}}},
		{calls: []call{
			{op: zktest.OpGetEphemerals, path: "! "}, {op: zktest.OpGetEphemerals, path: "!\t\n"}, {op: zktest.OpGetEphemerals, path: "! / "},
			{op: zktest.OpGetEphemerals, path: "!\u00a0"}, {op: zktest.OpGetEphemerals, path: "/a "}, {op: zktest.OpGetEphemerals, path: "/a"},
		}},
	}},
	{"the super user has all permissions", script{
		{act: openNew},
		{act: openNew, client: 1},
		{calls: []call{{op: zktest.OpAuth, path: "digest", data: []byte("super:wrong")}, {op: zktest.OpWhoAmI}}},
		{calls: []call{
			{op: zktest.OpCreate, path: "/a", acls: []acl{{permAll, "digest", digestID(credentialV)}}},
			{op: zktest.OpCreate, path: "/none", acls: []acl{{permAdmin, "world", "anyone"}}},
		}},
		{calls: []call{{op: zktest.OpGetData, path: "/a"}}},
		{client: 1, calls: []call{{op: zktest.OpAuth, path: "digest", data: []byte(superuser)}}},
		{client: 1, calls: []call{{op: zktest.OpWhoAmI}}},
		{client: 1, calls: []call{{op: zktest.OpGetACL, path: "/a"}, {op: zktest.OpGetData, path: "/a", watch: true}, {op: zktest.OpGetChildren, path: "/none", watch: true}}},
		{client: 1, calls: []call{{op: zktest.OpSetData, path: "/a", version: -1}, {op: zktest.OpCreate, path: "/none/b", acls: world}}, collect: true},
		{client: 1, calls: []call{{op: zktest.OpMulti, parts: []call{{op: zktest.OpCheck, path: "/none", version: 0}, {op: zktest.OpDelete, path: "/none/b"}}}}},
		{client: 1, calls: []call{{op: zktest.OpSetACL, path: "/a", acls: []acl{{permAll, "auth", ""}}, version: -1}}},
		{client: 1, calls: []call{
			{op: zktest.OpCreate, path: "/c", acls: []acl{{permAll, "super", ""}}},
			{op: zktest.OpCreate, path: "/d", acls: []acl{{permAll, "auth", ""}}}, {op: zktest.OpGetACL, path: "/d"},
		}},
		{calls: []call{{op: zktest.OpGetACL, path: "/a"}}},
	}},
	{"a watcher that may no longer read the node gets no event", script{
		{act: openNew},
		{act: openNew, client: 1},
		{calls: []call{{op: zktest.OpAuth, path: "digest", data: []byte(credentialU)}}},
		{calls: []call{{op: zktest.OpCreate, path: "/a", acls: world, flags: ephemeral}, {op: zktest.OpCreate, path: "/b", acls: world, flags: ephemeral}}},
		{client: 1, calls: []call{{op: zktest.OpExists, path: "/a", watch: true}, {op: zktest.OpGetData, path: "/b", watch: true}}},
		{calls: []call{{op: zktest.OpSetACL, path: "/a", acls: []acl{{permAll, "auth", ""}}, version: -1}}},
		{calls: []call{{op: zktest.OpSetACL, path: "/b", acls: []acl{{permAll, "auth", ""}}, version: -1}}},
		{calls: []call{{op: zktest.OpDelete, path: "/a", version: -1}}, collect: true},
		{calls: []call{{op: zktest.OpCloseSession}}, collect: true},
		{client: 1, calls: []call{{op: zktest.OpExists, path: "/b"}}},
	}},
}
