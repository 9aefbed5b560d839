package zktest_test

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

// This file plays random scripts of requests on the embedded server and on a
// real one and compares every reply, every event and its place among the
// replies, and the nodes that are there at the end. A script is made from a
// seed before it is played, so that both servers get the same one and it can be
// played again. Of a script that divides the servers the test prints the smallest
// part that still does.
//
// Compared as they are: error codes, paths, data, versions and counts. Compared
// by what they mean: zxids as the distance from the start of the script,
// sessions in the order of their creation, children as a set. Of times only
// that they are possible ones. What depends on chance inside the real server, or is an
// accident of it, is not asked for: see call.haunts, call.accidental, and the
// comments in generator.

var (
	differentialTime = flag.Duration("differential", 0, "play random scripts in TestDifferential for that long")
	differentialSeed = flag.Uint64("seed", 0, "the seed of TestDifferential's only script or, with -differential, of the first")
	againstReal      = flag.Bool("against-real", false, "compare two real servers in TestDifferential, to test the test")
)

// fixedScripts is how many scripts are always run.
const fixedScripts = 100

func TestDifferential(t *testing.T) {
	t.Parallel()
	rivals := [2]contestant{realContestant(t, "real"), {name: "embedded", addr: startEmbedded}}
	if *againstReal {
		rivals[1] = realContestant(t, "another real")
	}
	for i, r := range regressions {
		t.Run(r.title, func(t *testing.T) { requireAgreement(t, r.script.numbered(), rivals, uint64(1_000_000+i)) })
	}
	one := func(seed uint64) bool {
		return t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { requireAgreement(t, generate(seed), rivals, seed) })
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

// contestant is one of the two servers.
type contestant struct {
	name  string
	addr  func(testing.TB) string // starts the server for one script, or says where it is
	sweep bool                    // delete the nodes of a script after it
}

func startEmbedded(t testing.TB) string {
	return zktest.Start(t, zktest.ExtendedTypes(), zktest.ContainerInterval(time.Hour), zktest.SuperUser(superuser)).Addr()
}

// The credentials that scripts use, and those of the real server's super user,
// who can delete everything.
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

// realContestant starts a server that does nothing of its own accord.
func realContestant(t testing.TB, name string) contestant {
	server := zktest.StartReal(t,
		zktest.Properties(map[string]string{"extendedTypesEnabled": "true"}),
		zktest.JVMFlags(
			"-Dznode.container.checkIntervalMs=3600000",
			"-Dzookeeper.forceSync=no"), // nobody needs the nodes after a crash
		zktest.SuperUser(superuser))
	return contestant{name: name, addr: func(testing.TB) string { return server.Addr() }, sweep: true}
}

// requireAgreement fails the test if the servers answer differently.
func requireAgreement(t *testing.T, p script, rivals [2]contestant, number uint64) {
	attempt := 0
	diverge := func(p script) *divergence {
		attempt++
		root := fmt.Sprintf("/d%d-%d", number, attempt)
		return p.compare([2][]string{p.play(t, rivals[0], root), p.play(t, rivals[1], root)})
	}
	d := diverge(p)
	if d == nil {
		return
	}
	t.Logf("the whole script diverges at step %d\n%s", d.script[min(d.at, len(p)-1)].id, d.show(rivals))
	d = d.shrink(diverge)
	t.Fatalf("%s and %s give different answers. The least script that shows it:\n%s", rivals[0].name, rivals[1].name, d.show(rivals))
}

// divergence is the first difference between the answers to a script.
type divergence struct {
	script  script
	at      int // the index of the step; behind the last one: the nodes at the end
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

func (d *divergence) show(rivals [2]contestant) string {
	var b strings.Builder
	for _, s := range d.script[:min(d.at+1, len(d.script))] {
		fmt.Fprintf(&b, "  %v\n", s)
	}
	if d.at == len(d.script) {
		b.WriteString("  the nodes at the end\n")
	}
	for i, a := range d.answers {
		fmt.Fprintf(&b, "%s: %s\n", rivals[i].name, a)
	}
	return b.String()
}

// shrinkTime bounds how long a smaller script is looked for.
const shrinkTime = 3 * time.Minute

// shrink leaves out what is not needed for the servers to diverge.
func (d *divergence) shrink(diverge func(script) *divergence) *divergence {
	deadline := time.Now().Add(shrinkTime)
	try := func(p script) bool {
		if p.accidental() || time.Now().After(deadline) {
			return false
		}
		smaller := diverge(p)
		if smaller != nil {
			d = smaller
		}
		return smaller != nil
	}
	try(d.script[:min(d.at+1, len(d.script))])
	for before := 0; before != d.script.size(); {
		before = d.script.size()
		for n := max(1, len(d.script)/2); n > 0; n /= 2 {
			for i := len(d.script) - n; i >= 0; i -= n {
				i = min(i, len(d.script)-n)
				if i >= 0 {
					try(slices.Delete(slices.Clone(d.script), i, i+n))
				}
			}
		}
		for i := 0; i < len(d.script); i++ {
			for j := len(d.script[i].calls) - 1; j >= 0 && i < len(d.script); j-- {
				for k := len(d.script[i].calls[j].parts) - 1; k >= 0; k-- {
					p := d.script.clone()
					p[i].calls[j].parts = slices.Delete(p[i].calls[j].parts, k, k+1)
					try(p)
				}
				if len(d.script[i].calls) > 1 {
					p := d.script.clone()
					p[i].calls = slices.Delete(p[i].calls, j, j+1)
					try(p)
				}
			}
		}
	}
	return d
}

// script is what three clients do, one step after the other.
type script []step

// numbered gives the steps their numbers.
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

// step is what one client does at a time.
type step struct {
	id    int // stays the same when other steps are left out
	who   int // the client
	act   act
	calls []call // of the act ask, sent in a single write
	look  bool   // afterwards, take in the events of all clients
}

type act int

const (
	ask        act = iota // send requests
	openNew               // leave the session, if any, and open a new one
	drop                  // end the connection
	attach                // connect again with the session
	attachFast            // the same while the old connection is there
	attachBad             // the same with a wrong password
	kill                  // end the session by another connection
)

var actNames = [...]string{"ask", "open a session", "drop the connection", "re-attach", "re-attach over", "re-attach with a wrong password", "kill the session"}

func (s step) String() string {
	text := actNames[s.act]
	if s.act == ask {
		calls := make([]string, len(s.calls))
		for i, c := range s.calls {
			calls[i] = c.String()
		}
		text = strings.Join(calls, "; ")
	}
	if s.look {
		text += " (look)"
	}
	return fmt.Sprintf("%2d %c: %s", s.id, 'A'+s.who, text)
}

// call is a request. Its paths are below the script's own node, but for those
// behind an exclamation mark; $7 is what step 7 created.
type call struct {
	op      int32
	xid     int32 // 0: the next one
	path    string
	data    []byte
	acls    []acl
	flags   int32 // of a create; the mode of addWatch, the kind in removeWatches
	version int32
	ttl     int64
	watch   bool
	since   int // of setWatches: the number of a step, 0 the start, or now
	lists   [][]string
	parts   []call
	cut     int // so many bytes are missing at the end
}

// now is the zxid of the latest reply.
const now = -1

var callNames = map[int32]string{
	opCreate: "create", opDelete: "delete", opExists: "exists", opGetData: "getData", opSetData: "setData",
	opGetACL: "getACL", opSetACL: "setACL", opGetChildren: "getChildren", opSync: "sync", opPing: "ping",
	opGetChildren2: "getChildren2", opCheck: "check", opMulti: "multi", opCreate2: "create2", opReconfig: "reconfig",
	opCheckWatches: "checkWatches", opRemoveWatches: "removeWatches", opCreateContainer: "createContainer",
	opDeleteContainer: "deleteContainer",
	opCreateTTL:       "createTTL", opMultiRead: "multiRead", opAuth: "auth", opSetWatches: "setWatches", opSASL: "sasl",
	opGetEphemerals: "getEphemerals", opGetAllChildrenNumber: "getAllChildrenNumber", opSetWatches2: "setWatches2",
	opAddWatch: "addWatch", opWhoAmI: "whoAmI", opCloseSession: "closeSession",
}

func (c call) String() string {
	name := callNames[c.op]
	if name == "" {
		name = fmt.Sprintf("op %d", c.op)
	}
	var args []any
	data := "null"
	if c.data != nil {
		data = strconv.Quote(string(c.data))
	}
	path := strconv.Quote(c.path)
	if c.path == null {
		path = "null"
	}
	switch c.op {
	case opCreate, opCreate2, opCreateContainer:
		args = []any{path, data, showACL(c.acls), "flags", c.flags}
	case opCreateTTL:
		args = []any{path, data, showACL(c.acls), "flags", c.flags, "ttl", c.ttl}
	case opDelete, opCheck:
		args = []any{path, c.version}
	case opSetData:
		args = []any{path, data, c.version}
	case opSetACL:
		args = []any{path, showACL(c.acls), c.version}
	case opExists, opGetData, opGetChildren, opGetChildren2:
		args = []any{path}
		if c.watch {
			args = append(args, "watch")
		}
	case opAddWatch, opCheckWatches, opRemoveWatches:
		args = []any{path, c.flags}
	case opMulti, opMultiRead:
		args = []any{c.parts}
	case opAuth:
		args = []any{path, data}
	case opSetWatches, opSetWatches2:
		args = []any{"since", c.since, fmt.Sprintf("%q", c.lists)}
	case opGetACL, opSync, opGetEphemerals, opGetAllChildrenNumber, opDeleteContainer:
		args = []any{path}
	}
	if c.xid != 0 {
		args = append(args, "xid", c.xid)
	}
	if c.cut != 0 {
		args = append(args, "without the last bytes:", c.cut)
	}
	return name + strings.TrimSuffix("("+fmt.Sprintln(args...), "\n") + ")"
}

// player runs a script on one server.
type player struct {
	t        testing.TB
	addr     string
	root     string
	base     int64 // the zxid at the start
	latest   int64 // the largest zxid there was
	clients  [3]actor
	sessions []handshake    // all, in the order of their creation
	created  map[int]string // paths by the numbers of steps
	zxids    map[int]int64  // of the replies, by the numbers of steps
}

// actor is one of the script's clients.
type actor struct {
	conn    *client // nil: not connected
	session handshake
}

// broken is the end of a script whose server breaks the protocol.
type broken struct{ complaint string }

// catcher makes the raw client's complaints answers that can be compared.
type catcher struct {
	testing.TB
	complaint string
}

func (c *catcher) Errorf(format string, args ...any) { c.complaint = fmt.Sprintf(format, args...) }
func (c *catcher) FailNow()                          { panic(broken{c.complaint}) }

// play returns the answers to the steps and, behind them, the nodes at the end.
func (p script) play(t testing.TB, c contestant, root string) (answers []string) {
	pl := &player{t: &catcher{TB: t}, addr: c.addr(t), root: root, created: map[int]string{}, zxids: map[int]int64{}}
	defer func() {
		switch r := recover().(type) {
		case nil:
		case broken:
			answers = append(answers, "broken: "+r.complaint)
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
	answers = append(answers, strings.ReplaceAll(pl.end(reader), root, "~"))
	if c.sweep {
		sweep(t, pl.addr, root)
	}
	return answers
}

// step does one step and returns all that can be seen of it.
func (pl *player) step(s step) string {
	p := &pl.clients[s.who]
	var answer []string
	if s.act != ask || s.ends() {
		// What a server has not sent when a connection ends is lost. And the
		// order of events when a session ends is open: so that it can be
		// ignored, they must not be together with others.
		answer = append(answer, pl.look(false)...)
		s.look = true
	}
	switch s.act {
	case ask:
		if p.conn == nil {
			return "not connected"
		}
		answer = append(answer, pl.ask(p, s)...)
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
	case kill:
		answer = append(answer, pl.attach(p, p.session)...)
		if p.conn != nil {
			answer = append(answer, pl.ask(p, step{calls: []call{{op: opCloseSession}}})...)
		}
	}
	if s.look {
		answer = append(answer, pl.look(s.ends())...)
	}
	return strings.Join(answer, "\n\t")
}

// ends reports whether the step ends a session.
func (s step) ends() bool {
	return s.act == kill || slices.ContainsFunc(s.calls, func(c call) bool { return c.op == opCloseSession })
}

// ask sends the step's requests and returns what came back.
func (pl *player) ask(p *actor, s step) (answers []string) {
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
			if slices.Contains([]int32{opCreate, opCreate2, opCreateContainer, opCreateTTL}, made.Op) && made.Err == 0 {
				pl.created[s.id] = made.Path
			}
		}
		answers = append(answers, pl.events(reply.Events, r.Op == opCloseSession)+pl.show(reply))
		switch {
		case r.Op == opCloseSession, reply.Err == errUnimplemented && reply.Zxid == -1, reply.Err == errAuthFailed:
			answers = append(answers, pl.drain(p)...)
			return answers
		}
	}
	if len(p.conn.pending) > 0 {
		answers = append(answers, pl.drain(p)...)
	}
	return answers
}

// drop ends the connection, if there is one, and waits until the server has
// ended it, too: then its watches are gone.
func (pl *player) drop(p *actor) []string {
	if p.conn == nil {
		return nil
	}
	type halfCloser interface{ CloseWrite() error }
	require.NoError(pl.t, p.conn.conn.(halfCloser).CloseWrite())
	return pl.drain(p)
}

// drain reads what comes before the server ends the connection.
func (pl *player) drain(p *actor) (answers []string) {
	for {
		reply, err := p.conn.tryReply()
		if err != nil {
			break
		}
		answers = append(answers, pl.events(reply.Events, false)+pl.show(reply))
	}
	missed := p.conn.events[len(p.conn.events)-p.conn.fresh:]
	p.conn.cut()
	p.conn = nil
	return append(answers, pl.events(missed, false)+"the end")
}

// attach connects with a session; the server then ends its old connection.
func (pl *player) attach(p *actor, h handshake) (answers []string) {
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

// look returns the events that came to all clients since they last read. The
// order of those that came together can be ignored.
func (pl *player) look(sorted bool) (answers []string) {
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

// end returns all nodes, and ends all sessions.
func (pl *player) end(reader *client) string {
	answers := pl.look(false)
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
			answers = append(answers, pl.owner(h.Session)+" lives")
			c.do(closeSession())
		}
		c.end()
		c.cut()
	}
	for i := range pl.clients {
		if p := &pl.clients[i]; p.conn != nil {
			pl.drain(p)
		}
	}
	answers = append(answers, "finally "+pl.show(reader.do(getAllChildrenNumber(pl.root))))
	reader.do(closeSession())
	reader.end()
	reader.cut()
	return strings.Join(answers, "\n\t")
}

// sweep deletes what a script has left on a server for many scripts.
func sweep(t testing.TB, addr, root string) {
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
	c.end()
	c.cut()
}

// request returns the packet of a call.
func (pl *player) request(c call) request {
	path := pl.path(c.path)
	r := request{Op: c.op}
	switch c.op {
	case opCreate, opCreate2, opCreateContainer, opCreateTTL:
		r = creation(c.op, path, c.data, c.acls, c.flags)
		if c.op == opCreateTTL {
			r.Body = encoder(r.Body).long(c.ttl)
		}
	case opDelete:
		r = remove(path, c.version)
	case opCheck:
		r = checkVersion(path, c.version)
	case opSetData:
		r = setData(path, c.data, c.version)
	case opSetACL:
		r = setACL(path, c.version, c.acls...)
	case opExists, opGetData, opGetChildren, opGetChildren2:
		r = reading(c.op, path, c.watch)
	case opAddWatch, opCheckWatches, opRemoveWatches:
		r = watching(c.op, path, c.flags)
	case opMulti, opMultiRead:
		parts := make([]request, len(c.parts))
		for i, part := range c.parts {
			parts[i] = pl.request(part)
		}
		r = multiOf(c.op, parts)
	case opAuth:
		r.Body = encoder{}.int(0).string(c.path).buffer(c.data)
	case opSASL:
		r.Body = encoder{}.buffer(c.data)
	case opReconfig:
		r.Body = encoder{}.string(null).string(null).string(null).long(-1)
	case opSetWatches, opSetWatches2:
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
	case opGetACL, opSync, opGetEphemerals, opGetAllChildrenNumber, opDeleteContainer:
		r = about(c.op, path)
	case opPing:
		r = ping()
	}
	if c.xid != 0 {
		r.Xid = c.xid
	}
	r.Body = r.Body[:len(r.Body)-min(c.cut, len(r.Body))]
	return r
}

// path returns a call's path as the server gets it.
func (pl *player) path(path string) string {
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
		return pl.root + "/" + path // a node that is not there
	}
	return pl.root + path
}

// show describes a reply.
func (pl *player) show(r result) string {
	if r.Err != 0 {
		return fmt.Sprintf("error %d%s", r.Err, pl.at(r.Zxid))
	}
	words := []string{"ok" + pl.at(r.Zxid)}
	if r.Path != "" {
		words = append(words, strconv.Quote(r.Path))
	}
	if r.Op == opGetData {
		words = append(words, pl.data(r.Data))
	}
	if r.Names != nil {
		slices.Sort(r.Names)
		words = append(words, fmt.Sprintf("%q", r.Names))
	}
	if r.ACL != nil {
		// The real server keeps identities in a set: their order is open in
		// the answer to whoAmI, and in what the scheme auth becomes.
		if r.Op == opWhoAmI || manyDigests(r.ACL) {
			slices.SortFunc(r.ACL, func(a, b acl) int { return strings.Compare(showACL([]acl{a}), showACL([]acl{b})) })
		}
		words = append(words, showACL(r.ACL))
	}
	if r.Stat != (stat{}) {
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

func (pl *player) data(b []byte) string {
	if b == nil {
		return "null"
	}
	return strconv.Quote(string(b))
}

// at describes a zxid.
func (pl *player) at(zxid int64) string {
	if zxid <= 0 {
		return fmt.Sprintf("@%d", zxid)
	}
	return fmt.Sprintf("@%+d", zxid-pl.base)
}

func (pl *player) owner(session int64) string {
	i := slices.IndexFunc(pl.sessions, func(h handshake) bool { return h.Session == session })
	if i < 0 {
		return "somebody"
	}
	return fmt.Sprintf("S%d", i+1)
}

func (pl *player) stat(s stat) string {
	text := fmt.Sprintf("{c%s m%s p%s v%d c%d a%d len %d children %d", pl.at(s.Czxid), pl.at(s.Mzxid), pl.at(s.Pzxid),
		s.Version, s.Cversion, s.Aversion, s.DataLength, s.NumChildren)
	if s.Owner != 0 {
		text += " owner " + pl.owner(s.Owner)
	}
	switch {
	case s.Ctime == 0 && s.Mtime == 0:
		text += " timeless"
	case s.Ctime <= 0 || s.Mtime < s.Ctime:
		text += " with impossible times"
	}
	return text + "}"
}

var eventNames = map[int32]string{nodeCreated: "created", nodeDeleted: "deleted", nodeDataChanged: "changed", nodeChildrenChanged: "children"}

func (pl *player) events(events []event, sorted bool) string {
	texts := make([]string, len(events))
	for i, e := range events {
		texts[i] = fmt.Sprintf("<%s %q> ", eventNames[e.Type], e.Path)
	}
	if sorted {
		slices.Sort(texts)
	}
	return strings.Join(texts, "")
}

// generate makes the script of a seed.
func generate(seed uint64) script {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, seed)), parents: []string{""}}
	for who := range 3 {
		g.add(step{who: who, act: openNew})
	}
	g.authenticate(0)
	for _, path := range []string{"/a", "/b", "/a/c"} {
		g.add(step{who: g.IntN(3), calls: []call{{op: opCreate, path: path, acls: world}}})
		g.parents = append(g.parents, path)
	}
	for range 20 + g.IntN(25) {
		if who := g.IntN(3); g.chance(85) {
			g.requests(who)
		} else {
			g.disturb(who)
		}
	}
	return g.script
}

// generator makes scripts that often do what is possible, and what is just
// not. What it must leave out has a comment at the place.
type generator struct {
	*rand.Rand
	script script

	// Paths that are there if everything went well: of nodes that can have
	// children, and of others.
	parents, leaves []string
	watched         []string // paths that somebody has watched
}

func (g *generator) add(s step) {
	s.id = len(g.script) + 1
	g.script = append(g.script, s)
}

func (g *generator) chance(percent int) bool { return g.IntN(100) < percent }

// of returns one of the values.
func of[T any](g *generator, values ...T) T { return values[g.IntN(len(values))] }

// requests adds a step that asks for something.
func (g *generator) requests(who int) {
	s := step{who: who, look: g.chance(50)}
	n := 1
	if g.chance(20) {
		n += 1 + g.IntN(4)
	}
	for range n {
		c := g.call()
		s.calls = append(s.calls, c)
		if c.haunts() {
			break
		}
	}
	if n > 1 && !s.calls[len(s.calls)-1].haunts() && g.chance(5) {
		s.calls = append(s.calls, call{op: opCloseSession})
	}
	g.add(s)
	if s.ends() {
		g.elsewhere(who)
		g.comeBack(who)
	}
}

// haunts reports whether the real server's answers to requests behind the call
// depend on when they come. It checks requests before those in front of them
// are carried out, against what it expects to be then: but without a change of
// the ACL, with what a multi would have done that it fails to understand, and
// with a container that was asked for as an ephemeral as one that goes with
// its session.
func (c call) haunts() bool {
	return c.op == opSetACL || c.op == opCreateContainer && c.flags&ephemeral != 0 || c.op == opMulti && (c.cut > 0 || slices.ContainsFunc(c.parts, func(part call) bool {
		return part.op != opCreateTTL && (part.flags == ttl || part.flags == ttlSequential) || slices.Contains(reads, part.op)
	}))
}

// reads are the operations that must not be in a multi but sometimes are.
var reads = []int32{opGetACL, opGetData, opSync}

// accidental reports whether the real server's answer to a call is an accident
// that no client can rely on.
func (c call) accidental() bool {
	switch {
	case c.op == opCreateTTL && c.ttl < 0 && c.flags != ttl && c.flags != ttlSequential:
		return true // ends the real server
	case c.op == opCheckWatches && c.path == "!abc":
		return true // an error if there is, or was, any recursive watch on the server
	case c.op == opMultiRead && len(c.parts) > 0 && !slices.ContainsFunc(c.parts, func(part call) bool { return part.op != opDelete }):
		return true // an error that has a record
	case len(c.acls) > 1 && slices.ContainsFunc(c.acls, func(a acl) bool { return a.Scheme == null || a.ID == null }):
		return true // an error if such an entry is compared with another
	}
	return slices.ContainsFunc(c.parts, call.accidental)
}

func (p script) accidental() bool {
	return slices.ContainsFunc(p, func(s step) bool { return slices.ContainsFunc(s.calls, call.accidental) })
}

// disturb adds steps that end a connection or a session, and then go on.
func (g *generator) disturb(who int) {
	alone := func(c call) { g.add(step{who: who, calls: []call{c}, look: g.chance(50)}) }
	switch g.IntN(9) {
	case 0, 1:
		g.add(step{who: who, act: drop})
	case 2:
		g.add(step{who: who, act: attachFast})
		g.again(who)
		return
	case 3:
		g.add(step{who: who, act: attachBad})
	case 4:
		alone(call{op: opCloseSession})
	case 5:
		g.add(step{who: who, act: kill})
	case 6:
		alone(call{op: of[int32](g, 55, 0, 1000)})
	case 7:
		// The replies to auth and sasl may overtake others: they stay alone.
		alone(call{op: opAuth, path: of(g, "nope", "world", ""), data: []byte("u:p"), xid: of(g, 0, xidAuth)})
	case 8:
		g.authenticate(who)
		return
	}
	g.elsewhere(who)
	g.comeBack(who)
}

// elsewhere adds what the others do meanwhile.
func (g *generator) elsewhere(who int) {
	for range g.IntN(4) {
		g.requests((who + 1 + g.IntN(2)) % 3)
	}
}

// comeBack connects again, if possible with the same session.
func (g *generator) comeBack(who int) {
	if g.chance(60) {
		g.add(step{who: who, act: attach})
		if g.chance(30) {
			g.requests(who)
		}
	}
	last := g.script[len(g.script)-1]
	if last.act != attach || g.chance(40) {
		g.add(step{who: who, act: openNew})
	}
	g.again(who)
}

// again does what clients do when they are connected again.
func (g *generator) again(who int) {
	if who == 0 && g.chance(80) || g.chance(10) {
		g.authenticate(who)
	}
	if g.chance(50) {
		g.add(step{who: who, calls: []call{g.setWatches()}, look: g.chance(50)})
	}
}

func (g *generator) authenticate(who int) {
	c := call{op: opAuth, path: "digest", data: []byte(of(g, credentialU, credentialU, credentialV)), xid: of(g, 0, xidAuth)}
	if g.chance(10) {
		c.path, c.data = of(g, "digest", "ip"), []byte(of(g, "", "u", "u:p:q"))
	}
	g.add(step{who: who, calls: []call{c}, look: g.chance(50)})
}

// call returns any request that is for groups, too.
func (g *generator) call() call {
	for {
		c := g.anyCall()
		if g.chance(3) {
			c.cut = 1 + g.IntN(12)
		}
		if !c.accidental() {
			return c
		}
	}
}

func (g *generator) anyCall() call {
	switch n := g.IntN(100); {
	case n < 42:
		return g.write()
	case n < 48:
		c := call{op: opSetACL, path: g.path(), acls: g.acls(), version: g.version()}
		if c.path == "" && g.chance(90) {
			c.path = "/b"
		}
		return c
	case n < 66:
		c := call{op: of(g, opExists, opGetData, opGetChildren, opGetChildren2), path: g.readPath(), watch: g.chance(60)}
		if c.watch {
			g.watched = append(g.watched, c.path)
		}
		return c
	case n < 69:
		return call{op: opGetACL, path: g.readPath()}
	case n < 71:
		return call{op: opSync, path: of(g, g.path(), "!junk", "!", null)}
	case n < 80:
		return g.multi()
	case n < 83:
		c := call{op: opMultiRead}
		for range g.IntN(5) {
			c.parts = append(c.parts, call{op: of(g, opGetData, opGetChildren), path: g.readPath()})
		}
		if g.chance(10) {
			c.parts = append(c.parts, call{op: opDelete, path: g.path(), version: anyVersion})
		}
		return c
	case n < 86:
		return call{op: opRemoveWatches, path: g.watchedPath(), flags: g.watchKind()}
	case n < 89:
		return call{op: opCheckWatches, path: g.watchedPath(), flags: g.watchKind()}
	case n < 92:
		c := call{op: opAddWatch, path: g.readPath(), flags: of(g, modePersistent, modeRecursive)}
		if g.chance(10) {
			c.flags = of[int32](g, -1, 2)
		}
		g.watched = append(g.watched, c.path)
		return c
	case n < 94:
		return g.setWatches()
	case n < 96:
		return call{op: opGetEphemerals, path: of(g, "", "/a", "!", "!/", "! /\t", null, g.path())}
	case n < 98:
		c := call{op: opGetAllChildrenNumber, path: g.readPath()}
		if g.chance(5) {
			c.path = null
		}
		return c
	case n < 99:
		return call{op: opWhoAmI}
	}
	return call{op: of(g, opPing, opReconfig, opDeleteContainer), path: "/a"}
}

// write returns a request that can also be in a multi.
func (g *generator) write() call {
	for {
		if c := g.anyWrite(); !c.accidental() {
			return c
		}
	}
}

func (g *generator) anyWrite() call {
	switch n := g.IntN(100); {
	case n < 60:
		return g.creation()
	case n < 75:
		c := call{op: opDelete, path: g.path(), version: g.version()}
		if g.chance(50) {
			c.path = of(g, append(g.leaves, g.parents[len(g.parents)-1])...)
		}
		if c.path == "" {
			c.path = "/a" // without the script's own node little is possible
		}
		if c.version <= 0 {
			gone := func(path string) bool { return path == c.path }
			g.parents, g.leaves = slices.DeleteFunc(g.parents, gone), slices.DeleteFunc(g.leaves, gone)
		}
		return c
	}
	return call{op: opSetData, path: g.path(), data: g.data(), version: g.version()}
}

func (g *generator) creation() call {
	c := call{
		op:    of(g, opCreate, opCreate, opCreate2, opCreate2, opCreateContainer, opCreateTTL),
		data:  g.data(),
		acls:  world,
		flags: of(g, persistent, persistent, ephemeral, sequential, ephemeralSequential),
		ttl:   of[int64](g, 1, 1000, 1<<40-1),
	}
	restricted := g.chance(25)
	if restricted {
		c.acls = g.acls()
	}
	switch c.op {
	case opCreateContainer:
		c.flags = of(g, container, container, container, persistent, ephemeral)
	case opCreateTTL:
		c.flags = of(g, ttl, ttl, ttlSequential, c.flags)
		if g.chance(10) {
			c.ttl = of[int64](g, 0, -1, 1<<40)
		}
	}
	if g.chance(5) {
		c.flags = of(g, -1, container, ttl, ttlSequential, 7, 9)
	}
	parent := of(g, g.parents...)
	if p := g.path(); g.chance(10) && !strings.HasPrefix(p, "!") {
		parent = p
	}
	made := ""
	switch {
	case c.flags == sequential || c.flags == ephemeralSequential || c.flags == ttlSequential:
		c.path = parent + of(g, "/", "/", "/a", "/n-", "/n-")
		made = fmt.Sprintf("$%d", len(g.script)+1)
	case g.chance(5):
		c.path = g.path()
	default:
		c.path = parent + of(g, "/a", "/b", "/c", "/d")
		if strings.Count(c.path, "/") > 3 {
			c.path = of(g, "/a", "/b", "/c", "/d")
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
	c := call{op: opMulti}
	for range g.IntN(6) {
		part := g.write()
		if g.chance(20) {
			part = call{op: opCheck, path: g.path(), version: g.version()}
		}
		c.parts = append(c.parts, part)
	}
	if g.chance(5) {
		c.parts = append(c.parts, call{op: of(g, reads...), path: g.path()})
	}
	return c
}

func (g *generator) setWatches() call {
	c := call{op: of(g, opSetWatches, opSetWatches2), since: of(g, 0, now, 1+g.IntN(len(g.script))), xid: of(g, 0, xidSetWatches)}
	n := 3
	if c.op == opSetWatches2 {
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
	return of(g, childWatch, dataWatch, anyWatch, childWatch, dataWatch, anyWatch, 0, 4)
}

// path returns a path for writing. Nodes that ZooKeeper has of its own are
// only written to where that fails: they are there for all scripts.
func (g *generator) path() string {
	switch n := g.IntN(100); {
	case n < 50:
		return of(g, g.parents...)
	case n < 80:
		return of(g, append(g.leaves, g.parents...)...)
	case n < 88:
		return of(g, g.parents...) + of(g, "/a", "/b", "/c", "/d")
	case n < 91:
		return fmt.Sprintf("$%d", 1+g.IntN(len(g.script)))
	case n < 95:
		return of(g, "/a", "/b", "/c", "/d")
	}
	return of(g, "!", "!abc", "/", "/a/", "/a//b", "/a/./b", "/..", "/x\x01", "/x\x00", "/x\u0085", "/x\ue000", "/x\ud7ff", "/x\ufff0",
		"!/zookeeper/config", "!/zookeeper/config/x", "!//")
}

// readPath is like path. The empty path is left out: that it is the root is an
// accident of the real server. So is the root, in which other scripts are.
func (g *generator) readPath() string {
	if g.chance(3) {
		return of(g, "!/zookeeper", "!/zookeeper/config")
	}
	for {
		if p := g.path(); p != "!" {
			return p
		}
	}
}

// watchedPath returns a path of which there probably is a watch.
func (g *generator) watchedPath() string {
	if len(g.watched) > 0 && g.chance(80) {
		return of(g, g.watched[max(0, len(g.watched)-4):]...)
	}
	return g.readPath()
}

func (g *generator) version() int32 {
	return of[int32](g, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 1, 1, 2, -2)
}

func (g *generator) data() []byte {
	return of(g, nil, []byte{}, []byte("x"), []byte("data"), []byte("\x00\xff\n"))
}

func (g *generator) acls() []acl {
	perms := permAll
	if g.chance(40) {
		perms = of(g, permRead, permWrite, permCreate, permDelete, permAdmin, permAll-permRead, permAll-permAdmin, permRead|permWrite, 0)
	}
	entry := func() acl {
		switch n := g.IntN(100); {
		case n < 50:
			return acl{perms, "world", "anyone"}
		case n < 65:
			return acl{perms, "auth", of(g, "", null, "x")}
		case n < 85:
			return acl{perms, "digest", digestID(of(g, credentialU, credentialV))}
		case n < 95:
			return acl{perms, "ip", of(g, "127.0.0.1", "127.0.0.0/8", "10.0.0.1", "10.0.0.0/8")}
		}
		return of(g, acl{perms, "world", "x"}, acl{perms, "digest", "none"}, acl{perms, "digest", "a:b:c"}, acl{perms, "digest", ":"},
			acl{perms, "digest", "a:"}, acl{perms, "ip", "127.0.0"}, acl{perms, "ip", "127.0.0.1/33"}, acl{perms, "ip", "127.0.0.1/x"},
			acl{perms, "nope", "x"}, acl{perms, "sasl", "x"}, acl{perms, null, null})
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

// regressions are scripts that once divided the servers.
var regressions = []struct {
	title  string
	script script
}{
	{"sync echoes null", script{
		{act: openNew},
		{calls: []call{{op: opSync, path: null}}},
	}},
	{"a TTL node in a multi needs createTTL", script{
		{act: openNew},
		{calls: []call{{op: opAddWatch, flags: modeRecursive}}},
		{calls: []call{{op: opMulti, parts: []call{
			{op: opCreate, path: "/a", acls: world},
			{op: opCreate2, path: "/b", acls: world, flags: ttl},
		}}}},
		{calls: []call{{op: opMulti, parts: []call{
			{op: opDelete, path: "/none"},
			{op: opCreateContainer, path: "/b", acls: world, flags: ttlSequential},
		}}}},
		{calls: []call{{op: opMulti, parts: []call{
			{op: opCreateTTL, path: "/b", acls: world, flags: ttl, ttl: 1},
		}}}},
	}},
	{"createTTL in a multi makes what the flags say", script{
		{act: openNew},
		{calls: []call{{op: opMulti, parts: []call{
			{op: opCreateTTL, path: "/a", acls: world, flags: persistent, ttl: 1},
			{op: opCreateTTL, path: "/b", acls: world, flags: ephemeral, ttl: -1},
			{op: opCreateTTL, path: "/c", acls: world, flags: container, ttl: 1},
		}}}},
		{calls: []call{{op: opCreateTTL, path: "/d", acls: world, flags: persistent, ttl: 1}}},
	}},
	{"a check alone that fails is answered", script{
		{act: openNew},
		{calls: []call{{op: opCheck, path: "/none", version: -1}}},
		{calls: []call{{op: opCreate, path: "/a", acls: world}}},
		{calls: []call{{op: opCheck, path: "/a", version: 1}}},
		{calls: []call{{op: opCheck, path: "!a", version: 0}}},
		{calls: []call{{op: opCheck, path: "/a", version: 0, cut: 1}}},
		{calls: []call{{op: opCreate, path: "/b", acls: []acl{{permAll &^ permRead, "world", "anyone"}}}}},
		{calls: []call{{op: opCheck, path: "/b", version: 0}}},
	}},
	{"deleteContainer is not for clients", script{
		{act: openNew},
		{calls: []call{{op: opCreateContainer, path: "/a", acls: world, flags: container}}},
		{calls: []call{{op: opCreate, path: "/a/b", acls: world}, {op: opDelete, path: "/a/b"}}},
		{calls: []call{{op: opDeleteContainer, path: "/a"}, {op: opDeleteContainer, path: "/none"}, {op: opDeleteContainer, path: null}}},
		{calls: []call{{op: opDeleteContainer, path: "/a", cut: 4}, {op: opPing}}},
	}},
	{"digest needs credentials", script{
		{act: openNew},
		{calls: []call{{op: opAuth, path: "digest", data: []byte{}}}},
		{calls: []call{{op: opAuth, path: "ip"}}},
		{calls: []call{{op: opWhoAmI}}},
		{calls: []call{{op: opAuth, path: "digest"}}},
		{act: attach},
		{calls: []call{{op: opAuth, path: "digest", data: []byte("u:p"), cut: 1}}},
	}},
	{"SASL needs a token", script{
		{act: openNew},
		{calls: []call{{op: opSASL, data: []byte{}}}},
		{calls: []call{{op: opSASL, data: []byte("x")}}},
		{calls: []call{{op: opSASL}}},
		{act: attach},
		{calls: []call{{op: opSASL, cut: 4}}},
		{act: attach},
		{calls: []call{{op: opSASL, data: []byte("x"), cut: 1}}},
	}},
	{"a null path has no children", script{
		{act: openNew},
		{calls: []call{{op: opGetAllChildrenNumber, path: null}, {op: opGetAllChildrenNumber, cut: 1}}},
	}},
	{"a reconfig that is not complete takes no zxid", script{
		{act: openNew},
		{calls: []call{{op: opReconfig}, {op: opReconfig, cut: 1}, {op: opReconfig, cut: 100}, {op: opReconfig}}},
	}},
	{"space is no prefix of ephemerals", script{
		{act: openNew},
		{calls: []call{{op: opCreate, path: "/a", acls: world, flags: ephemeral}, {op: opCreate, path: "/b", acls: world, flags: ephemeral}}},
		{calls: []call{
			{op: opGetEphemerals, path: "! "}, {op: opGetEphemerals, path: "!\t\n"}, {op: opGetEphemerals, path: "! / "},
			{op: opGetEphemerals, path: "!\u00a0"}, {op: opGetEphemerals, path: "/a "}, {op: opGetEphemerals, path: "/a"},
		}},
	}},
	{"the super user may do everything", script{
		{act: openNew},
		{act: openNew, who: 1},
		{calls: []call{{op: opAuth, path: "digest", data: []byte("super:wrong")}, {op: opWhoAmI}}},
		{calls: []call{
			{op: opCreate, path: "/a", acls: []acl{{permAll, "digest", digestID(credentialV)}}},
			{op: opCreate, path: "/none", acls: []acl{{permAdmin, "world", "anyone"}}},
		}},
		{calls: []call{{op: opGetData, path: "/a"}}},
		{who: 1, calls: []call{{op: opAuth, path: "digest", data: []byte(superuser)}}},
		{who: 1, calls: []call{{op: opWhoAmI}}},
		{who: 1, calls: []call{{op: opGetACL, path: "/a"}, {op: opGetData, path: "/a", watch: true}, {op: opGetChildren, path: "/none", watch: true}}},
		{who: 1, calls: []call{{op: opSetData, path: "/a", version: -1}, {op: opCreate, path: "/none/b", acls: world}}, look: true},
		{who: 1, calls: []call{{op: opMulti, parts: []call{{op: opCheck, path: "/none", version: 0}, {op: opDelete, path: "/none/b"}}}}},
		{who: 1, calls: []call{{op: opSetACL, path: "/a", acls: []acl{{permAll, "auth", ""}}, version: -1}}},
		{who: 1, calls: []call{
			{op: opCreate, path: "/c", acls: []acl{{permAll, "super", ""}}},
			{op: opCreate, path: "/d", acls: []acl{{permAll, "auth", ""}}}, {op: opGetACL, path: "/d"},
		}},
		{calls: []call{{op: opGetACL, path: "/a"}}},
	}},
	{"an event is not told to who must not read the node any more", script{
		{act: openNew},
		{act: openNew, who: 1},
		{calls: []call{{op: opAuth, path: "digest", data: []byte(credentialU)}}},
		{calls: []call{{op: opCreate, path: "/a", acls: world, flags: ephemeral}, {op: opCreate, path: "/b", acls: world, flags: ephemeral}}},
		{who: 1, calls: []call{{op: opExists, path: "/a", watch: true}, {op: opGetData, path: "/b", watch: true}}},
		{calls: []call{{op: opSetACL, path: "/a", acls: []acl{{permAll, "auth", ""}}, version: -1}}},
		{calls: []call{{op: opSetACL, path: "/b", acls: []acl{{permAll, "auth", ""}}, version: -1}}},
		{calls: []call{{op: opDelete, path: "/a", version: -1}}, look: true},
		{calls: []call{{op: opCloseSession}}, look: true},
		{who: 1, calls: []call{{op: opExists, path: "/b"}}},
	}},
}
