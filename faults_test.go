package lockpool_test

// This file has the fault table: every fault at every request of every play.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
	leaseclock "github.com/lockpool/lockpool/internal/clock"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/plays"
	"github.com/lockpool/lockpool/testing/zktest"
)

// Every fault at every request of every play. The requests are not listed here:
// each play runs once without a fault, which records its requests, and then once
// for each of these requests and each fault.

// play is a play of package plays, or one that is about ZooKeeper.
type play struct {
	plays.Play
	layout zookeeper.Layout
	digest bool // with credentials, which every connection sends
	lost   bool // the reply to the first request that creates a node is lost, which has to be found out
}

// keep is the play of the requests that a session sends by itself.
const keep = "keep alive"

// alive is the timeout of the sessions in that play: a busy machine must not lose a real one.
func alive() time.Duration {
	if locktest.Embedded() {
		return middle
	}
	return 3 * middle
}

func allPlays() (all []play) {
	all = []play{{Play: plays.Play{Name: keep, Warm: 1, Act: func(s *plays.Stage) { s.UseFor(alive() / 2) }}}} // takes longest
	for _, p := range plays.All {
		all = append(all, play{Play: p})
	}
	useOnce, wait := (*plays.Stage).UseOnce, (*plays.Stage).WaitAndUse
	return append(all,
		play{Play: plays.Play{Name: "recover", Warm: 1, Act: useOnce}, lost: true},
		play{Play: plays.Play{Name: "permits recover", Warm: 1, Act: useOnce, Way: plays.AllPermits}, lost: true},
		play{Play: plays.Play{Name: "plain recover", Warm: 1, Act: useOnce, Way: plays.Plain}, lost: true},
		play{Play: plays.Play{Name: "twins", Warm: 1, Act: (*plays.Stage).UseAndLook}, layout: zookeeper.LayoutKazoo},
		play{Play: plays.Play{Name: "twins wait", Warm: 1, Rival: true, Act: wait}, layout: zookeeper.LayoutKazoo},
		play{Play: plays.Play{Name: "twins share", Warm: 1, Act: (*plays.Stage).Share}, layout: zookeeper.LayoutKazooRW},
		play{Play: plays.Play{Name: "twins recover", Warm: 1, Act: useOnce}, layout: zookeeper.LayoutKazoo, lost: true},
		play{Play: plays.Play{Name: "once twins", Warm: 1, Act: (*plays.Stage).FinishARun}, layout: zookeeper.LayoutKazoo},
		play{Play: plays.Play{Name: "digest", Warm: 1, Rival: true, Act: wait}, digest: true},
	)
}

// fault is something that happens to one request.
type fault struct {
	name string
	do   func(*stage) zktest.Action
	// spares reports whether the fault makes no sense for a request.
	spares func(zktest.Op) bool
	effect plays.Effect
}

func always(a func() zktest.Action) func(*stage) zktest.Action {
	return func(*stage) zktest.Action { return a() }
}

func fail(code zktest.Code) func(*stage) zktest.Action {
	return func(*stage) zktest.Action { return zktest.FailWith(code) }
}

// machine does something to the machine of the tested pool.
func machine(happen func(*leaseclock.Machine)) func(*stage) zktest.Action {
	return func(s *stage) zktest.Action { return zktest.Call(func(zktest.Request) { happen(s.machine) }) }
}

func only(ops ...zktest.Op) func(zktest.Op) bool {
	return func(op zktest.Op) bool { return !slices.Contains(ops, op) }
}

func isConnect(op zktest.Op) bool { return op == zktest.OpConnect }

var faults = []fault{
	{"drop before", always(zktest.DropBeforeApply), nil, plays.Unseen},
	{"drop after", always(zktest.DropAfterApply), nil, plays.Unseen},
	{"reset before", always(zktest.ResetBeforeApply), nil, plays.Unseen},
	{"reset after", always(zktest.ResetAfterApply), nil, plays.Unseen},
	{"reset behind the reply", always(zktest.ResetAfterReply), nil, plays.Unseen},
	{"two handshakes reset", func(s *stage) zktest.Action { return zktest.Call(func(zktest.Request) { s.resetHandshakes() }) }, isConnect, plays.Unseen},
	{"reply cut in its head", func(*stage) zktest.Action { return zktest.TruncateReply(7) }, nil, plays.Unseen},
	{"reply cut in its body", func(*stage) zktest.Action { return zktest.TruncateReply(22) }, nil, plays.Unseen},
	{"late", func(*stage) zktest.Action { return zktest.DelayApply(15 * time.Millisecond) }, nil, plays.Unseen},
	{"reply late", func(*stage) zktest.Action { return zktest.DelayReply(15 * time.Millisecond) }, nil, plays.Unseen},
	{"held", always(zktest.HoldApply), nil, plays.Unseen},
	{"reply held", always(zktest.HoldReply), nil, plays.Unseen},
	{"connection cut twice", func(s *stage) zktest.Action { return zktest.Call(func(zktest.Request) { s.cutAgain() }) }, nil, plays.Unseen},

	{"throttled", fail(zktest.ErrThrottled), isConnect, plays.Refused},
	{"system error", fail(zktest.ErrSystem), isConnect, plays.Refused},
	{"no rights", fail(zktest.ErrNoAuth), isConnect, plays.Denied},
	{"no queue", fail(zktest.ErrNoNode), only(zktest.OpCreate), plays.Losing},

	{"expires before", always(zktest.ExpireBeforeApply), isConnect, plays.Losing},
	{"expires after", always(zktest.ExpireAfterApply), isConnect, plays.Losing},
	{"frozen", always(zktest.Freeze), nil, plays.Losing},
}

// embeddedFaults need access to the server's state, or are faults of the client's
// machine, which happen beside the server.
var embeddedFaults = []fault{
	{"suspended", machine(func(m *leaseclock.Machine) { m.Suspend(short) }), nil, plays.Losing},
	{"suspended for a moment", machine(func(m *leaseclock.Machine) { m.Suspend(middle / 8) }), nil, plays.Unseen},
	{"wall clock set", machine(func(m *leaseclock.Machine) { m.SetWallClock(time.Hour) }), nil, plays.Unseen},

	{"node removed", func(s *stage) zktest.Action { return zktest.Call(func(zktest.Request) { s.removeNodes() }) }, isConnect, plays.Losing},
	{"queue removed", func(s *stage) zktest.Action {
		return zktest.Call(func(zktest.Request) {
			s.removeNodes()
			nodes := s.embedded.State().Nodes
			for _, path := range slices.Backward(slices.Sorted(maps.Keys(nodes))) {
				stays := strings.Contains(string(nodes[path].Data), `"run":`) || strings.HasSuffix(path, "/limit") // as good as forgotten, if it is removed
				if strings.HasPrefix(path, s.Chroot) && nodes[path].Stat.EphemeralOwner == 0 && !stays {
					_ = s.embedded.Delete(path) // unless it has children
				}
			}
		})
	}, isConnect, plays.Losing},
	{"other server lags", func(s *stage) zktest.Action { return zktest.Call(s.moveToLaggard) }, isConnect, plays.Unseen},
	{"expires unheard", func(s *stage) zktest.Action {
		return zktest.Call(func(r zktest.Request) {
			s.embedded.HalfOpen(zktest.Selector{Conn: r.Conn})
			_ = s.embedded.ExpireSession(r.Session)
		})
	}, isConnect, plays.Losing},
}

const (
	// long is a session timeout longer than any fault but freezing.
	long = 8 * time.Second
	// middle is for requests that are sent once in a part of the timeout.
	middle = 2 * time.Second
	// short is for faults that only the lease reveals.
	short = 1200 * time.Millisecond
)

func TestEveryFaultAtEveryRequest(t *testing.T) {
	table := faults
	if locktest.Embedded() {
		table = slices.Concat(faults, embeddedFaults)
	}
	var all sync.WaitGroup
	// Plays on a real server mostly wait, those in bubbles never.
	room := make(chan struct{}, 24)
	if locktest.Embedded() {
		room = make(chan struct{}, runtime.GOMAXPROCS(0))
	}
	var cases atomic.Int32
	shared := locktest.New(t) // not used in bubbles
	type at struct {
		fault string
		op    zktest.Op
	}
	hits := map[at]int{}
	for _, p := range allPlays() {
		if p.Long && !locktest.Embedded() {
			continue
		}
		requests := record(t, shared, p)
		for _, f := range table {
			hit := slices.DeleteFunc(slices.Clone(requests), func(r request) bool { return f.spares != nil && f.spares(r.op) })
			if len(hit) > 0 && !locktest.Embedded() { // in each play once, and once at each kind of request
				rare := slices.MinFunc(hit, func(a, b request) int { return hits[at{f.name, a.op}] - hits[at{f.name, b.op}] })
				hit = slices.DeleteFunc(hit, func(r request) bool { return r != rare && hits[at{f.name, r.op}] > 0 })
			}
			for _, r := range hit {
				hits[at{f.name, r.op}]++
				room <- struct{}{}
				all.Go(func() {
					defer func() { <-room }()
					cases.Add(1)
					run(t, fmt.Sprintf("%s/%s/%s", p.Name, r, f.name), func(t *testing.T) { perform(t, shared, p, &f, r) })
				})
			}
		}
	}
	all.Wait()
	require.Eventually(t, func() bool { return len(plays.Running(t, "stage-")) == 0 }, locktest.Patience, 10*time.Millisecond,
		"the goroutines of the tested pools have ended")
	t.Logf("%d cases", cases.Load())
}

// request is the nth request of its kind in a play.
type request struct {
	op  zktest.Op
	nth int
}

func (r request) String() string { return fmt.Sprintf("%s %d", r.op, r.nth+1) }

func record(t *testing.T, shared *locktest.Bench, p play) (requests []request) {
	run(t, p.Name+"/without a fault", func(t *testing.T) {
		s := newStage(t, shared, p, nil)
		var mu sync.Mutex
		count := map[zktest.Op]int{}
		s.fault = s.server.Inject(zktest.Rule{Match: s.subject(func(r zktest.Request) bool {
			mu.Lock()
			defer mu.Unlock()
			requests = append(requests, request{r.Op, count[r.Op]})
			count[r.Op]++
			return true
		}), Times: zktest.Always, Do: zktest.Pass()})
		s.perform(p)
		require.NotEmpty(t, requests)
	})
	if !locktest.Embedded() { // the ways that differ between servers begin at the first of a kind
		requests = slices.DeleteFunc(requests, func(r request) bool { return r.nth > 0 })
	}
	return requests // none if -run leaves the play out
}

// run runs a play: with an embedded server in a bubble.
func run(t *testing.T, name string, play func(*testing.T)) {
	t.Run(name, func(t *testing.T) {
		if locktest.Embedded() {
			synctest.Test(t, play)
		} else {
			play(t)
		}
	})
}

func perform(t *testing.T, shared *locktest.Bench, p play, f *fault, r request) {
	s := newStage(t, shared, p, f)
	match := s.subject(func(got zktest.Request) bool { return got.Op == r.op })
	s.fault = s.server.Inject(zktest.Rule{Match: match, Skip: r.nth, Do: f.do(s)})
	s.perform(p)
}

// stage is where a play is performed.
type stage struct {
	*locktest.Bench
	plays    *plays.Stage
	server   zktest.FaultInjector
	embedded *zktest.Server // nil if the server is real
	machine  *leaseclock.Machine
	keeps    bool // whether the play is keep
	fault    *zktest.Fault
	foreign  map[int64]bool
}

var stages atomic.Int64

func newStage(t *testing.T, shared *locktest.Bench, p play, f *fault) *stage {
	s := &stage{foreign: map[int64]bool{}, keeps: p.Name == keep}
	direct := s.start(t, shared)
	cfg := s.Config()
	cfg.Logger = slog.New(slog.DiscardHandler)
	cfg.SessionTimeout = long
	cfg.Layout = p.layout
	if p.digest {
		cfg.Digest, cfg.ACL = zookeeper.Digest{User: "u", Password: "p"}, zk.WorldACL(zk.PermAll)
	}
	cfg.Servers = strings.Split(direct, ",")
	others := s.PoolWith(cfg, p.Opts...)
	require.NoError(s, others.Ping(s.Ctx)) // before Machine, so that others is not on it
	s.machine = s.Bench.Machine()
	s.plays = &plays.Stage{TB: t, Ctx: s.Ctx, Others: others, Label: fmt.Sprint("stage-", stages.Add(1)), AtNext: s.atNext}
	if s.keeps {
		cfg.SessionTimeout = alive()
	}
	if f != nil {
		s.plays.Effect, s.plays.Allows = f.effect, func(err error) bool { return allows(f.effect, err) }
		s.plays.Fired = func() bool { return s.fault.Fired() > 0 }
		switch {
		case f.effect == plays.Losing:
			cfg.SessionTimeout = short
			if s.embedded == nil { // which answers as fast as the machine lets it
				cfg.SessionTimeout = middle
			}
		case s.keeps:
			s.plays.Effect = plays.Unseen // the request is repeated
		}
	}
	cfg.Servers = strings.Split(s.server.ConnectString(), ",")
	if s.embedded != nil {
		for _, session := range s.embedded.State().Sessions {
			s.foreign[session.ID] = true
		}
	}
	s.plays.AsSubject(func() { s.plays.Pool = s.PoolWith(cfg, p.Opts...) })
	s.plays.Prepare(p.Play)
	return s
}

// start starts the servers, and returns the address for the rival.
func (s *stage) start(t *testing.T, shared *locktest.Bench) (direct string) {
	if !locktest.Embedded() {
		s.server = zktest.StartProxy(t, locktest.Shared().Addr())
		s.Bench = shared.Beside(t)
		return locktest.Shared().Addr()
	}
	s.embedded = zktest.StartBubble(t, zktest.TickTime(20*time.Millisecond), zktest.Members(2))
	s.server = s.embedded
	s.Bench = locktest.NewOn(t, s.embedded)
	// This context is never canceled, so that a goroutine that waits for it remains at
	// the end of the bubble, which fails.
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(locktest.Patience, cancel)
	s.Ctx = ctx
	return s.embedded.ConnectString()
}

// allows reports whether a fault with an effect may be the cause of an error.
func allows(effect plays.Effect, err error) bool {
	switch {
	case effect == plays.Denied && errors.Is(err, lockpool.ErrNoPermission):
		return regexp.MustCompile(` needs the rights? (CREATE|READ|WRITE|DELETE|CREATE and DELETE) on /`).MatchString(err.Error())
	case effect == plays.Refused && !locktest.IsAny(err, lockpool.ErrLockLost, lockpool.ErrLocked, context.Canceled):
		return regexp.MustCompile(` on /.*: the server (is overloaded|answered error -1 )`).MatchString(err.Error())
	}
	return false
}

// subject matches the requests of the tested pool. Those that keep its sessions
// alive come at any time, so they have a play of their own.
func (s *stage) subject(where func(zktest.Request) bool) zktest.Match {
	return zktest.Match{Where: func(r zktest.Request) bool {
		alive := (r.Op == zktest.OpSync || r.Op == zktest.OpMulti) && slices.Equal(r.Paths, []string{"/"})
		return !s.foreign[r.Session] && r.Op != zktest.OpCloseSession && alive == s.keeps && where(r)
	}}
}

func anything(zktest.Request) bool { return true }

func (s *stage) atNext(do func()) {
	s.server.Inject(zktest.Rule{Match: s.subject(anything), Do: zktest.Call(func(zktest.Request) { do() })})
}

func (s *stage) perform(p play) {
	s.endDelay()
	if p.lost {
		s.server.Inject(zktest.Rule{
			Match: s.subject(func(r zktest.Request) bool { return r.Op == zktest.OpMulti || slices.Contains(zktest.Creates, r.Op) }),
			Do:    zktest.DropAfterApply(),
		})
	}
	s.plays.Perform(p.Play, func() {
		s.fault.Remove()
		if s.embedded != nil {
			require.NoError(s, s.embedded.CatchUp(1))
			require.NoError(s, s.embedded.CatchUp(2))
		}
	})
	s.Until(func() bool { return len(s.Contenders("/")) == 0 }, "no contender is left")
	require.NoError(s, s.plays.Pool.Close())
	require.NoError(s, s.plays.Others.Close())
	if s.embedded != nil {
		require.NoError(s, s.embedded.WaitFor(s.Ctx, func(state *zktest.State) bool {
			return len(state.Watches) == 0 && len(state.Conns) == 1 && len(state.Sessions) == 1 // the bench's own
		}))
	}
}

// endDelay ends the delay that the fault causes.
func (s *stage) endDelay() {
	var delay sync.WaitGroup
	ctx, cancel := context.WithCancel(s.Ctx)
	s.Cleanup(func() { cancel(); delay.Wait() })
	delay.Go(func() { // ends with the stage
		if s.fault.Wait(ctx) == nil {
			time.Sleep(10 * time.Millisecond) // the delay
			s.fault.Release()
			_ = s.server.AcceptConnections()
		}
	})
}

// resetHandshakes breaks the connection, and the next two after their handshakes,
// so that the client's first write fails.
func (s *stage) resetHandshakes() {
	s.server.Inject(zktest.Rule{
		Match: s.subject(func(r zktest.Request) bool { return r.Op == zktest.OpConnect }), Times: 2, Do: zktest.ResetAfterReply(),
	})
	s.server.Cut(zktest.Selector{})
}

func (s *stage) cutAgain() {
	s.server.Cut(zktest.Selector{})
	s.server.Inject(zktest.Rule{Match: s.subject(anything), Do: zktest.DropBeforeApply()})
}

// moveToLaggard moves the client to the other server, which has not seen the
// request yet, before it gets the reply.
func (s *stage) moveToLaggard(r zktest.Request) {
	_ = s.embedded.Lag(3 - r.Member)
	_ = s.embedded.RefuseConnections(r.Member)
	s.embedded.Cut(zktest.Selector{Conn: r.Conn})
}

func (s *stage) removeNodes() {
	for path, n := range s.embedded.State().Nodes {
		if n.Stat.EphemeralOwner != 0 && !s.foreign[n.Stat.EphemeralOwner] {
			_ = s.embedded.Delete(path)
		}
	}
}
