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
	_ "github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/internal/clock"
)

// clientEnv is set in the processes that are clients, to a clientConfig.
const clientEnv = "LOCKPOOL_TORTURE_CLIENT"

type clientConfig struct {
	Servers []string
	Timeout time.Duration // of sessions
	Locks   []string
	Workers int
	Seed    uint64
	Rate    float64 // of its clock
	Long    float64 // percentage of the first lock's holds that are long

	Shortest, Longest time.Duration // of these

	// Heedless clients believe that they hold a lock until they unlock it, as if
	// there were no lease. The campaign must find them out.
	Heedless bool
}

const chroot = "/torture"

// The operations of the calls that clients tell about.
const (
	opLock     = "lock"
	opTry      = "try lock"
	opReenter  = "lock again"
	opToken    = "token"
	opVerify   = "verify"
	opUnlock   = "unlock"
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

	// The holder of the first lock has a session of its own, which does nothing
	// but hold. On the others there is always a request under way that needs the
	// leader; when no answer comes, the client of itself tries another server.
	var contending sync.WaitGroup
	for _, workers := range [][2]int{{0, 1}, {1, c.Workers}} {
		pool, err := lockpool.Open("zookeeper", fmt.Sprintf("%s%s?session_timeout=%s", strings.Join(c.Servers, ","), chroot, c.Timeout))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 2
		}
		for i := workers[0]; i < workers[1]; i++ {
			contending.Go(func() { c.work(pool, i) }) // ends when the pool is closed
		}
		contending.Go(func() {
			<-told.Done()
			_ = c.call(c.ids.Add(1), workers[0], opShutdown, "", bound{shutdownLimit, false}, pool.Shutdown)
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

// call tells of a call and what came of it.
func (c *client) call(id int64, worker int, op, lock string, b bound, do func(context.Context) error) error {
	ctx, cancel := b.context(context.Background())
	defer cancel()
	c.tell(event{Kind: asked, At: now(), ID: id, Worker: worker, Op: op, Lock: lock, Limit: b.limit})
	err := do(ctx)
	at := now()
	c.tell(event{Kind: answered, At: at, ID: id, Error: class(err)})
	return err
}

func class(err error) string {
	var lockErr *lockpool.LockError
	switch {
	case err == nil:
		return ""
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

// turn is one attempt at a lock and what is done under it. The first lock is
// left to one goroutine of each process: it may be held for as long as a session
// takes to expire, which others would only wait for.
func (c *client) turn(pool *lockpool.Pool, r *rand.Rand, worker int) error {
	t := turn{client: c, pool: pool, r: r, worker: worker, name: c.Locks[0], id: c.ids.Add(1)}
	if worker > 0 && len(c.Locks) > 1 {
		t.name = c.Locks[1+r.IntN(len(c.Locks)-1)]
	}
	b := bound{limit: between(r, 100*time.Millisecond, 3*c.Timeout)}
	if chance(r, 10) {
		b = bound{between(r, 0, 200*time.Millisecond), true}
	}
	op, take := opLock, pool.Lock
	if chance(r, 20) {
		op, take = opTry, pool.TryLock
	}
	err := c.call(t.id, worker, op, t.name, b, func(ctx context.Context) (err error) {
		t.lock, err = take(ctx, t.name)
		return err
	})
	if err != nil {
		return err
	}
	t.hold()
	return nil
}

// turn is a lock that is held.
type turn struct {
	*client
	pool   *lockpool.Pool
	r      *rand.Rand
	worker int
	name   string
	id     int64
	lock   *lockpool.Lock
	ending sync.Once
}

func (t *turn) call(op string, do func(context.Context) error) error {
	return t.client.call(t.ids.Add(1), t.worker, op, t.name, bound{between(t.r, 50*time.Millisecond, t.Timeout), false}, do)
}

// end is the end of the hold, by the client's belief.
func (t *turn) end(lost bool) {
	t.ending.Do(func() { t.tell(event{Kind: ended, At: now(), Hold: t.id, Lost: lost}) })
}

func (t *turn) hold() {
	begun := now()
	unlocked, watched := make(chan struct{}), make(chan struct{})
	go func() { // ends with the hold
		defer close(watched)
		select {
		case <-t.lock.Lost():
			if !t.Heedless {
				t.end(true)
			}
		case <-unlocked:
		}
	}()
	token := t.token(t.lock, tokened)
	t.access(token)
	if chance(t.r, 10) {
		t.reenter()
	}
	if chance(t.r, 5) {
		_ = t.call(opVerify, t.lock.Verify)
	}
	work := between(t.r, 0, 50*time.Millisecond)
	if t.name == t.Locks[0] && chance(t.r, t.Long) {
		work = between(t.r, t.Shortest, t.Longest)
	}
	lost := t.lock.Lost()
	if t.Heedless {
		lost = nil
	}
	select {
	case <-lost:
	case <-time.After(work):
	}
	if now().since(begun) > t.Timeout/2 {
		t.access(token) // with an old token, if there was a pause or a loss
	}
	t.end(false) // before anybody else can hold it
	_ = t.call(opUnlock, t.lock.Unlock)
	close(unlocked)
	<-watched
}

func (t *turn) token(lock *lockpool.Lock, k kind) (token int64) {
	_ = t.call(opToken, func(ctx context.Context) (err error) {
		token, err = lock.Token(ctx)
		return err
	})
	if token != 0 {
		t.tell(event{Kind: k, At: now(), Hold: t.id, Token: token})
	}
	return token
}

// reenter locks again, through the context.
func (t *turn) reenter() {
	held := t.lock.Context(context.Background())
	var inner *lockpool.Lock
	err := t.call(opReenter, func(context.Context) (err error) {
		inner, err = t.pool.Lock(held, t.name)
		return err
	})
	if err != nil {
		return
	}
	t.token(inner, reentered)
	_ = t.call(opUnlock, inner.Unlock)
}

// access writes the register, or now and then reads it.
func (t *turn) access(token int64) {
	id := t.ids.Add(1)
	e := event{Kind: accessing, ID: id, Op: opWrite, Lock: t.name, Token: token, Value: int64(os.Getpid())<<32 | id}
	if token == 0 || chance(t.r, 20) {
		e = event{Kind: accessing, ID: id, Op: opRead, Lock: t.name}
	}
	reply := make(chan answer, 1)
	t.mu.Lock()
	t.answers[id] = reply
	t.mu.Unlock()
	e.At = now()
	t.tell(e)
	<-reply
	t.tell(event{Kind: accessed, At: now(), ID: id})
}
