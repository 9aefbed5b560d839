package lockpool_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
	leaseclock "github.com/lockpool/lockpool/internal/clock"
	"github.com/lockpool/lockpool/testing/zktest"
)

// Every fault at every request of every play. The requests are not written down
// here: each play is run once without a fault, and what it asks the server is
// recorded. Then it is run once for each of these requests and each fault.

// play is a way to use a lock. Somebody else waits behind it, or holds the lock
// first.
type play struct {
	name  string
	warm  int  // how often the lock was used before
	rival bool // somebody else holds it
	act   func(*stage)

	layout zookeeper.Layout
	digest bool // with credentials, which each connection sends
	way    way  // nil for a lock with a queue
}

// way takes a kind of lock by the name a, so that nobody else can.
type way func(ctx context.Context, p *lockpool.Pool, try bool) (grip, error)

// grip is what Lock and Permits have in common.
type grip interface {
	Context(context.Context) context.Context
	Lost() <-chan struct{}
	Token(context.Context) (int64, error)
	Verify(context.Context) error
}

func release(ctx context.Context, g grip) error {
	if p, ok := g.(*lockpool.Permits); ok {
		return p.Release(ctx)
	}
	return g.(*lockpool.Lock).Unlock(ctx)
}

func withOptions(opts ...lockpool.LockOption) way {
	return func(ctx context.Context, p *lockpool.Pool, try bool) (grip, error) {
		if try {
			return p.TryLock(ctx, "a", opts...)
		}
		return p.Lock(ctx, "a", opts...)
	}
}

func allPermits(ctx context.Context, p *lockpool.Pool, try bool) (grip, error) {
	sem := p.Semaphore("a", 2)
	if try {
		return sem.TryAcquire(ctx, 2)
	}
	return sem.Acquire(ctx, 2)
}

func reading(ctx context.Context, p *lockpool.Pool, try bool) (grip, error) {
	if try {
		return p.TryRLock(ctx, "a")
	}
	return p.RLock(ctx, "a")
}

// keep is a play of what a session sends by itself.
const keep = "keep"

var plays = []play{
	{name: "first", act: (*stage).useOnce},
	{name: "again", warm: 1, act: (*stage).useOnce},
	{name: "often", warm: 20, act: (*stage).useOnce},
	{name: "wait", warm: 1, rival: true, act: (*stage).waitAndUse},
	{name: "try", warm: 1, rival: true, act: (*stage).try},
	{name: "cancel", warm: 1, rival: true, act: (*stage).giveUp},
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
	{name: "ask back", warm: 1, rival: true, act: (*stage).askBack},
	{name: "twins", warm: 1, act: (*stage).useAndLook, layout: zookeeper.LayoutKazoo},
	{name: "twins wait", warm: 1, rival: true, act: (*stage).waitAndUse, layout: zookeeper.LayoutKazoo},
	{name: "twins share", warm: 1, act: (*stage).share, layout: zookeeper.LayoutKazooRW},
	{name: "twins recover", warm: 1, act: (*stage).useAfterALostReply, layout: zookeeper.LayoutKazoo},
	{name: "digest", warm: 1, rival: true, act: (*stage).waitAndUse, digest: true},
	{name: keep, warm: 1, act: (*stage).useLong},
}

// fault is something that happens to one request.
type fault struct {
	name string
	do   func(*stage) zktest.Action
	// spares says for which requests it makes no sense.
	spares func(zktest.Op) bool
	effect effect
}

// effect is what a fault may do to who meets it.
type effect int

const (
	unseen  effect = iota // nothing, but for the time it takes
	refused               // an error that says what was refused
	denied                // ErrNoPermission that names right and path
	losing                // what was held is lost, what was waited for comes
)

func always(a func() zktest.Action) func(*stage) zktest.Action {
	return func(*stage) zktest.Action { return a() }
}

func fail(code zktest.Code) func(*stage) zktest.Action {
	return func(*stage) zktest.Action { return zktest.FailWith(code) }
}

// machine lets something happen to the machine of the pool that is tested.
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

	{"suspended", machine(func(m *leaseclock.Machine) { m.Suspend(short) }), nil, losing},
	{"suspended for a moment", machine(func(m *leaseclock.Machine) { m.Suspend(middle / 8) }), nil, unseen},
	{"wall clock set", machine(func(m *leaseclock.Machine) { m.SetWallClock(time.Hour) }), nil, unseen},
}

// embeddedFaults need the server's own hands.
var embeddedFaults = []fault{
	{"node removed", func(s *stage) zktest.Action { return zktest.Call(func(zktest.Request) { s.removeNodes() }) }, isConnect, losing},
	{"queue removed", func(s *stage) zktest.Action {
		return zktest.Call(func(zktest.Request) {
			s.removeNodes()
			nodes := s.embedded.State().Nodes
			for _, path := range slices.Backward(slices.Sorted(maps.Keys(nodes))) {
				if strings.HasPrefix(path, s.chroot) && nodes[path].Stat.EphemeralOwner == 0 {
					_ = s.embedded.Delete(path) // if it is empty now
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
	// long is a session timeout that no fault but freezing lasts for.
	long = 8 * time.Second
	// middle is for what happens once in a part of the timeout.
	middle = 2 * time.Second
	// short is for faults of which only the lease tells.
	short  = 1200 * time.Millisecond
	atOnce = 24 // how many plays run at a time: they mostly wait
)

func TestEveryFaultAtEveryRequest(t *testing.T) {
	table := faults
	if *kind == "embedded" {
		table = slices.Concat(faults, embeddedFaults)
	}
	var all sync.WaitGroup
	room := make(chan struct{}, atOnce)
	var cases atomic.Int32
	for _, p := range plays {
		requests := record(t, p)
		for _, f := range table {
			for _, r := range requests {
				if f.spares != nil && f.spares(r.op) {
					continue
				}
				room <- struct{}{}
				all.Go(func() {
					defer func() { <-room }()
					cases.Add(1)
					t.Run(fmt.Sprintf("%s/%s/%s", p.name, r, f.name), func(t *testing.T) { perform(t, p, &f, r) })
				})
			}
		}
	}
	all.Wait()
	t.Logf("%d cases", cases.Load())
}

// request is the nth of its kind in a play.
type request struct {
	op  zktest.Op
	nth int
}

func (r request) String() string { return fmt.Sprintf("%s %d", r.op, r.nth+1) }

func record(t *testing.T, p play) (requests []request) {
	t.Run(p.name+"/without a fault", func(t *testing.T) {
		s := newStage(t, p, nil)
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

func perform(t *testing.T, p play, f *fault, r request) {
	s := newStage(t, p, f)
	match := s.subject(func(got zktest.Request) bool { return got.Op == r.op })
	s.fault = s.server.Inject(zktest.Rule{Match: match, Skip: r.nth, Do: f.do(s)})
	s.perform(p)
}

// stage is where a play is performed.
type stage struct {
	*bench
	server   zktest.FaultInjector
	embedded *zktest.Server // nil if the server is real
	machine  *leaseclock.Machine
	effect   effect
	faulty   bool // it is no rehearsal
	keeps    bool // the play is keep
	label    string
	fault    *zktest.Fault
	strange  map[int64]bool

	pool, others *lockpool.Pool
	way          way
	first        grip // held by others

	inside atomic.Int32
}

var stages atomic.Int64

func newStage(t *testing.T, p play, f *fault) *stage {
	s := &stage{way: p.way, label: fmt.Sprint("stage-", stages.Add(1)), strange: map[int64]bool{}, keeps: p.name == keep}
	direct := ""
	if *kind == "embedded" {
		s.embedded = zktest.Start(t, zktest.TickTime(20*time.Millisecond), zktest.Members(2),
			zktest.Logger(slog.New(slog.NewTextHandler(io.Discard, nil))))
		s.server, direct = s.embedded, s.embedded.ConnectString()
		s.bench = newBenchOn(t, s.embedded.Addr())
	} else {
		proxy := zktest.StartProxy(t, server.Addr())
		s.server, direct = proxy, server.Addr()
		s.bench = newBenchOn(t, server.Addr())
	}
	cfg := s.config()
	cfg.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	cfg.SessionTimeout = long
	cfg.Layout = p.layout
	if p.digest {
		cfg.Digest, cfg.ACL = zookeeper.Digest{User: "u", Password: "p"}, zk.WorldACL(zk.PermAll)
	}
	cfg.Servers = strings.Split(direct, ",")
	s.others = s.poolWith(cfg)
	require.NoError(s, s.others.Ping(s.ctx)) // connected, and not on this machine:
	s.machine = s.bench.machine()
	if p.name == keep {
		cfg.SessionTimeout = middle
	}
	if f != nil {
		s.effect, s.faulty = f.effect, true
		switch {
		case f.effect == losing:
			cfg.SessionTimeout = short
		case p.name == keep:
			s.effect = unseen // it is tried again
		}
	}
	cfg.Servers = strings.Split(s.server.ConnectString(), ",")
	if s.embedded != nil {
		for _, session := range s.embedded.State().Sessions {
			s.strange[session.ID] = true
		}
	}
	pprof.Do(s.ctx, pprof.Labels("stage", s.label), func(context.Context) { s.pool = s.poolWith(cfg) })
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

func (s *stage) take(p *lockpool.Pool) grip {
	g, err := s.way(s.ctx, p, false)
	require.NoError(s, err)
	return g
}

func (s *stage) free(g grip) { require.NoError(s, release(s.ctx, g)) }

// asSubject labels the goroutines that do begins.
func (s *stage) asSubject(do func()) {
	pprof.Do(s.ctx, pprof.Labels("stage", s.label), func(context.Context) { do() })
}

// subject matches the requests of the pool that is tested. Those that keep its
// sessions alive come when they come, so they have a play of their own.
func (s *stage) subject(where func(zktest.Request) bool) zktest.Match {
	return zktest.Match{Where: func(r zktest.Request) bool {
		alive := (r.Op == zktest.OpSync || r.Op == zktest.OpMulti) && slices.Equal(r.Paths, []string{"/"})
		return !s.strange[r.Session] && r.Op != zktest.OpCloseSession && alive == s.keeps && where(r)
	}}
}

func (s *stage) perform(p play) {
	s.happen()
	s.asSubject(func() { p.act(s) })
	s.fault.Remove()
	if s.embedded != nil {
		require.NoError(s, s.embedded.CatchUp(1))
		require.NoError(s, s.embedded.CatchUp(2))
	}
	// Whatever happened, the lock is free and can be used, by all.
	s.free(s.take(s.others))
	s.asSubject(func() {
		err := release(s.ctx, s.take(s.pool))
		require.True(s, err == nil || s.effect == losing && errors.Is(err, lockpool.ErrLockLost), "%v", err)
	})
	s.until(func() bool { return len(s.contenders("/")) == 0 }, "that nobody is left")
	require.NoError(s, s.pool.Close())
	require.NoError(s, s.others.Close())
	s.until(func() bool { return !s.running() }, "the end of all goroutines")
	if s.embedded != nil {
		require.NoError(s, s.embedded.WaitFor(s.ctx, func(state *zktest.State) bool {
			return len(state.Watches) == 0 && len(state.Conns) == 1 && len(state.Sessions) == 1 // the bench's own
		}))
	}
}

// happen sees to it that what the fault holds up goes on.
func (s *stage) happen() {
	go func() { // ends with the stage
		if s.fault.Wait(s.ctx) == nil {
			time.Sleep(10 * time.Millisecond) // the scenario: how long it is held up
			s.fault.Release()
			_ = s.server.AcceptConnections()
		}
	}()
}

// resetHandshakes breaks the connection, and the next two as soon as they stand, so
// that whatever the client sends first is a write that fails.
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

// moveToLaggard sends the client to the other server, which does not know of
// the request yet, before it gets the reply.
func (s *stage) moveToLaggard(r zktest.Request) {
	_ = s.embedded.Lag(3 - r.Member)
	_ = s.embedded.RefuseConnections(r.Member)
	s.embedded.Cut(zktest.Selector{Conn: r.Conn})
}

func (s *stage) removeNodes() {
	for path, n := range s.embedded.State().Nodes {
		if n.Stat.EphemeralOwner != 0 && !s.strange[n.Stat.EphemeralOwner] {
			_ = s.embedded.Delete(path)
		}
	}
}

// running reports whether a goroutine is left of the pool that is tested.
func (s *stage) running() bool {
	var profile bytes.Buffer
	require.NoError(s, pprof.Lookup("goroutine").WriteTo(&profile, 1))
	for group := range strings.SplitSeq(profile.String(), "\n\n") {
		if strings.Contains(group, fmt.Sprintf("%q:%q", "stage", s.label)) && !strings.Contains(group, "(*stage).running") {
			return true
		}
	}
	return false
}

// judge checks an error of the pool that is tested. It returns true if there is
// none.
func (s *stage) judge(err error, expected ...error) bool {
	s.Helper()
	if len(expected) > 0 && errorsIsAny(err, expected...) {
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
	case s.effect == refused && !errorsIsAny(err, lockpool.ErrLockLost, lockpool.ErrLocked, context.Canceled):
		require.Regexp(s, ` on /.*: (the server is overloaded|unknown error: -1)`, err.Error())
		return false
	}
	require.FailNow(s, "the wrong error", "%v", err)
	return false
}

// use enters, lets somebody else queue behind, and leaves.
func (s *stage) use(l grip, do func()) {
	require.Equal(s, int32(1), s.inside.Add(1), "two holders")
	ctx := l.Context(s.ctx)
	left := make(chan struct{})
	leave := sync.OnceFunc(func() { s.inside.Add(-1); close(left) })
	go func() { // ends with the lock
		<-ctx.Done()
		leave()
	}()
	behind := make(chan error, 1)
	go func() { // ends with ctx
		g, err := s.way(s.ctx, s.others, false)
		if err == nil {
			// A session that the server ends without a reason is not foreseen.
			if n := s.inside.Load(); n != 0 && s.effect != losing {
				err = fmt.Errorf("two holders")
			}
			err = errors.Join(err, release(s.ctx, g))
		}
		behind <- err
	}()
	do()
	leave()
	s.judge(release(s.ctx, l))
	require.NoError(s, <-behind)
}

func (s *stage) useOnce() {
	l, err := s.way(s.ctx, s.pool, false)
	if s.judge(err) {
		s.use(l, func() {})
	}
}

// useLong holds for long enough that the session must keep itself alive.
func (s *stage) useLong() {
	l, err := s.pool.Lock(s.ctx, "a")
	if s.judge(err) {
		s.use(l, func() {
			select {
			case <-time.After(middle / 2):
			case <-l.Lost():
				require.Equal(s, losing, s.effect, "%v", context.Cause(l.Context(s.ctx)))
			}
		})
	}
}

// useAfterALostReply has to find out what became of its node.
func (s *stage) useAfterALostReply() {
	s.server.Inject(zktest.Rule{
		Match: s.subject(func(r zktest.Request) bool { return r.Op == zktest.OpMulti || slices.Contains(zktest.Creates, r.Op) }),
		Do:    zktest.DropAfterApply(),
	})
	s.useOnce()
}

func (s *stage) readOnce() {
	l, err := s.pool.RLock(s.ctx, "a")
	if s.judge(err) {
		s.use(l, func() {})
	}
}

func (s *stage) waitAndRead() {
	end := s.begin(s.ctx, reading)
	s.free(s.first)
	l, err := end()
	if s.judge(err) {
		s.use(l, func() {})
	}
}

// share goes on reading after it has written.
func (s *stage) share() {
	h, err := s.pool.Handle(s.ctx)
	require.NoError(s, err)
	defer h.Close(s.ctx)
	write, err := h.Lock(s.ctx, "a")
	if !s.judge(err) {
		return
	}
	read, err := h.RLock(s.ctx, "a")
	if s.judge(err) {
		s.use(read, func() { s.judge(write.Unlock(s.ctx)) })
	}
}

func (s *stage) useAndLook() {
	l, err := s.way(s.ctx, s.pool, false)
	if s.judge(err) {
		s.use(l, func() {
			token, err := l.Token(s.ctx)
			if s.judge(err) {
				require.Positive(s, token)
			}
			s.judge(l.Verify(s.ctx))
		})
	}
}

// begin starts a Lock that has to wait, and returns when it does, or when the
// fault has happened to it.
func (s *stage) begin(ctx context.Context, way way) func() (grip, error) {
	var l grip
	var err error
	done := make(chan struct{})
	go func() { // ends with ctx
		defer close(done)
		l, err = way(ctx, s.pool, false)
	}()
	s.until(func() bool {
		select {
		case <-done:
			return true
		default:
			return s.pool.Stats().Waiting > 0 || s.faulty && s.fault.Fired() > 0
		}
	}, "the wait, or the fault")
	return func() (grip, error) { <-done; return l, err }
}

func (s *stage) waitAndUse() {
	end := s.begin(s.ctx, s.way)
	s.free(s.first)
	l, err := end()
	if s.judge(err) {
		s.use(l, func() {})
	}
}

func (s *stage) try() {
	_, err := s.way(s.ctx, s.pool, true)
	s.judge(err, lockpool.ErrLocked)
	s.free(s.first)
}

func (s *stage) giveUp() {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	end := s.begin(ctx, s.way)
	cancel()
	_, err := end()
	s.judge(err, context.Canceled)
	s.free(s.first)
}

func (s *stage) useUntilRevoked() {
	l, err := s.way(s.ctx, s.pool, false)
	if s.judge(err) {
		s.use(l, func() {
			require.NoError(s, s.others.Revoke(s.ctx, "a"))
			ended := l.Context(s.ctx)
			<-ended.Done()
			if cause := context.Cause(ended); cause != lockpool.ErrRevoked {
				require.True(s, s.effect != unseen && errors.Is(cause, lockpool.ErrLockLost), "%v", cause)
			}
		})
	}
}

func (s *stage) waitUntilRevoked() {
	end := s.begin(s.ctx, s.way)
	ended := make(chan error)
	go func() { // ends with the wait
		_, err := end()
		ended <- err
	}()
	for {
		select {
		case err := <-ended:
			s.judge(err, lockpool.ErrRevoked)
			s.free(s.first)
			return
		default: // a fault may make it queue again
		}
		q, err := s.others.Queue(s.ctx, "a")
		require.NoError(s, err)
		if len(q.Contenders) == 2 {
			require.NoError(s, s.others.Revoke(s.ctx, "a", q.Contenders[1].Node))
		}
	}
}

func (s *stage) askBack() {
	revoked := s.first.(*lockpool.Lock).Revoked()
	if err := s.pool.Revoke(s.ctx, "a"); err == nil {
		<-revoked
	} else {
		s.judge(err)
	}
	s.free(s.first)
}
