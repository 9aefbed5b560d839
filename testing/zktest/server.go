package zktest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Server is an embedded ZooKeeper for tests, examples and local development,
// never for production: it keeps everything in memory, on one machine.
//
// It speaks the client protocol of ZooKeeper 3.8, and does what the real server
// does in the same situation, down to which of two errors comes first. What the
// real server leaves open it varies: children are listed in no order. It has no
// TLS, SASL, quotas or reconfiguration.
//
// All methods may be called concurrently, also from a rule's [Call], but not
// from the Where of a [Match]. Those that change something are an error on a
// closed server; what it knew can still be looked at.
type Server struct {
	faults
	network

	conf     config
	replicas []*replica
	done     chan struct{} // closed by Close
	started  time.Time
	ticking  sync.WaitGroup
	accepted atomic.Int64 // connections so far

	// mu makes every request one step: a request is carried out, its events
	// and its reply are queued, all while mu is held, so that everybody sees
	// one order. Nobody waits for a client or a fault while holding it.
	mu           sync.Mutex
	running      bool
	closed       bool
	tree         tree
	sessions     map[int64]*session
	conns        map[*conn]bool
	zxid         int64
	nextSession  int64
	expiryPaused bool
	manualNow    time.Duration // the manual clock
	lastReap     time.Duration // when containers were last looked at
	trace        trace
	traceMask    int64 // as set by stmk; of no effect
	holders      []*Holders
	change       chan struct{} // closed and replaced at every change, if somebody waits
}

// Start starts a server for a test, in less than a millisecond. It is closed when
// the test ends, and fails the test if it finds its own state broken then.
func Start(t testing.TB, opts ...Option) *Server {
	t.Helper()
	quiet := Logger(slog.New(slog.DiscardHandler))
	s, err := Run(t.Context(), append([]Option{quiet}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(s.Invariants(), s.Close()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Run starts a server and returns when it serves; call Close when done with
// it. ctx bounds only the start.
func Run(ctx context.Context, opts ...Option) (*Server, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("zktest: starting the embedded server: %w", err)
	}
	conf, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	s := &Server{
		conf:      conf,
		done:      make(chan struct{}),
		started:   time.Now(),
		running:   true,
		tree:      newTree(conf.seed),
		sessions:  map[int64]*session{},
		conns:     map[*conn]bool{},
		zxid:      conf.firstZxid,
		traceMask: 306, // ZooKeeper's
		change:    make(chan struct{}),
	}
	// As ZooKeeper does it, so that ids do not come again after a restart.
	s.nextSession = s.started.UnixMilli() << 16
	s.faults.done = s.done
	s.network.init()
	for i := range conf.members {
		rep := &replica{number: i + 1, data: watchTable{}, child: watchTable{}}
		addr := ""
		if i == 0 {
			addr = conf.addr
		}
		rep.listener, err = newListener(addr, func(nc net.Conn) func() { return s.admit(rep, nc) })
		if err != nil {
			return nil, fmt.Errorf("zktest: starting the embedded server: %w", errors.Join(err, s.Close()))
		}
		s.mu.Lock()
		s.replicas = append(s.replicas, rep)
		s.mu.Unlock()
	}
	if !conf.manualClock {
		s.ticking.Go(s.tickLoop) // ends with Close
	}
	conf.log.Info("embedded ZooKeeper for tests and development, not for production: everything is in memory",
		"addr", s.ConnectString(), "seed", conf.seed)
	return s, nil
}

// Addr returns the address for clients, host:port: that of the first member.
// It stays the same when the server is started again.
func (s *Server) Addr() string { return s.replicas[0].listener.address() }

// Members returns the addresses of all members (see the option [Members]).
func (s *Server) Members() []string {
	addrs := make([]string, len(s.replicas))
	for i, rep := range s.replicas {
		addrs[i] = rep.listener.address()
	}
	return addrs
}

// ConnectString returns the addresses of all members, separated by commas.
func (s *Server) ConnectString() string { return strings.Join(s.Members(), ",") }

// Stop closes all connections and the ports. Nodes, sessions and the zxid
// stay; no session expires meanwhile. Stopping a stopped server does nothing.
// It does not wait for anything, so ctx is not used: it is there because
// [RealServer.Stop] has it.
func (s *Server) Stop(context.Context) error {
	s.mu.Lock()
	s.running = false
	for c := range s.conns {
		s.detach(c)
	}
	s.mu.Unlock()
	err := s.setAcceptMode(refusing, nil)
	s.Cut(Selector{})
	if errors.Is(err, errClosed) {
		return nil
	}
	return err
}

// Kill is Stop: there is nothing that an orderly end would save.
func (s *Server) Kill() error { return s.Stop(context.Background()) }

// Start starts a stopped server again, on the same ports and with the same
// nodes and sessions. Every session gets its full timeout anew, as from a real
// server. It is an error if the server is running or closed. It does not wait
// for anything, so ctx is not used.
func (s *Server) Start(context.Context) error {
	s.mu.Lock()
	if s.closed || s.running {
		defer s.mu.Unlock()
		if s.closed {
			return fmt.Errorf("zktest: starting %s: %w", s.Addr(), errClosed)
		}
		return fmt.Errorf("zktest: starting %s: the server is running already", s.Addr())
	}
	s.running = true
	for _, ss := range s.sessions {
		s.touch(ss)
	}
	s.mu.Unlock()
	return s.setAcceptMode(accepting, nil)
}

// Restart stops the server for a while and starts it again. If ctx ends before
// that, it starts it at once and returns ctx's error.
func (s *Server) Restart(ctx context.Context, down time.Duration) error {
	if err := s.Stop(ctx); err != nil {
		return err
	}
	var early error
	select {
	case <-time.After(down):
	case <-ctx.Done():
		early = fmt.Errorf("zktest: restarting %s after less than %v: %w", s.Addr(), down, ctx.Err())
	}
	return errors.Join(early, s.Start(ctx))
}

// Pause freezes the server: connections stay open and new ones are accepted,
// but nothing is read or answered and no session expires until Resume.
func (s *Server) Pause() error { return s.freeze("pausing", true) }

// Resume continues a paused server. Sessions that are due expire within a
// tick, unless their clients are heard first.
func (s *Server) Resume() error { return s.freeze("resuming", false) }

func (s *Server) freeze(doing string, frozen bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running {
		return fmt.Errorf("zktest: %s %s: %w", doing, s.Addr(), errNotRunning)
	}
	s.expiryPaused = frozen
	s.network.freeze(frozen)
	return nil
}

// BumpEpoch raises the zxid as a new leader of an ensemble does: by far more
// than the changes there were.
func (s *Server) BumpEpoch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.zxid = (s.zxid>>32 + 1) << 32
}

// Close ends the server, its connections and goroutines for good. Further
// calls do nothing.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed, s.running = true, false
	for c := range s.conns {
		s.detach(c)
	}
	close(s.done)
	members := s.replicas
	s.mu.Unlock()
	var errs []error
	for _, rep := range members {
		errs = append(errs, rep.listener.close())
	}
	for _, l := range s.selected(Selector{}) {
		l.abort()
	}
	for _, rep := range members {
		rep.listener.wait()
	}
	s.ticking.Wait()
	return errors.Join(errs...)
}

// Command sends a four letter word, such as "srvr" or "mntr", over a new
// connection and returns the answer, like [RealServer.Command].
func (s *Server) Command(ctx context.Context, word string) (string, error) {
	return command(ctx, s.Addr(), word)
}

// Stat returns a number of the answer to "mntr", like [RealServer.Stat].
func (s *Server) Stat(ctx context.Context, key string) (int64, error) {
	return mntrValue(ctx, s.Addr(), key)
}

// now is the server's clock: the time since it was made.
func (s *Server) now() time.Duration {
	if s.conf.manualClock {
		return s.manualNow
	}
	return time.Since(s.started)
}

// millis is the time of day.
func (s *Server) unixMilli() int64 { return s.started.Add(s.now()).UnixMilli() }

// Advance lets d pass on the server's clock, which must be a [ManualClock]:
// sessions expire and containers go as they would in that time, in order.
func (s *Server) Advance(d time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return fmt.Errorf("zktest: Advance: %w", errClosed)
	case !s.conf.manualClock:
		return errors.New("zktest: Advance needs the option ManualClock")
	case d < 0:
		return fmt.Errorf("zktest: the clock can not go back by %v", -d)
	}
	for end := s.manualNow + d; s.manualNow < end; {
		s.manualNow = min(end, s.manualNow+s.untilTick())
		s.onTick()
	}
	return nil
}

// untilTick is the time until something may be due again.
func (s *Server) untilTick() time.Duration {
	period := min(s.conf.tick, s.conf.containerInterval)
	return period - s.now()%period
}

// tick does at every tick of the clock what is due.
func (s *Server) tickLoop() {
	for {
		select {
		case <-time.After(s.untilTick()):
		case <-s.done:
			return
		}
		s.mu.Lock()
		s.onTick()
		s.mu.Unlock()
	}
}

func (s *Server) onTick() {
	if !s.running || s.expiryPaused {
		return
	}
	s.expireDue()
	if now := s.now(); now-s.lastReap >= s.conf.containerInterval {
		s.lastReap = now
		s.reap()
	}
}
