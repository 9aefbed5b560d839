//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/internal/clock"
)

// clientEnv is set in the processes that are clients, to a clientConfig.
const clientEnv = "LOCKPOOL_TORTURE_CLIENT"

type clientConfig struct {
	Servers []string
	Timeout time.Duration // of sessions
	Layout  zookeeper.Layout
	Locks   int
	Kinds   []string
	Reads   float64 // percentage of those who only read
	Fewest  int     // permits
	Workers int
	Seed    uint64
	Rate    float64 // of its clock
	Long    float64 // percentage of the holds of a first lock that are long

	Shortest, Longest time.Duration // of these

	// Heedless clients believe that they hold a lock until they unlock it, as if
	// there were no lease. The campaign must find them out.
	Heedless bool
}

const chroot = "/torture"

// The operations of the calls that clients tell about.
const (
	opLock     = "lock"
	opTry      = "try"
	opReenter  = "lock again"
	opShare    = "go on reading"
	opToken    = "token"
	opVerify   = "verify"
	opUnlock   = "unlock"
	opRevoke   = "revoke"
	opShutdown = "shutdown"

	opRead  = "read"
	opWrite = "write"
)

const shutdownLimit = 10 * time.Second

// client is one process: some goroutines that contend for locks.
type client struct {
	clientConfig
	ids atomic.Int64

	mu      sync.Mutex
	out     *json.Encoder
	answers map[int64]chan answer
}

// runClient contends until SIGTERM, and returns the exit code.
func runClient(config string) int {
	c := &client{out: json.NewEncoder(os.Stdout), answers: map[int64]chan answer{}}
	if err := json.Unmarshal([]byte(config), &c.clientConfig); err != nil {
		fmt.Fprintf(os.Stderr, "torture: %s is set to what is no configuration of a client: unset it: %v\n", clientEnv, err)
		return 2
	}
	clock.Distort(c.Rate)
	told, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go c.listen() // ends with the process, or ends it
	go c.watchClock()

	// The holder of a first lock has a session of its own, which does nothing
	// but hold. On the others there is always a request under way that needs the
	// leader; when no answer comes, the client of itself tries another server.
	var contending sync.WaitGroup
	for _, workers := range [][2]int{{0, 1}, {1, c.Workers}} {
		pool, err := lockpool.Open("zookeeper", fmt.Sprintf("%s%s?session_timeout=%s&layout=%s", strings.Join(c.Servers, ","), chroot, c.Timeout, c.Layout))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 2
		}
		for i := workers[0]; i < workers[1]; i++ {
			contending.Go(func() { c.work(pool, i) }) // ends when the pool is closed
		}
		contending.Go(func() {
			<-told.Done()
			_ = c.call(event{ID: c.ids.Add(1), Worker: workers[0], Op: opShutdown}, bound{shutdownLimit, false}, pool.Shutdown)
		})
	}
	contending.Wait()
	return 0
}

// listen takes what the campaign says. When that is gone, so is the client.
func (c *client) listen() {
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var a answer
		if err := json.Unmarshal(in.Bytes(), &a); err != nil {
			panic(err)
		}
		c.mu.Lock()
		c.answers[a.ID] <- a
		delete(c.answers, a.ID)
		c.mu.Unlock()
	}
	os.Exit(3)
}

// A timer that is later than tolerated shows that the process did not run, or
// not enough.
const (
	heartbeat = 10 * time.Millisecond
	tolerated = 50 * time.Millisecond
)

func (c *client) watchClock() {
	for last := now(); ; {
		time.Sleep(heartbeat)
		at := now()
		if late := at.since(last) - heartbeat; late > tolerated {
			c.tell(event{Kind: stalled, At: at, Late: late})
		}
		last = at
	}
}

func (c *client) tell(e event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.out.Encode(e); err != nil {
		os.Exit(3) // nobody is left to tell
	}
}

// bound is how long a call may take, and how its context ends.
type bound struct {
	limit    time.Duration
	canceled bool
}

func (b bound) context(parent context.Context) (context.Context, context.CancelFunc) {
	if !b.canceled {
		return context.WithTimeout(parent, b.limit)
	}
	ctx, cancel := context.WithCancel(parent)
	timer := time.AfterFunc(b.limit, cancel)
	return ctx, func() { timer.Stop(); cancel() }
}

// call tells of a call, which e describes, and what came of it.
func (c *client) call(e event, b bound, do func(context.Context) error) error {
	ctx, cancel := b.context(context.Background())
	defer cancel()
	e.Kind, e.At, e.Limit = asked, now(), b.limit
	c.tell(e)
	err := do(ctx)
	at := now()
	c.tell(event{Kind: answered, At: at, ID: e.ID, Error: class(err)})
	return err
}

// removed is how a call ends on a lock that was lost because of its node. Nobody
// removes those of others.
const removed = "lock_lost by removal"

func class(err error) string {
	var lockErr *lockpool.LockError
	switch {
	case err == nil:
		return ""
	case errors.Is(err, lockpool.ErrLockLost) && errors.Is(err, driver.ErrRemoved):
		return removed
	case errors.As(err, &lockErr):
		if t := lockErr.ErrorType(); t != "_OTHER" {
			return t
		}
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	}
	return err.Error()
}

// work takes turns until the pool is closed.
func (c *client) work(pool *lockpool.Pool, worker int) {
	r := rand.New(rand.NewPCG(c.Seed, uint64(worker)))
	for !errors.Is(c.turn(pool, r, worker), lockpool.ErrPoolClosed) {
		time.Sleep(between(r, 0, 20*time.Millisecond))
	}
}

// chance is true in so many of a hundred cases.
func chance(r *rand.Rand, percent float64) bool { return r.Float64()*100 < percent }

// between returns a duration from least to most.
func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(most-least)+1))
}

// turn is one attempt at a lock and what is done under it.
func (c *client) turn(pool *lockpool.Pool, r *rand.Rand, worker int) error {
	t := c.draw(pool, r, worker)
	if chance(r, 5) {
		_ = t.call(opRevoke, func(ctx context.Context) error { return pool.Revoke(ctx, t.name) })
	}
	b := bound{limit: between(r, 100*time.Millisecond, 3*c.Timeout)}
	if chance(r, 10) {
		b = bound{between(r, 0, 200*time.Millisecond), true}
	}
	e := event{
		ID: t.id, Worker: worker, Op: opLock, Lock: t.name, Permits: t.permits, Of: t.of, Listens: t.listens,
	}
	take := t.take
	if chance(r, 20) {
		e.Op, take = opTry, t.try
	}
	err := c.call(e, b, func(ctx context.Context) (err error) {
		t.lock, err = take(ctx)
		return err
	})
	if err != nil {
		return err
	}
	t.hold()
	return nil
}
