package main

// This file has a bubble: a cluster, its processes and the faults, in virtual time.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/internal/clock"
	"github.com/lockpool/lockpool/testing/lab/simulate/workload"
	"github.com/lockpool/lockpool/testing/zktest"
)

const chroot = "/simulate"

// lag is how long the node of an abandoned wait may stay without a fault: until the create
// is answered, and the delete has arrived, on the slowest connection.
const lag = 500 * time.Millisecond

// inFlight is how long, without a fault, a holder may not know of the removal of the
// holder's node: the holder's watch is set 20 ms after the grant, with a round trip if the
// node has just gone, and the event takes half of one; a process takes up to twice 150 ms
// for a round trip.
const inFlight = time.Second

// bubble is a cluster and processes with locks there, in a bubble of testing/synctest.
type bubble struct {
	schedule
	began   time.Time
	longest time.Duration // session timeout
	server  *zktest.Server
	ends    *zktest.SessionEnds
	history *workload.History
	running sync.WaitGroup // workers of all processes, and pools being closed
	delayed sync.WaitGroup // continuing faults

	faulting  sync.Mutex       // held while a fault begins or ends
	instances []*instance      // of each process, the current one
	active    int              // unfinished faults
	down      bool             // the whole ensemble, by a fault
	removed   workload.Instant // when a fault last removed nodes
	expired   map[int64]bool   // sessions ended by faults

	mu      sync.Mutex
	rescues []string
}

// result is what a bubble found.
type result struct {
	Bubble  int
	Report  workload.Report
	Figures workload.Figures
	Virtual time.Duration
	Real    time.Duration
}

// runBubble runs a bubble, and writes the timeline, if ordered, to files with the
// extensions .txt and .svg.
func runBubble(t *testing.T, o order) (found result) {
	began, s := time.Now(), o.Schedule
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{schedule: s, began: time.Now(), longest: s.longestTimeout(), instances: make([]*instance, len(s.Processes)), expired: map[int64]bool{}}
		b.history = workload.NewHistory(nil)
		found = b.run(t, o)
	})
	found.Real = time.Since(began)
	return found
}

func (b *bubble) now() workload.Instant { return b.instant(time.Now()) }

func (b *bubble) instant(t time.Time) workload.Instant { return workload.Instant(1 + t.Sub(b.began)) }

func (b *bubble) run(t *testing.T, o order) (found result) {
	var err error
	b.server, err = zktest.Run(t.Context(), zktest.InMemory(), zktest.Members(b.Members), zktest.TickTime(b.Tick),
		zktest.SessionTimeouts(2*b.Tick, b.Longest), zktest.ContainerInterval(b.Reap), zktest.MaxClientConns(0), zktest.Seed(b.Seed^uint64(b.Bubble)),
		zktest.Logger(slog.New(slog.DiscardHandler)))
	if err != nil {
		panic(err) // an error in this program
	}
	b.ends = b.server.TrackSessions()
	b.history.Update(func(rec *workload.Record) {
		rec.Begin = b.now()
		rec.Limits = workload.Limits{
			WakeUp: 250 * time.Millisecond, Overrun: 500 * time.Millisecond,
			Recovery: b.longest + 2*b.Tick + 15*time.Second, Revocation: b.longest,
			Cause: 2*b.longest + 10*time.Second, CalmOnly: true, Order: 2 * time.Second,
			Cycle: b.cycleTime(), Lag: lag, Settling: b.longest + 2*b.Tick + 5*time.Second, InFlight: inFlight,
			Victims: int64(2 * len(b.Processes)), // every caller that asked before may be in the way, and ask again during the beginning
		}
	})
	for slot := range b.Processes {
		b.start(slot)
	}
	b.injectFaults()
	b.history.Update(func(rec *workload.Record) { rec.End = b.now() })
	b.finish()
	b.history.Update(func(rec *workload.Record) {
		for _, end := range b.ends.History() {
			rec.Ends = append(rec.Ends, workload.SessionEnd{At: b.instant(end.At), Orders: end.Nodes, Closed: end.Closed, Forced: b.expired[end.ID]})
		}
		for _, x := range b.ends.Removals() {
			if below, ok := strings.CutPrefix(x.Path, chroot+"/"); ok {
				rec.Broken = append(rec.Broken, workload.NewRemoval(b.instant(x.At), below, x.Zxid))
			}
		}
		rec.Rescues = b.rescues
		found = result{
			Bubble: b.Bubble, Report: workload.Check(rec), Figures: workload.Count(rec),
			Virtual: time.Since(b.began),
		}
		if o.Timeline != "" && (o.Always || !found.Report.Clean()) {
			err = workload.WriteTimeline(rec, found.Report.First, o.Timeline)
		}
	})
	if err != nil {
		panic(err)
	}
	return found
}

// cycleTime returns for how long a cycle may stand: a look takes some round trips for each
// lock on the way, one after the other.
func (b *bubble) cycleTime() time.Duration {
	d := 5 * time.Second
	for _, p := range b.Processes {
		d = max(d, 5*time.Second+40*p.Latency)
	}
	return d
}

// injectFaults injects the faults of the schedule, and returns when all are over.
func (b *bubble) injectFaults() {
	for n, st := range b.Steps {
		time.Sleep(st.At - time.Since(b.began))
		f := faults[slices.IndexFunc(faults, func(f fault) bool { return f.name == st.Fault })]
		b.faulting.Lock()
		begin := b.now()
		what, heal := f.begin(b, st)
		description := workload.Describe(f.name, what)
		b.active++
		over := func() {
			if heal != nil {
				heal()
			}
			b.active--
			now := b.now()
			b.history.Update(func(rec *workload.Record) {
				rec.Faults = append(rec.Faults, workload.Span{Process: description, Begin: begin, End: now})
				if f.lasts != workload.Longer && b.isProcess(what) { // the longer ones are of servers as well
					rec.Single = append(rec.Single, workload.Span{Process: what, Begin: begin, End: now})
				}
				next := b.Lasts
				if n+1 < len(b.Steps) {
					next = b.Steps[n+1].At
				}
				if b.active == 0 && next-time.Since(b.began) > rec.Recovery {
					rec.Healed = append(rec.Healed, now)
				}
			})
		}
		if heal == nil {
			over()
		} else {
			b.later(st.Lasts, over)
		}
		b.faulting.Unlock()
	}
	time.Sleep(b.Lasts - time.Since(b.began))
	b.delayed.Wait()
}

// isProcess reports whether a text is the name of a process, running or ended.
func (b *bubble) isProcess(text string) bool {
	return slices.ContainsFunc(b.instances, func(i *instance) bool {
		return text == i.name || text == fmt.Sprintf("process %d.%d", i.slot, i.generation-1)
	})
}

// later calls f when d has passed.
func (b *bubble) later(d time.Duration, f func()) {
	b.delayed.Go(func() { // ends after d
		time.Sleep(d)
		b.faulting.Lock()
		defer b.faulting.Unlock()
		f()
	})
}

// finish ends all processes, and looks for what they have left behind.
func (b *bubble) finish() {
	for _, i := range b.instances {
		if i.retire() {
			i.shutdown()
		}
	}
	ended := make(chan struct{})
	go func() { // ends with the processes
		b.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(2*workload.ShutdownTimeout + 4*b.longest + b.Load.LongestPause()):
		b.giveUp("a call of a pool that is closed, or its shutdown, did not return")
	}
	time.Sleep(b.longest + 4*b.Tick) // until the sessions of killed processes have expired
	b.server.ReapContainers()
	left, unused := b.left()
	b.history.Update(func(rec *workload.Record) { rec.Leaked, rec.Unused = append(rec.Leaked, left...), unused })
	if err := b.server.Invariants(); err != nil {
		b.history.Update(func(rec *workload.Record) { rec.Crashes = append(rec.Crashes, "invariant: "+err.Error()) })
	}
	if err := b.server.Close(); err != nil {
		panic(err)
	}
}

// giveUp ends this process, because the bubble would not end. The parent reports the
// reason.
func (b *bubble) giveUp(reason string) {
	fmt.Fprintf(os.Stderr, "stuck: bubble %d of seed %d: %s\n", b.Bubble, b.Seed, reason)
	_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 2)
	os.Exit(3)
}

// left lists what is left when all processes have ended, and the names of the locks never
// used again whose containers are left.
func (b *bubble) left() (left, unused []string) {
	directories := append(b.Load.Directories(chroot), chroot)
	state := b.server.State()
	for path, node := range state.Nodes {
		name := strings.TrimPrefix(path, chroot+"/")
		if node.Stat.EphemeralOwner == 0 && workload.IsRecord(name) {
			continue
		}
		if workload.IsUsedOnce(name) && node.Stat.EphemeralOwner == 0 {
			unused = append(unused, name)
		} else if strings.HasPrefix(path, chroot) && (node.Stat.EphemeralOwner != 0 || !slices.Contains(directories, path)) {
			left = append(left, fmt.Sprintf("left: node %s, created at %#x by session %#x, with data %q",
				path, node.Stat.Czxid, uint64(node.Stat.EphemeralOwner), node.Data))
		}
	}
	for _, s := range state.Sessions {
		left = append(left, fmt.Sprintf("left: session %#x", uint64(s.ID)))
	}
	for _, c := range state.Conns {
		left = append(left, fmt.Sprintf("left: connection %d from %s", c.Number, c.Addr))
	}
	slices.Sort(left)
	slices.Sort(unused)
	return left, unused
}

// excuse records a time when a process cannot have known of the loss of a lock.
func (b *bubble) excuse(process string, begin, end workload.Instant) {
	b.history.Update(func(rec *workload.Record) {
		rec.Pauses = append(rec.Pauses, workload.Span{Process: process, Begin: begin, End: end})
	})
}

// target returns the process of a fault.
func (b *bubble) target(s step) *instance {
	if s.Holder {
		holder := b.history.LongestHolder()
		for _, i := range b.instances {
			if i.name == holder {
				return i
			}
		}
	}
	return b.instances[s.Process]
}

// instance is a process, running or ended.
type instance struct {
	*bubble
	slot       int
	generation int // how many processes have had the slot, this one included
	name       string
	host       string
	machine    *clock.Machine
	client     *workload.Client
	stream     *workload.Stream
	pool       *lockpool.Pool
	retired    bool // to be replaced, or the bubble ends; set by the goroutine of the faults
	stops      bool // the machine is being stopped; guarded by bubble.faulting

	mu         sync.Mutex
	changed    sync.Cond
	suspended  time.Time // zero if the machine runs
	stoodStill time.Duration
	dead       bool
}

// start starts a process.
func (b *bubble) start(slot int) {
	p, generation := b.Processes[slot], 1
	machine := new(clock.Machine)
	machine.SetRate(p.Rate)
	if last := b.instances[slot]; last != nil {
		generation += last.generation
	}
	i := &instance{
		bubble: b, slot: slot, generation: generation, name: fmt.Sprintf("process %d.%d", slot, generation),
		host: fmt.Sprintf("10.%d.%d.%d", slot, generation/250, generation%250), machine: machine,
	}
	i.changed.L = &i.mu
	i.stream = b.history.Stream(i.name)
	config := b.Load
	config.Bystander, config.Once = p.Bystander, p.Layout == zookeeper.LayoutCurator // the directories of others are persistent
	config.Process, config.Timeout, config.MinLong, config.MaxLong = slot, p.Timeout, p.Timeout/2, 3*p.Timeout
	config.Seed = rand.New(rand.NewPCG(p.Seed, uint64(generation))).Uint64() >> 33
	i.client = &workload.Client{Config: config, Now: i.now, Report: i.stream.Add, Machine: machine}
	logger := slog.New(rescueHandler{i})
	connector, err := zookeeper.NewConnector(zookeeper.Config{
		Servers: b.server.Members(), Chroot: chroot, Layout: p.Layout, SessionTimeout: p.Timeout, Logger: logger, Dial: i.dialer(),
	})
	if err != nil {
		panic(err) // an error in this program
	}
	// Processes pass locks among their workers, or do not, or soon give them back.
	turns := []int{1000, 0, 3}[slot%3]
	if turns > 0 {
		b.history.Update(func(rec *workload.Record) { rec.PassesOn = append(rec.PassesOn, i.name) })
	}
	opts := []lockpool.Option{lockpool.WithLogger(logger), lockpool.WithLocalTurns(turns)}
	if p.Keeps > 0 {
		opts = append(opts, lockpool.WithKeptLocks(p.Keeps, p.Unused))
		b.history.Update(func(rec *workload.Record) { rec.Keeps = append(rec.Keeps, i.name) })
	}
	if i.pool, err = lockpool.OpenConnector(connector, opts...); err != nil {
		panic(err)
	}
	b.instances[slot] = i
	for worker := range p.Workers {
		b.running.Go(func() { i.client.Work(i.pool, worker) }) // ends when the pool is closed
	}
}

func (i *instance) selector() zktest.Selector { return zktest.Selector{Host: i.host} }

// retire reports whether the process has not been retired before.
func (i *instance) retire() bool {
	was := i.retired
	i.retired = true
	return !was
}

// kill ends the process: the process does nothing more, and end ends the connections.
func (i *instance) kill(end func(zktest.Selector)) {
	i.mu.Lock()
	i.dead = true
	i.changed.Broadcast()
	i.mu.Unlock()
	i.stream.End(i.bubble.now())
	end(i.selector())
	// The pool has no connection anymore; closing the pool ends the goroutines.
	i.close()
}

// close closes the pool during use.
func (i *instance) close() { i.end(func() { _ = i.pool.Close() }) }

// shutdown shuts the pool down. The holders finish first.
func (i *instance) shutdown() { i.end(func() { i.client.Shutdown(i.pool, 0) }) }

// end ends the pool, and adds the pool's kept locks to the record.
func (i *instance) end(end func()) {
	i.running.Go(func() {
		end()
		stats := i.pool.Stats()
		i.history.Update(func(rec *workload.Record) {
			rec.KeptTurns, rec.AskedBack = rec.KeptTurns+int(stats.KeptTurns), rec.AskedBack+int(stats.AskedBack)
			if stats.Kept != 0 {
				rec.Leaked = append(rec.Leaked, fmt.Sprintf("left: %d kept locks of %s, whose pool is closed", stats.Kept, i.name))
			}
		})
	})
}

// dialer returns a dialer, refusing when the process is dead.
func (i *instance) dialer() func(context.Context, string) (net.Conn, error) {
	dial := i.server.DialFrom(i.host)
	return func(ctx context.Context, address string) (net.Conn, error) {
		if _, alive := i.awake(); !alive {
			return nil, errors.New("the process was killed")
		}
		conn, err := dial(ctx, address)
		if err != nil {
			return nil, err
		}
		if latency := i.Processes[i.slot].Latency; latency > 0 {
			conn = newSlowConn(conn, latency, i.client.Seed)
		}
		return &machineConn{Conn: conn, instance: i}, nil
	}
}

// slowConn is a connection on which everything takes some time. Data written while other
// data is on the way arrives together, so the throughput is unlimited.
type slowConn struct {
	net.Conn
	latency time.Duration

	// Used by the reading goroutine.
	down *rand.Rand
	read time.Time // when something has arrived

	mu     sync.Mutex
	up     *rand.Rand
	last   time.Time // when the last packet is delivered
	sent   chan delayed
	closed bool
}

// delayed is written data, and the time of delivery.
type delayed struct {
	packet []byte
	at     time.Time
}

func newSlowConn(conn net.Conn, latency time.Duration, seed uint64) *slowConn {
	_, port, _ := net.SplitHostPort(conn.LocalAddr().String())
	var number uint64
	_, _ = fmt.Sscan(port, &number)
	const most = 1 << 10 // packets on their way; a write waits for room
	c := &slowConn{
		Conn: conn, latency: latency, sent: make(chan delayed, most),
		up: rand.New(rand.NewPCG(seed, 2*number)), down: rand.New(rand.NewPCG(seed, 2*number+1)),
	}
	go c.deliver() // ends soon after Close
	return c
}

// Write does not wait, as on a connection whose buffers have room.
func (c *slowConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, net.ErrClosed
	}
	at := time.Now().Add(workload.Between(c.up, 0, c.latency))
	if at.Before(c.last) { // in order
		at = c.last
	}
	c.last = at
	c.sent <- delayed{bytes.Clone(p), at}
	return len(p), nil
}

func (c *slowConn) deliver() {
	for d := range c.sent {
		time.Sleep(time.Until(d.at))
		if _, err := c.Conn.Write(d.packet); err != nil {
			c.Conn.Close() // the reader notices
		}
	}
	c.Conn.Close()
}

// Close closes the connection when what has been written has been delivered.
func (c *slowConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.closed = true
	close(c.sent)
	return c.Conn.SetReadDeadline(time.Unix(1, 0))
}

// Read delays what has arrived.
func (c *slowConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if time.Since(c.read) > 0 { // in virtual time, a packet waited for comes at once
		time.Sleep(workload.Between(c.down, 0, c.latency))
	}
	c.read = time.Now()
	return n, err
}

// rescueHandler counts the nodes whose removal a process did not notice: no ACL is ever
// changed, so each is a defect.
type rescueHandler struct{ *instance }

func (h rescueHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }
func (h rescueHandler) WithAttrs([]slog.Attr) slog.Handler           { return h }
func (h rescueHandler) WithGroup(string) slog.Handler                { return h }

func (h rescueHandler) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "went unnoticed") {
		text := fmt.Sprintf("%s at %s: %s", h.name, time.Since(h.began), r.Message)
		r.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
		h.bubble.mu.Lock()
		defer h.bubble.mu.Unlock()
		h.rescues = append(h.rescues, text)
	}
	return nil
}
