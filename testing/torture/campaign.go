//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/zktest"
)

const (
	members = 3
	tick    = 500 * time.Millisecond
	// syncLimit is after how many ticks members miss each other. It is longer than
	// sessions last, so that a follower that is cut off from its leader serves on
	// while sessions expire: that is what leases are for.
	syncLimit = "8"

	startPatience = 30 * time.Second // until the first grant
)

// options are what a campaign is like.
type options struct {
	Duration time.Duration
	Seed     uint64
	Timeout  time.Duration // of the clients' sessions
	Clients  int
	Workers  int // of each client
	Locks    int
	Kinds    []string                 // of locks, drawn as often as they stand here
	Reads    func(client int) float64 // percentage of those who only read
	Fewest   int                      // permits of a semaphore that are asked for
	Long     float64                  // percentage of the holds of each kind's first lock that last from Shortest to Longest
	Shortest time.Duration
	Longest  time.Duration
	Grace    time.Duration // for a client that was told to end
	Heedless bool
	Rate     float64 // of all clients' clocks; 0 leaves them as they are in most campaigns

	faults []fault
	log    io.Writer // for all that clients say
}

// usual returns the options that fit most campaigns.
func usual() options {
	const timeout = 6 * tick
	return options{
		Seed: 1, Timeout: timeout, Clients: 4, Workers: 4, Locks: 3,
		Kinds: []string{exclusive, exclusive, exclusive, exclusive, readWrite, semaphore, plain},
		Reads: func(int) float64 { return 60 }, Fewest: 1,
		Long: 50, Shortest: timeout / 2, Longest: 3 * timeout, Grace: 2 * shutdownLimit, faults: faults, log: io.Discard,
	}
}

// campaign is one run.
type campaign struct {
	options
	out      io.Writer
	begin    instant
	history  *history
	ensemble *zktest.RealEnsemble
	proxies  [][]*zktest.Proxy // of each client, to each member
	homes    []atomic.Int64    // the member that each client has connected to last

	mu      sync.Mutex
	clients []*process // those that run now
	starts  int
}

// run runs a campaign and writes to out what happens and what came of it. The
// error says why there is no result.
func run(ctx context.Context, out io.Writer, o options) (found report, err error) {
	c := &campaign{options: o, out: out, begin: now(), history: newHistory(o.log)}
	c.clients, c.homes = make([]*process, c.Clients), make([]atomic.Int64, c.Clients)
	c.ensemble, err = zktest.RunRealEnsemble(ctx, members, zktest.Separated(), zktest.TickTime(tick), zktest.MaxClientConns(0),
		zktest.Properties(map[string]string{"syncLimit": syncLimit}))
	if err != nil {
		return found, err
	}
	defer func() { err = errors.Join(err, c.ensemble.Close()) }()
	defer c.closeProxies()
	defer c.endClients(syscall.SIGKILL)
	for i := range c.Clients {
		c.proxies = append(c.proxies, nil)
		for m := range members {
			p, err := zktest.RunProxy(c.ensemble.Member(m).Addr())
			if err != nil {
				return found, err
			}
			c.proxies[i] = append(c.proxies[i], p)
			p.Inject(zktest.Rule{
				Match: zktest.Match{Ops: []zktest.Op{zktest.OpConnect}}, Times: math.MaxInt,
				Do: zktest.Call(func(zktest.Request) { c.homes[i].Store(int64(m)) }),
			})
		}
	}
	for i := range c.Clients {
		if err := c.startClient(i); err != nil {
			return found, err
		}
	}
	select {
	case <-c.firstGrant():
	case <-time.After(startPatience):
		return found, errors.New("nobody was granted a lock, and there has been no fault yet")
	case <-ctx.Done():
		return found, ctx.Err()
	}
	c.begin = now()
	c.history.note(func(r *record) { r.begin = c.begin })
	if err := c.torment(ctx, c.faults); err != nil {
		return found, err
	}
	c.history.note(func(r *record) { r.end = now() })
	c.say("the end")
	c.endClients(syscall.SIGTERM)
	time.Sleep(c.Timeout + 4*tick) // what was not removed goes with its session
	left, err := c.nodes()
	if err != nil {
		return found, fmt.Errorf("looking for nodes that are left: %w", err)
	}
	c.history.note(func(r *record) {
		r.left = left
		found = check(r)
		summarize(out, r, found)
	})
	return found, nil
}

func (c *campaign) firstGrant() <-chan struct{} {
	at, granted := c.history.nextGrant()
	if at == never {
		return granted
	}
	done := make(chan struct{})
	close(done)
	return done
}

// say writes a line with the time since the begin.
func (c *campaign) say(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintf(c.out, "%8.3fs %s\n", now().since(c.begin).Seconds(), fmt.Sprintf(format, args...))
}

func (c *campaign) closeProxies() {
	for _, proxies := range c.proxies {
		for _, p := range proxies {
			_ = p.Close()
		}
	}
}

// nodes lists what is left of locks and their contenders: all but the directories.
func (c *campaign) nodes() (left []string, err error) {
	conn, events, err := zk.Connect(strings.Split(c.ensemble.ConnectString(), ","), c.Timeout, zk.WithLogger(quiet{}), zk.WithLogInfo(false))
	if err != nil {
		return nil, err
	}
	go func() { // ends with the client
		for range events {
		}
	}()
	defer conn.Close()
	defer time.AfterFunc(startPatience, conn.Close).Stop()
	if _, err := conn.Sync("/"); err != nil {
		return nil, err
	}
	return leftIn(conn, c.directories())
}

// leftIn lists all below the chroot but the directories, which stay for a while,
// or for good. Where a plain lock has its node there is none.
func leftIn(conn *zk.Conn, directories []string) (left []string, err error) {
	for rest := []string{chroot}; len(rest) > 0; rest = rest[1:] {
		path := rest[0]
		data, stat, err := conn.Get(path)
		if err == zk.ErrNoNode {
			continue
		}
		if err != nil {
			return nil, err
		}
		if stat.EphemeralOwner != 0 || path != chroot && !slices.Contains(directories, path) {
			left = append(left, fmt.Sprintf("%s, made at %#x by session %#x, says %q", path, stat.Czxid, uint64(stat.EphemeralOwner), data))
		}
		children, _, err := conn.Children(path)
		if err != nil && err != zk.ErrNoNode {
			return nil, err
		}
		slices.Sort(children)
		for _, child := range children {
			rest = append(rest, path+"/"+child)
		}
	}
	return left, nil
}

// directories returns the paths where the locks have their contenders.
func (c *campaign) directories() (paths []string) {
	for _, kind := range c.Kinds {
		for i := range locksOf(kind, c.Locks) {
			for _, below := range ways[kind].directories {
				paths = append(paths, chroot+"/"+nameOf(kind, i)+below)
			}
		}
	}
	return paths
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

// process is one run of a client.
type process struct {
	campaign *campaign
	name     string
	cmd      *exec.Cmd
	log      *tail
	done     chan struct{} // closed when it is gone and its last line was taken

	mu     sync.Mutex
	told   bool    // to end
	killed instant // just before
}

func (c *campaign) client(i int) *process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.clients[i]
}

// rates are those of the clocks of the first clients. The lease bears 5 % of
// difference between a client and a server.
var rates = []float64{1.03, 0.97}

// layouts are those of the clients, in turn. All exclude each other.
var layouts = []zookeeper.Layout{zookeeper.LayoutCurator, zookeeper.LayoutKazoo}

// startClient starts a process with the number i.
func (c *campaign) startClient(i int) error {
	c.mu.Lock()
	c.starts++
	config := clientConfig{
		Timeout: c.Timeout, Locks: c.Locks, Kinds: c.Kinds, Reads: c.Reads(i), Fewest: c.Fewest, Layout: layouts[i%len(layouts)],
		Workers: c.Workers, Seed: c.Seed<<32 + uint64(c.starts), Rate: 1,
		Long: c.Long, Shortest: c.Shortest, Longest: c.Longest, Heedless: c.Heedless,
	}
	c.mu.Unlock()
	switch {
	case c.Rate != 0:
		config.Rate = c.Rate
	case i < len(rates):
		config.Rate = rates[i]
	}
	for _, p := range c.proxies[i] {
		config.Servers = append(config.Servers, p.Addr())
	}
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), clientEnv+"="+string(text))
	return c.launch(i, cmd)
}

// launch starts a command as the client with the number i.
func (c *campaign) launch(i int, cmd *exec.Cmd) error {
	p := &process{campaign: c, cmd: cmd, log: new(tail), done: make(chan struct{})}
	p.cmd.Stderr = p.log
	// It ends when its input does, but not if it is paused.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	p.name = fmt.Sprintf("client %d (pid %d)", i, p.cmd.Process.Pid)
	c.mu.Lock()
	c.clients[i] = p
	c.mu.Unlock()
	go func() { // ends with the process
		defer close(p.done)
		c.history.listen(p.name, stdout, stdin, p.over)
	}()
	return nil
}

// over waits for the end of the process, and returns until when it may have
// believed anything.
func (p *process) over() instant {
	err := p.cmd.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.killed != never:
		return p.killed
	case !p.told || err != nil:
		p.campaign.history.note(func(r *record) {
			r.accidents = append(r.accidents, fmt.Sprintf("%s ended by itself (%s): %s", p.name, p.cmd.ProcessState, p.log))
		})
	}
	return now()
}

// end ends the process by a signal.
func (p *process) end(sig syscall.Signal) {
	p.mu.Lock()
	p.told = true
	if sig == syscall.SIGKILL && p.killed == never {
		p.killed = now()
	}
	_ = p.cmd.Process.Signal(sig) // or it has ended
	p.mu.Unlock()
	select {
	case <-p.done:
	case <-time.After(p.campaign.Grace):
		p.mu.Lock()
		p.killed = now()
		p.mu.Unlock()
		_ = p.cmd.Process.Signal(syscall.SIGQUIT) // says where it hangs
		select {
		case <-p.done:
		case <-time.After(tick):
		}
		_ = p.cmd.Process.Kill()
		<-p.done
		p.campaign.history.note(func(r *record) {
			r.hanging = append(r.hanging, fmt.Sprintf("%s has not ended within %s after the signal %q: %s", p.name, p.campaign.Grace, sig, p.log))
		})
	}
}

// endClients ends all clients at once.
func (c *campaign) endClients(sig syscall.Signal) {
	var wg sync.WaitGroup
	for i := range c.Clients {
		if p := c.client(i); p != nil {
			wg.Go(func() { p.end(sig) })
		}
	}
	wg.Wait()
}

// tail keeps the end of what is written.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailLength = 64 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	t.text = t.text[max(0, len(t.text)-tailLength):]
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
