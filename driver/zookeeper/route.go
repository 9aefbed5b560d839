package zookeeper

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

// route decides which address is dialed next. It works in rounds, in each of which
// every address of every server is tried once. The client's connect loop uses it, and the
// relays that this waits for, so it needs no mutex.
type route struct {
	servers []string // host:port
	next    int      // the index of the next server
	untried []target // in this round

	rounds     int           // rounds that have failed since a connection was useful
	slow       int           // of these, in which a server did not answer
	pause      time.Duration // before this round
	err        error         // of the last attempt
	attempts   int           // in this round
	permanent  int           // how many of them had a permanentError
	unanswered bool          // a server did not answer in this round
	last       *link         // the connection that judgeLastLink has judged
	silentIP   string        // its address, if the server fell silent
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
	r := route{servers: servers, next: rand.IntN(len(servers))}
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

// nextAddress returns the next address of the round. A host may have several: the one
// that last opened a session comes first, the others come at the end of the round, and
// one that has just fallen silent comes after them. If the host cannot be resolved, the
// address that last opened a session is used, so that no session ends because a name
// server fails.
func (s *session) nextAddress(ctx context.Context) (target, error) {
	r := &s.route
	t := r.untried[0]
	r.untried = r.untried[1:]
	if t.ip != "" {
		return t, nil
	}
	r.next++
	if s.cfg.Dial != nil { // which resolves names itself
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

// hosts tells the client which server to dial. It replaces the client's own
// zk.HostProvider, which resolves names only once.
type hosts struct{ *session }

func (hosts) Init([]string) error { return nil }
func (h hosts) Len() int          { return len(h.cfg.Servers) }
func (hosts) Connected()          {}

// Next implements zk.HostProvider. It pauses between two rounds, because the client would
// spin. none reports that there is no server left to dial, which is so if and only if the
// session is over. The client then fails the requests that it has queued, and its connect loop
// ends if it was closed. So Next waits until Close has queued the end of the session, for
// whose answer it would wait for a second.
func (h hosts) Next() (server string, none bool) {
	s, r := h.session, &h.route
	s.relays.Wait() // for the end of the last connection
	s.judgeLastLink()
	if len(r.untried) == 0 && !s.mustNotDial() { // a round has failed
		if s.id() == 0 {
			s.failOpening()
		} else {
			r.pauseBeforeRound(s.dialing, s.dialing)
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
)

// pauseBeforeRound begins another round, after a pause which is longer the more rounds have
// failed. It ends early with ctx, or when there are news.
func (r *route) pauseBeforeRound(ctx, news context.Context) {
	r.pause = min(minBackoff<<min(r.rounds, 10), maxBackoff)
	r.pause = r.pause/2 + rand.N(r.pause/2)
	r.rounds++
	if r.unanswered {
		r.slow++
	}
	select {
	case <-time.After(r.pause):
	case <-ctx.Done():
	case <-news.Done():
	}
	r.beginRound()
}

// attemptFailed records why an attempt has failed.
func (s *session) attemptFailed(err error) {
	s.route.failed(err)
	s.noteDisconnected(err)
}

// noteDisconnected records that the session has no connection, unless it no longer
// needs one.
func (s *session) noteDisconnected(cause error) {
	if !s.isOver() {
		s.outage.begin(cause)
	}
}

// judgeLastLink begins a first round if the connection before this one lasted longer than
// the pause before it. A connection that breaks right after the handshake counts as
// none.
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
	case isTimeout(err): // %v, because it would look like the caller's own deadline
		return nil, timeoutError{fmt.Errorf("%s did not answer within %s (%v)", to, timeout, err)}
	case isTLSRefusal(err):
		return nil, tlsRefusal(fmt.Errorf("%s: %w", to, err))
	}
	if op := new(net.OpError); errors.As(err, &op) && op.Op == "dial" { // which repeats the address
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

// addressTimeout is how long one address is given to answer. A session that reconnects
// must have time to try another address before its lease ends, but some servers may be
// slow: after a round in which one did not answer, the timeout is doubled, twice at most.
// (Refusals do not count: a server that has just started may swallow a handshake.)
func (s *session) addressTimeout() time.Duration {
	s.connection.mu.Lock()
	defer s.connection.mu.Unlock()
	if s.connection.id == 0 {
		return time.Duration(s.openTimeout.Load())
	}
	return max(s.connection.timeout/8, 250*time.Millisecond) << min(s.route.slow, 2)
}

// Opening a session may take a long time, and how long is unknown. So the time that a
// server is given is short at first, so that the next one is tried soon, and grows
// while none answers. It depends on the timeouts that servers grant, which are no
// shorter than two ticks, whatever was requested.

func (c settings) minOpenTimeout() time.Duration { return max(c.maxOpenTimeout()/8, time.Second) }
func (c settings) maxOpenTimeout() time.Duration { return max(c.cfg.SessionTimeout, twoTicks) }

// noteOpenDuration records how long it took to open a session.
func (c settings) noteOpenDuration(took time.Duration) {
	c.openTimeout.Store(int64(min(max(2*took, c.minOpenTimeout()), c.maxOpenTimeout())))
}

// failOpening ends a session that no server has opened.
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
