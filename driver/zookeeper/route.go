package zookeeper

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/lockpool/lockpool/driver"
)

// route is the way from one connection to the next: in rounds, in each of which
// every address of every server is tried once. Apart from newRoute it is used by
// the client's connect loop alone.
type route struct {
	servers []string // host:port
	next    int      // the index of the server that comes next
	untried []target // in this round

	rounds int           // that have failed, without a connection that was of use
	pause  time.Duration // before this round
	err    error         // of the last try
	tries  int           // in this round
	permanent  int           // of them, that have failed for good
	unanswered bool          // a server of this round did not answer
	last   *link         // the connection that was looked at last
	silentIP   string        // its address, if it was left because the server said nothing more
}

// target is an address of a server.
type target struct {
	server string // host:port, as configured
	ip     string // "" until the host has been looked up
}

func (t target) String() string {
	if host, _, _ := net.SplitHostPort(t.server); t.ip == "" || t.ip == host {
		return t.server
	}
	return t.server + " (" + t.ip + ")"
}

func newRoute(servers []string) route {
	r := route{servers: servers, next: rand.IntN(len(servers))}
	r.begin()
	return r
}

// begin begins a round, with the server that comes next.
func (r *route) begin() {
	r.untried, r.tries, r.permanent, r.unanswered = nil, 0, 0, false
	for i := range r.servers {
		r.untried = append(r.untried, target{server: r.servers[(r.next+i)%len(r.servers)]})
	}
}

// failed notes why a try failed.
func (r *route) failed(err error) {
	r.err = err
	if errors.As(err, new(permanentError)) {
		r.permanent++
	}
	r.unanswered = r.unanswered || errors.As(err, new(timeoutError))
}

// nextAddress returns the next address of the round. A host may have several:
// the one that was of use last comes first, the others at the end of the round,
// and after them one that has just fallen silent. The one that was of use has to
// do when the host cannot be looked up: no session ends because a name server does.
func (s *Session) nextAddress(ctx context.Context) (target, error) {
	r := &s.route
	t := r.untried[0]
	r.untried = r.untried[1:]
	if t.ip != "" {
		return t, nil
	}
	r.next++
	host, _, _ := net.SplitHostPort(t.server)
	useful, known := s.lastGoodIP.Load(t.server)
	if known { // leave time to connect
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.addressTimeout()/2)
		defer cancel()
	}
	ips, err := s.resolver.LookupIPAddr(ctx, host)
	if err != nil && known {
		return target{t.server, useful.(string)}, nil
	}
	if err != nil {
		return t, err
	}
	var found []target
	for _, ip := range ips {
		found = append(found, target{t.server, ip.String()})
	}
	rank := func(t target) int {
		switch t.ip {
		case r.silentIP:
			return 2
		case useful:
			return 0
		}
		return 1
	}
	slices.SortStableFunc(found, func(a, b target) int { return rank(a) - rank(b) })
	r.untried = append(r.untried, found[1:]...)
	return found[0], nil
}

// The classes of errors of a try.
type (
	permanentError  struct{ error } // trying again will not help
	timeoutError struct{ error } // the time was up
)

func (e permanentError) Unwrap() error  { return e.error }
func (e timeoutError) Unwrap() error { return e.error }

// unconnected is why a round of tries gave no session.
type connectError struct {
	error
	class error // driver.ErrPermanent or driver.ErrUnavailable
}

func (e connectError) Unwrap() []error { return []error{e.error, e.class} }

// servers is the client's zk.HostProvider, in place of its own, which looks
// names up once and for all. Here the dialer chooses the address.
type hostProvider struct{ session *Session }

func (h hostProvider) Init([]string) error { return nil }
func (h hostProvider) Len() int            { return len(h.session.cfg.Servers) }
func (h hostProvider) Connected()          {}

// Next returns what the client calls the next server. A true "retryStart" makes
// the client fail the requests it has queued, and it is the only moment at which
// its connect loop notices that it was closed. So it is true when the session is
// over, and only then: while the session stands, requests wait for the next
// connection.
func (h hostProvider) Next() (server string, retryStart bool) {
	return strings.Join(h.session.cfg.Servers, ","), h.session.mustNotDial()
}

// refuses reports whether the client is not to connect any more: it would open a
// new session in place of one that is over, underneath whoever holds locks. Only
// when we close the session ourselves may it come back, to say so.
func (s *Session) mustNotDial() bool {
	return s.dialing.Err() != nil || s.isOver() && context.Cause(s.alive) != errClosed
}

const (
	minBackoff = 20 * time.Millisecond
	maxBackoff = 2 * time.Second
)

// dial connects to one server for the client's connect loop, which would spin
// without the pauses made here.
func (s *Session) dial(_, _ string, _ time.Duration) (net.Conn, error) {
	r := &s.route
	if s.lastLinkWasUseful() {
		r.rounds, r.pause = 0, 0
		r.begin()
	}
	if len(r.untried) == 0 && !s.mustNotDial() { // a round has failed
		if s.ID() == 0 {
			s.failOpening()
			return nil, s.Err()
		}
		s.pause()
		r.begin()
	}
	if s.mustNotDial() {
		return nil, s.Err()
	}
	s.noteDisconnected(fmt.Errorf("%s has not answered yet", r.untried[0]))
	r.tries++
	conn, err := s.dialOnce()
	if err != nil {
		s.attemptFailed(err)
	}
	return conn, err // what fails from here on says so to tried, but for what the client finds out
}

// pause waits after a round, the longer the more have failed.
func (s *Session) pause() {
	r := &s.route
	r.pause = min(minBackoff<<min(r.rounds, 10), maxBackoff)
	r.pause = r.pause/2 + rand.N(r.pause/2)
	r.rounds++
	select {
	case <-time.After(r.pause):
	case <-s.dialing.Done():
	}
}

// tried notes why a try has failed.
func (s *Session) attemptFailed(err error) {
	s.route.failed(err)
	s.noteDisconnected(err)
}

// lacks notes that the session has no connection, unless it needs none any more.
func (s *Session) noteDisconnected(cause error) {
	if !s.isOver() {
		s.outage.begin(cause)
	}
}

// lastWasOfUse reports whether the connection before this one was of use: it
// lasted longer than the pause before it. One that breaks right after the
// handshake is as good as none.
func (s *Session) lastLinkWasUseful() bool {
	s.mu.Lock()
	l := s.link
	s.mu.Unlock()
	if l == s.route.last { // asked before
		return false
	}
	s.route.last, s.route.silentIP = l, ""
	if l.timedOut.Load() {
		s.route.silentIP = l.to.ip
	}
	return l.established.Load() && time.Since(l.establishedAt) >= max(s.route.pause, minBackoff)
}

// dialOnce connects to the next address of the round.
func (s *Session) dialOnce() (net.Conn, error) {
	patience := s.addressTimeout()
	ctx, cancel := context.WithTimeout(s.dialing, patience)
	defer cancel()
	to, err := s.nextAddress(ctx)
	var conn net.Conn
	if err == nil {
		host, port, _ := net.SplitHostPort(to.server)
		conn, err = new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(to.ip, port))
		if err == nil && s.tls != nil {
			conn, err = startTLS(ctx, conn, s.tls(), host)
		}
	}
	switch {
	case err == nil:
		s.route.err = fmt.Errorf("%s took the connection, but gave no session", to)
		return s.attach(conn, to), nil
	case isTimeout(err): // which would look like the caller's own deadline
		return nil, timeoutError{fmt.Errorf("%s did not answer within %s (%v)", to, patience, err)}
	case isTLSRefusal(err):
		return nil, tlsRefusal(fmt.Errorf("%s: %w", to, err))
	}
	if op := new(net.OpError); errors.As(err, &op) && op.Op == "dial" { // and the address once more
		err = op.Err
	}
	return nil, fmt.Errorf("%s: %w", to, err)
}

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

// isRefusal reports whether err is an answer that TLS gives again next time: a
// certificate that is not accepted, here or there, or no TLS at all.
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

// patience is how long one address is given to answer. A session that comes back
// has to leave time to try another within the lease, but not all may be fast: in
// a second and a third round they are given twice and four times as long.
func (s *Session) addressTimeout() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.id == 0 {
		return time.Duration(s.openTimeout.Load())
	}
	return max(s.timeout/8, 250*time.Millisecond) << min(s.route.rounds, 2)
}

// Opening a session may take long, and how long is not known. So the time that
// a server is given begins short, for the next one to be tried soon, and grows
// while none answers. It goes by what servers grant, which is not less than two
// ticks, whatever was asked.

func (c settings) minOpenTimeout() time.Duration { return max(c.maxOpenTimeout()/8, time.Second) }
func (c settings) maxOpenTimeout() time.Duration  { return max(c.cfg.SessionTimeout, twoTicks) }

// opened notes how long it took to open a session.
func (c settings) noteOpenDuration(took time.Duration) {
	c.openTimeout.Store(int64(min(max(2*took, c.minOpenTimeout()), c.maxOpenTimeout())))
}

// endUnopened ends a session that no server has opened.
func (s *Session) failOpening() {
	r := &s.route
	if r.unanswered {
		s.openTimeout.Store(min(2*s.openTimeout.Load(), int64(s.maxOpenTimeout())))
	}
	if r.permanent == r.tries {
		s.end(connectError{r.err, driver.ErrPermanent})
		return
	}
	s.end(connectError{r.err, driver.ErrUnavailable})
}
