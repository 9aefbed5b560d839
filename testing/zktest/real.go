package zktest

// This file has the life of a real server.

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockpool/lockpool/testing/zktest/bubble"
	"github.com/lockpool/lockpool/testing/zktest/testcert"
)

const (
	startTimeout  = time.Minute           // of each start
	startAttempts = 3                     // each with new ports
	pollInterval  = 20 * time.Millisecond // between two probes
	stopTimeout   = 5 * time.Second       // from SIGSTOP until the process is stopped

	// probeTimeout bounds one probe of a server, perhaps paused, or never answering because
	// the probe came too early (see Start).
	probeTimeout = 500 * time.Millisecond
)

var (
	errClosed     = errors.New("the server is closed")
	errNotRunning = errors.New("the server is not running")
)

const loopback = "127.0.0.1"

// port is a TCP port. reservation, if not nil, keeps the port reserved until closed.
type port struct {
	host        string
	number      int
	reservation io.Closer
}

func (p port) addr() string { return net.JoinHostPort(p.host, strconv.Itoa(p.number)) }

// RealServer is one Apache ZooKeeper server, alone or in a [RealEnsemble]. All
// methods may be called concurrently.
type RealServer struct {
	ports    []port           // for clients; in an ensemble, for quorum and election; last, if any, for TLS
	network  *ensembleNetwork // nil unless Separated
	dir      string           // removed by Close
	watchdog *watchdog
	argv     []string // the java command

	secure    *port       // for TLS; nil without the option
	clientTLS *tls.Config // nil without the option

	mu     sync.Mutex
	proc   *process // the latest run, perhaps ended; nil before the first
	closed bool

	closing  sync.Once
	closeErr error
}

// StartReal starts a server for a test and returns when the server serves. If the server
// does not start, the test fails at once. The server is closed when the test ends.
func StartReal(t testing.TB, opts ...RealOption) *RealServer {
	t.Helper()
	s, err := RunReal(t.Context(), opts...)
	return closeWithTest(t, s, err)
}

// closeWithTest fails the test if starting c has failed, and otherwise closes c
// when the test ends.
func closeWithTest[C io.Closer](t testing.TB, c C, err error) C {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// RunReal starts a server and returns when the server serves. Call Close to release the
// server. ctx bounds only the start, which takes at most a minute in any case. If the
// server does not start, the error contains the end of its log.
func RunReal(ctx context.Context, opts ...RealOption) (*RealServer, error) {
	servers, _, err := runReal(ctx, 1, false, opts)
	if err != nil {
		return nil, err
	}
	return servers[0], nil
}

// runReal starts n servers, again on other ports if another process has taken
// one of theirs. The network is nil without the option Separated.
func runReal(ctx context.Context, n int, ensemble bool, opts []RealOption) ([]*RealServer, *ensembleNetwork, error) {
	if bubble.Inside() {
		return nil, nil, fmt.Errorf("zktest: starting a real server: %w", errBubble)
	}
	if systemError != nil {
		return nil, nil, systemError
	}
	conf, err := newRealConfig(opts)
	if err != nil {
		return nil, nil, err
	}
	inst, err := findInstallation(conf.secure)
	if err != nil {
		return nil, nil, err
	}
	var ca *testcert.Authority
	if conf.secure {
		if ca, err = testcert.New("zktest"); err != nil {
			return nil, nil, fmt.Errorf("zktest: making certificates: %w", err)
		}
	}
	var network *ensembleNetwork
	if conf.separated {
		if !ensemble || n > maxSeparated {
			return nil, nil, fmt.Errorf("zktest: Separated is for ensembles of at most %d servers: use StartRealEnsemble or RunRealEnsemble", maxSeparated)
		}
		if network, err = newEnsembleNetwork(n); err != nil {
			return nil, nil, fmt.Errorf("zktest: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for attempt := 1; ; attempt++ {
		servers, err := startServers(ctx, n, ensemble, conf, inst, ca, network)
		if err == nil {
			return servers, network, nil
		}
		err = errors.Join(err, closeServers(servers))
		if attempt == startAttempts || !errors.Is(err, errPortTaken) {
			return nil, nil, fmt.Errorf("zktest: starting ZooKeeper: %w", errors.Join(err, network.close()))
		}
	}
}

// startServers starts n servers, once. With an error it returns the servers created so far.
func startServers(ctx context.Context, n int, ensemble bool, conf *realConfig, inst installation, ca *testcert.Authority, network *ensembleNetwork) (servers []*RealServer, err error) {
	wanted := 1
	if ensemble {
		wanted = 3
	}
	if conf.secure {
		wanted++
	}
	var lines []string
	for i := range n {
		s := &RealServer{network: network}
		servers = append(servers, s)
		if network != nil {
			s.ports = network.ports(i)
		}
		for len(s.ports) < wanted {
			p, err := conf.reserve()
			if err != nil {
				return servers, err
			}
			s.ports = append(s.ports, p)
		}
		if conf.secure {
			s.secure = &s.ports[wanted-1]
		}
		if ensemble {
			lines = append(lines, fmt.Sprintf("server.%d=%s:%d", i+1, s.ports[1].addr(), s.ports[2].number))
		}
	}
	for i, s := range servers {
		if err := s.create(i+1, lines, conf, inst, ca); err != nil {
			return servers, err
		}
	}
	procs := make([]*process, n)
	for i, s := range servers {
		if procs[i], err = s.launch(); err != nil {
			return servers, err
		}
	}
	return servers, awaitServing(ctx, servers, procs, true)
}

func closeServers(servers []*RealServer) error {
	var errs []error
	for _, s := range servers {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// create makes the server's directory and watchdog.
func (s *RealServer) create(id int, lines []string, conf *realConfig, inst installation, ca *testcert.Authority) error {
	tmp, err := filepath.Abs(os.TempDir()) // java runs elsewhere
	if err != nil {
		return err
	}
	if s.dir, err = os.MkdirTemp(tmp, "zktest-"); err != nil {
		return err
	}
	if s.watchdog, err = startWatchdog(s.dir); err != nil {
		return fmt.Errorf("starting the watchdog: %w", err)
	}
	if err := os.Mkdir(s.dataDir(), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(s.dataDir(), "myid"), []byte(strconv.Itoa(id)), 0o600); err != nil {
		return err
	}
	own := map[string]string{}
	if s.secure != nil {
		if own, err = writeCertificates(ca, s.dir, s.secure.host); err != nil {
			return err
		}
		own["secureClientPort"], own["secureClientPortAddress"] = strconv.Itoa(s.secure.number), s.secure.host
		if s.clientTLS, err = ca.Client(); err != nil {
			return err
		}
	}
	cfg := filepath.Join(s.dir, "zoo.cfg")
	s.argv = slices.Concat(s.network.nsenter(id-1), []string{inst.java}, conf.jvmFlags, []string{"-cp", inst.classPath, mainClass, cfg})
	return os.WriteFile(cfg, []byte(conf.zooCfg(s.dataDir(), s.ports[0], own, lines)), 0o600)
}

func (s *RealServer) dataDir() string { return filepath.Join(s.dir, "data") }

// launch starts the process, without waiting for the server to serve.
func (s *RealServer) launch() (*process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	if s.proc != nil && s.proc.alive() {
		return nil, errors.New("the server is running already")
	}
	p, err := startProcess(s.watchdog, s.dir, filepath.Join(s.dir, "log"), s.argv)
	if err != nil {
		return nil, err
	}
	s.proc = p
	return p, nil
}

// awaitServing waits until each of the processes serves and, if leader is set,
// exactly one of them leads. It fails as soon as one of them has ended.
func awaitServing(ctx context.Context, servers []*RealServer, procs []*process, leader bool) error {
	for {
		leaders := 0
		var missing error
		bad := 0
		for i, s := range servers {
			mode, err := s.serving(ctx)
			// Only after the answer, because only this process's answer counts.
			if !procs[i].alive() {
				return s.startError(procs[i], procs[i].exitError())
			}
			if err != nil {
				missing, bad = err, i
			} else if isLeader(mode) {
				leaders++
			}
		}
		if missing == nil && leader && leaders != 1 {
			missing = fmt.Errorf("%d of %d servers lead", leaders, len(servers))
		}
		if missing == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return servers[bad].startError(procs[bad], fmt.Errorf("%w: %w", ctx.Err(), missing))
		case <-time.After(pollInterval):
		}
	}
}

func (s *RealServer) startError(p *process, err error) error {
	return fmt.Errorf("%s: %w; the end of its log:\n%s", s.Addr(), err, p.logTail())
}

// serving returns the mode of a serving server. It fails if another server answers on the
// port, with other data.
func (s *RealServer) serving(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conf, err := sendCommand(ctx, dialTCP, s.Addr(), "conf")
	if err != nil {
		return "", err
	}
	if !strings.HasPrefix(field(conf, "dataDir="), s.dataDir()) {
		return "", fmt.Errorf("not serving from %s: %.80q", s.dataDir(), conf)
	}
	srvr, err := sendCommand(ctx, dialTCP, s.Addr(), "srvr")
	if err != nil {
		return "", err
	}
	if s.secure != nil { // the port for TLS is opened last
		conn, err := dialTCP(ctx, s.SecureAddr())
		if err != nil {
			return "", err
		}
		conn.Close()
	}
	switch mode := field(srvr, "Mode: "); mode {
	case "standalone", "leader", "follower", "observer":
		return mode, nil
	default:
		return "", fmt.Errorf("not serving: %.80q", srvr)
	}
}

func isLeader(mode string) bool { return mode == "leader" || mode == "standalone" }

// field returns the rest of the line beginning with prefix.
func field(text, prefix string) string {
	for l := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(l, prefix); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

// Addr returns the address for clients, 127.0.0.1:port unless the server is [Separated]. A
// restart does not change the address.
func (s *RealServer) Addr() string { return s.ports[0].addr() }

// ConnectString returns the address for clients, as Addr does.
func (s *RealServer) ConnectString() string { return s.Addr() }

// PID returns the ID of the Java process, or 0 if the server is not running.
func (s *RealServer) PID() int {
	if p := s.running(); p != nil {
		return p.cmd.Process.Pid
	}
	return 0
}

// running returns the running process, or nil.
func (s *RealServer) running() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil || !s.proc.alive() {
		return nil
	}
	return s.proc
}

// Start restarts the server on the same port and with the same data, and returns when the
// server serves. After a minute, or when ctx ends, Start gives up and kills the process. A
// member of an ensemble serves only as part of a majority: if too few run, start the others
// concurrently. Starting a running or closed server is an error.
//
// A client connecting while a single server starts may get neither a reply nor the end of
// the connection, because of a bug in ZooKeeper (ZOOKEEPER-5051). The client has to give up
// and connect again; github.com/go-zookeeper/zk needs about 7 times the session timeout.
func (s *RealServer) Start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	p, err := s.launch()
	if err != nil {
		return fmt.Errorf("zktest: starting %s: %w", s.Addr(), err)
	}
	if err := awaitServing(ctx, []*RealServer{s}, []*process{p}, false); err != nil {
		return fmt.Errorf("zktest: starting ZooKeeper: %w", errors.Join(err, p.kill()))
	}
	return nil
}

// Stop asks the server to end (SIGTERM), even a paused one, and returns when the process
// has ended. If ctx ends first, the process is killed and the error is ctx's. Stopping a
// stopped server does nothing.
func (s *RealServer) Stop(ctx context.Context) error {
	p := s.running()
	if p == nil {
		return nil
	}
	// An error means that the process has just ended. A paused process receives
	// the first signal after the second.
	_ = p.cmd.Process.Signal(sigTerm)
	_ = p.cmd.Process.Signal(sigCont)
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("zktest: stopping %s: %w", s.Addr(), errors.Join(ctx.Err(), p.kill()))
	}
}

// Kill kills the server (SIGKILL), even a paused one, and returns when the process has
// ended. Killing a stopped server does nothing.
func (s *RealServer) Kill() error {
	if p := s.running(); p != nil {
		if err := p.kill(); err != nil {
			return fmt.Errorf("zktest: killing %s: %w", s.Addr(), err)
		}
	}
	return nil
}

// Pause freezes the server (SIGSTOP) until Resume: connections stay open and the kernel
// accepts new ones, but the server does not answer. On Linux the server is frozen when
// Pause returns, elsewhere a moment later. Pausing a stopped server is an error.
func (s *RealServer) Pause() error {
	s.mu.Lock() // no Resume until the process has stopped
	defer s.mu.Unlock()
	return s.signal("pausing", func(p *process) error {
		if err := p.cmd.Process.Signal(sigStop); err != nil {
			return err
		}
		return awaitStopped(p.cmd.Process.Pid)
	})
}

// Resume continues a paused server (SIGCONT), and does nothing if the server is not paused.
// Resuming a stopped server is an error.
func (s *RealServer) Resume() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.signal("resuming", func(p *process) error { return p.cmd.Process.Signal(sigCont) })
}

func (s *RealServer) signal(doing string, send func(*process) error) error {
	err := errNotRunning
	if s.proc != nil && s.proc.alive() {
		err = send(s.proc)
	}
	if err != nil {
		return fmt.Errorf("zktest: %s %s: %w", doing, s.Addr(), err)
	}
	return nil
}

// Close kills the server and removes the data. The server cannot be started again. Further
// calls do nothing and return the same error.
func (s *RealServer) Close() error {
	s.closing.Do(func() {
		if err := s.close(); err != nil {
			s.closeErr = fmt.Errorf("zktest: closing %s: %w", s.Addr(), err)
		}
	})
	return s.closeErr
}

// close also closes a server left incomplete by create.
func (s *RealServer) close() error {
	s.mu.Lock()
	s.closed = true
	p := s.proc
	s.mu.Unlock()
	var errs []error
	if p != nil {
		errs = append(errs, p.kill())
	}
	if s.dir != "" {
		errs = append(errs, os.RemoveAll(s.dir))
	}
	if s.watchdog != nil {
		s.watchdog.close()
	}
	for _, port := range s.ports {
		if port.reservation != nil {
			errs = append(errs, port.reservation.Close())
		}
	}
	return errors.Join(errs...)
}

// Command sends a four letter command, such as "wchp", "mntr" or "cons", over a
// new connection and returns the answer. If the server does not serve because the
// ensemble has no majority, the answer says so, without an error. A paused server
// does not answer, so Command returns when ctx ends. The connection counts toward
// maxClientCnxns.
func (s *RealServer) Command(ctx context.Context, word string) (string, error) {
	return command(ctx, dialTCP, s.Addr(), word)
}

func command(ctx context.Context, dial dialer, addr, word string) (string, error) {
	answer, err := sendCommand(ctx, dial, addr, word)
	if err != nil {
		return "", fmt.Errorf("zktest: %s: %w", addr, err)
	}
	return answer, nil
}

// dialer connects to a server.
type dialer func(ctx context.Context, addr string) (net.Conn, error)

func dialTCP(ctx context.Context, addr string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", addr)
}

func sendCommand(ctx context.Context, dial dialer, addr, word string) (_ string, err error) {
	defer func() {
		if err != nil {
			if ctx.Err() != nil { // the cause of the connection's deadline
				err = ctx.Err()
			}
			err = fmt.Errorf("command %q: %w", word, err)
		}
	}()
	if len(word) != 4 {
		// The server would read other words as the length of a packet.
		return "", errors.New("the command does not have four letters")
	}
	conn, err := dial(ctx, addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if _, err := io.WriteString(conn, word); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		return "", err
	}
	if len(answer) == 0 {
		return "", errors.New("no answer, the connection was closed (no such command, or maxClientCnxns reached?)")
	}
	return string(answer), nil
}

// Stat returns a number from the answer to "mntr", such as "zk_watch_count",
// "zk_packets_received" or "zk_num_alive_connections". The last two include the command
// itself: one packet and one connection. A missing line or a value other than an integer is
// an error.
func (s *RealServer) Stat(ctx context.Context, key string) (int64, error) {
	return mntrValue(ctx, dialTCP, s.Addr(), key)
}

func mntrValue(ctx context.Context, dial dialer, addr, key string) (int64, error) {
	mntr, err := command(ctx, dial, addr, "mntr")
	if err != nil {
		return 0, err
	}
	value := field(mntr, key+"\t")
	if value == "" {
		return 0, fmt.Errorf("zktest: %s: no %q in the answer to mntr, which begins %.80q", addr, key, mntr)
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("zktest: %s: %s: %w", addr, key, err)
	}
	return n, nil
}
