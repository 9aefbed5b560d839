package zookeeper

// This file decides which server a session dials next, how long to wait for an answer, and
// what a failed attempt means.

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"time"

	"github.com/lockpool/lockpool/driver"
)

// route decides which address is dialed next, in rounds: each round tries every address of
// every server once. The client's connect loop, the relays awaited by the loop, and after the loop
// a call of Close use a route, so there is no mutex.
type route struct {
	servers []string // host:port, in random order: the sessions of a server that goes spread
	next    int      // the index of the next server
	untried []target // in this round

	rounds     int           // rounds failed since the last useful connection
	slow       int           // of them, with a server that did not answer
	pause      time.Duration // before this round
	err        error         // of the last attempt
	attempts   int           // in this round
	permanent  int           // how many of them had a permanentError
	unanswered bool          // a server did not answer in this round
	last       *link         // the connection last judged by judgeLastLink
	silentIP   string        // the address of last, if the server fell silent
}

// target is an address of a server.
type target struct {
	server string // host:port, as configured
	ip     string // "" until the host has been resolved
}

func (t target) String() string {
	if host, _, _ := net.SplitHostPort(t.server); t.ip == "" || t.ip == host {
		return t.server
	}
	return t.server + " (" + t.ip + ")"
}

func newRoute(servers []string) route {
	r := route{servers: slices.Clone(servers)}
	rand.Shuffle(len(servers), func(i, j int) { r.servers[i], r.servers[j] = r.servers[j], r.servers[i] })
	r.beginRound()
	return r
}

// beginRound begins a round with the next server.
func (r *route) beginRound() {
	r.untried, r.attempts, r.permanent, r.unanswered = nil, 0, 0, false
	for i := range r.servers {
		r.untried = append(r.untried, target{server: r.servers[(r.next+i)%len(r.servers)]})
	}
}

// failed records why an attempt failed.
func (r *route) failed(err error) {
	r.err = err
	if errors.As(err, new(permanentError)) {
		r.permanent++
	}
	r.unanswered = r.unanswered || errors.As(err, new(timeoutError))
}

// nextAddress returns the next address of the round. Of several addresses of a host, the
// last to open a session comes first, the others come at the end of the round, and after
// them an address just fallen silent. If the host cannot be resolved, the last address to
// open a session is used, so that the failure of a name server ends no session.
func (s *session) nextAddress(ctx context.Context) (target, error) {
	r := &s.route
	t := r.untried[0]
	r.untried = r.untried[1:]
	if t.ip != "" {
		return t, nil
	}
	r.next++
	if s.cfg.Dial != nil { // Dial resolves names itself
		return t, nil
	}
	host, _, _ := net.SplitHostPort(t.server)
	good, known := s.lastGoodIP.Load(t.server)
	if known { // leave time to connect
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.addressTimeout()/2)
		defer cancel()
	}
	ips, err := s.lookup(ctx, host)
	if err != nil && known {
		return target{t.server, good.(string)}, nil
	}
	if err != nil {
		return t, err
	}
	var found []target
	for _, ip := range ips {
		found = append(found, target{t.server, ip.String()})
	}
	order := func(t target) int {
		switch t.ip {
		case r.silentIP:
			return 2
		case good:
			return 0
		}
		return 1
	}
	slices.SortStableFunc(found, func(a, b target) int { return order(a) - order(b) })
	r.untried = append(r.untried, found[1:]...)
	return found[0], nil
}

// The classes of errors of an attempt.
type (
	permanentError struct{ error } // trying again will not help
	timeoutError   struct{ error } // the server did not answer in time
)

func (e permanentError) Unwrap() error { return e.error }
func (e timeoutError) Unwrap() error   { return e.error }

// connectError is why a round of attempts opened no session.
type connectError struct {
	error
	class error // driver.ErrPermanent or driver.ErrUnavailable
}

func (e connectError) Unwrap() []error { return []error{e.error, e.class} }

// hosts tells the client which server to dial. The client's own zk.HostProvider would
// resolve names only once.
type hosts struct{ *session }

func (hosts) Init([]string) error { return nil }
func (h hosts) Len() int          { return len(h.cfg.Servers) }
func (hosts) Connected()          {}

// Next implements zk.HostProvider. Next pauses between two rounds, because the client would
// spin. none reports that there is no server left to dial, if and only if the session is
// over. The client then fails the queued requests, and the connect loop of a closed client
// ends. So Next waits until Close has queued the end of the session; otherwise Close would
// wait a second for the answer.
func (h hosts) Next() (server string, none bool) {
	s, r := h.session, &h.route
	s.relays.Wait() // for the end of the last connection
	s.judgeLastLink()
	if len(r.untried) == 0 && !s.mustNotDial() { // a round has failed
		if s.id() == 0 {
			s.failOpening()
		} else {
			s.pauseToReconnect()
		}
	}
	if s.mustNotDial() {
		s.park()
		<-s.quitting.Done()
		return "", true
	}
	return r.untried[0].String(), false
}

const (
	minBackoff = 20 * time.Millisecond
	maxBackoff = 2 * time.Second
	// idleBackoff is the first pause of an idle session: during an election the servers
	// answer each attempt, and are not to be busy with the idle sessions of a fleet. The
	// pause is not longer than a short outage, which is not reported.
	idleBackoff = reportDelay
)

// pauseToReconnect begins another round. The pause of an idle session ends with the idleness.
func (s *session) pauseToReconnect() {
	select { // of an earlier idleness
	case <-s.expiry.idleEnded:
	default:
	}
	first := minBackoff
	if s.expiry.isIdle() {
		first = min(idleBackoff, s.addressTimeout())
	}
	s.route.pauseBeforeRound(s.dialing, first, s.expiry.idleEnded)
}

// pauseBeforeRound begins another round, after a pause that is doubled with each failed round,
// and cut short by the end of ctx or by news.
func (r *route) pauseBeforeRound(ctx context.Context, first time.Duration, news <-chan struct{}) {
	r.pause = min(first<<min(r.rounds, 10), maxBackoff)
	r.pause = r.pause/2 + rand.N(r.pause/2)
	r.rounds++
	if r.unanswered {
		r.slow++
	}
	select {
	case <-time.After(r.pause):
	case <-ctx.Done():
	case <-news:
	}
	r.beginRound()
}

// attemptFailed records why an attempt has failed.
func (s *session) attemptFailed(err error) {
	s.route.failed(err)
	if !s.isOver() {
		s.outage.attemptFailed(err)
	}
}

// judgeLastLink begins a first round if the last connection lasted longer than the pause
// before it. A connection broken right after the handshake counts as none.
func (s *session) judgeLastLink() {
	l, r := s.connection.current(), &s.route
	if l == r.last { // judged already
		return
	}
	r.last, r.silentIP = l, ""
	if l.timedOut {
		r.silentIP = l.to.ip
	}
	if l.established && time.Since(l.establishedAt) >= max(r.pause, minBackoff) {
		r.rounds, r.slow, r.pause = 0, 0, 0
		r.beginRound()
	}
}

// dialOnce connects to the next address of the round.
func (s *session) dialOnce(ctx context.Context) (*link, error) {
	timeout := s.addressTimeout()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	to, err := s.nextAddress(ctx)
	var conn net.Conn
	if err == nil {
		host, port, _ := net.SplitHostPort(to.server)
		if s.cfg.Dial != nil {
			if conn, err = s.cfg.Dial(ctx, to.server); conn == nil && err == nil {
				err = errNilConn
			}
		} else {
			conn, err = new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(to.ip, port))
		}
		if err == nil && s.tls != nil {
			conn, err = startTLS(ctx, conn, s.tls(), host)
		}
	}
	switch {
	case err == nil:
		return newLink(s, conn, to), nil
	case isTimeout(err): // %v: not to look like the caller's own deadline
		return nil, timeoutError{fmt.Errorf("%s did not answer within %s (%v)", to, timeout, err)}
	case isTLSRefusal(err):
		return nil, tlsRefusal(fmt.Errorf("%s: %w", to, err))
	}
	if op := new(net.OpError); errors.As(err, &op) && op.Op == "dial" { // op repeats the address
		err = op.Err
	}
	return nil, fmt.Errorf("%s: %w", to, err)
}

var errNilConn = errors.New("Config.Dial returned neither a connection nor an error")

func startTLS(ctx context.Context, conn net.Conn, cfg *tls.Config, host string) (net.Conn, error) {
	if cfg.ServerName == "" {
		cfg.ServerName = host
	}
	secured := tls.Client(conn, cfg)
	if err := secured.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, fmt.Errorf("TLS: %w", err)
	}
	return secured, nil
}

// isTLSRefusal reports whether TLS will fail with the error again next time: either
// side does not accept the other's certificate, or the server does not speak TLS.
func isTLSRefusal(err error) bool {
	var alert *net.OpError
	return errors.As(err, new(*tls.CertificateVerificationError)) || errors.As(err, new(tls.RecordHeaderError)) ||
		errors.As(err, &alert) && alert.Op == "remote error"
}

func tlsRefusal(err error) error {
	return permanentError{fmt.Errorf("%w (check Config.TLS: RootCAs, ServerName and the client's Certificates, and that the port is one for TLS)", err)}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

// addressTimeout is how long one address is given to answer. A reconnecting session must
// have time to try another address before the lease ends, but some servers are slow: after
// a round with an unanswered attempt, the timeout is doubled, twice at most. (Refusals do
// not count: a server just started may swallow a handshake.)
func (s *session) addressTimeout() time.Duration {
	s.connection.mu.Lock()
	defer s.connection.mu.Unlock()
	if s.connection.id == 0 {
		return time.Duration(s.openTimeout.Load())
	}
	return max(s.connection.timeout/8, 250*time.Millisecond) << min(s.route.slow, 2)
}

// Opening a session may take a long time, and how long is unknown. So a server is given a
// short time at first, so that the next server is tried soon, and more time while none
// answers. The time depends on the timeouts granted by the servers, which are never shorter
// than two ticks.

func (c settings) minOpenTimeout() time.Duration { return max(c.maxOpenTimeout()/8, time.Second) }
func (c settings) maxOpenTimeout() time.Duration { return max(c.cfg.SessionTimeout, twoTicks) }

// noteOpenDuration records how long opening a session took.
func (c settings) noteOpenDuration(took time.Duration) {
	c.openTimeout.Store(int64(min(max(2*took, c.minOpenTimeout()), c.maxOpenTimeout())))
}

// failOpening ends a session not opened by any server.
func (s *session) failOpening() {
	r := &s.route
	defer s.endDialing() // also if the session is being closed
	if r.unanswered {
		s.openTimeout.Store(min(2*s.openTimeout.Load(), int64(s.maxOpenTimeout())))
	}
	if r.permanent == r.attempts {
		s.end(connectError{r.err, driver.ErrPermanent})
		return
	}
	s.end(connectError{r.err, driver.ErrUnavailable})
}
