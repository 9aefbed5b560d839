package lockpool_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"regexp"
	"runtime"
	"runtime/pprof"
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
	"github.com/lockpool/lockpool/testing/zktest"
)

// Every fault at every request of every play. The requests are not listed here:
// each play runs once without a fault, which records its requests, and then once
// for each of these requests and each fault.

// play is a way to use a lock. A rival waits behind it, or holds the lock first.
type play struct {
	name  string
	warm  int  // how often the lock is used before
	rival bool // the rival holds the lock first
	act   func(*stage)

	layout    zookeeper.Layout
	digest    bool // with credentials, which every connection sends
	atService bool // no lock is passed on in memory
	way       way  // nil for a lock with a queue

	opts    []lockpool.Option // of both pools
	virtual bool              // not on real servers, where it takes a minute; "deadlock" and "deadlock for a plain lock" are played there
}

// way acquires a kind of lock named a, exclusively.
type way func(ctx context.Context, p *lockpool.Pool, try bool) (*lockpool.Lock, error)

func withOptions(opts ...lockpool.LockOption) way {
	return func(ctx context.Context, p *lockpool.Pool, try bool) (*lockpool.Lock, error) {
		if try {
			return p.TryLock(ctx, "a", opts...)
		}
		return p.Lock(ctx, "a", opts...)
	}
}

func allPermits(ctx context.Context, p *lockpool.Pool, try bool) (*lockpool.Lock, error) {
	sem := p.Semaphore("a", 2)
	if try {
		return sem.Acquire(ctx, 2, lockpool.WaitAtMost(0))
	}
	return sem.Acquire(ctx, 2)
}

func reading(ctx context.Context, p *lockpool.Pool, try bool) (*lockpool.Lock, error) {
	if try {
		return p.TryLock(ctx, "a", lockpool.Shared())
	}
	return p.Lock(ctx, "a", lockpool.Shared())
}

// keep is the play of the requests that a session sends by itself.
const keep = "keep alive"

var plays = []play{
	{name: "first", act: (*stage).useOnce},
	{name: "again", warm: 1, act: (*stage).useOnce},
	{name: "often", warm: 20, act: (*stage).useOnce},
	{name: "wait", warm: 1, rival: true, act: (*stage).waitAndUse},
	{name: "local wait", warm: 1, rival: true, act: func(s *stage) { s.passOn(false) }},
	{name: "local wait to read", warm: 1, rival: true, act: func(s *stage) { s.passOn(true) }},
	{name: "try", warm: 1, rival: true, act: (*stage).try},
	{name: "cancel", warm: 1, rival: true, act: (*stage).giveUp},
	{name: "queue", warm: 20, rival: true, atService: true, act: (*stage).queue},
	{name: "look", warm: 1, act: (*stage).useAndLook},
	{name: "read", warm: 1, act: (*stage).readOnce},
	{name: "wait to read", warm: 1, rival: true, act: (*stage).waitAndRead},
	{name: "share", warm: 1, act: (*stage).share},
	{name: "recover", warm: 1, act: (*stage).useAfterALostReply},
	{name: "permits", warm: 1, act: (*stage).useAndLook, way: allPermits},
	{name: "permits first", act: (*stage).useOnce, way: allPermits},
	{name: "permits wait", warm: 1, rival: true, act: (*stage).waitAndUse, way: allPermits},
	{name: "permits try", warm: 1, rival: true, act: (*stage).try, way: allPermits},
	{name: "permits cancel", warm: 1, rival: true, act: (*stage).giveUp, way: allPermits},
	{name: "permits recover", warm: 1, act: (*stage).useAfterALostReply, way: allPermits},
	{name: "plain", warm: 1, act: (*stage).useAndLook, way: withOptions(lockpool.Plain())},
	{name: "plain wait", warm: 1, rival: true, act: (*stage).waitAndUse, way: withOptions(lockpool.Plain())},
	{name: "plain try", warm: 1, rival: true, act: (*stage).try, way: withOptions(lockpool.Plain())},
	{name: "plain cancel", warm: 1, rival: true, act: (*stage).giveUp, way: withOptions(lockpool.Plain())},
	{name: "plain recover", warm: 1, act: (*stage).useAfterALostReply, way: withOptions(lockpool.Plain())},
	{name: "revoke", warm: 1, act: (*stage).useUntilRevoked, way: withOptions(lockpool.Revocable())},
	{name: "revoke waiting", warm: 1, rival: true, act: (*stage).waitUntilRevoked, way: withOptions(lockpool.Revocable())},
	{name: "revoke rival", warm: 1, rival: true, act: (*stage).revokeRival},
	{name: "observe", warm: 1, rival: true, act: (*stage).observe},
	{name: "observe nobody", act: (*stage).observeNobody},
	{name: "observe permits", warm: 1, rival: true, act: (*stage).observe, way: allPermits},
	{name: "observe plain", warm: 1, rival: true, act: (*stage).observe, way: withOptions(lockpool.Plain())},
	{name: "twins", warm: 1, act: (*stage).useAndLook, layout: zookeeper.LayoutKazoo},
	{name: "twins wait", warm: 1, rival: true, act: (*stage).waitAndUse, layout: zookeeper.LayoutKazoo},
	{name: "twins share", warm: 1, act: (*stage).share, layout: zookeeper.LayoutKazooRW},
	{name: "twins recover", warm: 1, act: (*stage).useAfterALostReply, layout: zookeeper.LayoutKazoo},
	{name: "once", warm: 1, act: (*stage).finishARun},
	{name: "once wait", warm: 1, act: (*stage).waitForARun},
	{name: "once within", warm: 1, act: (*stage).finishARunWithin},
	{name: "once twins", warm: 1, act: (*stage).finishARun, layout: zookeeper.LayoutKazoo},
	{name: "deadlock", warm: 1, act: deadlock(exclusively, exclusively, false), opts: soon},
	{name: "deadlock of permits", warm: 1, act: deadlock(permits(2, 2), permits(2, 2), false), opts: soon, way: allPermits, virtual: true},
	{name: "deadlock of a plain lock", warm: 1, act: deadlock(plainly, exclusively, true), opts: soon, way: withOptions(lockpool.Plain()), virtual: true},
	{name: "deadlock for a plain lock", warm: 1, act: deadlock(exclusively, plainly, false), opts: soon},
	{name: "deadlock of readers", warm: 1, act: (*stage).deadlockOfReaders, opts: soon, virtual: true},
	{name: "deadlock of two at once", warm: 1, act: deadlock(withAll, exclusively, false), opts: soon, virtual: true},
	{name: "local deadlock", warm: 1, act: (*stage).localDeadlock, opts: soon},
	{name: "digest", warm: 1, rival: true, act: (*stage).waitAndUse, digest: true},
	{name: "hold at least", warm: 1, act: (*stage).useOnce, way: withOptions(lockpool.HoldAtLeast(50 * time.Millisecond))},
	{name: keep, warm: 1, act: (*stage).useLong},
}

// fault is something that happens to one request.
type fault struct {
	name string
	do   func(*stage) zktest.Action
	// spares reports whether the fault makes no sense for a request.
	spares func(zktest.Op) bool
	effect effect
}

// effect is what a fault may do to a call.
type effect int

const (
	unseen  effect = iota // none but a delay
	refused               // an error that names the refused request
	denied                // ErrNoPermission, which names right and path
	losing                // a held lock is lost, a waiter is granted nevertheless
)

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
	{"drop before", always(zktest.DropBeforeApply), nil, unseen},
	{"drop after", always(zktest.DropAfterApply), nil, unseen},
	{"reset before", always(zktest.ResetBeforeApply), nil, unseen},
	{"reset after", always(zktest.ResetAfterApply), nil, unseen},
	{"reset behind the reply", always(zktest.ResetAfterReply), nil, unseen},
	{"two handshakes reset", func(s *stage) zktest.Action { return zktest.Call(func(zktest.Request) { s.resetHandshakes() }) }, isConnect, unseen},
	{"reply cut in its head", func(*stage) zktest.Action { return zktest.TruncateReply(7) }, nil, unseen},
	{"reply cut in its body", func(*stage) zktest.Action { return zktest.TruncateReply(22) }, nil, unseen},
	{"late", func(*stage) zktest.Action { return zktest.DelayApply(15 * time.Millisecond) }, nil, unseen},
	{"reply late", func(*stage) zktest.Action { return zktest.DelayReply(15 * time.Millisecond) }, nil, unseen},
	{"held", always(zktest.HoldApply), nil, unseen},
	{"reply held", always(zktest.HoldReply), nil, unseen},
	{"connection cut twice", func(s *stage) zktest.Action { return zktest.Call(func(zktest.Request) { s.cutAgain() }) }, nil, unseen},

	{"throttled", fail(zktest.ErrThrottled), isConnect, refused},
	{"system error", fail(zktest.ErrSystem), isConnect, refused},
	{"no rights", fail(zktest.ErrNoAuth), isConnect, denied},
	{"no queue", fail(zktest.ErrNoNode), only(zktest.OpCreate), losing},

	{"expires before", always(zktest.ExpireBeforeApply), isConnect, losing},
	{"expires after", always(zktest.ExpireAfterApply), isConnect, losing},
	{"frozen", always(zktest.Freeze), nil, losing},
}

// embeddedFaults need access to the server's state, or are faults of the client's
// machine, which happen beside the server.
var embeddedFaults = []fault{
	{"suspended", machine(func(m *leaseclock.Machine) { m.Suspend(short) }), nil, losing},
	{"suspended for a moment", machine(func(m *leaseclock.Machine) { m.Suspend(middle / 8) }), nil, unseen},
	{"wall clock set", machine(func(m *leaseclock.Machine) { m.SetWallClock(time.Hour) }), nil, unseen},

	{"node removed", func(s *stage) zktest.Action { return zktest.Call(func(zktest.Request) { s.removeNodes() }) }, isConnect, losing},
	{"queue removed", func(s *stage) zktest.Action {
		return zktest.Call(func(zktest.Request) {
			s.removeNodes()
			nodes := s.embedded.State().Nodes
			for _, path := range slices.Backward(slices.Sorted(maps.Keys(nodes))) {
				isRecord := strings.Contains(string(nodes[path].Data), `"run":`) // as good as forgotten, if it is removed
				if strings.HasPrefix(path, s.Chroot) && nodes[path].Stat.EphemeralOwner == 0 && !isRecord {
					_ = s.embedded.Delete(path) // unless it has children
				}
			}
		})
	}, isConnect, losing},
	{"other server lags", func(s *stage) zktest.Action { return zktest.Call(s.moveToLaggard) }, isConnect, unseen},
	{"expires unheard", func(s *stage) zktest.Action {
		return zktest.Call(func(r zktest.Request) {
			s.embedded.HalfOpen(zktest.Selector{Conn: r.Conn})
			_ = s.embedded.ExpireSession(r.Session)
		})
	}, isConnect, losing},
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
	for _, p := range plays {
		if p.virtual && !locktest.Embedded() {
			continue
		}
		requests := record(t, shared, p)
		for _, f := range table {
			for _, r := range requests {
				if f.spares != nil && f.spares(r.op) {
					continue
				}
				room <- struct{}{}
				all.Go(func() {
					defer func() { <-room }()
					cases.Add(1)
					run(t, fmt.Sprintf("%s/%s/%s", p.name, r, f.name), func(t *testing.T) { perform(t, shared, p, &f, r) })
				})
			}
		}
	}
	all.Wait()
	require.Eventually(t, func() bool { return len(running(t)) == 0 }, locktest.Patience, 10*time.Millisecond,
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
	run(t, p.name+"/without a fault", func(t *testing.T) {
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
	server   zktest.FaultInjector
	embedded *zktest.Server // nil if the server is real
	machine  *leaseclock.Machine
	effect   effect
	faulty   bool // whether there is a fault
	keeps    bool // whether the play is keep
	label    string
	fault    *zktest.Fault
	foreign  map[int64]bool

	pool, others *lockpool.Pool
	way          way
	first        *lockpool.Lock // held by others

	inside atomic.Int32
}

var stages atomic.Int64

func newStage(t *testing.T, shared *locktest.Bench, p play, f *fault) *stage {
	s := &stage{way: p.way, label: fmt.Sprint("stage-", stages.Add(1)), foreign: map[int64]bool{}, keeps: p.name == keep}
	direct := ""
	if locktest.Embedded() {
		s.embedded = zktest.StartBubble(t, zktest.TickTime(20*time.Millisecond), zktest.Members(2))
		s.server, direct = s.embedded, s.embedded.ConnectString()
		s.Bench = locktest.NewOn(t, s.embedded)
		// This context is never canceled, so that a goroutine that waits for it remains at
		// the end of the bubble, which fails.
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(locktest.Patience, cancel)
		s.Ctx = ctx
	} else {
		proxy := zktest.StartProxy(t, locktest.Shared().Addr())
		s.server, direct = proxy, locktest.Shared().Addr()
		s.Bench = shared.Beside(t)
	}
	if p.atService {
		s.AtService()
	}
	cfg := s.Config()
	cfg.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	cfg.SessionTimeout = long
	cfg.Layout = p.layout
	if p.digest {
		cfg.Digest, cfg.ACL = zookeeper.Digest{User: "u", Password: "p"}, zk.WorldACL(zk.PermAll)
	}
	cfg.Servers = strings.Split(direct, ",")
	s.others = s.PoolWith(cfg, p.opts...)
	require.NoError(s, s.others.Ping(s.Ctx)) // before Machine, so that others is not on it
	s.machine = s.Bench.Machine()
	if p.name == keep {
		cfg.SessionTimeout = middle
	}
	if f != nil {
		s.effect, s.faulty = f.effect, true
		switch {
		case f.effect == losing:
			cfg.SessionTimeout = short
		case p.name == keep:
			s.effect = unseen // the request is repeated
		}
	}
	cfg.Servers = strings.Split(s.server.ConnectString(), ",")
	if s.embedded != nil {
		for _, session := range s.embedded.State().Sessions {
			s.foreign[session.ID] = true
		}
	}
	pprof.Do(s.Ctx, pprof.Labels("stage", s.label), func(context.Context) { s.pool = s.PoolWith(cfg, p.opts...) })
	if s.way == nil {
		s.way = withOptions()
	}
	for range p.warm {
		s.asSubject(func() { s.free(s.take(s.pool)) })
	}
	if p.rival {
		s.first = s.take(s.others)
	}
	return s
}

func (s *stage) take(p *lockpool.Pool) *lockpool.Lock {
	g, err := s.way(s.Ctx, p, false)
	require.NoError(s, err)
	return g
}

func (s *stage) free(g *lockpool.Lock) { require.NoError(s, g.Unlock(s.Ctx)) }

// asSubject labels the goroutines that do starts.
func (s *stage) asSubject(do func()) {
	pprof.Do(s.Ctx, pprof.Labels("stage", s.label), func(context.Context) { do() })
}

// subject matches the requests of the tested pool. Those that keep its sessions
// alive come at any time, so they have a play of their own.
func (s *stage) subject(where func(zktest.Request) bool) zktest.Match {
	return zktest.Match{Where: func(r zktest.Request) bool {
		alive := (r.Op == zktest.OpSync || r.Op == zktest.OpMulti) && slices.Equal(r.Paths, []string{"/"})
		return !s.foreign[r.Session] && r.Op != zktest.OpCloseSession && alive == s.keeps && where(r)
	}}
}

func (s *stage) perform(p play) {
	s.endDelay()
	s.asSubject(func() { p.act(s) })
	s.fault.Remove()
	if s.embedded != nil {
		require.NoError(s, s.embedded.CatchUp(1))
		require.NoError(s, s.embedded.CatchUp(2))
	}
	// Whatever happened, the lock is free, and both pools can use it.
	s.free(s.take(s.others))
	s.asSubject(func() {
		err := s.take(s.pool).Unlock(s.Ctx)
		require.True(s, err == nil || s.effect == losing && errors.Is(err, lockpool.ErrLockLost), "%v", err)
	})
	s.Until(func() bool { return len(s.Contenders("/")) == 0 }, "no contender is left")
	require.NoError(s, s.pool.Close())
	require.NoError(s, s.others.Close())
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
	s.server.Inject(zktest.Rule{Match: s.subject(func(zktest.Request) bool { return true }), Do: zktest.DropBeforeApply()})
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

// running returns the labels of the goroutines of tested pools that are left.
func running(t *testing.T) []string {
	var profile bytes.Buffer
	require.NoError(t, pprof.Lookup("goroutine").WriteTo(&profile, 1))
	return regexp.MustCompile(`"stage":"[^"]*"`).FindAllString(profile.String(), -1)
}

// check checks an error of the tested pool. It reports whether there is none.
func (s *stage) check(err error, expected ...error) bool {
	s.Helper()
	if len(expected) > 0 && locktest.IsAny(err, expected...) {
		return false
	}
	var locking *lockpool.LockError
	switch {
	case err == nil && len(expected) == 0:
		return true
	case err == nil:
		require.FailNow(s, "no error")
	case s.effect == unseen || !errors.As(err, &locking):
	case s.effect == losing && errors.Is(err, lockpool.ErrLockLost):
		return false
	case s.effect == denied && errors.Is(err, lockpool.ErrNoPermission):
		require.Regexp(s, ` needs the rights? (CREATE|READ|WRITE|DELETE|CREATE and DELETE) on /`, err.Error())
		return false
	case s.effect == refused && !locktest.IsAny(err, lockpool.ErrLockLost, lockpool.ErrLocked, context.Canceled):
		require.Regexp(s, ` on /.*: (the server is overloaded|unknown error: -1)`, err.Error())
		return false
	}
	require.FailNow(s, "the wrong error", "%v", err)
	return false
}

// use holds the lock, lets the rival queue behind it, and unlocks.
func (s *stage) use(l *lockpool.Lock, do func()) {
	require.Equal(s, int32(1), s.inside.Add(1), "two holders")
	ctx := l.Context(s.Ctx)
	left := make(chan struct{})
	leave := sync.OnceFunc(func() { s.inside.Add(-1); close(left) })
	go func() { // ends with the lock
		<-ctx.Done()
		leave()
	}()
	behind := make(chan error, 1)
	go func() { // ends with ctx
		g, err := s.way(s.Ctx, s.others, false)
		if err == nil {
			// A server that ends a session for no reason gives no guarantee. Otherwise the
			// context of a lock ends before the lock is released.
			if n := s.inside.Load(); n != 0 && ctx.Err() == nil && s.effect != losing {
				err = fmt.Errorf("two holders")
			}
			err = errors.Join(err, g.Unlock(s.Ctx))
		}
		if s.effect == losing && errors.Is(err, lockpool.ErrRevoked) { // it held the lock by then, and was asked
			err = nil
		}
		behind <- err
	}()
	do()
	leave()
	s.check(l.Unlock(s.Ctx))
	require.NoError(s, <-behind)
}

func (s *stage) useOnce() {
	l, err := s.way(s.Ctx, s.pool, false)
	if s.check(err) {
		s.use(l, func() {})
	}
}

// useLong holds the lock so long that the session must prove itself alive.
func (s *stage) useLong() {
	l, err := s.pool.Lock(s.Ctx, "a")
	if s.check(err) {
		s.use(l, func() {
			select {
			case <-time.After(middle / 2):
			case <-l.Lost():
				require.Equal(s, losing, s.effect, "%v", context.Cause(l.Context(s.Ctx)))
			}
		})
	}
}

// useAfterALostReply has to find out whether its node was created.
func (s *stage) useAfterALostReply() {
	s.server.Inject(zktest.Rule{
		Match: s.subject(func(r zktest.Request) bool { return r.Op == zktest.OpMulti || slices.Contains(zktest.Creates, r.Op) }),
		Do:    zktest.DropAfterApply(),
	})
	s.useOnce()
}

func (s *stage) readOnce() {
	l, err := s.pool.Lock(s.Ctx, "a", lockpool.Shared())
	if s.check(err) {
		s.use(l, func() {})
	}
}

func (s *stage) waitAndRead() {
	end := s.begin(s.Ctx, reading)
	s.free(s.first)
	l, err := end()
	if s.check(err) {
		s.use(l, func() {})
	}
}

// share downgrades an exclusive lock.
func (s *stage) share() {
	h, err := s.pool.Handle(s.Ctx)
	require.NoError(s, err)
	defer h.Close(s.Ctx)
	write, err := h.Lock(s.Ctx, "a")
	if !s.check(err) {
		return
	}
	read, err := h.Lock(s.Ctx, "a", lockpool.Shared())
	if s.check(err) {
		s.use(read, func() { s.check(write.Unlock(s.Ctx)) })
	}
}

func (s *stage) useAndLook() {
	l, err := s.way(s.Ctx, s.pool, false)
	if s.check(err) {
		s.use(l, func() {
			token, err := l.Token(s.Ctx)
			if s.check(err) {
				require.Positive(s, token)
			}
			s.check(l.Verify(s.Ctx))
		})
	}
}

// begin starts a Lock that has to wait, and returns when it waits or when the fault
// has happened.
func (s *stage) begin(ctx context.Context, way way) func() (*lockpool.Lock, error) {
	var l *lockpool.Lock
	var err error
	done := make(chan struct{})
	go func() { // ends with ctx
		defer close(done)
		l, err = way(ctx, s.pool, false)
	}()
	s.Until(func() bool {
		select {
		case <-done:
			return true
		default:
			return s.pool.Stats().Waiting > 0 || s.faulty && s.fault.Fired() > 0
		}
	}, "the call waits, or the fault has happened")
	return func() (*lockpool.Lock, error) { <-done; return l, err }
}

func (s *stage) waitAndUse() {
	end := s.begin(s.Ctx, s.way)
	s.free(s.first)
	l, err := end()
	if s.check(err) {
		s.use(l, func() {})
	}
}

// queue lets three waiters of one session share what they know of the queue. The lock was
// used so often before that the last one joins without a listing.
func (s *stage) queue() {
	const waiters = 3
	results := make(chan error, waiters)
	for i := range waiters {
		go func() { // ends when it has had the lock
			l, err := s.way(s.Ctx, s.pool, false)
			if err == nil {
				if s.inside.Add(1) != 1 && s.effect != losing {
					err = errors.New("two holders")
				}
				time.Sleep(time.Millisecond)
				s.inside.Add(-1)
				err = errors.Join(err, l.Unlock(s.Ctx))
			}
			results <- err
		}()
		s.Until(func() bool { return s.pool.Stats().Waiting > i || s.faulty && s.fault.Fired() > 0 }, "%d wait, or the fault has happened", i+1)
	}
	s.free(s.first)
	for range waiters {
		s.check(<-results)
	}
}

// passOn has several calls of the pool wait for the rival: one at the service, and the
// others in memory, of which one gives up.
func (s *stage) passOn(shared bool) {
	var inside atomic.Int32
	turn := func(ctx context.Context, p *lockpool.Pool, _ bool) (*lockpool.Lock, error) {
		var opts []lockpool.LockOption
		if shared {
			opts = append(opts, lockpool.Shared())
		}
		l, err := p.Lock(ctx, "a", opts...)
		if err != nil {
			return nil, err
		}
		within := l.Context(s.Ctx)
		if n := inside.Add(1); n != 1 && !shared && s.effect != losing {
			err = fmt.Errorf("%d holders", n)
		}
		time.Sleep(time.Millisecond)
		inside.Add(-1)
		if within.Err() == nil {
			_, tokenErr := l.Token(s.Ctx)
			err = errors.Join(err, tokenErr)
		}
		return nil, errors.Join(err, l.Unlock(s.Ctx))
	}
	ctx, cancel := context.WithCancel(s.Ctx)
	defer cancel()
	var turns []func() (*lockpool.Lock, error)
	for range 3 {
		turns = append(turns, s.begin(s.Ctx, turn))
	}
	givesUp := s.begin(ctx, turn)
	turns = append(turns, s.begin(s.Ctx, turn))
	cancel()
	if _, err := givesUp(); err != nil {
		s.check(err, context.Canceled)
	}
	s.free(s.first)
	for _, end := range turns {
		_, err := end()
		s.check(err)
	}
}

func (s *stage) try() {
	_, err := s.way(s.Ctx, s.pool, true)
	s.check(err, lockpool.ErrLocked)
	s.free(s.first)
}

func (s *stage) giveUp() {
	ctx, cancel := context.WithCancel(s.Ctx)
	defer cancel()
	end := s.begin(ctx, s.way)
	cancel()
	_, err := end()
	s.check(err, context.Canceled)
	s.free(s.first)
}

// observe sees that the rival holds the lock, and that nobody does when the rival has
// unlocked.
func (s *stage) observe() {
	held := true
	for q, err := range s.pool.Observe(s.Ctx, "a") {
		switch {
		case errors.Is(err, lockpool.ErrUnavailable): // the state follows
		case err != nil:
			s.check(err)
		case held:
			require.Len(s, q.Contenders, 1)
			require.True(s, q.Contenders[0].Holds)
			s.free(s.first)
			held = false
		case len(q.Contenders) == 0:
			return
		}
	}
	if held {
		s.free(s.first)
	}
	require.True(s, s.effect == denied, "the loop has ended")
}

// observeNobody sees the rival come, to a lock that has no directory.
func (s *stage) observeNobody() {
	for q, err := range s.pool.Observe(s.Ctx, "a") {
		switch {
		case errors.Is(err, lockpool.ErrUnavailable):
		case err != nil:
			s.check(err)
		case len(q.Contenders) > 0:
			s.free(s.first)
			return
		case s.first == nil:
			s.first = s.take(s.others)
		}
	}
	if s.first != nil {
		s.free(s.first)
	}
	require.True(s, s.effect == denied, "the loop has ended")
}

func (s *stage) useUntilRevoked() {
	l, err := s.way(s.Ctx, s.pool, false)
	if s.check(err) {
		s.use(l, func() {
			require.NoError(s, s.others.Revoke(s.Ctx, "a"))
			ended := l.Context(s.Ctx)
			<-ended.Done()
			if cause := context.Cause(ended); cause != lockpool.ErrRevoked {
				require.True(s, s.effect != unseen && errors.Is(cause, lockpool.ErrLockLost), "%v", cause)
			}
		})
	}
}

func (s *stage) waitUntilRevoked() {
	end := s.begin(s.Ctx, s.way)
	ended := make(chan error)
	go func() { // ends with the wait
		_, err := end()
		ended <- err
	}()
	for {
		select {
		case err := <-ended:
			s.check(err, lockpool.ErrRevoked)
			s.free(s.first)
			return
		default: // the waiter may queue again because of a fault
		}
		q, err := s.others.Queue(s.Ctx, "a")
		require.NoError(s, err)
		if len(q.Contenders) == 2 {
			require.NoError(s, s.others.Revoke(s.Ctx, "a", q.Contenders[1].Node))
		}
		time.Sleep(time.Millisecond) // or virtual time would stand still
	}
}

func (s *stage) revokeRival() {
	revoked := s.first.Revoked()
	if err := s.pool.Revoke(s.Ctx, "a"); err == nil {
		<-revoked
	} else {
		s.check(err)
	}
	s.free(s.first)
}

// finishARun calls Once, while the rival waits to do the same if the run does not finish.
func (s *stage) finishARun() {
	behind := make(chan error, 1)
	taken := false
	takeUp := func() { // ends with ctx
		behind <- s.others.Once(s.Ctx, "a", "key", func(context.Context) error { taken = true; return nil })
	}
	began := false
	err := s.pool.Once(s.Ctx, "a", "key", func(ctx context.Context) error {
		require.False(s, began, "it ran twice in one call")
		began = true
		go takeUp()
		s.Until(func() bool { return s.others.Stats().Waiting > 0 || ctx.Err() != nil || s.effect == losing }, "the rival waits")
		return nil
	})
	if !began {
		go takeUp()
	}
	rival := <-behind
	if err == nil {
		require.ErrorIs(s, rival, lockpool.ErrDone)
	} else {
		s.check(err)
		require.NotContains(s, err.Error(), "not known")
		require.NoError(s, rival)
	}
	require.Equal(s, err != nil, taken)
	runs, err := s.others.Finished(s.Ctx, "a")
	require.NoError(s, err)
	require.Equal(s, "key", runs[len(runs)-1].Key)
}

// waitForARun waits while the rival finishes the run.
func (s *stage) waitForARun() {
	var end func() (*lockpool.Lock, error)
	require.NoError(s, s.others.Once(s.Ctx, "a", "key", func(context.Context) error {
		end = s.begin(s.Ctx, func(ctx context.Context, p *lockpool.Pool, _ bool) (*lockpool.Lock, error) {
			return nil, p.Once(ctx, "a", "key", func(context.Context) error { return errors.New("it ran") })
		})
		return nil
	}))
	_, err := end()
	s.check(err, lockpool.ErrDone)
}

// finishARunWithin calls Once while it holds the lock of the run, which it keeps. There is a record of
// another run.
func (s *stage) finishARunWithin() {
	require.NoError(s, s.others.Once(s.Ctx, "a", "other", func(context.Context) error { return nil }))
	l, err := s.pool.Lock(s.Ctx, lockOfRun("a", "key"))
	if !s.check(err) {
		return
	}
	ctx := l.Context(s.Ctx)
	n := 0
	err = s.pool.Once(ctx, "a", "key", func(context.Context) error { n++; return nil })
	finished := err == nil
	if ctx.Err() == nil || !errors.Is(err, context.Canceled) { // else the lock was lost before
		s.check(err)
	}
	s.check(l.Unlock(s.Ctx))
	runs, err := s.others.Finished(s.Ctx, "a")
	require.NoError(s, err)
	require.Equal(s, finished, len(runs) == 2)
}

// soon makes calls look for deadlocks so early that a play on a real server takes little time.
var soon = []lockpool.Option{lockpool.WithDeadlockCheck(30 * time.Millisecond), lockpool.WithLogger(slog.New(slog.DiscardHandler))}

// deadlock returns the act in which a handle of the tested pool holds the lock a, one of the
// rival's holds b, and each asks for the other's. rivalLast says who asks last.
func deadlock(a, b ask, rivalLast bool) func(*stage) {
	return func(s *stage) { s.deadlock(s.others, a, b, a, b, rivalLast) }
}

// deadlockOfReaders is about two readers, each of which asks to write what the other reads.
func (s *stage) deadlockOfReaders() {
	s.deadlock(s.others, toRead, toRead, exclusively, exclusively, false)
}

// localDeadlock is about two handles of the tested pool.
func (s *stage) localDeadlock() {
	s.deadlock(s.pool, exclusively, exclusively, exclusively, exclusively, false)
}

// deadlock lets a handle of the tested pool hold a, one of another pool, or of the same one,
// hold b, and each ask for the other's lock.
func (s *stage) deadlock(other *lockpool.Pool, holdA, holdB, askA, askB ask, otherLast bool) {
	mine, theirs := &party{Handle: s.Handle(s.pool)}, &party{Handle: s.Handle(other)}
	defer func() { s.closeHandle(mine) }()
	if !s.check(holdA(s.Ctx, mine.Handle, "a")) {
		return
	}
	if err := holdB(s.Ctx, theirs.Handle, "b"); other == s.pool {
		defer func() { s.closeHandle(theirs) }()
		if !s.check(err) {
			return
		}
	} else {
		defer theirs.Close(s.Ctx)
		require.NoError(s, err)
	}
	waits, cancel := context.WithCancel(s.Ctx)
	defer cancel()
	ask := func(p *party, get ask, name string) {
		before := s.pool.Stats().Waiting + s.others.Stats().Waiting
		p.waitFor(waits, get, name)
		s.Until(func() bool {
			return p.hasEnded() || s.pool.Stats().Waiting+s.others.Stats().Waiting > before || s.faulty && s.fault.Fired() > 0
		}, "the call waits, or the fault has happened")
	}
	if otherLast {
		ask(mine, askB, "b")
		ask(theirs, askA, "a")
	} else {
		ask(theirs, askA, "a")
		ask(mine, askB, "b")
	}
	told := 0
	for range 2 { // who ends first lets the other one go on
		ended := mine
		select {
		case <-mine.done:
		case <-theirs.done:
			ended = theirs
		}
		if ended == mine {
			mine.done = nil // do not look at it again
		} else {
			theirs.done = nil
		}
		var deadlock *lockpool.DeadlockError
		switch {
		case errors.As(ended.err, &deadlock):
			told++
			require.ErrorIs(s, ended.err, lockpool.ErrDeadlock)
			require.Len(s, deadlock.Cycle, 2, "%v", ended.err)
		case waits.Err() != nil:
			s.check(ended.err, context.Canceled)
		case ended == mine || other == s.pool:
			s.check(ended.err)
		default:
			require.NoError(s, ended.err)
		}
		if !s.closeHandle(ended) && other == s.pool && s.effect == denied {
			cancel() // what is refused goes with the session, which has to last as long as the other handle holds something
		}
	}
	if s.effect == unseen {
		require.Positive(s, told)
	}
	require.LessOrEqual(s, told, 1)
}

// closeHandle releases what a handle holds. It reports whether there is no error.
func (s *stage) closeHandle(p *party) bool { return s.check(p.Close(s.Ctx)) }

// hasEnded reports whether the call of a party has returned.
func (p *party) hasEnded() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}
