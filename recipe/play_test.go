package recipe

// This test plays Claim.Acquire, where the decisions of the walk in interleaving_test.go
// are carried out, on sessions with the contract of package driver, with interleavings
// drawn at random: each request is carried out late, the answer and the events are heard
// late, and the hearer goes on late.

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
)

// play is one server and its clients. Exactly one goroutine, or the director, runs at a
// time, except for goroutines about to stop.
type play struct {
	mu       sync.Mutex
	random   *rand.Rand
	world    *world // the nodes, and all that have been at the head
	sessions []*playSession
	players  []*player
	speed    map[string]float64 // of the actors; nil if all are equally fast
	faults   int                // still possible
	fault    string             // the only kind of them; empty if all may
	mistake  mistake
	patient  bool          // who holds the lock leaves when nothing else can happen
	free     []driver.Node // at the head on joining
	told     []string
	err      error
}

var errWrongFailure = errors.New("a try failed for somebody who was gone before")

// playSession is a session as described in package driver.
type playSession struct {
	driver.Session // what claims of queues do not call
	play           *play
	index          int
	views          Views
	requests       []*playRequest // on their way to the server
	unanswered     []*playRequest // carried out, and not heard
	stream         []func()       // answers and events on their way to the client
	watched        []driver.Node  // by the server
	watches        map[driver.Node]*playWatch
	ended          bool // by the server
	over           chan struct{}
}

// playRequest is a request. It is carried out once, but the answer may be lost.
type playRequest struct {
	op    string
	node  driver.Node // of watch and remove
	serve func()      // on the server
	heard func()      // on the client
	done  chan struct{}
	lost  bool // an answer was lost, or the request was not sent
}

type playWatch struct {
	*driver.Watch
	armed   *playRequest
	leaving bool // the session removes the node
}

// player is one contender after the other: if one gives up and keeps the node, the next
// continues with the node.
type player struct {
	play    *play
	session *playSession
	name    string
	kind    driver.Kind
	cancel  context.CancelFunc // of the wait; nil without a wait
	gate    chan struct{}      // where the player stands; nil if running
	where   string
	self    driver.Node
	keeps   bool // the node, when giving up
	tries   bool // instead of waiting
	hasty   bool // Leave does not wait for the answer if the context has ended
	permits int
	shares  bool // the lock, before leaving
	done    bool
}

type playerKey struct{}

// tell adds to the story. Call with play.mu held.
func (p *play) tell(format string, args ...any) {
	p.told = append(p.told, fmt.Sprintf(format, args...))
}

// pause stops a player until the director lets the player go on.
func pause(ctx context.Context, where string) {
	x, ok := ctx.Value(playerKey{}).(*player)
	if !ok {
		return
	}
	gate := make(chan struct{})
	x.play.mu.Lock()
	x.gate, x.where = gate, where
	x.play.mu.Unlock()
	<-gate
}

// alias marks the nodes of the session.
func (s *playSession) alias() string { return fmt.Sprint("of session ", s.index) }

func (s *playSession) Done() <-chan struct{} { return s.over }

func (s *playSession) Err() error {
	select {
	case <-s.over:
		return driver.ErrSessionLost
	default:
		return nil
	}
}

// ask sends a request.
func (s *playSession) ask(q *playRequest) *playRequest {
	q.done = make(chan struct{})
	s.requests = append(s.requests, q)
	return q
}

// await waits until a request has been answered.
func (s *playSession) await(ctx context.Context, q *playRequest) error {
	select {
	case <-q.done:
		pause(ctx, "has the answer to "+q.op)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.over:
		return s.Err()
	}
}

func (s *playSession) Join(ctx context.Context, _ string, r driver.Request) (driver.Joined, error) {
	kind, permits, known := r.Kind, r.Permits, r.Known
	if err := errors.Join(ctx.Err(), s.Err()); err != nil {
		return driver.Joined{}, err
	}
	w := s.play.world
	var node driver.Node
	var alone bool
	var run []driver.Node
	s.play.mu.Lock()
	create := &playRequest{op: "create"}
	create.serve = func() {
		if node != (driver.Node{}) {
			return // found
		}
		node = driver.Node{Name: fmt.Sprint("n", w.next), Kind: kind, Seq: w.next, Private: s.alias(), Permits: permits}
		w.next++
		alone = (len(w.nodes) == 0 || s.play.mistake == aloneBehindAnother) && s.play.random.IntN(2) == 0
		if !create.lost {
			run = s.play.runBehind(s, node)
		}
		w.nodes = append(w.nodes, node)
		w.made = append(w.made, node)
		w.lead()
		if slices.Contains(w.led, node) {
			s.play.free = append(s.play.free, node)
		}
	}
	s.ask(create)
	var queue []driver.Node
	list := s.listing(&queue)
	bare := known != driver.Node{} && s.play.random.IntN(4) > 0
	if !bare {
		s.ask(list)
	}
	s.play.mu.Unlock()
	err := s.await(ctx, create)
	switch {
	case err != nil:
	case bare && alone && !create.lost:
		return driver.Joined{Node: node, Queue: []driver.Node{node}}, nil
	case bare && len(run) > 0 && !create.lost:
		return driver.Joined{Node: node, Behind: run}, nil
	default:
		if bare {
			s.play.mu.Lock()
			s.ask(list)
			s.play.mu.Unlock()
		}
		err = s.await(ctx, list)
	}
	if err != nil {
		s.play.mu.Lock()
		s.play.abandoned(s, func() driver.Node { return node })
		s.play.mu.Unlock()
		return driver.Joined{}, err
	}
	return driver.Joined{Node: node, Queue: queue}, nil
}

// runBehind returns some of the session's nodes joined directly before one.
func (p *play) runBehind(s *playSession, self driver.Node) (run []driver.Node) {
	for before := self.Seq - 1; ; before-- {
		i := slices.IndexFunc(p.world.made, func(n driver.Node) bool { return n.Seq == before && n.Private == s.alias() })
		if i < 0 && before > 0 && p.mistake == gapsBehind {
			continue
		}
		if i < 0 {
			break
		}
		run = append(run, p.world.made[i])
	}
	slices.Reverse(run)
	if len(run) > 1 && p.random.IntN(2) == 0 {
		run = run[p.random.IntN(len(run)):]
	}
	return run
}

// abandoned removes what an abandoned call has created or will create.
func (p *play) abandoned(s *playSession, node func() driver.Node) {
	q := &playRequest{op: "undo"}
	q.serve = func() { p.remove(node()) }
	s.ask(q)
}

func (s *playSession) listing(queue *[]driver.Node) *playRequest {
	return &playRequest{op: "list", serve: func() { *queue = slices.Clone(s.play.world.nodes) }}
}

func (s *playSession) List(ctx context.Context, _ string) (queue []driver.Node, err error) {
	if err := errors.Join(ctx.Err(), s.Err()); err != nil {
		return nil, err
	}
	s.play.mu.Lock()
	q := s.ask(s.listing(&queue))
	s.play.mu.Unlock()
	err = s.await(ctx, q)
	return queue, err
}

func (s *playSession) Watch(ctx context.Context, _ string, nodes ...driver.Node) (watches []*driver.Watch, err error) {
	if err := errors.Join(ctx.Err(), s.Err()); err != nil {
		return nil, err
	}
	s.play.mu.Lock()
	var all []*playWatch
	for _, n := range nodes {
		w := s.watches[n]
		if w == nil {
			w = &playWatch{Watch: driver.NewWatch()}
			s.watches[n] = w
			w.armed = s.ask(s.watching(n, w))
		}
		all = append(all, w)
	}
	s.play.mu.Unlock()
	for _, w := range all {
		select {
		case <-w.armed.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.over:
			return nil, s.Err()
		}
		watches = append(watches, w.Watch)
	}
	pause(ctx, "watches")
	return watches, nil
}

func (s *playSession) watching(n driver.Node, w *playWatch) *playRequest {
	exists := false
	return &playRequest{op: "watch", node: n,
		serve: func() {
			if exists = s.play.world.exists(n); exists {
				s.watched = append(s.watched, n)
			}
		},
		heard: func() {
			if !exists {
				e := driver.Missing
				if s.play.mistake == missingIsDeleted {
					e = driver.Deleted
				}
				s.fire(n, w, e)
			}
		},
	}
}

// fire fires a watch on a node.
func (s *playSession) fire(n driver.Node, w *playWatch, e driver.Event) {
	if s.watches[n] == w {
		delete(s.watches, n)
	}
	w.Fire(e)
}

func (s *playSession) Leave(ctx context.Context, _ string, node driver.Node) error {
	if err := s.Err(); err != nil {
		return err
	}
	s.play.mu.Lock()
	w := s.watches[node]
	if w != nil {
		w.leaving = true
	}
	var existed bool
	q := &playRequest{op: "remove", node: node}
	q.serve = func() {
		existed = s.play.world.exists(node) || existed
		s.play.remove(node)
	}
	q.heard = func() {
		switch {
		case w == nil:
		case existed && !q.lost:
			s.fire(node, w, driver.Deleted)
		default:
			s.fire(node, w, driver.Interrupted)
		}
	}
	s.ask(q)
	x, _ := ctx.Value(playerKey{}).(*player)
	s.play.mu.Unlock()
	if ctx.Err() != nil && x != nil && x.hasty {
		return ctx.Err()
	}
	if err := s.await(context.WithoutCancel(ctx), q); err != nil {
		return err
	}
	if !existed && !q.lost {
		return driver.ErrRemoved
	}
	return nil
}

// remove removes nodes in one transaction, and tells the watchers.
func (p *play) remove(nodes ...driver.Node) {
	w := p.world
	w.nodes = slices.DeleteFunc(w.nodes, func(n driver.Node) bool { return slices.Contains(nodes, n) })
	for _, n := range nodes {
		p.event(n, driver.Deleted)
	}
	w.lead()
}

func (p *play) event(n driver.Node, e driver.Event) {
	for _, s := range p.sessions {
		i := slices.Index(s.watched, n)
		if i < 0 {
			continue
		}
		s.watched = slices.Delete(s.watched, i, i+1)
		s.stream = append(s.stream, func() {
			w, e := s.watches[n], e
			switch {
			case w == nil:
				return
			case e == driver.Deleted && n.Private == s.alias() && w.leaving:
				return // the answer says more
			case e == driver.Deleted && n.Private == s.alias() && p.mistake != ownGoneIsProof:
				e = driver.Missing
			}
			s.fire(n, w, e)
		})
	}
}

// serve carries out the first request of a session.
func (s *playSession) serve() {
	q := s.requests[0]
	s.requests = s.requests[1:]
	s.unanswered = append(s.unanswered, q)
	q.serve()
	s.stream = append(s.stream, func() {
		s.unanswered = s.unanswered[1:]
		if q.heard != nil {
			q.heard()
		}
		close(q.done)
	})
}

// breakConnection loses everything on the way. All watches fire, and other requests are
// sent again.
func (s *playSession) breakConnection() {
	all := slices.Concat(s.unanswered, s.requests)
	s.requests, s.unanswered, s.stream, s.watched = nil, nil, nil, nil
	for _, q := range all {
		if q.op == "watch" {
			close(q.done)
			continue
		}
		q.lost = true
		s.requests = append(s.requests, q)
	}
	for _, n := range sortedNodes(s.watches) {
		if s.play.mistake == noInterruption {
			break
		}
		s.fire(n, s.watches[n], driver.Interrupted)
	}
}

func sortedNodes(watches map[driver.Node]*playWatch) (nodes []driver.Node) {
	for n := range watches {
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, bySeq)
	return nodes
}

// end ends a session at the server. The server removes the nodes in one transaction.
func (s *playSession) end() {
	s.ended, s.requests = true, nil
	own := slices.DeleteFunc(slices.Clone(s.play.world.nodes), func(n driver.Node) bool { return n.Private != s.alias() })
	s.play.random.Shuffle(len(own), func(i, j int) { own[i], own[j] = own[j], own[i] })
	s.play.remove(own...)
	s.watched = nil
}

// share replaces the node of a writer by a reader's with the same number.
func (p *play) share(n driver.Node) driver.Node {
	i := slices.Index(p.world.nodes, n)
	if i < 0 {
		return n
	}
	reader := n
	reader.Name, reader.Kind = n.Name+"r", driver.Shared
	p.world.nodes[i] = reader
	p.world.led = append(p.world.led, reader)
	if n.Kind == driver.Convertible { // as Curator does
		p.event(n, driver.Deleted)
	} else {
		p.event(n, driver.Changed)
	}
	p.world.lead()
	return reader
}

// playObserver stops a player between the events and the player's reaction.
type playObserver struct{ player *player }

func (o playObserver) Queued(self driver.Node, _, _ int) { o.player.self = self }
func (o playObserver) Waiting(Wait) bool                 { return false }
func (o playObserver) Holder(driver.Node, []byte)        {}
func (o playObserver) Woken(e driver.Event, _ bool) {
	pause(context.WithValue(context.Background(), playerKey{}, o.player), fmt.Sprint("is told of event ", e))
}

// act is what a player does.
func (x *player) act() {
	p, s := x.play, x.session
	ctx := context.WithValue(context.Background(), playerKey{}, x)
	pause(ctx, "begins")
	var kept driver.Node
	for {
		waits, cancel := context.WithCancel(ctx)
		p.mu.Lock()
		x.cancel = cancel
		p.mu.Unlock()
		claim := Claim{
			Session: s, Queue: "q", Kind: x.kind, Permits: x.permits, Rule: ruleOf(x.kind), Views: &s.views, Observer: playObserver{x}, Node: kept,
			Keep: func(n driver.Node) bool { kept = n; return x.keeps },
		}
		take := claim.Acquire
		if x.tries {
			take = claim.Try
		}
		node, err := take(waits)
		cancel()
		p.mu.Lock()
		x.cancel = nil
		if err == nil && !slices.Contains(p.world.led, node) && p.err == nil {
			p.err = fmt.Errorf("%w: %s", errWrongGrant, node)
		}
		if x.tries && errors.Is(err, ErrBusy) && slices.Contains(p.free, x.self) && p.err == nil {
			p.err = fmt.Errorf("%w: %s", errWrongFailure, x.self)
		}
		goesOn := err != nil && errors.Is(err, context.Canceled) && x.keeps && kept != driver.Node{}
		p.tell("%s: %v %v", x.name, node, err)
		p.mu.Unlock()
		if goesOn {
			x.keeps = false
			pause(ctx, "takes over the place")
			continue
		}
		if err == nil {
			pause(ctx, "holds")
			p.mu.Lock()
			if x.shares && !s.ended && s.Err() == nil {
				node = p.share(node)
			}
			p.mu.Unlock()
			if node.Kind == driver.Shared && x.shares {
				pause(ctx, "shares")
			}
			_ = s.Leave(ctx, "q", node)
		}
		p.mu.Lock()
		x.done = true
		p.mu.Unlock()
		return
	}
}

// choice is a possible next event.
type choice struct {
	who  string // the actor
	what string
	do   func()
}

// choose returns what happens next. In every other play, all actors are equally fast; in
// the others, some are much slower than the rest, and at times another one is.
func (p *play) choose(all []choice) choice {
	next := all[p.random.IntN(len(all))]
	if p.speed == nil {
		return next
	}
	for _, c := range all {
		if _, known := p.speed[c.who]; !known {
			p.speed[c.who] = p.random.Float64()
		}
		if p.speed[c.who] > p.speed[next.who] {
			next = c
		}
	}
	if p.random.IntN(10) == 0 {
		p.speed[next.who] = p.random.Float64() / 2
	}
	return next
}

func (x *player) holds() bool { return x.gate != nil && x.where == "holds" }

// choices returns the possible next events. Faults are among them only if there is
// something else: a wait for nothing but a fault would last forever.
func (p *play) choices() (all []choice) {
	add := func(who string, do func(), what string, args ...any) {
		all = append(all, choice{who, who + ": " + fmt.Sprintf(what, args...), do})
	}
	for i, s := range p.sessions {
		if s.Err() != nil {
			continue
		}
		if len(s.requests) > 0 && !s.ended {
			add(fmt.Sprint("server, for session ", i), s.serve, "answers %s %s", s.requests[0].op, s.requests[0].node.Name)
		}
		if len(s.stream) > 0 {
			add(fmt.Sprint("session ", i), func() { s.stream[0](); s.stream = s.stream[1:] }, "hears the next")
		}
		if s.ended {
			add(fmt.Sprint("end of session ", i), func() { close(s.over) }, "is heard of")
		}
	}
	for _, x := range p.players {
		if x.where == "begins" && len(all) > 0 && p.random.IntN(16) > 0 {
			continue // so many join a queue known to their session
		}
		if x.gate != nil && !(x.holds() && p.patient) {
			add(x.name, func() { close(x.gate); x.gate = nil }, "%s, and goes on", x.where)
		}
	}
	if len(all) == 0 {
		for _, x := range p.players {
			if x.cancel != nil && x.self != (driver.Node{}) && !p.world.exists(x.self) && x.session.Err() == nil && p.err == nil {
				p.err = fmt.Errorf("%w: %s, without its node", errStuck, x.name)
			}
			if x.holds() {
				add(x.name, func() { close(x.gate); x.gate = nil }, "leaves, as nothing else happens")
			}
		}
		return all
	}
	if p.faults == 0 {
		return all
	}
	fault := func(do func(), what string, args ...any) {
		if p.random.IntN(8) == 0 && (p.fault == "" || strings.Contains(what, p.fault)) { // most of the time, something else happens
			add("fault", func() { p.faults--; do() }, what, args...)
		}
	}
	for _, x := range p.players {
		if x.cancel != nil && x.gate == nil && !x.session.ended {
			fault(func() { x.cancel() }, "%s gives up", x.name)
		}
	}
	for i, s := range p.sessions {
		if !s.ended {
			fault(s.end, "the server ends session %d", i)
			fault(s.breakConnection, "the connection of session %d breaks", i)
		}
	}
	for i, n := range p.world.nodes {
		if p.fault != "" && i < len(p.world.nodes)-1 {
			continue // who joined last knows the least
		}
		fault(func() { p.remove(n) }, "a stranger removes %s", n.Name)
		fault(func() { p.event(n, driver.Changed) }, "a stranger changes %s", n.Name)
	}
	return all
}

// perform plays one play to the end. It must be called in a bubble.
func perform(seed uint64, faults int, sessions [][]driver.Kind, mistake mistake) error {
	p := &play{random: rand.New(rand.NewPCG(seed, 0)), world: &world{next: 1}, faults: faults, mistake: mistake}
	if seed%2 == 1 {
		p.speed = map[string]float64{}
	}
	p.patient = p.random.IntN(4) == 0
	p.fault = []string{"", "", "", "removes", "ends", "breaks", "gives up"}[p.random.IntN(7)]
	for i, kinds := range sessions {
		s := &playSession{play: p, index: i, watches: map[driver.Node]*playWatch{}, over: make(chan struct{})}
		p.sessions = append(p.sessions, s)
		for j, kind := range kinds {
			p.players = append(p.players, &player{
				play: p, session: s, name: fmt.Sprintf("player %d.%d", i, j), kind: kind,
				keeps: p.random.IntN(3) == 0, tries: p.random.IntN(6) == 0, hasty: p.random.IntN(2) == 0, shares: kind != driver.Shared && kind != pe && p.random.IntN(4) == 0,
			})
			if kind == pe {
				p.players[len(p.players)-1].permits = 1 + p.random.IntN(playLimit)
			}
		}
	}
	for _, x := range p.players {
		go x.act() // ends when the session is over, if not before
		synctest.Wait()
	}
	const most = 5000
	for range most {
		p.mu.Lock()
		all := p.choices()
		if len(all) == 0 || p.err != nil {
			p.mu.Unlock()
			break
		}
		next := p.choose(all)
		p.tell("%s", next.what)
		next.do()
		p.mu.Unlock()
		synctest.Wait()
	}
	for _, x := range p.players {
		if !x.done && p.err == nil {
			p.err = fmt.Errorf("%w: %s, at %s", errStuck, x.name, x.where)
		}
	}
	err := p.err
	if err != nil {
		err = fmt.Errorf("seed %d: %w, after\n%s", seed, err, strings.Join(p.told, "\n"))
	}
	for _, s := range p.sessions {
		if s.Err() == nil {
			close(s.over)
		}
	}
	for { // until all players are off the stage
		synctest.Wait()
		stands := false
		p.mu.Lock()
		for _, x := range p.players {
			if x.gate != nil {
				stands = true
				close(x.gate)
				x.gate = nil
			}
		}
		p.mu.Unlock()
		if !stands {
			return err
		}
	}
}

// mistake is a way of breaking the contract of sessions.
type mistake int

const (
	none               mistake = iota
	ownGoneIsProof             // the end of a session's node is Deleted, even if removed by others
	missingIsDeleted           // a node that cannot be watched is Deleted
	noInterruption             // watches outlive their connection
	gapsBehind                 // others may have joined between Joined.Behind and the node
	aloneBehindAnother         // Joined.Queue lacks who was there
)

const pe = driver.Permit

func TestClaimsInterleaved(t *testing.T) {
	t.Parallel()
	for _, sessions := range [][][]driver.Kind{
		{{m}, {m}}, {{m}, {m}, {m}}, {{m, m}, {m}}, {{m, m}, {m, m}}, {{m, m, m}, {m}}, {{r}, {m}, {r}}, {{wr}, {r, m}}, {{wr, m}, {wr, r}}, {{m}, {r, r}}, {{m, r, m}, {r, m}}, {{pe}, {pe, pe}}, {{pe, pe}, {pe, pe}},
	} {
		t.Run(fmt.Sprint(sessions), func(t *testing.T) {
			t.Parallel()
			plays := 5000
			if raceDetector {
				plays = 500
			}
			synctest.Test(t, func(t *testing.T) {
				for seed := range plays {
					require.NoError(t, perform(uint64(seed), seed/2%4, sessions, none))
				}
			})
		})
	}
}

func TestPlaysFindMistakes(t *testing.T) {
	t.Parallel()
	for name, made := range map[string]struct {
		mistake  mistake
		sessions [][]driver.Kind
	}{
		"the removal of a node of the same session is a proof": {ownGoneIsProof, [][]driver.Kind{{m, m}, {m}}},
		"a missing node counts as one that has left":           {missingIsDeleted, [][]driver.Kind{{m, m}, {m}}},
		"watches outlive their connection":                     {noInterruption, [][]driver.Kind{{m}, {m}}},
		"others may have joined in between":                    {gapsBehind, [][]driver.Kind{{m, m, m}, {m}}},
		"who joins is told to be alone":                        {aloneBehindAnother, [][]driver.Kind{{m, m}, {m}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				for seed := range 50_000 {
					if err := perform(uint64(seed), seed/2%4, made.sessions, made.mistake); err != nil {
						t.Log(err)
						return
					}
				}
				t.Error("the mistake was not found")
			})
		})
	}
}
