package zktest

// This file has the life and the clock of the embedded server.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockpool/lockpool/testing/zktest/bubble"
)

// The order of the locks: a goroutine holding one may take only locks of later lines.
//
//  1. Server.mu, of the embedded server; proxyConn.mu, of a proxy
//  2. listener.mu
//  3. Proxy.mu
//  4. faults.mu, network.mu, clientConn.mu: never two of them
//
// RealServer.mu and ensembleNetwork.mu are held alone. Users' code runs under no
// lock, except a Match's Where: under faults.mu and, for an event of the embedded
// server, Server.mu.

// Server is an embedded ZooKeeper for tests, examples and local development. Everything
// is in memory, on one machine: do not use a Server in production.
//
// The server speaks the client protocol of ZooKeeper 3.8 and behaves as the real server
// does, down to which of two errors is reported. Where the real server guarantees
// nothing, a Server guarantees nothing either: children are listed in arbitrary order.
// There is no TLS, SASL, quotas or reconfiguration.
//
// All methods may be called concurrently, even from a rule's [Call], except Close, which
// waits for the Call, but not from the Where of a [Match]. On a closed server, methods
// changing the state do nothing, and return an error if they return one; methods reading the
// state still work.
type Server struct {
	faults
	network

	conf     config
	replicas []*replica
	done     chan struct{} // closed by Close
	started  time.Time
	ahead    time.Duration // how far MoveTimeOfDay has moved the time of day
	ticking  sync.WaitGroup
	accepted atomic.Int64 // connections so far

	// mu makes every request atomic: a request is applied, and the events and the reply are
	// queued, under mu, so that all clients see one order. No goroutine waits for a client
	// or a fault while holding mu.
	mu          sync.Mutex
	running     bool
	closed      bool
	frozen      bool // by Pause
	lead        *leadership
	tree        tree               // of the newest leader, proposals included
	sessions    map[int64]*session // also of the newest leader
	zxid        int64              // of the last proposal
	conns       map[*conn]bool
	nextSession int64
	lastReap    time.Duration // when containers were last reaped
	trace       trace
	sessionEnds []*SessionEnds
	change      chan struct{} // closed and replaced at every change

	// Of an ensemble.
	leaderships []*leadership // not ended, and the newest one
	separated   map[pair]bool
	candidate   *replica      // the winner of a coming election
	elected     time.Duration // the time of the victory
	pumping     bool          // messages between members are being delivered
	wake        chan struct{} // something is due sooner than before
	leaveBubble func()
}

// Start starts a server for a test, in less than a millisecond. The server is closed when
// the test ends; the test fails if the server's state then violates [Server.Invariants].
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

// Run starts a server and returns when the server serves. Call Close to release the server.
// ctx bounds only the start.
func Run(ctx context.Context, opts ...Option) (*Server, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("zktest: starting the embedded server: %w", err)
	}
	conf, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	if !conf.inMemory && bubble.Inside() {
		return nil, fmt.Errorf("zktest: starting the embedded server: %w", errBubble)
	}
	s := &Server{
		conf:        conf,
		done:        make(chan struct{}),
		started:     time.Now(),
		running:     true,
		tree:        newTree(conf.seed),
		sessions:    map[int64]*session{},
		conns:       map[*conn]bool{},
		change:      make(chan struct{}),
		separated:   map[pair]bool{},
		wake:        make(chan struct{}, 1),
		leaveBubble: func() {},
	}
	if bubble.Inside() {
		s.leaveBubble = bubble.Enter()
	}
	// As in ZooKeeper, so that a restart does not reuse session ids.
	s.nextSession = s.started.UnixMilli() << 16
	s.faults.done = s.done
	s.network.init(s.setAcceptMode)
	for i := range conf.members {
		rep := &replica{
			number: i + 1, data: watchTable{}, child: watchTable{},
			tree: s.tree, zxid: s.zxid, sessions: map[int64]time.Duration{},
		}
		addr := ""
		if i == 0 {
			addr = conf.addr
		}
		admit := func(nc net.Conn) func() { return s.admit(rep, nc) }
		if conf.inMemory {
			// An address, because clients would look up a name. Nothing listens there.
			rep.listener = newMemoryListener(fmt.Sprintf("127.0.0.%d:1", rep.number), admit)
		} else if rep.listener, err = newListener(addr, admit); err != nil {
			return nil, fmt.Errorf("zktest: starting the embedded server: %w", errors.Join(err, s.Close()))
		}
		s.mu.Lock()
		s.replicas = append(s.replicas, rep)
		s.mu.Unlock()
	}
	s.mu.Lock()
	last := len(s.replicas) - 1 // wins, as with real servers started together
	if s.isEnsemble() {
		s.tree["/zookeeper/config"].data = s.ensembleConfig()
	}
	s.install(s.replicas[last], s.replicas[:last])
	s.mu.Unlock()
	s.ticking.Go(s.tickLoop) // ends with Close
	conf.log.Info("embedded ZooKeeper for tests and development, not for production: everything is in memory",
		"addr", s.ConnectString(), "seed", conf.seed)
	return s, nil
}

// Addr returns the address for clients, host:port, of the first member. A restart does not
// change the address.
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

// Stop closes all connections and the ports, even of a paused server. Nodes, sessions and
// the zxid are kept, and no session expires until Start. Stopping a stopped server does
// nothing. Stop does not wait; ctx is there for symmetry with [RealServer.Stop].
func (s *Server) Stop(context.Context) error {
	s.mu.Lock()
	s.running = false
	for c := range s.conns {
		s.detach(c)
	}
	s.mu.Unlock()
	err := s.setAcceptMode(refusing, nil)
	s.Cut(Selector{})
	for _, rep := range s.replicas {
		rep.listener.closeHung()
	}
	if errors.Is(err, errClosed) {
		return nil
	}
	return err
}

// Kill is the same as Stop: the server has nothing to save.
func (s *Server) Kill() error { return s.Stop(context.Background()) }

// Start restarts a stopped server on the same ports and with the same nodes and sessions.
// Every session gets its full timeout again, as on a real server. Starting a running or
// closed server is an error. Start does not wait, and ignores ctx.
func (s *Server) Start(context.Context) error {
	s.mu.Lock()
	if s.closed || s.running {
		defer s.mu.Unlock()
		if s.closed {
			return fmt.Errorf("zktest: starting %s: %w", s.Addr(), errClosed)
		}
		return fmt.Errorf("zktest: starting %s: the server is running already", s.Addr())
	}
	s.running, s.frozen = true, false // a new process is not paused
	s.network.thaw()
	for _, rep := range s.replicas {
		rep.paused = false
		if rep.role != down {
			s.leave(rep, looking)
		}
	}
	if winner, voters := s.winner(); winner != nil { // at once: Start returns when the server serves
		s.install(winner, slices.DeleteFunc(voters, func(rep *replica) bool { return rep == winner }))
	}
	s.mu.Unlock()
	return s.setAcceptMode(accepting, nil)
}

// Restart stops the server for the duration down and starts the server again. If ctx ends
// earlier, the server is started at once and the error is ctx's.
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

// Pause freezes the server until Resume: connections stay open and new ones are
// accepted, but nothing is read or answered, and no session expires.
func (s *Server) Pause() error { return s.freeze("pausing", true) }

// Resume continues a paused server. Sessions whose timeout has passed expire
// within a tick, unless a request of the client is read first.
func (s *Server) Resume() error { return s.freeze("resuming", false) }

func (s *Server) freeze(doing string, frozen bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running {
		return fmt.Errorf("zktest: %s %s: %w", doing, s.Addr(), errNotRunning)
	}
	s.frozen = frozen
	if !frozen { // the members have not missed each other
		for _, rep := range s.replicas {
			rep.heard = s.now()
		}
		for _, l := range s.leaderships {
			l.nextTick = max(l.nextTick, s.now()+resumedPing)
			for _, st := range l.peers {
				st.heard = s.now()
			}
		}
	}
	s.network.freeze(frozen)
	return nil
}

// Close ends the server, with all connections and goroutines. A closed server cannot be
// started again. Further calls do nothing.
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
	s.leaveBubble()
	return errors.Join(errs...)
}

// Command sends a four letter command, such as "srvr" or "mntr", over a new
// connection and returns the answer, like [RealServer.Command].
func (s *Server) Command(ctx context.Context, word string) (string, error) {
	return command(ctx, s.dialer(), s.Addr(), word)
}

// Stat returns a number from the answer to "mntr", like [RealServer.Stat].
func (s *Server) Stat(ctx context.Context, key string) (int64, error) {
	return mntrValue(ctx, s.dialer(), s.Addr(), key)
}

func (s *Server) dialer() dialer {
	if s.conf.inMemory {
		return s.Dial
	}
	return dialTCP
}

// now returns the server's clock: the time since the server was created.
func (s *Server) now() time.Duration { return time.Since(s.started) }

// unixMilli returns the time of day on the server's clock.
func (s *Server) unixMilli() int64 { return s.started.Add(s.now() + s.ahead).UnixMilli() }

// MoveTimeOfDay moves the time of day of all members by d, possibly negative: the time
// recorded when nodes are created and changed. Sessions and containers go by another clock,
// as in ZooKeeper.
func (s *Server) MoveTimeOfDay(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead += d
}

// untilTick returns the time until the next expiry or reaping may be due, or the next
// step of an ensemble.
func (s *Server) untilTick() time.Duration {
	period := min(s.conf.tick, s.conf.containerInterval)
	until := period - s.now()%period
	if s.isEnsemble() {
		until = min(until, s.untilStep())
	}
	return until
}

// tickLoop calls onTick at every tick of the clock, until Close.
func (s *Server) tickLoop() {
	for {
		s.mu.Lock()
		select {
		case <-s.wake: // before looking at what is due
		default:
		}
		until := s.untilTick()
		s.mu.Unlock()
		select {
		case <-time.After(until):
		case <-s.wake:
		case <-s.done:
			return
		}
		s.mu.Lock()
		s.onTick()
		s.mu.Unlock()
	}
}

func (s *Server) onTick() {
	if !s.running {
		return
	}
	if s.isEnsemble() {
		s.step()
	}
	if s.frozen {
		return
	}
	s.expireDue()
	if now := s.now(); now-s.lastReap >= s.conf.containerInterval {
		s.lastReap = now
		s.reap()
	}
}
