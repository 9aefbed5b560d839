package main

// This file has the command doctor, an examination of the service and the connection.

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/spf13/cobra"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/driver/zookeeper"
)

func doctorCommand(c *connection) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the service, and what this client may do there",
		Long: `Doctor reports the servers, the latency, the session timeouts, the rights on the chroot,
and the clocks (on etcd: the members, the latency and the TTL), and what of the advice in
docs/operations.md is not followed. To find out, doctor creates a node of its own below the
chroot or prefix, removes the node again, and takes a lock. The exit code is 1 if something
is wrong, and 0 if there is only advice.`,
		Example: "  lockpool doctor\n  lockpool doctor --json",
		Args:    cobra.NoArgs,
		RunE: classified(func(cmd *cobra.Command, _ []string) error {
			s, err := c.service()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			r := s.examine(ctx)
			if asJSON {
				err = printJSON(cmd.OutOrStdout(), r)
			} else {
				err = r.print(cmd.OutOrStdout())
			}
			if err == nil && slices.ContainsFunc(r.Findings, func(f finding) bool { return f.Level == wrong }) {
				return exitStatus(1)
			}
			return err
		}),
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

// patience is how long doctor waits for one answer.
const patience = 5 * time.Second

// examination is what all services have in common.
type examination struct {
	server string // the first server to open sessions
	report report
}

func (d *examination) find(level, what, why, do string) {
	d.report.Findings = append(d.report.Findings, finding{level, what, why, do})
}

// doctor examines ZooKeeper.
type doctor struct {
	examination
	cfg zookeeper.Config
}

func examine(ctx context.Context, cfg zookeeper.Config) report {
	d := &doctor{cfg: cfg}
	d.report.Chroot = cmp.Or(cfg.Chroot, "/")
	d.report.Findings = []finding{}
	d.servers(ctx)
	if d.server == "" {
		return d.report
	}
	d.timeouts(ctx)
	d.access(ctx)
	if cfg.TLS == nil && cfg.Digest != (zookeeper.Digest{}) {
		d.find(advice, "the password is sent without TLS", "everyone on the way can read it", "use --tls and the servers' secureClientPort")
	}
	return d.report
}

// dial connects to a server as the driver does.
func (d *doctor) dial(ctx context.Context, server string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", server)
	if err != nil || d.cfg.TLS == nil {
		return conn, err
	}
	cfg := d.cfg.TLS.Clone()
	if cfg.ServerName == "" {
		cfg.ServerName, _, _ = net.SplitHostPort(server)
	}
	secure := tls.Client(conn, cfg)
	if err := secure.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return secure, nil
}

// ask sends a four letter word, and returns the answer, empty if the server does not allow
// the word.
func (d *doctor) ask(ctx context.Context, server, word string) (string, error) {
	conn, err := d.dial(ctx, server)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience / 2))
	if _, err := io.WriteString(conn, word); err != nil {
		return "", err
	}
	const most = 4 << 20 // of thousands of connections
	answer, err := io.ReadAll(io.LimitReader(conn, most))
	if len(answer) == 0 && err != nil {
		return "", err
	}
	if strings.Contains(string(answer), "not in the whitelist") {
		return "", nil
	}
	return string(answer), nil
}

// value returns what follows a name at the beginning of a line.
func value(text, name string) string {
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// servers asks each server of the connect string for its identity.
func (d *doctor) servers(ctx context.Context) {
	waiting := 0 // for a majority
	for _, server := range d.cfg.Servers {
		r := serverReport{Address: server}
		srvr, _ := d.ask(ctx, server, "srvr")
		version, _, _ := strings.Cut(value(srvr, "Zookeeper version:"), ",")
		if keeper := value(srvr, "ClickHouse Keeper version:"); keeper != "" {
			version, r.keeper = "ClickHouse Keeper "+keeper, true
		}
		r.Version, r.Mode = version, value(srvr, "Mode:")
		err := d.connect(ctx, server)
		if strings.Contains(srvr, "not currently serving") {
			err = errors.New("it runs, but does not serve: it has no majority of the ensemble, or is starting")
			waiting++
		}
		if err != nil {
			r.Error = oneLine(err)
			d.find(wrong, fmt.Sprintf("%s cannot be used: %s", server, r.Error),
				"an ensemble has fewer servers to lose than it seems to have", "start the server, or correct the connect string")
		} else {
			d.server = cmp.Or(d.server, server)
		}
		if r.Mode == "observer" {
			d.find(advice, server+" is an observer", "behind an observerMasterPort it reports the activity of sessions in two steps, which leases do not cover",
				"list voting members in the connect string")
		}
		switch {
		case r.keeper:
			d.find(advice, server+" is ClickHouse Keeper", "a session ends with its connection, and the locks with the session; waiters wait for the session timeout",
				"use ZooKeeper if locks must outlive a broken connection")
		case strings.HasSuffix(version, "-zktest"):
			d.find(advice, server+" is the embedded server for tests", "it keeps everything in memory", "use ZooKeeper 3.9 in production")
		case strings.HasPrefix(version, "3.8.0") || versionBefore(version, 3, 8):
			d.find(advice, server+" runs ZooKeeper "+version, "3.8.0 can lose confirmed writes, and older releases are not maintained", "use ZooKeeper 3.9, or a later 3.8 release")
		}
		if srvr != "" { // else another question would wait in vain
			conf, _ := d.ask(ctx, server, "conf")
			r.TickMS, _ = strconv.Atoi(value(conf, "tickTime="))
			r.Sync, _ = strconv.Atoi(value(conf, "syncLimit="))
		}
		d.report.Servers = append(d.report.Servers, r)
	}
	if d.server == "" && waiting > 0 {
		d.find(wrong, "the ensemble has no majority", fmt.Sprintf("%s of the connect string run, and wait for others: no lock is granted", count(waiting, "server")),
			"start the other servers, and look at the log of the running ones")
	}
}

// connect opens a session with a server as locks do, and closes the session.
func (d *doctor) connect(ctx context.Context, server string) error {
	connector, err := d.connector(server)
	if err != nil {
		return err
	}
	defer connector.Close()
	return tryConnect(ctx, connector, server)
}

// connector connects to one server.
func (d *doctor) connector(server string) (*zookeeper.Connector, error) {
	cfg := d.cfg
	cfg.Servers, cfg.Logger = []string{server}, slog.New(slog.DiscardHandler)
	return zookeeper.NewConnector(cfg)
}

// tryConnect opens a session as locks do, and closes the session.
func tryConnect(ctx context.Context, connector driver.Connector, server string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	session, err := connector.Connect(ctx)
	if err != nil {
		text := cmp.Or(errors.Unwrap(err), err).Error()                                 // without the connect string
		if _, after, ok := strings.Cut(err.Error(), "connecting to "+server+": "); ok { // of etcd
			text = after
		}
		text = strings.TrimPrefix(text, context.DeadlineExceeded.Error()+": etcd: ")
		text = strings.TrimPrefix(text, driver.ErrPermanent.Error()+": etcd: ")
		return errors.New(strings.TrimLeft(strings.TrimPrefix(text, server), ": "))
	}
	return session.Close(ctx)
}

// versionBefore reports whether a version such as 3.7.1-1 is known to be older.
func versionBefore(version string, major, minor int) bool {
	var a, b int
	if n, _ := fmt.Sscanf(version, "%d.%d", &a, &b); n < 2 {
		return false
	}
	return a < major || a == major && b < minor
}

// open opens a session with a server, closes the session, and returns the granted timeout:
// the client does not tell.
func (d *doctor) open(ctx context.Context, server string, timeout time.Duration) (granted time.Duration, err error) {
	conn, err := d.dial(ctx, server)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience / 2))
	type handshake struct {
		Length, Protocol int32
		Zxid             int64
		Timeout          int32
		Session          int64
		Password         [20]byte // with the length
		ReadOnly         bool
	}
	request := handshake{Length: 45, Timeout: int32(timeout.Milliseconds())}
	request.Password[3] = 16
	var reply struct {
		Length, Protocol, Timeout int32
	}
	if err = binary.Write(conn, binary.BigEndian, request); err == nil {
		err = binary.Read(conn, binary.BigEndian, &reply)
	}
	if err != nil {
		return 0, fmt.Errorf("it opens no session: %w", err)
	}
	const length, xid, closeSession = 8, 1, -11
	err = binary.Write(conn, binary.BigEndian, []int32{length, xid, closeSession})
	if err == nil {
		_, _ = io.Copy(io.Discard, conn) // until the server ends the connection, in any way
	}
	return time.Duration(reply.Timeout) * time.Millisecond, err
}

// timeouts finds out the limits of session timeouts by asking for more and less.
func (d *doctor) timeouts(ctx context.Context) {
	r := new(sessionReport)
	for _, t := range []struct {
		ask     time.Duration
		granted *float64
	}{
		{d.cfg.SessionTimeout, &r.Granted},
		{time.Millisecond, &r.Min},
		{24 * time.Hour, &r.Max},
	} {
		granted, err := d.open(ctx, d.server, t.ask)
		if err != nil {
			d.find(wrong, "no session: "+oneLine(err), "locks need one", "look at the server's log")
			return
		}
		*t.granted = ms(granted)
	}
	r.Asked = ms(d.cfg.SessionTimeout)
	d.report.Session = r
	if r.Granted != r.Asked {
		d.find(advice, fmt.Sprintf("the session timeout is %s instead of %s", span(r.Granted), span(r.Asked)),
			"the servers limit it", "change the timeout, or minSessionTimeout or maxSessionTimeout at the servers")
	}
	if r.Granted < 4000 {
		d.find(advice, fmt.Sprintf("the session timeout is only %s", span(r.Granted)),
			"a short pause of the process or of the servers loses locks, and lockpool relies on at least two ticks, usually 4s", "ask for 4s or more")
	}
	for _, s := range d.report.Servers {
		d.leaderHangs(s, r.Granted)
		if s.TickMS > 0 && r.Min < float64(2*s.TickMS) {
			d.find(wrong, fmt.Sprintf("minSessionTimeout is %s, with ticks of %s at %s", span(r.Min), span(float64(s.TickMS)), s.Address),
				"a server may notice the end of a short session two ticks late", "set minSessionTimeout to two ticks or more")
		}
	}
}

// leaderHangs compares the time after which a server notices that the machine of the leader
// hangs with the shortest lease of a session.
func (d *doctor) leaderHangs(s serverReport, timeout float64) {
	const election = 1000 // ms, about
	notices, lease := float64(s.Sync*s.TickMS), 0.45*timeout
	if s.Mode != "follower" || lease >= notices+election {
		return
	}
	needed := math.Ceil((notices+election)/0.45/1000) * 1000
	do := fmt.Sprintf("ask for %s with --session-timeout (session_timeout in a connect string)", span(needed))
	if limit := int((lease - election) / float64(max(1, s.TickMS))); limit >= 2 {
		do = fmt.Sprintf("set syncLimit=%d at the servers, or %s", limit, do)
	}
	d.find(advice, fmt.Sprintf("if the leader's machine hangs, %s notices after %s, and sessions of %s are given up after %s", s.Address, span(notices), span(timeout), span(lease)),
		"all locks are lost then, though not if the leader's process ends", do)
}

// isKeeper reports whether a server is ClickHouse Keeper.
func (d *doctor) isKeeper() bool {
	return slices.ContainsFunc(d.report.Servers, func(s serverReport) bool { return s.keeper })
}

// access finds out what needs a session of some length.
func (d *doctor) access(ctx context.Context) {
	dialer := func(string, string, time.Duration) (net.Conn, error) { return d.dial(ctx, d.server) } // by the name, needed for TLS
	conn, events, err := zk.Connect([]string{d.server}, d.cfg.SessionTimeout, zk.WithDialer(dialer), zk.WithLogger(silent{}))
	if err == nil {
		defer conn.Close()
		err = opened(ctx, events)
	}
	if err == nil && d.cfg.Digest != (zookeeper.Digest{}) {
		err = conn.AddAuth("digest", []byte(d.cfg.Digest.User+":"+d.cfg.Digest.Password))
	}
	if err != nil {
		d.find(wrong, "no session: "+oneLine(err), "locks need one", "look at the server's log")
		return
	}
	stop := context.AfterFunc(ctx, conn.Close) // or calls would wait for servers forever
	defer stop()
	d.members(conn)
	if err := d.rights(ctx, conn); err != nil {
		d.find(wrong, "the chroot could not be examined: "+oneLine(err), "locks are created in it", "look at the server's log")
	}
}

// tryLock takes a lock.
func (d *examination) tryLock(ctx context.Context, connector driver.Connector, name string) {
	if err := d.lock(ctx, connector, name); err != nil {
		d.find(wrong, "no lock can be taken: "+oneLine(err), "the service does not allow what a lock needs", "do what the error says, or see the server's log")
	}
}

func (d *examination) lock(ctx context.Context, connector driver.Connector, name string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	pool, err := lockpool.OpenConnector(connector, lockpool.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := pool.Ping(ctx); err != nil {
		return err
	}
	began := time.Now()
	l, err := pool.Lock(ctx, name)
	if err != nil {
		return err
	}
	if err := l.Unlock(ctx); err != nil {
		return err
	}
	took := ms(time.Since(began))
	d.report.Lock = &took
	return nil
}

// silent is a logger.
type silent struct{}

func (silent) Printf(string, ...any) {}

// opened waits for a session.
func opened(ctx context.Context, events <-chan zk.Event) error {
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	for {
		select {
		case e := <-events:
			if e.State == zk.StateHasSession {
				return nil
			}
		case <-ctx.Done():
			return errors.New("the server does not answer")
		}
	}
}

// members reads the ensemble's configuration, readable by all clients.
func (d *doctor) members(conn *zk.Conn) {
	text, _, err := conn.Get("/zookeeper/config")
	if d.isKeeper() {
		return // which has no such node
	}
	voters := 0
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "server.") && !strings.Contains(line, ":observer") {
			voters++
		}
	}
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return
	}
	d.voters(max(1, voters), len(d.cfg.Servers))
}

// voters says what a service with so many voters can bear, of which the connect string lists some.
func (d *examination) voters(n, listed int) {
	d.report.Voters = &n
	switch {
	case n < 3:
		d.find(advice, "the service survives the loss of no server", fmt.Sprintf("it has %s that can vote, and needs a majority", count(n, "server")), "use three servers, or five")
	case n%2 == 0:
		d.find(advice, fmt.Sprintf("the ensemble has an even number of voters, %d", n), "it survives the loss of as many as with one voter less", "add a server, or remove one")
	}
	if n > listed {
		d.find(advice, fmt.Sprintf("the connect string lists %d of %d voters", listed, n), "if those fail, nobody is asked that could answer", "list all (one name may stand for several addresses)")
	}
}

// rights finds out what the client may do in the chroot, and the latency and the clock
// on the way.
func (d *doctor) rights(ctx context.Context, conn *zk.Conn) error {
	acl := d.cfg.ACL
	if len(acl) == 0 {
		acl = zk.WorldACL(zk.PermAll)
		if d.cfg.Digest != (zookeeper.Digest{}) {
			acl = zk.AuthACL(zk.PermAll)
		}
	}
	// A missing chroot is created for the moment.
	for i, r := range d.cfg.Chroot + "/" {
		if path := d.cfg.Chroot[:i]; r == '/' && i > 0 {
			_, err := conn.Create(path, nil, 0, acl)
			switch {
			case err == nil:
				defer conn.Delete(path, -1) // fails if in use by now
			case !errors.Is(err, zk.ErrNodeExists) && !errors.Is(err, zk.ErrNoAuth):
				return err
			}
			if exists, _, err := conn.Exists(path); err == nil && !exists {
				d.needs(false, "CREATE", "the chroot cannot be created", path[:max(1, strings.LastIndex(path, "/"))])
				return nil
			}
		}
	}
	// With a version of no node, a request to change the chroot is refused, for one reason
	// or the other.
	const never = math.MaxInt32
	r := new(rightsReport)
	chroot := d.report.Chroot
	name := "doctor-" + rand.Text()
	probe := strings.TrimSuffix(chroot, "/") + "/" + name
	d.report.Probe, d.report.Rights = probe, r
	var failed error
	allowed := func(err error) bool {
		if err != nil && !errors.Is(err, zk.ErrNoAuth) && !errors.Is(err, zk.ErrBadVersion) && failed == nil {
			failed = err
		}
		return !errors.Is(err, zk.ErrNoAuth)
	}
	_, _, err := conn.Children(chroot)
	r.Read = allowed(err)
	_, err = conn.Set(chroot, nil, never)
	r.Write = allowed(err)
	_, err = conn.SetACL(chroot, acl, never)
	r.Admin = allowed(err)

	contains := !d.isKeeper() // closes the connection
	err = errors.ErrUnsupported
	if contains {
		_, err = conn.CreateContainer(probe, nil, zk.FlagContainer, acl)
		contains = err == nil
	}
	if err != nil && !errors.Is(err, zk.ErrNoAuth) { // the client has no name for the error of servers without containers
		_, err = conn.Create(probe, nil, 0, acl)
	}
	if r.Create = allowed(err); err == nil {
		d.report.Contains = &contains
		err = d.measure(conn, probe)
		failed = cmp.Or(failed, err)
		r.Delete = allowed(conn.Delete(probe, -1))
		if !r.Delete {
			d.find(advice, probe+" could not be removed", "the right DELETE is missing on "+chroot, "remove it; if it is a container, ZooKeeper does that within minutes")
		}
	}
	d.needs(r.Create, "CREATE", "no directory of a lock can be created", chroot)
	d.needs(r.Read, "READ", "locks cannot be listed", chroot)
	if r.Create && r.Read {
		defer conn.Delete(probe, -1) // the lock's directory
		if connector, err := d.connector(d.server); err == nil {
			d.tryLock(ctx, connector, name)
		}
	}
	if !contains && r.Create {
		d.find(advice, "the server has no containers", "the directory of a lock may stay if the last client that used the lock is killed", "use ZooKeeper 3.9, or a bounded set of names")
	}
	return failed
}

func (d *doctor) needs(right bool, name, why, chroot string) {
	if !right {
		d.find(wrong, fmt.Sprintf("the right %s is missing on %s", name, quoted(chroot)), why, "give this client's user the right, or give its credentials with --credentials-file or LOCKPOOL_CREDENTIALS")
	}
}

// measure measures the latency and the difference of the clocks with the node at path.
func (d *doctor) measure(conn *zk.Conn, path string) error {
	const requests = 20
	var reads, writes []time.Duration
	best := time.Duration(math.MaxInt64)
	for range requests {
		began := time.Now()
		if _, _, err := conn.Get(path); err != nil {
			return err
		}
		reads = append(reads, time.Since(began))
		began = time.Now()
		stat, err := conn.Set(path, nil, -1)
		if err != nil {
			return err
		}
		took := time.Since(began)
		writes = append(writes, took)
		if took < best { // the server's clock was read at some moment in between, and rounded down
			best = took
			ahead, uncertain := ms(time.UnixMilli(stat.Mtime).Sub(began.Add(took/2))), ms(took/2+time.Millisecond)
			d.report.Clock, d.report.ClockError = &ahead, &uncertain
		}
	}
	d.latency(reads, writes)
	if math.Abs(*d.report.Clock) > 1000+*d.report.ClockError {
		d.find(advice, fmt.Sprintf("the clocks of the service and of this machine differ by %s", span(math.Abs(*d.report.Clock))), "locks do not depend on it, but the times that lockpool ls, show and top print are wrong", "run NTP on all machines")
	}
	return nil
}

// latency reports how long as many reads and writes took.
func (d *examination) latency(reads, writes []time.Duration) {
	slices.Sort(reads)
	slices.Sort(writes)
	n := len(reads)
	l := &latencyReport{n, ms(reads[n/2]), ms(reads[n-1]), ms(writes[n/2]), ms(writes[n-1])}
	d.report.Latency = l
	if s := d.report.Session; s != nil && l.WriteWorst > 0.15*s.Granted {
		d.find(wrong, fmt.Sprintf("a write took %s", span(l.WriteWorst)), "if every answer takes more than 0.15 of the session timeout, sessions and their locks are lost", "look at the servers' disks and the network, or ask for a longer --session-timeout")
	}
}
