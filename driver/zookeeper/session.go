package zookeeper

// This file has the session, its parts, and how it is connected and closed.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/go-zookeeper/zk"
	"github.com/google/uuid"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/clock"
	"github.com/lockpool/lockpool/internal/znode"
)

var _ interface {
	driver.Session
	driver.PlainLocker
	driver.Limiter
	driver.Downgrader
	driver.Inspector
	driver.Follower
	driver.Breaker
	driver.Revoker
	driver.Recorder
	driver.Clearer
	driver.Refuser
	driver.Counter
	driver.Sizer
	driver.Idler
} = (*session)(nil)

// session is one ZooKeeper session on one client. The client would open another session
// when the old one has expired, but the relay (relay.go) lets no other session through, so
// every reply belongs to the first session.
type session struct {
	// Each part is in a separate file. A part used by several goroutines has a mutex,
	// guarding the data of this part only. No mutex is held during a request or a call into
	// the client, nor while another mutex is taken, with these exceptions:
	//
	//	connection.mu before lease.mu         the lease begins when the session gets its ID
	//	connection.mu before asyncHandler.mu  a handshake logs what it learns
	//	watches.mu    before calls.mu         no watch is added to a session that is over
	//	calls.mu      before lease.mu         no call begins after the lease

	settings            // connector.go: the configuration, and what sessions share
	lifecycle           // lifecycle.go: from the first connection to the last goroutine
	calls     calls     // call.go: the calls in progress
	expiry    expiry    // expiry.go: when the session ends by our own clock
	client    *zk.Conn  // connects, and opens and closes the session
	requests  *requests // requests.go: requests to the server and how many may be pending
	route     route     // route.go: the address to dial next

	relays      sync.WaitGroup // relay.go: goroutines passing the client's packets on
	connection  connection     // connection.go: the session's ID and its current link
	watches     watches        // watch.go: one watch for each node
	late        lateness       // watch.go: how often a watch comes too late
	listings    listings       // listing.go: one listing of a directory at a time
	directories directories    // directory.go: the nodes above queues
	fastpaths   fastpaths      // fastpath.go: when a listing can be skipped
	plainNodes  plainNodes     // plainnode.go: the plain locks held

	guid  uuid.UUID     // random; of which the nodes' are made
	guids atomic.Uint64 // made so far

	lookedForOld atomic.Int64 // clear.go: when no old records were found, by expiry.now
}

func connect(ctx context.Context, set settings) (*session, error) {
	cfg := set.cfg
	s := &session{
		settings:    set,
		guid:        uuid.New(),
		lifecycle:   newLifecycle(),
		requests:    &requests{room: maxAnswers, suspects: suspects{known: map[suspect]*suspicion{}}},
		calls:       calls{slots: make(chan struct{}, maxCalls)},
		expiry:      expiry{clock: clock.Start(ctx), leaseChanged: make(chan struct{}, 1), proofWanted: make(chan struct{}, 1), idleEnded: make(chan struct{}, 1)},
		route:       newRoute(cfg.Servers),
		connection:  connection{timeout: cfg.SessionTimeout},
		watches:     watches{byPath: map[string]*watch{}},
		listings:    listings{latest: map[string]*listing{}, lengths: map[string]int64{}},
		directories: directories{warned: map[string]bool{}, joined: map[string]bool{}},
		fastpaths:   fastpaths{byDir: map[string]fastpath{}},
		plainNodes:  plainNodes{byPath: map[string]plainNodesAt{}},
	}
	s.requests.clock, s.requests.use = s.expiry.clock, s.use
	var err error
	s.client, s.events, err = zk.Connect(cfg.Servers, set.maxOpenTimeout(), // how long the client waits depends on the timeout; see checkHello
		zk.WithHostProvider(hosts{s}),
		zk.WithDialer(s.dial),
		zk.WithLogger(clientLog{cfg.Logger}),
		zk.WithLogInfo(false),
		zk.WithMaxBufferSize(maxOwnPacket),
		zk.WithMaxConnBufferSize(maxOwnPacket),
	)
	if err != nil {
		return nil, fmt.Errorf("zookeeper: %w", err)
	}
	go s.shutdown() // ends with the session
	select {
	case <-s.ready:
	case <-s.alive.Done():
		return nil, s.failConnect(context.Cause(s.alive))
	case <-ctx.Done():
		return nil, s.failConnect(ctx.Err())
	}
	if s.begin() {
		go s.renew() // ends with the session
	}
	if s.begin() {
		go s.recheckWatches() // ends with the session
	}
	if s.connection.isKeepers() && s.begin() {
		go s.removeDirectories() // ends with the session
	}
	return s, nil
}

// maxOwnPacket is the size of the client's buffers: its packets are few and small.
const maxOwnPacket = 1 << 10

// failConnect ends a session not returned to the caller, though perhaps opened at this very
// moment, and returns the caller's error.
func (s *session) failConnect(err error) error {
	s.end(errClosed)
	s.abandoned.Go(func() { _ = s.Close(s.giveUp) }) // takes up to seconds; the caller need not wait
	return fmt.Errorf("zookeeper: connect to %s: %w", s.cfg, err)
}

// Info implements driver.Session.
func (s *session) Info() driver.Info {
	id, peer := s.connection.info()
	return driver.Info{Driver: "zookeeper", ID: znode.SessionID(id), Peer: peer}
}

// id returns the session's ID, or 0 before the server has given one.
func (s *session) id() int64 {
	id, _ := s.connection.info()
	return id
}

// Ping implements driver.Session.
func (s *session) Ping(ctx context.Context) error {
	_, err := s.ask(ctx, func() *request { return s.requests.send(changeNothing()) })
	return err
}

// errClosed is the cause of a session's end if Close was called.
var errClosed = errors.New("closed")

// clientLog passes the client's own messages on at debug level.
type clientLog struct{ *slog.Logger }

func (l clientLog) Printf(format string, args ...any) {
	l.Debug("zookeeper client: " + fmt.Sprintf(format, args...))
}
