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

// clientEnv makes a process a client. Its value is a clientConfig.
const clientEnv = "LOCKPOOL_TORTURE_CLIENT"

type clientConfig struct {
	workload
	Servers   []string
	Layout    zookeeper.Layout
	Reads     float64 // percentage of readers
	Seed      uint64
	ClockRate float64
}

const chroot = "/torture"

// The operations of calls and accesses.
const (
	opLock      = "lock"
	opTry       = "try"
	opReenter   = "reenter"
	opDowngrade = "downgrade"
	opToken     = "token"
	opVerify    = "verify"
	opUnlock    = "unlock"
	opRevoke    = "revoke"
	opShutdown  = "shutdown"

	opRead  = "read"
	opWrite = "write"
)

const shutdownTimeout = 10 * time.Second

// client is a process whose goroutines contend for locks.
type client struct {
	clientConfig
	ids atomic.Int64

	mu      sync.Mutex
	out     *json.Encoder
	answers map[int64]chan answer // of accesses without an answer yet
}

// runClient contends until SIGTERM, and returns the exit code.
func runClient(config string) int {
	c := &client{out: json.NewEncoder(os.Stdout), answers: map[int64]chan answer{}}
	if err := json.Unmarshal([]byte(config), &c.clientConfig); err != nil {
		fmt.Fprintf(os.Stderr, "torture: %s must be unset, or the configuration of a client: %v\n", clientEnv, err)
		return 2
	}
	clock.Distort(c.ClockRate)
	terminated, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go c.readAnswers() // ends with the process, or ends it
	go c.watchTimers()

	// The first lock of each kind is left to a worker with a session of its own,
	// which often does nothing but hold it. The other sessions always have a request
	// under way that needs the leader; when no reply comes, the ZooKeeper client by
	// itself tries another server.
	var contending sync.WaitGroup
	for _, workers := range [][2]int{{0, 1}, {1, c.Workers}} {
		pool, err := lockpool.Open("zookeeper", fmt.Sprintf("%s%s?session_timeout=%s&layout=%s", strings.Join(c.Servers, ","), chroot, c.Timeout, c.Layout))
		if err != nil {
			fmt.Fprintln(os.Stderr, "torture:", err)
			return 2
		}
		for i := workers[0]; i < workers[1]; i++ {
			contending.Go(func() { c.work(pool, i) }) // ends when the pool is closed
		}
		contending.Go(func() {
			<-terminated.Done()
			_ = c.call(event{ID: c.ids.Add(1), Worker: workers[0], Op: opShutdown}, bound{shutdownTimeout, false}, pool.Shutdown)
		})
	}
	contending.Wait()
	return 0
}

// readAnswers reads the campaign's answers. When the campaign ends, it ends the
// client.
func (c *client) readAnswers() {
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

// A timer that is later than maxLateness shows that the process did not run, or
// not enough.
const (
	heartbeat   = 10 * time.Millisecond
	maxLateness = 50 * time.Millisecond
)

func (c *client) watchTimers() {
	for last := now(); ; {
		time.Sleep(heartbeat)
		at := now()
		if late := at.since(last) - heartbeat; late > maxLateness {
			c.emit(event{Kind: eventLate, At: at, Late: late})
		}
		last = at
	}
}

// emit writes an event.
func (c *client) emit(e event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.out.Encode(e); err != nil {
		os.Exit(3) // the campaign has ended
	}
}

// bound is the time limit of a call, by a deadline or by a cancellation.
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

// call makes a call, and emits its beginning, which e describes, and its outcome.
func (c *client) call(e event, b bound, do func(context.Context) error) error {
	ctx, cancel := b.context(context.Background())
	defer cancel()
	e.Kind, e.At, e.Limit = eventCall, now(), b.limit
	c.emit(e)
	err := do(ctx)
	at := now()
	c.emit(event{Kind: eventReturn, At: at, ID: e.ID, Error: class(err)})
	return err
}

// removed is the class of the loss of a lock whose node was removed. No client
// removes the nodes of others.
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
	for !errors.Is(c.takeTurn(pool, r, worker), lockpool.ErrPoolClosed) {
		time.Sleep(between(r, 0, 20*time.Millisecond))
	}
}

// chance reports true in that percentage of cases.
func chance(r *rand.Rand, percent float64) bool { return r.Float64()*100 < percent }

// between returns a duration from least to most.
func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(most-least)+1))
}
