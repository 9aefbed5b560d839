//go:build linux

package campaign

// This file has the process of a client.

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/internal/clock"
	"github.com/lockpool/lockpool/testing/lab/simulate/workload"
)

// clientEnv makes a process a client. The value is a Client.
const clientEnv = "LOCKPOOL_TORTURE_CLIENT"

// Client is what a client process is told. The number of the client is Process.
type Client struct {
	workload.Config
	Servers    []string // the addresses of the links to the members
	LocalTurns int
	Workers    int
	ClockRate  float64
}

// RunClient has the process be a client of a campaign, and ends the process, if started as
// a client by a campaign. Call it first in main or TestMain.
func RunClient(e Engine) {
	if config := os.Getenv(clientEnv); config != "" {
		os.Exit(runClient(e, config))
	}
}

// client is a process whose goroutines contend for locks.
type client struct {
	Client

	mu  sync.Mutex
	out *json.Encoder
}

// runClient contends until SIGTERM, and returns the exit code.
func runClient(e Engine, config string) int {
	c := &client{out: json.NewEncoder(os.Stdout)}
	if err := json.Unmarshal([]byte(config), &c.Client); err != nil {
		fmt.Fprintf(os.Stderr, "torture: %s must be unset, or the configuration of a client: %v\n", clientEnv, err)
		return 2
	}
	machine := new(clock.Machine)
	machine.SetRate(c.ClockRate)
	contender := &workload.Client{Config: c.Config, Now: now, Report: c.report, Machine: machine}
	terminated, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() { // ends with the process: the end of the campaign ends the client
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	go c.watchTimers() // ends with the process

	// The first lock of each kind is left to a worker with a separate session, often only
	// holding the lock. The other sessions always have a request to the leader under way.
	var contending sync.WaitGroup
	for _, workers := range [][2]int{{0, 1}, {1, c.Workers}} {
		pool, err := e.Open(c.Client, lockpool.WithLocalTurns(c.LocalTurns))
		if err != nil {
			fmt.Fprintln(os.Stderr, "torture:", err)
			return 2
		}
		for i := workers[0]; i < workers[1]; i++ {
			contending.Go(func() { contender.Work(pool, i) }) // ends when the pool is closed
		}
		contending.Go(func() {
			<-terminated.Done()
			contender.Shutdown(pool, workers[0])
		})
	}
	contending.Wait()
	return 0
}

// A timer later than maxLateness shows that the process did not run, or not enough.
const (
	heartbeat   = 10 * time.Millisecond
	maxLateness = 50 * time.Millisecond
)

func (c *client) watchTimers() {
	for last := now(); ; {
		time.Sleep(heartbeat)
		at := now()
		if late := at.Since(last) - heartbeat; late > maxLateness {
			c.report(workload.LateTimer(at, late))
		}
		last = at
	}
}

// report writes an event.
func (c *client) report(e workload.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.out.Encode(e); err != nil {
		os.Exit(3) // the campaign has ended
	}
}

// now reads the machine's monotonic clock, the same for all processes.
func now() workload.Instant {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // every Linux has this clock
	}
	return workload.Instant(t.Nano())
}
