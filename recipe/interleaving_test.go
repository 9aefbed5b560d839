package recipe

// This test walks every interleaving of a few contenders in a few sessions with the server:
// they join, list and watch; leave, give up, crash, share their lock, and have their nodes
// removed by strangers; connections break, and the server ends sessions before their
// clients know. Requests reach the server late, and answers and events reach the client
// late, both in their order. What a waiter does is decided by [state], on views shared
// by a session's waiters.
//
// Some holders keep the lock: the node says so, and the holder watches the queue, and leaves
// or takes the word back when another contender joins. Some contenders only try: they wait
// for such answers, and for nothing else.
//
// A grant must be true: the node has been at the head of the queue (for a reader: behind
// readers only). And when nothing is under way any longer, no contender may wait at the
// head, or without a node.

import (
	"cmp"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/testing/zktest/bubble"
)

// world is a state of servers and clients.
type world struct {
	nodes    []driver.Node // in the queue, in order
	sessions []*sessionState
	next     int64         // sequence number
	led      []driver.Node // have been at the head
	kept     []driver.Node // say that the lock is kept
	faults   int           // still possible
	trail    *trail        // the way to this state; not part of the state
}

type trail struct {
	before *trail
	what   string
	args   [2]any
}

func (t *trail) String() string {
	if t == nil {
		return ""
	}
	return t.before.String() + "\n" + fmt.Sprintf(t.what, t.args[0], t.args[1])
}

type sessionState struct {
	ended      bool // by the server
	dead       bool // and the client knows
	view       *View
	requests   []message     // on their way to the server
	answers    []message     // on their way to the client, with events
	watched    []driver.Node // by the server
	follows    bool          // the server will tell who joins
	known      []driver.Node // known to the client to be watched, or asked to be
	leaving    []driver.Node // the client has asked to remove
	contenders []*contenderState
}

// message is a request, an answer or an event.
type message struct {
	kind  messageKind
	who   int // contender of the session, for listings
	node  driver.Node
	event driver.Event
	queue []driver.Node // the answer to list
	gone  bool          // the answer to watch and to remove
	kept  bool          // the node says so: to be marked, and in the answer to watch
}

type messageKind byte

const (
	create messageKind = iota
	list
	watch
	remove
	share
	mark
	follow
	joined   // an event of the queue
	happened // an event
)

type phase byte

const (
	idle phase = iota
	joining
	listing
	looking
	goingOn
	arming
	waiting
	holding
	done
)

type contenderState struct {
	kind    driver.Kind
	role    role
	phase   phase
	self    driver.Node
	x       state
	joined  bool          // the answer to create was taken in
	another bool          // another claim has continued this one
	looks   bool          // the queue was listed, and the watches are kept
	queue   []driver.Node // the answer to list, taken in when the contender goes on
	watches []watchState  // on the awaited contenders, and on self
}

type watchState struct {
	node  driver.Node
	armed bool
	event driver.Event
	kept  bool
}

// decision is what the planted mistakes change.
type decision struct {
	rule     func(driver.Kind) Rule
	join     func(*state, driver.Joined) (step, error)
	sees     func(x *state, events []driver.Event) (holds bool) // changes events before x takes them in
	ownGone  driver.Event                                       // what the driver makes of the removal of a session's node by others
	watchOwn bool                                               // a waiter watches the own node
	isThere  func(driver.Event) bool                            // whether the own node is there, by the event of the watch
	answered func(events []driver.Event, keeps func(int) bool) step
	follows  func(others bool) bool // whether a holder who keeps the lock takes in that there are others
}

var asBuilt = decision{
	rule: ruleOf, join: (*state).join, ownGone: driver.Missing, watchOwn: true,
	sees:     func(*state, []driver.Event) bool { return false },
	isThere:  func(e driver.Event) bool { return e == 0 },
	answered: answered, follows: func(others bool) bool { return others },
}

func newWorld(faults int, sessions ...[]role) *world {
	w := &world{next: 1, faults: faults}
	for _, roles := range sessions {
		s := &sessionState{view: newView()}
		for _, role := range roles {
			c := &contenderState{kind: driver.Kind(role), role: role, phase: idle, x: state{view: s.view}}
			if role >= ke {
				c.kind = driver.Exclusive
			}
			s.contenders = append(s.contenders, c)
		}
		w.sessions = append(w.sessions, s)
	}
	return w
}

func (w *world) clone() *world {
	c := *w
	c.nodes, c.led, c.kept = slices.Clone(w.nodes), slices.Clone(w.led), slices.Clone(w.kept)
	c.sessions = nil
	for _, s := range w.sessions {
		t := *s
		t.view = &View{queue: slices.Clip(s.view.queue), own: maps.Clone(s.view.own)}
		t.requests, t.answers = slices.Clone(s.requests), slices.Clone(s.answers)
		t.watched, t.known, t.leaving = slices.Clone(s.watched), slices.Clone(s.known), slices.Clone(s.leaving)
		t.contenders = nil
		for _, x := range s.contenders {
			y := *x
			y.watches, y.x.view = slices.Clone(x.watches), t.view
			t.contenders = append(t.contenders, &y)
		}
		c.sessions = append(c.sessions, &t)
	}
	return &c
}

// key identifies the state.
func (w *world) key() uint64 {
	b := append(make([]byte, 0, 512), byte(w.next), byte(w.faults))
	node := func(n driver.Node) { b = append(b, byte(n.Seq)<<4|byte(sessionOf(n)), byte(n.Kind)) }
	nodes := func(list []driver.Node) {
		b = append(b, byte(len(list)))
		for _, n := range list {
			node(n)
		}
	}
	messages := func(list []message) {
		b = append(b, byte(len(list)))
		for _, m := range list {
			b = append(b, byte(m.kind), byte(m.who), byte(m.event), bit(m.gone), bit(m.kept))
			node(m.node)
			nodes(m.queue)
		}
	}
	nodes(w.nodes)
	nodes(w.led)
	nodes(w.kept)
	for _, s := range w.sessions {
		b = append(b, bit(s.dead), bit(s.ended), bit(s.follows))
		nodes(s.view.queue)
		nodes(slices.SortedFunc(maps.Keys(s.view.own), bySeq))
		nodes(s.watched)
		nodes(s.known)
		nodes(s.leaving)
		messages(s.requests)
		messages(s.answers)
		for _, c := range s.contenders {
			b = append(b, byte(c.phase), bit(c.joined), bit(c.another), bit(c.x.listed), bit(c.looks), bit(c.queue != nil), bit(c.x.asked))
			node(c.self)
			nodes(c.queue)
			nodes(c.x.awaited)
			for _, w := range c.watches {
				b = append(b, bit(w.armed), byte(w.event), bit(w.kept))
				node(w.node)
			}
		}
	}
	return maphash.Bytes(seed, b)
}

var seed = maphash.MakeSeed()

// sessionOf returns the number of a node's session, from 1, or 0 for no node.
func sessionOf(n driver.Node) int {
	number, _ := strconv.Atoi(n.Private)
	return number
}

func bySeq(a, b driver.Node) int { return cmp.Compare(a.Seq, b.Seq) }

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// lead notes the nodes at the head now.
func (w *world) lead() {
	for i, n := range w.nodes {
		if len(ruleOf(n.Kind)(w.nodes, i)) == 0 && !slices.Contains(w.led, n) {
			w.led = append(w.led, n)
			slices.SortFunc(w.led, bySeq)
		}
	}
}

// ruleOf is RuleOf, for permits as well: the semaphore has two.
func ruleOf(k driver.Kind) Rule {
	if k == driver.Permit {
		return Within(2)
	}
	return RuleOf(k)
}

func (w *world) exists(n driver.Node) bool { return slices.Contains(w.nodes, n) }

// remove removes nodes in one transaction, and sends events to the watchers, one after the
// other.
func (w *world) remove(nodes ...driver.Node) {
	w.nodes = slices.DeleteFunc(w.nodes, func(m driver.Node) bool { return slices.Contains(nodes, m) })
	for _, n := range nodes {
		w.tell(n, driver.Deleted)
	}
	w.lead()
}

// successors returns the possible next states.
//
// If no fault can come, a client only sends requests and takes in answers, in their order.
// So where nothing new can reach a client first, the client's steps and the steps of all
// others lead to the same state in either order, and the client's are enough (partial-order
// reduction with persistent sets). A wrong grant is not missed: at an earlier grant, fewer
// nodes have been at the head.
func (w *world) successors(d decision) ([]*world, error) {
	for i, s := range w.sessions {
		if w.faults > 0 || s.dead || len(s.answers) == 0 && len(s.requests)+len(s.watched) > 0 {
			continue
		}
		if all, err := w.steps(d, i); len(all) > 0 {
			return all, err
		}
	}
	return w.steps(d, -1)
}

// steps returns the possible next states: after a step of one client, or of any if client
// is -1.
func (w *world) steps(d decision, client int) (all []*world, err error) {
	add := func(what string, x, y any, change func(w *world) error) {
		if err != nil {
			return
		}
		c := w.clone()
		c.trail = &trail{w.trail, what, [2]any{x, y}}
		if err = change(c); err != nil {
			err = fmt.Errorf("%w, after%v", err, c.trail)
		}
		all = append(all, c)
	}
	for i, s := range w.sessions {
		if s.dead || client >= 0 && i != client {
			continue
		}
		if len(s.requests) > 0 && !s.ended && client < 0 {
			add("session %d: the server answers request %d", i, s.requests[0].kind, func(w *world) error { w.serve(w.sessions[i]); return nil })
		}
		if len(s.answers) > 0 {
			add("session %d: the client hears %+v", i, s.answers[0], func(w *world) error {
				return w.sessions[i].hear(w, d)
			})
		}
		for j, c := range s.contenders {
			switch c.phase {
			case idle:
				if j > 0 && s.contenders[j-1].phase == idle || i > 0 && w.sessions[i-1].like(s) && w.sessions[i-1].contenders[0].phase == idle {
					continue // the same under another name
				}
				add("contender %d.%d joins", i, j, func(w *world) error { w.sessions[i].join(j); return nil })
			case goingOn:
				add("contender %d.%d goes on", i, j, func(w *world) error { return w.sessions[i].decide(w, j, d) })
			case waiting:
				if slices.ContainsFunc(c.watches, func(w watchState) bool { return w.event != 0 }) {
					add("contender %d.%d wakes", i, j, func(w *world) error { return w.sessions[i].step(w, j, d) })
				}
				if w.faults > 0 {
					add("contender %d.%d gives up", i, j, func(w *world) error { w.faults--; w.sessions[i].leave(j); return nil })
				}
				if len(s.contenders) > 1 && !c.another && c.role != tr && c.role != pe { // as goroutines of one process do
					add("another claim continues contender %d.%d", i, j, func(w *world) error { return w.sessions[i].goOn(w, j, d) })
				}
			case holding:
				add("contender %d.%d leaves", i, j, func(w *world) error { w.sessions[i].leave(j); return nil })
				if w.faults > 0 && (c.kind == driver.Exclusive || c.kind == driver.Convertible) {
					add("contender %d.%d shares", i, j, func(w *world) error { w.faults--; w.sessions[i].share(j); return nil })
				}
			}
		}
		if s.ended {
			add("session %d hears that it is over%.0s", i, "", func(w *world) error { w.crash(i); return nil })
		} else if w.faults > 0 && slices.ContainsFunc(s.contenders, func(c *contenderState) bool { return c.phase != idle && c.phase != done }) {
			add("session %d crashes%.0s", i, "", func(w *world) error { w.faults--; w.crash(i); return nil })
			if len(s.contenders) > 1 { // a single contender hears of nothing but its own end
				add("the server ends session %d%.0s", i, "", func(w *world) error { w.faults--; w.end(i, false); return nil })
				add("the server ends session %d backward%.0s", i, "", func(w *world) error { w.faults--; w.end(i, true); return nil })
			}
			add("the connection of session %d breaks%.0s", i, "", func(w *world) error { w.faults--; w.breakConnection(i); return nil })
		}
	}
	if w.faults > 0 {
		for _, n := range w.nodes {
			add("a stranger removes %s%.0s", n, "", func(w *world) error { w.faults--; w.remove(n); return nil })
		}
	}
	return all, err
}

func (s *sessionState) join(j int) {
	s.contenders[j].phase = joining
	s.requests = append(s.requests, message{kind: create, who: j}, message{kind: list, who: j})
}

// goOn lets another claim continue a waiting contender.
func (s *sessionState) goOn(w *world, j int, d decision) error {
	c := s.contenders[j]
	c.another, c.watches, c.x = true, nil, state{view: s.view, claim: c.x.claim}
	next, err := d.join(&c.x, driver.Joined{Node: c.self})
	return s.follow(w, j, next, err, d)
}

func (s *sessionState) leave(j int) {
	c := s.contenders[j]
	c.phase = done
	c.watches, c.x.awaited = nil, nil
	s.requests = append(s.requests, message{kind: remove, node: c.self})
	if len(s.contenders) > 1 {
		s.leaving = append(s.leaving, c.self)
	}
}

// share replaces the node of a writer by that of a reader with the same number, and tells
// the watchers of the change.
func (s *sessionState) share(j int) {
	c := s.contenders[j]
	c.phase = done
	s.requests = append(s.requests, message{kind: share, node: c.self})
}

func (w *world) crash(i int) {
	s := w.sessions[i]
	s.dead = true
	for _, c := range s.contenders {
		c.phase = done // the lease ends before the server removes the nodes
	}
	s.watched = nil
	w.end(i, false)
}

// end ends a session at the server. The server removes the nodes in any order.
func (w *world) end(i int, backward bool) {
	w.sessions[i].ended = true
	own := slices.DeleteFunc(slices.Clone(w.nodes), func(n driver.Node) bool { return sessionOf(n) != i+1 })
	if backward {
		slices.Reverse(own)
	}
	w.remove(own...)
	w.sessions[i].watched = nil
}

// breakConnection loses everything on the way. The driver repeats a request whose answer is
// lost, and all watches fire.
func (w *world) breakConnection(i int) {
	s := w.sessions[i]
	again := slices.DeleteFunc(slices.Clone(s.answers), func(m message) bool { return m.kind != create && m.kind != list && m.kind != remove })
	for k, m := range again {
		if m.kind == create { // the node is found
			m.kind = list
		}
		again[k] = message{kind: m.kind, who: m.who, node: m.node}
	}
	again = append(again, slices.DeleteFunc(s.requests, func(m message) bool { return m.kind == watch })...)
	s.requests, s.answers, s.watched, s.known, s.follows = again, nil, nil, nil, false
	s.recall()
	for _, c := range s.contenders {
		for k := range c.watches {
			if c.watches[k].event == 0 {
				c.watches[k].armed, c.watches[k].event = true, driver.Interrupted
			}
		}
		if c.phase == arming {
			c.phase = waiting
		}
	}
}

// serve carries out the first request of a session.
func (w *world) serve(s *sessionState) {
	m := s.requests[0]
	s.requests = s.requests[1:]
	switch m.kind {
	case create:
		c := s.contenders[m.who]
		c.self = driver.Node{Name: fmt.Sprint("n", w.next), Kind: c.kind, Seq: w.next, Private: strconv.Itoa(1 + slices.Index(w.sessions, s))}
		if c.kind == driver.Permit {
			c.self.Permits = 1
		}
		w.next++
		w.nodes = append(w.nodes, c.self)
		w.lead()
		w.tellJoined()
	case list:
		m.queue = append([]driver.Node{}, w.nodes...)
		s.answers = append(s.answers, m)
	case watch:
		if m.gone = !w.exists(m.node); !m.gone {
			s.watched = append(s.watched, m.node)
		}
		m.kept = slices.Contains(w.kept, m.node)
		s.answers = append(s.answers, m)
	case remove:
		if m.gone = !w.exists(m.node); !m.gone {
			w.remove(m.node)
		}
		if len(s.contenders) > 1 { // a single contender has no use for the answer
			s.answers = append(s.answers, m)
		}
	case mark:
		w.mark(m.node, m.kept)
	case follow:
		s.follows, m.queue = true, slices.Clone(w.nodes)
		s.answers = append(s.answers, m)
	case share:
		if i := slices.Index(w.nodes, m.node); i >= 0 {
			reader := m.node
			reader.Name, reader.Kind = m.node.Name+"r", driver.Shared
			w.nodes[i] = reader
			w.led = append(w.led, reader)
			if m.node.Kind == driver.Convertible { // as Curator does
				w.tell(m.node, driver.Deleted)
			} else {
				w.tell(m.node, driver.Changed)
			}
			w.lead()
		}
	}
}

// mark makes a node say, or no longer say, that the lock is kept.
func (w *world) mark(n driver.Node, kept bool) {
	w.kept = slices.DeleteFunc(w.kept, func(m driver.Node) bool { return m == n })
	if kept && w.exists(n) {
		w.kept = append(w.kept, n)
	}
	w.tell(n, driver.Changed)
}

// tellJoined tells those who follow the queue that a contender has joined.
func (w *world) tellJoined() {
	for _, s := range w.sessions {
		if s.follows {
			s.follows, s.answers = false, append(s.answers, message{kind: joined})
		}
	}
}

// tell sends an event to the watchers of a removed node.
func (w *world) tell(n driver.Node, e driver.Event) {
	for _, s := range w.sessions {
		if i := slices.Index(s.watched, n); i >= 0 {
			s.watched = slices.Delete(s.watched, i, i+1)
			s.answers = append(s.answers, message{kind: happened, node: n, event: e})
		}
	}
}

// hear takes in the first answer or event.
func (s *sessionState) hear(w *world, d decision) error {
	m := s.answers[0]
	s.answers = s.answers[1:]
	switch m.kind {
	case create, list:
		c := s.contenders[m.who]
		if c.phase == done {
			return nil
		}
		c.looks = c.phase == looking
		c.phase, c.queue = goingOn, m.queue
		if len(s.contenders) == 1 { // the moment of going on matters only beside others
			return s.decide(w, m.who, d)
		}
	case watch:
		e := driver.Event(0)
		if m.gone {
			e = driver.Missing
			s.forget(m.node)
		}
		s.set(m.node, e, m.kept)
	case follow, joined:
		if d.follows(m.kind == joined || len(m.queue) > 1) {
			s.recall()
		}
	case happened:
		e := m.event
		if isOwn := w.sessions[sessionOf(m.node)-1] == s; isOwn && e == driver.Deleted {
			if slices.Contains(s.leaving, m.node) {
				return nil // the answer says more
			}
			e = d.ownGone
		}
		s.forget(m.node)
		s.set(m.node, e)
	case remove:
		e := driver.Deleted
		if m.gone {
			e = driver.Interrupted
		}
		s.forget(m.node)
		s.set(m.node, e)
	}
	return nil
}

// forget notes that the client no longer knows a node to be watched.
func (s *sessionState) forget(n driver.Node) {
	s.known = slices.DeleteFunc(s.known, func(m driver.Node) bool { return m == n })
}

// set arms or fires the watches of all contenders on a node.
func (s *sessionState) set(n driver.Node, e driver.Event, kept ...bool) {
	for _, c := range s.contenders {
		for i := range c.watches {
			if w := &c.watches[i]; w.node == n && w.event == 0 {
				w.armed, w.event, w.kept = true, e, len(kept) > 0 && kept[0]
			}
		}
		if c.phase == arming && !slices.ContainsFunc(c.watches, func(w watchState) bool { return !w.armed }) {
			c.phase = waiting
			if c.role == tr {
				c.phase = goingOn // to look at the data
			}
		}
	}
}

// recall makes a holder leave a kept lock, or take back the word that the lock is kept.
func (s *sessionState) recall() {
	c := s.contenders[0]
	switch {
	case c.phase != holding:
	case c.role == ke:
		s.leave(0)
	case c.role == us:
		s.requests = append(s.requests, message{kind: mark, node: c.self})
	}
}

// decide takes in a join, a listing, or a look.
func (s *sessionState) decide(w *world, j int, d decision) (err error) {
	c := s.contenders[j]
	queue, next := c.queue, lists
	if c.role == tr && queue == nil {
		return s.step(w, j, d)
	}
	c.queue, c.x.claim = nil, &Claim{Kind: c.kind, Rule: d.rule(c.kind)}
	switch {
	case !c.joined:
		c.joined = true
		next, err = d.join(&c.x, driver.Joined{Node: c.self, Queue: queue})
	case c.looks:
		c.looks = false
		return s.step(w, j, d, queue)
	default:
		next, err = c.x.list(queue)
	}
	return s.follow(w, j, next, err, d)
}

// step takes in what the watches say, and what a look has found.
func (s *sessionState) step(w *world, j int, d decision, looked ...[]driver.Node) (err error) {
	c := s.contenders[j]
	events := make([]driver.Event, len(c.watches))
	for i, w := range c.watches {
		events[i] = w.event
	}
	if c.role == tr {
		return s.follow(w, j, d.answered(events, func(i int) bool { return c.watches[i].kept }), nil, d)
	}
	own := events[len(events)-1]
	isThere := func() bool { return d.isThere(own) }
	var next step
	switch {
	case d.sees(&c.x, events):
		next = holds
	case looked == nil:
		next = c.x.fired(events, isThere)
	default:
		next, err = c.x.look(looked[0], events, isThere)
	}
	return s.follow(w, j, next, err, d)
}

// follow carries out a decision.
func (s *sessionState) follow(w *world, j int, next step, err error, d decision) error {
	c := s.contenders[j]
	switch {
	case err != nil, next == fails:
		s.leave(j)
	case next == lists, next == waits && c.role == tr && !c.x.listed:
		s.list(j)
	case next == waits && c.role == tr && c.watches != nil:
		c.phase = waiting
	case next == waits && c.role == tr && c.x.asked:
		s.leave(j)
	case next == waits && c.role == tr:
		c.x.asked = true
		c.x.awaited, _ = c.x.view.blocking(d.rule(c.kind), c.self)
		s.await(j, d)
	case next == waits:
		s.await(j, d)
	case next == looks:
		s.contenders[j].phase = looking
		s.requests = append(s.requests, message{kind: list, who: j})
	case next == holds:
		return s.hold(w, j)
	}
	return nil
}

func (s *sessionState) hold(w *world, j int) error {
	c := s.contenders[j]
	c.phase, c.watches, c.x.awaited = holding, nil, nil
	if c.role == ke || c.role == us {
		s.requests = append(s.requests, message{kind: mark, node: c.self, kept: true}, message{kind: follow, node: c.self})
	}
	if !slices.Contains(w.led, c.self) {
		return fmt.Errorf("%w: %s", errWrongGrant, c.self.Name)
	}
	return nil
}

var (
	errWrongGrant = errors.New("granted a lock that it never had")
	errStuck      = errors.New("waits forever")
)

// await is a round of Claim.wait, until the watches are set.
func (s *sessionState) await(j int, d decision) {
	c := s.contenders[j]
	c.phase = arming
	before := c.watches
	c.watches = nil
	nodes := append(slices.Clone(c.x.awaited), c.self)
	if c.role == tr {
		nodes = c.x.awaited
	}
	for _, n := range nodes {
		set := watchState{node: n}
		if i := slices.IndexFunc(before, func(w watchState) bool { return w.node == n && w.event == 0 }); i >= 0 {
			set = before[i]
		} else if !slices.Contains(s.known, n) {
			s.known = append(s.known, n)
			s.requests = append(s.requests, message{kind: watch, node: n})
		} else if !slices.ContainsFunc(s.requests, func(m message) bool { return m.kind == watch && m.node == n }) &&
			!slices.ContainsFunc(s.answers, func(m message) bool { return m.kind == watch && m.node == n }) {
			set.armed = true // by another waiter of the session
		}
		if n == c.self && !d.watchOwn {
			set = watchState{node: driver.Node{}, armed: true}
		}
		c.watches = append(c.watches, set)
	}
	s.set(driver.Node{}, 0) // perhaps waiting already
}

func (s *sessionState) list(j int) {
	c := s.contenders[j]
	c.phase, c.watches, c.x.awaited = listing, nil, nil
	s.requests = append(s.requests, message{kind: list, who: j})
}

// rest checks a state with nothing under way.
func (w *world) rest() error {
	for i, s := range w.sessions {
		for j, c := range s.contenders {
			stuck := !w.exists(c.self) || slices.Contains(w.led, c.self)
			if c.role == tr { // without a node, nobody answers, and the try ends after keptPatience
				stuck = w.exists(c.self)
			}
			if !s.ended && c.phase != idle && c.phase != holding && c.phase != done && stuck {
				return fmt.Errorf("%w: contender %d.%d with %s, phase %d, after%v", errStuck, i, j, c.self.Name, c.phase, w.trail)
			}
		}
	}
	return nil
}

// walk visits every state, and returns their number and the first error.
func walk(start *world, d decision) (states int, err error) {
	seen := map[uint64]struct{}{start.key(): {}}
	for todo := []*world{start}; len(todo) > 0; {
		w := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		next, err := w.successors(d)
		if err != nil {
			return len(seen), err
		}
		quiet := !slices.ContainsFunc(w.sessions, func(s *sessionState) bool {
			return !s.ended && len(s.requests)+len(s.answers) > 0 || slices.ContainsFunc(s.contenders, func(c *contenderState) bool {
				return c.phase == goingOn || c.phase == waiting && slices.ContainsFunc(c.watches, func(w watchState) bool { return w.event != 0 })
			})
		})
		if quiet {
			if err := w.rest(); err != nil {
				return len(seen), err
			}
		}
		for _, n := range next {
			key := n.key()
			if _, known := seen[key]; !known {
				seen[key] = struct{}{}
				todo = append(todo, n)
			}
		}
	}
	return len(seen), nil
}

// like reports whether two sessions have contenders of the same kinds.
func (s *sessionState) like(other *sessionState) bool {
	return slices.EqualFunc(s.contenders, other.contenders, func(a, b *contenderState) bool { return a.role == b.role })
}

// start is where a walk begins.
type start struct {
	faults   int // that may happen
	sessions [][]role
}

func (s start) String() string { return fmt.Sprint(s.faults, s.sessions) }

var (
	two        = start{2, [][]role{{m}, {m}}}
	three      = start{1, [][]role{{m}, {m}, {m}}}
	together   = start{1, [][]role{{m, m}, {m}}}
	readers    = start{1, [][]role{{r}, {m}, {r}}}
	downgrades = start{1, [][]role{{wr}, {r, m}}}
	pairs      = start{0, [][]role{{m, m}, {m, m}}}
	reading    = start{1, [][]role{{m}, {r, r}}}
	permits    = start{1, [][]role{{pe}, {pe}, {pe}}}
	many       = start{0, [][]role{{pe, pe}, {pe, pe}}}
	kept       = start{1, [][]role{{ke}, {tr}}} // with a third contender, there are more than a million states
	used       = start{0, [][]role{{us}, {tr}, {m}}}
)

// role is a kind, or what a contender for an exclusive lock does.
type role driver.Kind

const (
	m, r, wr, pe = role(driver.Exclusive), role(driver.Shared), role(driver.Convertible), role(driver.Permit)

	ke role = 100 + iota // keeps the lock unused
	us                   // keeps the lock, and uses the lock
	tr                   // tries
)

func (r role) String() string {
	if r >= ke {
		return []string{"keeps", "uses", "tries"}[r-ke]
	}
	return driver.Kind(r).String()
}

func TestEveryInterleaving(t *testing.T) {
	t.Parallel()
	for _, from := range []start{two, three, together, readers, downgrades, pairs, reading, permits, many, kept, used} {
		if bubble.RaceDetector() { // ten times as slow, looking for what one goroutine cannot do
			if from.faults--; from.faults < 0 {
				continue
			}
		}
		t.Run(from.String(), func(t *testing.T) {
			t.Parallel()
			states, err := walk(newWorld(from.faults, from.sessions...), asBuilt)
			require.NoError(t, err)
			t.Log(states, "states")
		})
	}
}

// taking changes events before they are seen.
func taking(event, as driver.Event) func(*decision) {
	return func(d *decision) {
		d.sees = func(x *state, events []driver.Event) bool {
			for i := range x.awaited {
				if events[i] == event {
					events[i] = as
				}
			}
			return false
		}
	}
}

func TestInterleavingsFindMistakes(t *testing.T) {
	t.Parallel()
	for name, mistake := range map[string]struct {
		from  start
		plant func(*decision)
	}{
		"the own node is not looked at":                        {two, func(d *decision) { d.isThere = func(driver.Event) bool { return true } }},
		"the own node is not watched":                          {two, func(d *decision) { d.watchOwn = false }},
		"the removal of a node of the same session is a proof": {together, func(d *decision) { d.ownGone = driver.Deleted }},
		"who continues a wait is granted the lock without a look": {reading, func(d *decision) {
			d.join = func(x *state, j driver.Joined) (step, error) {
				next, err := x.join(j)
				if next == lists && driver.Place(x.view.queue, x.self) >= 0 {
					return x.list(x.view.queue)
				}
				return next, err
			}
		}},
		"a missing node counts as one that has left": {two, taking(driver.Missing, driver.Deleted)},
		"a changed node counts as one that has left": {two, taking(driver.Changed, driver.Deleted)},
		"a broken connection counts as a release": {two, func(d *decision) {
			taking(driver.Interrupted, driver.Deleted)(d)
			d.isThere = func(e driver.Event) bool { return e == 0 || e == driver.Interrupted }
		}},
		"the nearest obstacle alone grants": {three, func(d *decision) {
			d.rule = func(k driver.Kind) Rule {
				return func(queue []driver.Node, self int) []driver.Node {
					obstacles := RuleOf(k)(queue, self)
					return obstacles[max(0, len(obstacles)-1):]
				}
			}
			d.sees = func(_ *state, events []driver.Event) bool { return events[0] == driver.Deleted }
		}},
		"a writer's deletion is a proof": {downgrades, func(d *decision) {
			d.sees = func(x *state, events []driver.Event) bool {
				for i, n := range x.awaited {
					if n.Kind == driver.Convertible && events[i] == driver.Deleted {
						x.view.gone(n)
						events[i] = 0
					}
				}
				return false
			}
		}},
		"who keeps a lock does not look who has joined before": {kept, func(d *decision) {
			d.follows = func(bool) bool { return false }
		}},
		"a kept lock that changes counts as given back": {used, func(d *decision) {
			d.answered = func(events []driver.Event, _ func(int) bool) step {
				if slices.Contains(events, driver.Changed) {
					return holds
				}
				return answered(events, func(int) bool { return true })
			}
		}},
		"readers pass writers that wait": {readers, func(d *decision) {
			d.rule = func(k driver.Kind) Rule {
				return func(queue []driver.Node, self int) []driver.Node {
					if k == driver.Shared && queue[0].Kind == driver.Shared {
						return nil
					}
					return RuleOf(k)(queue, self)
				}
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := asBuilt
			mistake.plant(&d)
			_, err := walk(newWorld(mistake.from.faults, mistake.from.sessions...), d)
			require.Error(t, err, "the mistake was not found")
			t.Log(err)
		})
	}
}
