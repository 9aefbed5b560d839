package insights_test

// This file tests the advice: followed, it brings what it predicts.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/cmd/lockpool/insights"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
	"github.com/lockpool/lockpool/testing/zktest/bubble"
)

// program is a program under test, with what it measures by itself.
type program struct {
	t        *testing.T
	server   *zktest.Server
	ctx      context.Context // until the end of the program
	requests *zktest.Fault
	work     sync.WaitGroup

	mu     sync.Mutex
	calls  map[string]int
	waited map[string]time.Duration
	vain   map[string]time.Duration
}

const programTime = 3 * time.Minute

// run runs a program in a bubble, and returns what the pools say at the end.
func run(t *testing.T, start func(p *program)) (p *program, in insights.Insights) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), programTime)
		defer cancel()
		p = &program{t: t, server: zktest.StartBubble(t), ctx: ctx, calls: map[string]int{}, waited: map[string]time.Duration{}, vain: map[string]time.Duration{}}
		p.requests = p.server.Inject(zktest.Rule{Match: zktest.Match{Ops: zktest.Creates, Prefix: "/"}, Times: zktest.Always, Do: zktest.Pass()})
		start(p)
		p.work.Wait()
		costs, err := p.pool().Costs(t.Context())
		require.NoError(t, err)
		in = insights.Of(costs, "")
	})
	return p, in
}

func (p *program) pool(opts ...lockpool.Option) *lockpool.Pool {
	connector, err := zookeeper.NewConnector(zookeeper.Config{Servers: p.server.Members(), Dial: p.server.Dial})
	require.NoError(p.t, err)
	return locktest.Open(p.t, connector, opts...)
}

// call does the work under a lock, and measures the wait.
func (p *program) call(name string, lock func() (*lockpool.Lock, error), work func(l *lockpool.Lock)) {
	began := time.Now()
	l, err := lock()
	p.mu.Lock()
	p.calls[name]++
	if p.waited[name] += time.Since(began); err != nil {
		p.vain[name] += time.Since(began)
	}
	p.mu.Unlock()
	if err == nil {
		work(l)
		err = l.Unlock(p.t.Context())
	}
	if !errors.Is(err, lockpool.ErrQueueFull) && !errors.Is(err, context.DeadlineExceeded) {
		require.NoError(p.t, err)
	}
}

// closed has n callers call again and again, with a pause of the given mean time between.
func (p *program) closed(n int, pause time.Duration, call func(caller int)) {
	for i := range n {
		p.work.Go(func() {
			for random := rand.New(rand.NewPCG(1, uint64(i))); p.ctx.Err() == nil; call(i) {
				time.Sleep(time.Duration(random.ExpFloat64() * float64(pause)))
			}
		})
	}
}

// open makes calls at random times, with the given mean time between two calls.
func (p *program) open(between time.Duration, call func(n int)) {
	p.work.Go(func() {
		random := rand.New(rand.NewPCG(2, 2))
		for n := 0; p.ctx.Err() == nil; n++ {
			time.Sleep(time.Duration(random.ExpFloat64() * float64(between)))
			p.work.Go(func() { call(n) })
		}
	})
}

func sleep(d time.Duration) func(*lockpool.Lock) { return func(*lockpool.Lock) { time.Sleep(d) } }

func (p *program) meanWait(names ...string) float64 {
	calls, waited := 0, time.Duration(0)
	for _, name := range names {
		calls, waited = calls+p.calls[name], waited+p.waited[name]
	}
	return waited.Seconds() / float64(calls)
}

func (p *program) pools(n int, opts ...lockpool.Option) (pools []*lockpool.Pool) {
	for range n {
		pools = append(pools, p.pool(opts...))
	}
	return pools
}

// spread divides the calls for a hot lock between two locks, if that is the advice.
func spread(calls func(p *program, call func(hold time.Duration))) func(p *program, follow bool) {
	return func(p *program, follow bool) {
		pools := p.pools(4)
		call := func(n int, name string, hold time.Duration) {
			p.call(name, func() (*lockpool.Lock, error) { return pools[n%4].Lock(p.ctx, name) }, sleep(hold))
		}
		var turn atomic.Int64
		calls(p, func(hold time.Duration) {
			name, n := "orders/17", int(turn.Add(1))
			if follow {
				name += string('a' + rune(n/4%2))
			}
			call(n, name, hold)
		})
		p.open(time.Second, func(n int) { call(n, fmt.Sprintf("orders/%d", n%10), 50*time.Millisecond) })
	}
}

func hotWait(p *program) float64 { return p.meanWait("orders/17", "orders/17a", "orders/17b") }

// inside has calls that wait for the stock while they hold the cart, unless that is the advice.
func inside(calls func(p *program, call func(n int))) func(p *program, follow bool) {
	return func(p *program, follow bool) {
		pools := p.pools(4)
		stock := func(ctx context.Context, n int) {
			p.call("stock", func() (*lockpool.Lock, error) { return pools[n%4].Lock(ctx, "stock") }, sleep(time.Millisecond))
		}
		p.closed(2, 30*time.Millisecond, func(n int) {
			p.call("stock", func() (*lockpool.Lock, error) { return pools[n].Lock(p.ctx, "stock") }, sleep(20*time.Millisecond))
		})
		calls(p, func(n int) {
			if follow {
				stock(p.ctx, n)
			}
			p.call("cart", func() (*lockpool.Lock, error) { return pools[n%4].Lock(p.ctx, "cart") }, func(l *lockpool.Lock) {
				if time.Sleep(10 * time.Millisecond); !follow {
					stock(l.Context(p.ctx), n)
				}
			})
		})
	}
}

func cartWait(p *program) float64 { return p.meanWait("cart") }

func TestAdviceBringsWhatItPredicts(t *testing.T) {
	for name, test := range map[string]struct {
		lock, rule string
		start      func(p *program, follow bool)
		measure    func(p *program) float64
	}{
		"readers": {"catalog", "shared", func(p *program, follow bool) {
			pools, opts := p.pools(3), []lockpool.LockOption{}
			if follow {
				opts = append(opts, lockpool.Shared())
			}
			p.closed(6, 300*time.Millisecond, func(i int) {
				p.call("catalog", func() (*lockpool.Lock, error) { return pools[i%3].Lock(p.ctx, "catalog", opts...) }, sleep(50*time.Millisecond))
			})
			p.closed(6, 300*time.Millisecond, func(i int) {
				p.call("catalog", func() (*lockpool.Lock, error) { return pools[i%3].Lock(p.ctx, "catalog", lockpool.Shared()) }, sleep(50*time.Millisecond))
			})
			p.closed(1, 2*time.Second, func(int) {
				p.call("catalog", func() (*lockpool.Lock, error) { return pools[0].Lock(p.ctx, "catalog") }, sleep(100*time.Millisecond))
			})
		}, func(p *program) float64 { return p.waited["catalog"].Seconds() / programTime.Seconds() }},
		"hot, sometimes free": {"orders/17", "hot", spread(func(p *program, call func(time.Duration)) {
			p.open(100*time.Millisecond, func(int) { call(70 * time.Millisecond) })
		}), hotWait},
		"hot, never free": {"orders/17", "hot", spread(func(p *program, call func(time.Duration)) {
			p.closed(12, 10*time.Millisecond, func(int) { call(70 * time.Millisecond) })
		}), hotWait},
		"inside, sometimes free": {"cart", "wait inside", inside(func(p *program, call func(int)) { p.open(40*time.Millisecond, call) }), cartWait},
		"inside, never free":     {"cart", "wait inside", inside(func(p *program, call func(int)) { p.closed(6, 10*time.Millisecond, call) }), cartWait},
		"deadline": {"report", "deadline", func(p *program, follow bool) {
			pools, opts := p.pools(3), []lockpool.LockOption{}
			if follow {
				opts = append(opts, lockpool.InTime())
			}
			p.open(50*time.Millisecond, func(n int) {
				ctx, cancel := context.WithTimeout(p.ctx, 300*time.Millisecond)
				defer cancel()
				p.call("report", func() (*lockpool.Lock, error) { return pools[n%3].Lock(ctx, "report", opts...) }, sleep(60*time.Millisecond))
			})
		}, func(p *program) float64 { return p.vain["report"].Seconds() / programTime.Seconds() }},
		"kept": {"job", "keep", func(p *program, follow bool) {
			p.server.Inject(zktest.Rule{Match: zktest.Match{Prefix: "/job"}, Times: zktest.Always, Do: zktest.DelayReply(5 * time.Millisecond)})
			opts := []lockpool.Option{}
			if follow {
				opts = append(opts, lockpool.WithKeptLocks(0, 0))
			}
			pool := p.pool(opts...)
			p.closed(1, 50*time.Millisecond, func(int) {
				p.call("job", func() (*lockpool.Lock, error) { return pool.Lock(p.ctx, "job") }, sleep(10*time.Millisecond))
			})
		}, func(p *program) float64 { return p.meanWait("job") }},
		"turns": {"cache", "local turns", func(p *program, follow bool) {
			opts := []lockpool.Option{lockpool.WithLocalTurns(0)}
			if follow {
				opts = nil
			}
			pool := p.pool(opts...)
			p.closed(8, 200*time.Millisecond, func(int) {
				p.call("cache", func() (*lockpool.Lock, error) { return pool.Lock(p.ctx, "cache") }, sleep(30*time.Millisecond))
			})
		}, func(p *program) float64 { return float64(p.requests.Fired()) / programTime.Seconds() }},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Parallel(t)
			before, in := run(t, func(p *program) { test.start(p, false) })
			i := slices.IndexFunc(in.Advice, func(a insights.Advice) bool { return a.Rule == test.rule && a.Lock == test.lock })
			require.GreaterOrEqual(t, i, 0, "%+v", in)
			a := in.Advice[i]
			after, _ := run(t, func(p *program) { test.start(p, true) })
			t.Logf("%s %s: said %.4f, then %.4f %s; was %.4f, then %.4f", a.Lock, a.Text, a.Now, a.Then, a.Unit, test.measure(before), test.measure(after))
			require.InEpsilon(t, test.measure(before), a.Now, 0.2)
			require.InDelta(t, test.measure(after), a.Then, 0.2*test.measure(before))
		})
	}
}

// What is left of a wait is told for a queue that moves as usual, and not otherwise.
func TestLeft(t *testing.T) {
	in := insights.Of([]lockpool.PoolCosts{{Over: time.Minute, Costs: []lockpool.Cost{{Lock: "a", Kind: "mutex", Holds: 10, Held: 20 * time.Second}}}}, "")
	require.InDelta(t, 2*time.Second, in.Usual("a"), 10)
	require.Zero(t, in.Usual("b"))
	now := time.Now()
	for queue, want := range map[string]time.Duration{
		"mutex":                      0,
		"mutex mutex":                2 * time.Second,
		"mutex mutex mutex":          4 * time.Second,
		"mutex callers mutex":        14 * time.Second,
		"read read read mutex":       2 * time.Second,
		"mutex read read mutex":      4 * time.Second,
		"semaphore semaphore":        0,
		"mutex long mutex":           0,
		"mutex mutex long":           4 * time.Second, // later ones have not waited for the holder alone
		"mutex callers read write":   16 * time.Second,
		"read mutex":                 2 * time.Second,
		"plain plain":                0,
		"mutex mutex semaphore":      0,
		"mutex callers long":         14 * time.Second,
		"mutex long":                 0,
		"read read long read mutex ": 0,
	} {
		q := lockpool.Queue{Name: "a"}
		for i, kind := range strings.Fields(queue) {
			c := lockpool.Contender{Kind: kind, Holds: i == 0 || kind == "read" && q.Contenders[i-1].Holds, Asked: now}
			switch kind {
			case "callers":
				c.Kind, c.Callers = "mutex", 5
			case "long":
				c.Kind, c.Asked = "mutex", now.Add(-time.Hour)
			}
			q.Contenders = append(q.Contenders, c)
		}
		require.InDelta(t, want, in.Left(q, len(q.Contenders)-1, now), 100, queue)
	}
	q := lockpool.Queue{Name: "b", Contenders: []lockpool.Contender{{Kind: "mutex", Holds: true}, {Kind: "mutex", Asked: now}}}
	require.Zero(t, in.Left(q, 1, now))
}

// Without a cost, or for a kind of lock for which a rule is not made, there is no advice.
func TestNoAdvice(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]lockpool.Cost{
		"nobody waits":         {Kind: "mutex", Holds: 600, Held: 6 * s, Asks: 600, Asked: 3 * s},
		"the holder is hidden": {Kind: "mutex", Waits: 10, Waited: 100 * s},
		"no numbers":           {Kind: "mutex", Waited: 100 * s, Asked: 100 * s},
		"permits":              {Kind: "semaphore", Holds: 10, Held: 60 * s, Waits: 10, Waited: 100 * s, GaveUp: 9, Vain: 90 * s, Own: 10, Again: 10, Asks: 10, Asked: 60 * s},
		"a plain lock":         {Kind: "plain", Holds: 10, Held: 60 * s, Waits: 10, Waited: 100 * s, GaveUp: 9, Vain: 90 * s, Own: 10, Again: 10, Asks: 10, Asked: 60 * s},
		"readers":              {Kind: "read", Holds: 1000, Held: 600 * s, Waits: 10, Waited: 100 * s},
	} {
		costs := lockpool.PoolCosts{Over: time.Minute}
		for i := range 6 { // the others of a group
			costs.Costs = append(costs.Costs, lockpool.Cost{Lock: fmt.Sprintf("a/%d", i), Kind: c.Kind, Holds: 1, Held: s})
		}
		c.Lock = "a/hot"
		costs.Costs = append(costs.Costs, c)
		in := insights.Of([]lockpool.PoolCosts{costs}, "a/")
		require.Empty(t, in.Advice, name)
		_, err := json.Marshal(in)
		require.NoError(t, err)
	}
	hot := lockpool.Cost{Lock: "job/run:1", Kind: "mutex", Holds: 10, Held: 50 * s, Waits: 10, Waited: 100 * s}
	costs := lockpool.PoolCosts{Over: time.Minute, Costs: []lockpool.Cost{hot}}
	for i := range 6 {
		costs.Costs = append(costs.Costs, lockpool.Cost{Lock: fmt.Sprintf("job/%d", i), Kind: "mutex"})
	}
	require.Empty(t, insights.Of([]lockpool.PoolCosts{costs}, "").Advice, "divided in two, a run would do the job twice")
	costs.Costs[0].Lock = "job/1"
	require.Len(t, insights.Of([]lockpool.PoolCosts{costs}, "").Advice, 1)
}

// A holder of another process counts as its own process tells, or else as the waiters have seen.
func TestForeignHolders(t *testing.T) {
	seen := lockpool.PoolCosts{Origin: lockpool.Origin{Host: "web1", PID: 1}, Over: time.Minute, Costs: []lockpool.Cost{
		{Lock: "a", Kind: "mutex", At: "line", Holds: 5, Held: 50 * time.Millisecond, Waits: 5, Waited: 50 * time.Second},
		{Lock: "a", Kind: "mutex", At: "line", Foreign: true, Host: "web2", PID: 1, Holds: 5, Held: 50 * time.Second},
	}}
	told := lockpool.PoolCosts{Origin: lockpool.Origin{Host: "web2", PID: 1}, Over: time.Minute, Costs: []lockpool.Cost{{Lock: "a", Kind: "mutex", At: "line", Holds: 6, Held: 54 * time.Second}}}
	require.InDelta(t, 50.05/60, insights.Of([]lockpool.PoolCosts{seen}, "").Locks[0].Held, 0.001)
	require.InDelta(t, 54.05/60, insights.Of([]lockpool.PoolCosts{seen, told}, "").Locks[0].Held, 0.001)
}
