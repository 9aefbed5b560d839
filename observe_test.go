package lockpool_test

// This file tests observers.

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/plays"
	"github.com/lockpool/lockpool/testing/zktest"
)

func named(b *locktest.Bench, name string) *lockpool.Pool {
	return b.Pool(lockpool.WithOwner(name), silent)
}

func TestObserveSeesADirectoryGoAndComeAgain(t *testing.T) {
	locktest.Slow(t, func(t *testing.T) {
		own := locktest.StartServer(t)
		b := locktest.NewOn(t, own)
		f := plays.Observe(b.Ctx, b, b.Pool(), "above/a")
		f.Sees("")
		x := named(b, "x")
		for range 3 {
			l := b.Lock(x, "above/a")
			f.Sees("x")
			b.Unlock(l)
			f.Sees("")
			for _, path := range []string{"/above/a", "/above", ""} { // as ZooKeeper removes empty containers
				require.NoError(t, b.Admin.Delete(b.Chroot+path, -1))
			}
			time.Sleep(time.Second)
			f.SeesNothing()
		}
	})
}

// Observe/EachKind of testing/behavior follows locks that keep their kind.
func TestObserveAKindThatChanges(t *testing.T) {
	locktest.Slow(t, func(t *testing.T) {
		b := locktest.New(t).AtService()
		y := named(b, "y")
		f := plays.Observe(b.Ctx, b, b.Pool(), "k")
		f.Sees("")
		h := b.Handle(y)
		write, read := b.Lock(h, "k"), b.Lock(h, "k", lockpool.Shared())
		require.Equal(t, "mutex", f.Sees("y").Contenders[0].Kind)
		b.Unlock(write)
		require.Equal(t, "read", f.Sees("y").Contenders[0].Kind)
		b.Unlock(read)
		f.Sees("")
		p := b.Acquire(y.Semaphore("k", 3), 2)
		require.Equal(t, 2, f.ComesToSee("y").Contenders[0].Permits)
		w := b.StartAcquire(named(b, "z").Semaphore("k", 3), 3)
		f.ComesToSee("y|z")
		b.Unlock(p)
		f.ComesToSee("z")
		b.Unlock(w.Granted())
		f.ComesToSee("")
		for _, part := range []string{"/k/locks", "/k/leases", "/k"} {
			require.NoError(t, b.Admin.Delete(b.Chroot+part, -1))
		}
		l := b.Lock(y, "k", lockpool.Plain())
		require.Equal(t, "plain", f.ComesToSee("y").Contenders[0].Kind)
		b.Unlock(l)
		f.ComesToSee("")
		time.Sleep(time.Second)
		f.SeesNothing()
	})
}

// requestsOf returns the requests of some sessions while do runs, without those that keep the
// sessions alive.
func requestsOf(ids []int64, s *zktest.Server, do func()) []zktest.Request {
	return slices.DeleteFunc(locktest.Requests(s, do), func(r zktest.Request) bool {
		return !slices.Contains(ids, r.Session) || slices.Equal(r.Paths, []string{"/"})
	})
}

// sessionsOf returns the only sessions that a pool has opened.
func sessionsOf(b *locktest.Bench, p *lockpool.Pool) (ids []int64) {
	own := b.Server.(*zktest.Server)
	before := own.State().Sessions
	require.NoError(b, p.Ping(b.Ctx))
	for _, s := range own.State().Sessions {
		if !slices.ContainsFunc(before, func(old zktest.Session) bool { return old.ID == s.ID }) {
			ids = append(ids, s.ID)
		}
	}
	require.NotEmpty(b, ids, "the pool was used before")
	return ids
}

// Nobody polls: an hour costs only the rechecks, which guard against lost events.
func TestIdleObserverSendsNothing(t *testing.T) {
	locktest.Once(t)
	for _, kind := range []string{"nobody", "a holder", "a holder and a waiter", "permits", "plain"} {
		t.Run(kind, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
				b.AtService()
				b.Ctx = locktest.Timeout(t, 24*time.Hour)
				x, p := named(b, "x"), b.Pool()
				ids := sessionsOf(b, p)
				f := plays.Observe(b.Ctx, b, p, "a")
				f.Sees("")
				idle, perRound := 10*time.Minute, 1
				switch kind {
				case "nobody":
					b.Unlock(b.Lock(x, "a"))
				case "a holder and a waiter":
					idle = time.Hour
					l := b.Lock(x, "a")
					b.Enqueue(x, "a", 2)
					defer b.Unlock(l)
				case "a holder":
					perRound = 2 // the node and the directory
					l := b.Lock(x, "a")
					defer b.Unlock(l)
				case "permits":
					perRound = 4 // the node, and three directories
					permits := b.Acquire(x.Semaphore("a", 2), 1)
					defer b.Unlock(permits)
				case "plain":
					l := b.Lock(x, "a", lockpool.Plain())
					defer b.Unlock(l)
				}
				time.Sleep(2 * time.Second) // until all is seen
				for len(f.Values) > 0 {
					f.Next()
				}
				sent := requestsOf(ids, server, func() { time.Sleep(idle) })
				f.SeesNothing()
				rounds := int(idle / (30 * time.Second)) // on average
				require.LessOrEqual(t, len(sent), perRound*rounds*3/2, "%v", sent[:min(20, len(sent))])
				require.GreaterOrEqual(t, len(sent), perRound*rounds*2/3, "all watches are rechecked")
			})
		})
	}
}

// A change between any two requests of an observer is not missed.
func TestObserveSeesWhatChangesWhileItLooks(t *testing.T) {
	locktest.Once(t)
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, own *zktest.Server) {
		p := b.Pool()
		ids := sessionsOf(b, p)
		b.Ctx = locktest.Timeout(t, time.Hour)
		require.NoError(t, own.Create(b.Chroot, nil))
		happened := 0
		for n := range 4 { // contenders at first
			for left := range 4 { // contenders at the end
				for skip := range 5 {
					name := fmt.Sprintf("a-%d-%d-%d", n, left, skip)
					contender := func(i int) string {
						return fmt.Sprintf("%s/%s/_c_00000000-0000-4000-8000-%012d-lock-%010d", b.Chroot, name, i, i)
					}
					if n > 0 {
						require.NoError(t, own.Create(b.Chroot+"/"+name, nil))
					}
					for i := range n {
						require.NoError(t, own.Create(contender(i), nil))
					}
					change := own.Inject(zktest.Rule{
						Match: zktest.Match{Where: func(r zktest.Request) bool {
							return slices.Contains(ids, r.Session) && len(r.Paths) == 1 && strings.HasPrefix(r.Paths[0], b.Chroot+"/"+name)
						}},
						Skip: skip,
						Do: zktest.Call(func(zktest.Request) {
							if n == 0 {
								_ = own.Create(b.Chroot+"/"+name, nil)
							}
							for i := range n {
								_ = own.Delete(contender(i))
							}
							for i := range left {
								_ = own.Create(contender(10+i), nil)
							}
						}),
					})
					f := plays.Observe(b.Ctx, b, p, name)
					time.Sleep(time.Second)
					var last plays.Observed
					for len(f.Values) > 0 {
						last = f.Next()
					}
					happened += change.Fired()
					change.Remove() // the observer may have needed fewer requests
					q, err := p.Queue(b.Ctx, name)
					require.NoError(t, err)
					require.Equal(t, len(q.Contenders[:min(2, len(q.Contenders))]), len(last.Contenders), name)
					for i, c := range last.Contenders {
						require.Equal(t, q.Contenders[i], c, name)
					}
					f.Cancel()
				}
			}
		}
		require.GreaterOrEqual(t, happened, 4*4*3)
	})
}

// Those behind the next one come and go without the observer.
func TestObserverOfALongQueueIsLeftAlone(t *testing.T) {
	locktest.Once(t)
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		b.AtService()
		x, p := named(b, "x"), b.Pool()
		l := b.Lock(x, "a")
		b.Enqueue(x, "a", 2)
		ids := sessionsOf(b, p)
		f := plays.Observe(b.Ctx, b, p, "a")
		f.Sees("x|x")
		time.Sleep(b.Config().SessionTimeout) // from then on its lease is prolonged all the time
		require.LessOrEqual(t, len(requestsOf(ids, server, func() {
			for range 200 {
				_, err := x.Lock(b.Ctx, "a", lockpool.WaitAtMost(20*time.Millisecond))
				require.ErrorIs(t, err, context.DeadlineExceeded)
			}
		})), 1, "one recheck at most")
		f.SeesNothing()
		b.Unlock(l)
		f.Sees("x")
	})
}

func TestObserverOfABusyLockSeesTenStatesASecond(t *testing.T) {
	locktest.Slow(t, func(t *testing.T) {
		b := locktest.New(t).AtService()
		x, p := named(b, "x"), b.Pool()
		f := plays.Observe(b.Ctx, b, p, "a")
		began := f.Sees("").At
		var last int64
		for until := time.Now().Add(2 * time.Second); time.Now().Before(until); {
			l := b.Lock(x, "a")
			last = b.Token(l)
			time.Sleep(time.Millisecond)
			b.Unlock(l)
		}
		l := b.Lock(named(b, "y"), "a")
		n, previous, seen := 1, began, int64(0)
		for v := f.Next(); v.String() != "y"; v = f.Next() {
			require.NoError(t, v.Err)
			n++
			if locktest.Embedded() {
				require.GreaterOrEqual(t, v.At.Sub(previous), 100*time.Millisecond)
			}
			previous = v.At
			for _, c := range v.Contenders {
				require.GreaterOrEqual(t, c.Token, seen, "it never sees an older state")
				require.LessOrEqual(t, c.Token, last)
				seen = c.Token
			}
		}
		elapsed := time.Since(began)
		require.LessOrEqual(t, n, int(elapsed/(100*time.Millisecond))+2)
		require.True(t, n > 5 || !locktest.Embedded(), "a queue that changes during each look is looked at again")
		b.Unlock(l)
		f.Sees("")
	})
}

func TestObserveThroughAnOutage(t *testing.T) {
	locktest.Slow(t, func(t *testing.T) {
		own := locktest.StartServer(t)
		b := locktest.NewOn(t, own)
		x := named(b, "x")
		l := b.Lock(x, "a")
		y, proxy := named(b, "y"), b.Proxy()
		f := plays.Observe(b.Ctx, b, b.Pool(silent), "a")
		f.Sees("x")

		if locktest.Embedded() { // a connection that comes back at once is no outage
			proxy.Cut(zktest.Selector{})
			time.Sleep(500 * time.Millisecond)
			f.SeesNothing()
		}
		w := b.Enqueue(y, "a", 2)
		f.Sees("x|y")

		for _, outage := range []time.Duration{2 * time.Second, 8 * time.Second} { // the session survives, or not
			require.NoError(t, proxy.RefuseConnections())
			clock := time.Now()
			proxy.Cut(zktest.Selector{})
			v := f.Next()
			require.ErrorIs(t, v.Err, lockpool.ErrUnavailable)
			require.ErrorContains(t, v.Err, `observe "a"`)
			require.NotErrorIs(t, v.Err, context.DeadlineExceeded, "which would be that of ctx")
			require.Equal(t, "a", v.Name)
			if locktest.Embedded() {
				require.GreaterOrEqual(t, v.At.Sub(clock), time.Second)
				require.LessOrEqual(t, v.At.Sub(clock), 1100*time.Millisecond, "after a pause of at most 100 ms")
			}
			time.Sleep(outage)
			f.SeesNothing() // once
			require.NoError(t, proxy.AcceptConnections())
			f.Sees("x|y") // even if nothing has changed
		}

		require.NoError(t, proxy.RefuseConnections()) // what changes meanwhile is seen afterwards
		proxy.Cut(zktest.Selector{})
		b.Unlock(l)
		l = w.Granted()
		require.ErrorIs(t, f.Next().Err, lockpool.ErrUnavailable)
		require.NoError(t, proxy.AcceptConnections())
		f.Sees("y")
		b.Unlock(l)
		f.Sees("")
	})
}

// Without a server the first value is an error.
func TestObserveBeforeTheServiceAnswers(t *testing.T) {
	locktest.Slow(t, func(t *testing.T) {
		own := locktest.StartServer(t)
		b := locktest.NewOn(t, own)
		proxy := b.Proxy()
		require.NoError(t, proxy.RefuseConnections())
		f := plays.Observe(b.Ctx, b, b.Pool(silent), "a")
		require.ErrorIs(t, f.Next().Err, lockpool.ErrUnavailable)
		require.NoError(t, proxy.AcceptConnections())
		f.Sees("")
	})
}

// Another session of the pool, whose server is behind, is brought up to date first.
func TestObserveNeverSeesAnOlderState(t *testing.T) {
	locktest.Once(t)
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, own *zktest.Server) {
		first := own.Leader()
		second := first%3 + 1
		b.Addr = own.Members()[second%3] // of the others
		cfg := b.Config()
		cfg.Servers, cfg.SessionTimeout = []string{own.Members()[first-1], own.Members()[second-1]}, 40*time.Second
		p, x, y := b.PoolWith(cfg, silent), named(b, "x"), named(b, "y")
		l := b.Lock(x, "a")
		require.NoError(t, own.RefuseConnections(second))
		ids := sessionsOf(b, p)
		f := plays.Observe(b.Ctx, b, p, "a")
		f.Sees("x")
		require.NoError(t, own.AcceptConnections(second))
		require.NoError(t, own.RefuseConnections(first))
		var handles []*lockpool.Handle
		for p.Stats().OpenSessions == 1 { // which many handles open
			handles = append(handles, b.Handle(p))
		}
		for _, h := range handles { // else a third would be opened when the first is lost
			require.NoError(t, h.Close(b.Ctx))
		}
		time.Sleep(time.Second)
		require.NoError(t, own.AcceptConnections(first)) // which tells the first session that it has expired
		require.NoError(t, own.Lag(second))
		b.Unlock(l)
		f.Sees("")
		l = b.Lock(y, "a")
		f.Sees("y")
		require.NoError(t, own.ExpireSession(ids[0]))
		time.Sleep(time.Second)
		f.SeesNothing()
		b.Unlock(l)
		f.Sees("")
	}, zktest.Members(3))
}

// Breaking out of the loop leaves one watch for each node and directory at the service,
// however often it is done, and nothing here.
func TestLeavingTheLoopLeavesNothing(t *testing.T) {
	locktest.Once(t)
	synctest.Test(t, func(t *testing.T) { // not parallel, because goroutines are counted
		b := locktest.New(t).AtService()
		own := b.Server.(*zktest.Server)
		x, p := named(b, "x"), b.Pool(lockpool.WithMaxSessions(1))
		require.NoError(t, p.Ping(b.Ctx))
		require.NoError(t, x.Ping(b.Ctx))
		for _, state := range []string{"", "x", "x|x"} {
			var l *lockpool.Lock
			if state != "" {
				l = b.Lock(x, "a")
			}
			if state == "x|x" {
				b.Enqueue(x, "a", 2)
			}
			time.Sleep(time.Second)
			goroutines, watched := runtime.NumGoroutine(), len(own.State().Watches)
			for i := range 200 {
				for q, err := range p.Observe(b.Ctx, "a") {
					require.NoError(t, err)
					require.Equal(t, state, plays.Observed{Queue: q}.String())
					if i%2 == 0 {
						break
					}
					func() { // a panic leaves it as well
						defer func() { _ = recover() }()
						for range p.Observe(b.Ctx, "a") {
							panic("oops")
						}
					}()
					break
				}
			}
			time.Sleep(time.Second)
			require.LessOrEqual(t, runtime.NumGoroutine(), goroutines)
			require.LessOrEqual(t, len(own.State().Watches), watched+2, state)
			if l != nil {
				b.Unlock(l)
			}
		}
	})
}

func TestHundredObserversShareTheirWatches(t *testing.T) {
	locktest.Slow(t, func(t *testing.T) {
		b := locktest.New(t).AtService()
		x, p := named(b, "x"), b.Pool(lockpool.WithMaxSessions(1))
		l := b.Lock(x, "a")
		var all []*plays.Observer
		for range 100 {
			all = append(all, plays.Observe(b.Ctx, b, p, "a"))
		}
		everybody := func(state string) {
			t.Helper()
			for _, f := range all {
				f.Sees(state)
			}
		}
		everybody("x")
		w := b.Enqueue(named(b, "y"), "a", 2)
		everybody("x|y")
		if locktest.Embedded() {
			own := b.Server.(*zktest.Server)
			time.Sleep(time.Second)
			for _, node := range b.Children("a") {
				require.LessOrEqual(t, own.State().WatchesOf(b.Chroot+"/a/"+node), 3, "of the observers, the holder and the waiter")
			}
			require.Zero(t, own.State().ChildWatchesOf(b.Chroot+"/a"), "the watch on the directory is used up")
		}
		b.Unlock(l)
		everybody("y")
		b.Unlock(w.Granted())
		everybody("")
	})
}

// A change of which no event tells is found by the driver.
func TestObserverSurvivesLostEvents(t *testing.T) {
	locktest.Once(t)
	for _, test := range []string{"", "x", "x|y", "x joined by y"} {
		state, joined := strings.CutSuffix(test, " joined by y")
		t.Run(test, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
				b.AtService()
				b.Ctx = locktest.Timeout(t, time.Hour)
				x, y, p := named(b, "x"), named(b, "y"), b.Pool()
				ids := sessionsOf(b, p)
				var l *lockpool.Lock
				if state != "" {
					l = b.Lock(x, "a")
				}
				if state == "x|y" {
					b.Enqueue(y, "a", 2)
				}
				f := plays.Observe(b.Ctx, b, p, "a")
				f.Sees(state)
				lost := server.Inject(zktest.Rule{
					Match: zktest.Match{Ops: []zktest.Op{zktest.OpEvent}, Where: func(r zktest.Request) bool { return slices.Contains(ids, r.Session) }},
					Times: zktest.Always, Do: zktest.Swallow(),
				})
				switch {
				case joined:
					b.Enqueue(y, "a", 2)
					f.Sees("x|y")
				case l == nil:
					b.Lock(x, "a")
					f.Sees("x")
				default:
					b.Unlock(l)
					_, next, _ := strings.Cut(state, "|")
					f.Sees(next)
				}
				require.Positive(t, lost.Fired())
			})
		})
	}
}
