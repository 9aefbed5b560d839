package zktest

// This file has rules, actions and injected faults.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Selector selects connections. A zero field does not restrict the selection: the zero
// Selector selects all connections.
type Selector struct {
	Conn    int    // number of the connection, from 1 in the order they were accepted
	Member  int    // number of the member they are connected to, from 1
	Session int64  // id of their session
	Host    string // IP address of their client; the Selector of a Match cannot have one
}

func (s Selector) selects(o origin) bool {
	return (s.Conn == 0 || s.Conn == o.conn) && (s.Member == 0 || s.Member == o.member) &&
		(s.Session == 0 || s.Session == o.session) && (s.Host == "" || s.Host == o.host)
}

// origin is the connection of a packet.
type origin struct {
	conn, member int
	session      int64
	host         string // of the client
}

// Match describes requests, and watch events as [OpEvent]. The zero Match
// matches every request except pings, which clients send at any time, and no
// event.
type Match struct {
	Selector
	Ops    []Op               // any of them; if empty, any except ping and event
	Prefix string             // of the path, or of one path of a multi: /a/b also matches /a/bc
	Where  func(Request) bool // if not nil, must return true; must not block or call the server
}

func (m Match) matches(r Request) bool {
	if !m.selects(origin{conn: r.Conn, member: r.Member, session: r.Session}) {
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

// String returns a short description of the requests.
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

// invalid says what is wrong with the match, or returns "".
func (m Match) invalid() string {
	switch {
	case m.Conn < 0 || m.Member < 0:
		return "connections and members are numbered from 1"
	case m.Host != "":
		return "a Host selects connections, not requests"
	case m.Prefix != "" && m.Prefix[0] != '/':
		return fmt.Sprintf("the Prefix %q must begin with /, like every path", m.Prefix)
	case slices.Contains(m.Ops, OpCheck):
		return "a check is always part of a multi: match OpMulti"
	}
	return ""
}

// Always is the Times of a rule for every matching request.
const Always = -1

// Rule says what happens to which requests.
type Rule struct {
	Match
	Skip  int // how many matching requests to let pass first
	Times int // how many to hit then; 0 means one
	Do    Action
}

// String returns a short description of the rule.
func (r Rule) String() string { return r.Do.kind.String() + " on " + r.Match.String() }

// Validate returns nil if the rule can be injected. Otherwise the error says what is wrong.
func (r Rule) Validate() error {
	if reason := r.invalid(); reason != "" {
		return errors.New("zktest: the rule is invalid: " + reason)
	}
	return nil
}

// invalid says what is wrong with the rule, or returns "".
func (r Rule) invalid() string {
	switch {
	case r.Do.kind == nothing:
		return "Do is not set: use Pass to only count and wait for requests"
	case r.Do.duration < 0:
		return "the delay is negative"
	case r.Do.kind == truncateReply && r.Do.bytes < 0:
		return "TruncateReply: the number of bytes is negative"
	case r.Do.kind == failWith && r.Do.code == OK:
		return "FailWith(OK) is not a failure"
	case r.Do.kind == call && r.Do.hook == nil:
		return "Call: the function is nil"
	case r.Do.kind == swallow && !slices.Equal(r.Ops, []Op{OpEvent}):
		return "Swallow is for watch events: match OpEvent only"
	case r.Do.kind != swallow && r.Do.kind != pass && slices.Contains(r.Ops, OpEvent):
		return "an event can only be swallowed or counted: use Swallow or Pass"
	case r.Skip < 0:
		return "Skip is negative"
	case r.Times < Always:
		return "Times is negative: use Always to hit every matching request"
	}
	return r.Match.invalid()
}

// Action is what happens to a request hit by a rule. An Action does only what a real
// network or server can do: everything delivered is complete and in order.
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

// String returns the name of the function for such actions.
func (k actionKind) String() string {
	return [...]string{
		"nothing", "Pass", "DropBeforeApply", "ResetBeforeApply", "DropAfterApply", "ResetAfterApply",
		"TruncateReply", "ResetAfterReply", "Swallow", "DelayApply", "HoldApply", "DelayReply", "HoldReply", "FailWith",
		"ExpireBeforeApply", "ExpireAfterApply", "Freeze", "Call",
	}[k]
}

// beforeApply reports whether the action precedes the request.
func (a Action) beforeApply() bool {
	switch a.kind {
	case dropBeforeApply, resetBeforeApply, delayApply, holdApply, expireBeforeApply, freeze, call:
		return true
	}
	return false
}

// cutMode returns how the action cuts the connection.
func (a Action) cutMode() cutMode {
	switch a.kind {
	case resetBeforeApply, resetAfterApply, resetAfterReply:
		return rst
	}
	return fin
}

// Pass does nothing to the request. A rule with Pass only counts requests, once
// they have been applied.
func Pass() Action { return Action{kind: pass} }

// DropBeforeApply cuts the connection (FIN); the request is never applied.
func DropBeforeApply() Action { return Action{kind: dropBeforeApply} }

// ResetBeforeApply is DropBeforeApply with an RST.
func ResetBeforeApply() Action { return Action{kind: resetBeforeApply} }

// DropAfterApply applies the request and cuts the connection (FIN) instead of replying.
// Other clients get their events. On OpConnect a session is left, unknown to any client.
func DropAfterApply() Action { return Action{kind: dropAfterApply} }

// ResetAfterApply is DropAfterApply with an RST.
func ResetAfterApply() Action { return Action{kind: resetAfterApply} }

// TruncateReply applies the request, sends the first n bytes of the reply, counting the 4
// bytes of the length, and cuts the connection.
func TruncateReply(n int) Action { return Action{kind: truncateReply, bytes: n} }

// ResetAfterReply applies the request, sends the reply and then resets the connection (RST)
// at once. A client's write after reading the reply fails, or is lost if sent before the
// reset.
func ResetAfterReply() Action { return Action{kind: resetAfterReply} }

// Swallow drops a watch event ([OpEvent]); the watch is used up. A real server does the
// same if the ACL hides the node from the watcher at the moment.
func Swallow() Action { return Action{kind: swallow} }

// DelayApply applies the request after a delay of d. Later requests of the same connection
// wait; requests of other connections do not.
func DelayApply(d time.Duration) Action { return Action{kind: delayApply, duration: d} }

// HoldApply is like [DelayApply], but delays the request until [Fault.Release].
func HoldApply() Action { return Action{kind: holdApply} }

// DelayReply applies the request and delays the reply by d. Later replies and
// events of the connection wait, even replies to pings: to the client, a long
// delay looks like a dead server.
func DelayReply(d time.Duration) Action { return Action{kind: delayReply, duration: d} }

// HoldReply is like [DelayReply], but delays the reply until [Fault.Release].
func HoldReply() Action { return Action{kind: holdReply} }

// FailWith replies with a code and does not apply the request.
func FailWith(code Code) Action { return Action{kind: failWith, code: code} }

// ExpireBeforeApply expires the request's session when the request arrives. The
// request is not applied and the connection is closed, as at any expiry.
func ExpireBeforeApply() Action { return Action{kind: expireBeforeApply} }

// ExpireAfterApply applies the request and expires the session before the reply: an
// ephemeral created by the request is deleted again, and the client gets no reply.
func ExpireAfterApply() Action { return Action{kind: expireAfterApply} }

// Freeze stops reading from and writing to the connection before the request is
// applied. The connection stays open.
func Freeze() Action { return Action{kind: freeze} }

// Call runs f before the request is applied; the connection waits for f. f may call the
// server, for instance to delete the node named by the request. f runs on a goroutine of
// the server, so f must not call FailNow or Fatal of a test.
func Call(f func(Request)) Action { return Action{kind: call, hook: f} }

// FaultInjector is the common interface of [Server] and [Proxy], so that one test of faults
// runs on the embedded server and, through a proxy, on a real one.
type FaultInjector interface {
	Addr() string
	ConnectString() string

	Inject(Rule) *Fault

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

// Fault is an injected [Rule]. All methods may be called concurrently.
type Fault struct {
	rule   Rule
	faults *faults
	gate   chan struct{} // closed by Release

	// Guarded by faults.mu.
	seen     int           // matching requests
	fired    int           // how often the action has happened
	changed  chan struct{} // closed and replaced when fired grows
	released bool
	removed  bool
}

// Fired returns how often the fault has happened. A request counts before the client can see
// the reply, or, if the fault ends the connection, when the client can see the end.
func (f *Fault) Fired() int {
	f.faults.mu.Lock()
	defer f.faults.mu.Unlock()
	return f.fired
}

// Wait returns when the fault has happened as often as the rule's Times says, or once if
// Times is Always. Otherwise the error is ctx's, or says that the server is closed.
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
			note = " (the rule was removed)"
		}
		return fmt.Errorf("zktest: waiting for %v: happened %d of %d times, %d requests matched%s: %w", f.rule, fired, want, seen, note, err)
	}
}

// Release releases the requests or replies held by HoldApply or HoldReply; the rule holds
// no others from then on. Without a Release, held requests end with their connections.
func (f *Fault) Release() {
	f.faults.mu.Lock()
	defer f.faults.mu.Unlock()
	if !f.released {
		f.released = true
		close(f.gate)
	}
}

// Remove ends the rule: no further request is hit. Held requests and replies stay held
// until Release.
func (f *Fault) Remove() {
	f.faults.mu.Lock()
	defer f.faults.mu.Unlock()
	f.removed = true
	f.faults.armed = slices.DeleteFunc(f.faults.armed, func(other *Fault) bool { return other == f })
}

// recordFired records one more occurrence of the fault.
func (f *Fault) recordFired() {
	f.faults.mu.Lock()
	defer f.faults.mu.Unlock()
	f.fired++
	close(f.changed)
	f.changed = make(chan struct{})
}

// action returns the fault's action: Pass for a nil fault.
func (f *Fault) action() Action {
	if f == nil {
		return Pass()
	}
	return f.rule.Do
}

// waitBeforeApply delays a request as DelayApply or HoldApply says. It reports
// false if the connection ends first.
func (f *Fault) waitBeforeApply(c *clientConn) bool {
	out := outgoing{delay: f.rule.Do.duration}
	if f.rule.Do.kind == holdApply {
		out.gate = f.gate
	}
	f.recordFired() // now: Wait waits for the beginning of the delay
	return c.waitDue(out)
}

// outgoing returns what the fault, perhaps nil, makes of a reply.
func (f *Fault) outgoing(reply []byte) outgoing {
	out := outgoing{bytes: reply}
	switch a := f.action(); a.kind {
	case dropAfterApply, resetAfterApply:
		out = outgoing{cut: a.cutMode()}
	case truncateReply:
		out = outgoing{bytes: reply[:min(a.bytes, len(reply))], cut: fin}
	case resetAfterReply:
		out.cut = rst
	case delayReply:
		out.delay = a.duration
	case holdReply:
		out.gate = f.gate
	}
	return out
}

// faults holds the rules of a server or proxy, in the order of injection.
type faults struct {
	done <-chan struct{} // closed with the server

	mu    sync.Mutex
	armed []*Fault
}

// Inject puts a rule into force. A request is hit by the first matching rule, in the order
// of injection, and by no other, except that all matching rules with Pass count the
// request. Inject panics if the rule is invalid (see [Rule.Validate]), for instance a rule
// without an action: an error in the test.
func (fs *faults) Inject(rule Rule) *Fault {
	if reason := rule.invalid(); reason != "" {
		panic("zktest: Inject: " + reason)
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

// match returns the fault hitting a request, or nil, and the rules merely counting the
// request.
func (fs *faults) match(r Request) (hit *Fault, passes []*Fault) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, f := range slices.Clone(fs.armed) {
		counts := f.rule.Do.kind == pass
		if hit != nil && !counts || !f.rule.matches(r) {
			continue
		}
		f.seen++
		if f.seen <= f.rule.Skip {
			continue
		}
		if f.rule.Times != Always && f.seen == f.rule.Skip+f.rule.Times {
			fs.armed = slices.DeleteFunc(fs.armed, func(other *Fault) bool { return other == f })
		}
		if counts {
			passes = append(passes, f)
		} else {
			hit = f
		}
	}
	return hit, passes
}

// countAnswered counts a request for the fault hitting the request, unless there is none or the
// fault counted before the request was applied, and for the rules with Pass. It is called before
// the client can see the reply, or when the client can see that the connection is cut.
func countAnswered(hit *Fault, passes []*Fault) {
	if hit != nil && !hit.action().beforeApply() {
		hit.recordFired()
	}
	for _, f := range passes {
		f.recordFired()
	}
}
