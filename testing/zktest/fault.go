package zktest

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Selector says whose connections are meant. Fields that are zero do not
// restrict it: the zero Selector means all.
type Selector struct {
	Conn    int   // number of the connection, from 1 in the order they were accepted
	Member  int   // number of the server's address they came to, from 1
	Session int64 // id of the session they belong to
}

func (s Selector) selects(o origin) bool {
	return (s.Conn == 0 || s.Conn == o.conn) && (s.Member == 0 || s.Member == o.member) &&
		(s.Session == 0 || s.Session == o.session)
}

// origin is where packets come from.
type origin struct {
	conn, member int
	session      int64
}

// Match describes requests, and watch events as [OpEvent]. Its zero value
// matches every request but pings, which a client sends when it likes, and no
// event.
type Match struct {
	Selector
	Ops    []Op               // one of these; none given: any but ping and event
	Prefix string             // of the path, or of that of a multi's part: /a/b also means /a/bc
	Where  func(Request) bool // if not nil, it must agree; it must not block or call the server
}

func (m Match) matches(r Request) bool {
	if !m.selects(origin{r.Conn, r.Member, r.Session}) {
		return false
	}
	if len(m.Ops) == 0 && (r.Op == OpPing || r.Op == OpEvent) || len(m.Ops) > 0 && !slices.Contains(m.Ops, r.Op) {
		return false
	}
	if m.Prefix != "" && !slices.ContainsFunc(r.Paths, func(p string) bool { return strings.HasPrefix(p, m.Prefix) }) {
		return false
	}
	return m.Where == nil || m.Where(r)
}

// String describes the requests in a few words.
func (m Match) String() string {
	what := "any request"
	if len(m.Ops) > 0 {
		names := make([]string, len(m.Ops))
		for i, op := range m.Ops {
			names[i] = op.String()
		}
		what = strings.Join(names, ", ")
	}
	if m.Prefix != "" {
		what += " of " + m.Prefix + "..."
	}
	return what
}

// wrong says what makes no sense about a match, or "".
func (m Match) invalid() string {
	switch {
	case m.Conn < 0 || m.Member < 0:
		return "connections and members are numbered from 1"
	case m.Prefix != "" && m.Prefix[0] != '/':
		return fmt.Sprintf("no path begins with %q: they all begin with /", m.Prefix)
	case slices.Contains(m.Ops, OpCheck):
		return "a check is always part of a multi: match OpMulti"
	}
	return ""
}

// Always is the number of Times of a fault without end.
const Always = -1

// Rule is a fault in waiting: what happens to which requests.
type Rule struct {
	Match
	Skip  int // as many matching requests are left alone first
	Times int // then so many are hit; 0 means one
	Do    Action
}

// String describes the rule in a few words.
func (r Rule) String() string { return r.Do.kind.String() + " on " + r.Match.String() }

// wrong says what makes no sense about a rule, or "".
func (r Rule) invalid() string {
	switch {
	case r.Do.kind == nothing:
		return "Do is not set: to only count and wait for requests, use Pass"
	case r.Do.duration < 0 && r.Do.kind != grantTimeout:
		return "a delay is not negative"
	case r.Do.kind == truncateReply && r.Do.bytes < 0:
		return "a reply can not be cut to less than 0 bytes"
	case r.Do.kind == failWith && r.Do.code == OK:
		return "FailWith(OK) is no failure"
	case r.Do.kind == call && r.Do.hook == nil:
		return "Call of a nil function"
	case r.Do.kind == grantTimeout && !slices.Equal(r.Ops, []Op{OpConnect}):
		return "GrantTimeout is for handshakes: match OpConnect, and nothing else"
	case r.Do.kind == grantTimeout && int64(int32(r.Do.duration.Milliseconds())) != r.Do.duration.Milliseconds():
		return "GrantTimeout: the protocol has 32 bits for the milliseconds of a timeout"
	case r.Do.kind == swallow && !slices.Equal(r.Ops, []Op{OpEvent}):
		return "Swallow is for watch events: match OpEvent, and nothing else"
	case r.Do.kind != swallow && r.Do.kind != pass && slices.Contains(r.Ops, OpEvent):
		return "an event can only be swallowed or counted: use Swallow or Pass"
	case r.Skip < 0:
		return "Skip is negative"
	case r.Times < Always:
		return "Times is negative: for a fault without end, use Always"
	}
	return r.Match.invalid()
}

// Action is what happens to a request that a rule hits. It is only what a real
// network and a real server can do: what is not cut off comes complete and in
// order.
type Action struct {
	kind     actionKind
	duration time.Duration
	bytes    int
	code     Code
	hook     func(Request)
}

type actionKind int

const (
	nothing actionKind = iota // the zero value: not set
	pass
	dropBeforeApply
	resetBeforeApply
	dropAfterApply
	resetAfterApply
	truncateReply
	resetAfterReply
	grantTimeout
	swallow
	delayApply
	holdApply
	delayReply
	holdReply
	failWith
	expireBeforeApply
	expireAfterApply
	freeze
	call
)

// String returns the name of the function that makes such actions.
func (k actionKind) String() string {
	return [...]string{
		"nothing", "Pass", "DropBeforeApply", "ResetBeforeApply", "DropAfterApply", "ResetAfterApply",
		"TruncateReply", "ResetAfterReply", "GrantTimeout", "Swallow", "DelayApply", "HoldApply", "DelayReply", "HoldReply", "FailWith",
		"ExpireBeforeApply", "ExpireAfterApply", "Freeze", "Call",
	}[k]
}

// early reports whether it happens before the request is carried out.
func (a Action) beforeApply() bool {
	switch a.kind {
	case dropBeforeApply, resetBeforeApply, delayApply, holdApply, expireBeforeApply, freeze, call:
		return true
	}
	return false
}

// cutting is how the action cuts the connection.
func (a Action) cutMode() cutMode {
	switch a.kind {
	case resetBeforeApply, resetAfterApply, resetAfterReply:
		return rst
	}
	return fin
}

// grant puts the timeout of GrantTimeout into the reply to a handshake (with its
// length in front), unless that refuses the session.
func (a Action) setTimeout(reply []byte) {
	if id, _ := decodeConnectReply(reply); id != 0 {
		binary.BigEndian.PutUint32(reply[8:], uint32(a.duration.Milliseconds()))
	}
}

// Pass does nothing to the request. With it a rule only counts, and waits for,
// requests that have been carried out.
func Pass() Action { return Action{kind: pass} }

// DropBeforeApply cuts the connection (FIN); the request is never carried out.
func DropBeforeApply() Action { return Action{kind: dropBeforeApply} }

// ResetBeforeApply is DropBeforeApply with a RST.
func ResetBeforeApply() Action { return Action{kind: resetBeforeApply} }

// DropAfterApply carries the request out and cuts the connection (FIN) in the
// place of the reply. Others get the events. A connection that is opened as
// OpConnect leaves a session that nobody knows of.
func DropAfterApply() Action { return Action{kind: dropAfterApply} }

// ResetAfterApply is DropAfterApply with a RST.
func ResetAfterApply() Action { return Action{kind: resetAfterApply} }

// TruncateReply carries the request out, sends the first n bytes of the reply
// (the length counts: 4 bytes) and cuts the connection.
func TruncateReply(n int) Action { return Action{kind: truncateReply, bytes: n} }

// ResetAfterReply carries the request out, sends the reply and resets the
// connection (RST) right behind it: what the client writes when it has read the
// reply fails, or is lost if the client is faster than the reset.
func ResetAfterReply() Action { return Action{kind: resetAfterReply} }

// GrantTimeout carries out a handshake ([OpConnect]) and grants the client
// another session timeout in the reply, in whole milliseconds, which may be 0,
// negative or as odd as one likes. The server itself keeps to the one it
// negotiated.
func GrantTimeout(d time.Duration) Action { return Action{kind: grantTimeout, duration: d} }

// Swallow does not send a watch event ([OpEvent]); the watch is used up. A real
// server does that when an ACL has come to hide the node from the watcher.
func Swallow() Action { return Action{kind: swallow} }

// DelayApply lets the request wait in the server for d before it is carried
// out. The connection's later requests wait behind it, others overtake it.
func DelayApply(d time.Duration) Action { return Action{kind: delayApply, duration: d} }

// HoldApply is DelayApply until [Fault.Release].
func HoldApply() Action { return Action{kind: holdApply} }

// DelayReply carries the request out and sends the reply d later. The replies
// and events of that connection wait behind it, pings' too: a long delay looks
// like a dead server to the client.
func DelayReply(d time.Duration) Action { return Action{kind: delayReply, duration: d} }

// HoldReply is DelayReply until [Fault.Release].
func HoldReply() Action { return Action{kind: holdReply} }

// FailWith answers the request with a code and does not carry it out.
func FailWith(code Code) Action { return Action{kind: failWith, code: code} }

// ExpireBeforeApply lets the request's session expire at its arrival. The
// request is not carried out and the connection is closed, as at any expiry.
func ExpireBeforeApply() Action { return Action{kind: expireBeforeApply} }

// ExpireAfterApply carries the request out and lets the session expire before
// the reply: what the request created as an ephemeral is gone again, and the
// client gets no answer.
func ExpireAfterApply() Action { return Action{kind: expireAfterApply} }

// Freeze stops reading from and writing to the connection, which stays open,
// before the request is carried out.
func Freeze() Action { return Action{kind: freeze} }

// Call runs f before the request is carried out; the connection waits for it.
// f may do with the server what it likes, such as deleting the node that the
// request asks for. It runs on a goroutine of the server, so it must not call
// the FailNow or Fatal of a test.
func Call(f func(Request)) Action { return Action{kind: call, hook: f} }

// Faulty is what [Server] and [Proxy] have in common: with it one test of
// faults runs on the embedded server, and through a proxy on a real one.
type FaultInjector interface {
	Addr() string
	ConnectString() string

	Inject(Rule) *Fault
	WaitRequest(context.Context, Match) error

	Cut(Selector)
	Reset(Selector)
	HalfOpen(Selector)
	Deafen(Selector)
	Partition(Selector, Direction)
	Heal()
	Throttle(sel Selector, bytes int, pause time.Duration)

	RefuseConnections(members ...int) error
	RejectConnections(members ...int) error
	HangConnections(members ...int) error
	AcceptConnections(members ...int) error

	ExpireSession(id int64) error
	ExpireAll() error
}

var (
	_ FaultInjector = (*Server)(nil)
	_ FaultInjector = (*Proxy)(nil)
)

// Fault is a rule at work. All methods may be called concurrently.
type Fault struct {
	rule   Rule
	faults *faults
	gate   chan struct{} // closed by Release

	// Guarded by faults.mu.
	seen     int           // matching requests
	fired    int           // that were hit, and where it has happened
	changed  chan struct{} // closed and replaced when fired grows
	released bool
	removed  bool
}

// Fired returns how often it has happened.
func (f *Fault) Fired() int {
	f.faults.mu.Lock()
	defer f.faults.mu.Unlock()
	return f.fired
}

// Wait returns when it has happened as often as the rule's Times says (once,
// if that is Always). Otherwise the error is that of ctx, or that the server
// is closed.
func (f *Fault) Wait(ctx context.Context) error {
	want := max(1, f.rule.Times)
	for {
		f.faults.mu.Lock()
		fired, seen, removed, changed := f.fired, f.seen, f.removed, f.changed
		f.faults.mu.Unlock()
		if fired >= want {
			return nil
		}
		var err error
		select {
		case <-changed:
			continue
		case <-ctx.Done():
			err = ctx.Err()
		case <-f.faults.done:
			err = errClosed
		}
		note := ""
		if removed {
			note = " (it was removed)"
		}
		return fmt.Errorf("zktest: waiting for %v: happened %d of %d times, %d such requests came%s: %w", f.rule, fired, want, seen, note, err)
	}
}

// Release lets go what HoldApply or HoldReply holds, now and from now on. What
// is never released ends with its connection.
func (f *Fault) Release() {
	f.faults.mu.Lock()
	defer f.faults.mu.Unlock()
	if !f.released {
		f.released = true
		close(f.gate)
	}
}

// Remove ends the rule: no further request is hit. What it holds stays held
// until Release.
func (f *Fault) Remove() {
	f.faults.mu.Lock()
	defer f.faults.mu.Unlock()
	f.removed = true
	f.faults.armed = slices.DeleteFunc(f.faults.armed, func(other *Fault) bool { return other == f })
}

// happened counts one hit.
func (f *Fault) recordFired() {
	f.faults.mu.Lock()
	defer f.faults.mu.Unlock()
	f.fired++
	close(f.changed)
	f.changed = make(chan struct{})
}

// action of a fault that may be nil: no fault.
func (f *Fault) action() Action {
	if f == nil {
		return Pass()
	}
	return f.rule.Do
}

// faults are the rules of a server or proxy, in the order they were injected.
type faults struct {
	done <-chan struct{} // closed with the server

	mu    sync.Mutex
	armed []*Fault
}

// Inject puts a rule into force. A request is hit by the first rule that it
// matches, in the order they were injected, and by no other; rules that do Pass
// count it besides. A rule that makes
// no sense, such as one that does nothing, is a fault of the test: Inject then
// panics and says what is wrong.
func (fs *faults) Inject(rule Rule) *Fault {
	if wrong := rule.invalid(); wrong != "" {
		panic("zktest: Inject: " + wrong)
	}
	if rule.Times == 0 {
		rule.Times = 1
	}
	f := &Fault{rule: rule, faults: fs, gate: make(chan struct{}), changed: make(chan struct{})}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.armed = append(fs.armed, f)
	return f
}

// WaitRequest waits until the next request that matches has been carried out;
// one that has already arrived does not count. To begin with the waiting before something is set in
// motion, inject a rule that does [Pass]. The error is that of ctx.
func (fs *faults) WaitRequest(ctx context.Context, match Match) error {
	f := fs.Inject(Rule{Match: match, Do: Pass()})
	defer f.Remove()
	return f.Wait(ctx)
}

// hit returns the fault that a request meets, or nil, and the rules that only
// count it.
func (fs *faults) match(r Request) (hit *Fault, counting passRules) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, f := range slices.Clone(fs.armed) {
		passes := f.rule.Do.kind == pass
		if hit != nil && !passes || !f.rule.matches(r) {
			continue
		}
		f.seen++
		if f.seen <= f.rule.Skip {
			continue
		}
		if f.rule.Times != Always && f.seen == f.rule.Skip+f.rule.Times {
			fs.armed = slices.DeleteFunc(fs.armed, func(other *Fault) bool { return other == f })
		}
		if passes {
			counting = append(counting, f)
		} else {
			hit = f
		}
	}
	return hit, counting
}

// counting are rules that do nothing to a request.
type passRules []*Fault

func (c passRules) recordFired() {
	for _, f := range c {
		f.recordFired()
	}
}
