package ensemble

// This file has the plays with the same outcome on a real and on an embedded ensemble.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// The embedded server's ensembles must behave as real ones in everything important for
// locks: what members cut off answer, when they notice, and what the next leader knows.
// Each scenario runs on both kinds and notes what a client sees; the notes must be the
// same. Times are noted in ticks, as bounds; real members keep the lower ones, because the
// machine can be late. What is answered on the embedded ensemble is waited for on the real
// one, whose members take longer to notice a cut, so that a slow client asks in time.
func TestEmbeddedEnsembleBehavesAsRealOne(t *testing.T) {
	e := start(t, zktest.Properties(map[string]string{"syncLimit": "7"}))
	for name, play := range map[string]func(*scenario){
		"follower is cut off":    followerIsCutOff,
		"leader is cut off":      leaderIsCutOff,
		"leader is killed":       leaderIsKilled,
		"leader is paused":       leaderIsPaused,
		"majority is killed":     majorityIsKilled,
		"sessions after a death": sessionsAfterDeath,
	} {
		t.Run(name, func(t *testing.T) {
			var embedded []string
			synctest.Test(t, func(t *testing.T) {
				s := &scenario{T: t, servers: embeddedMembers{zktest.StartBubble(t, zktest.Members(3), zktest.TickTime(tick))}}
				play(s)
				embedded = s.notes
			})
			awaitSynced(t, locktest.Timeout(t, patience), e)
			s := &scenario{T: t, servers: realMembers{e}, embedded: embedded}
			play(s)
			t.Logf("on both:\n%s", format(s.notes))
			require.Equal(t, format(s.notes), format(embedded), "real, embedded")
		})
	}
}

func format(notes []string) (text string) {
	for _, n := range notes {
		text += "  " + n + "\n"
	}
	return text
}

// members are three servers, numbered from 0.
type members interface {
	leads(i int) bool
	isolate(i int) error
	heal() error
	kill(i int) error
	restart(i int) error
	pause(i int) error
	resume(i int) error
	addr(i int) string
	dial(network, addr string, timeout time.Duration) (net.Conn, error)
}

type embeddedMembers struct{ *zktest.Server }

func (m embeddedMembers) leads(i int) bool    { return m.Leader() == i+1 }
func (m embeddedMembers) isolate(i int) error { return m.Isolate(i + 1) }
func (m embeddedMembers) heal() error         { m.HealMembers(); return nil }
func (m embeddedMembers) kill(i int) error    { return m.StopMember(i + 1) }
func (m embeddedMembers) restart(i int) error { return m.StartMember(i + 1) }
func (m embeddedMembers) pause(i int) error   { return m.PauseMember(i + 1) }
func (m embeddedMembers) resume(i int) error  { return m.ResumeMember(i + 1) }
func (m embeddedMembers) addr(i int) string   { return m.Members()[i] }
func (m embeddedMembers) dial(_, addr string, _ time.Duration) (net.Conn, error) {
	return m.Dial(context.Background(), addr)
}

type realMembers struct{ *zktest.RealEnsemble }

func (m realMembers) leads(i int) bool {
	ctx, cancel := context.WithTimeout(context.Background(), tick/2) // a paused member does not answer
	defer cancel()
	answer, err := m.Member(i).Command(ctx, "srvr")
	return err == nil && strings.Contains(answer, "Mode: leader")
}
func (m realMembers) isolate(i int) error { return m.Isolate(i) }
func (m realMembers) heal() error         { return m.Heal() }
func (m realMembers) kill(i int) error    { return m.Member(i).Kill() }
func (m realMembers) restart(i int) error {
	go func() { _ = m.Member(i).Start(context.Background()) }() // ends when the member serves, or with the ensemble
	return nil
}
func (m realMembers) pause(i int) error  { return m.Member(i).Pause() }
func (m realMembers) resume(i int) error { return m.Member(i).Resume() }
func (m realMembers) addr(i int) string  { return m.Member(i).Addr() }
func (m realMembers) dial(network, addr string, timeout time.Duration) (net.Conn, error) {
	return net.DialTimeout(network, addr, timeout)
}

// scenario is a play on one kind of servers.
type scenario struct {
	*testing.T
	servers    members
	embedded   []string // on real servers: the notes on embedded ones
	notes      []string
	leaderless time.Time // when no other member led for the last time, in awaitLeader
}

// path returns the path of a node of this scenario, because all share the real servers.
func (s *scenario) path(name string) string {
	_, scenario, _ := strings.Cut(s.Name(), "/")
	return "/" + scenario + "-" + name
}

func (s *scenario) note(format string, args ...any) {
	s.notes = append(s.notes, fmt.Sprintf(format, args...))
}

// within reports whether a time is between two numbers of ticks. A slow machine lengthens
// times on real servers.
func (s *scenario) within(took time.Duration, least, most int) bool {
	s.Logf("%.1f ticks, of %d to %d", float64(took)/float64(tick), least, most)
	return took >= time.Duration(least)*tick && (s.embedded != nil || took <= time.Duration(most)*tick)
}

func (s *scenario) must(err error) {
	s.Helper()
	require.NoError(s, err)
}

// roles returns the leader and the others.
func (s *scenario) roles() (leader, a, b int) {
	leader = s.awaitLeader(-1)
	return leader, (leader + 1) % 3, (leader + 2) % 3
}

// awaitLeader waits until another member than old leads, and returns it.
func (s *scenario) awaitLeader(old int) int {
	begin := time.Now()
	for s.leaderless = begin; ; time.Sleep(10 * time.Millisecond) {
		asked := time.Now()
		for i := range 3 {
			if i != old && s.servers.leads(i) {
				return i
			}
		}
		if time.Since(asked) < tick/2 { // all have answered
			s.leaderless = asked
		}
		require.Less(s, time.Since(begin), patience, "no other leader")
	}
}

// user is a client of one member.
type user struct {
	*scenario
	*zk.Conn
	lost chan time.Time // receives when the connection broke
}

// connect returns a client whose session has the given timeout.
func (s *scenario) connect(member int, timeout time.Duration) *user {
	conn, events, err := zk.Connect([]string{s.servers.addr(member)}, timeout,
		zk.WithDialer(s.servers.dial), zk.WithLogInfo(false), zk.WithLogger(log.New(io.Discard, "", 0)))
	s.must(err)
	u := &user{s, conn, make(chan time.Time, 1000)}
	done, ready := make(chan struct{}), make(chan struct{}, 1000)
	go func() { // ends when the client is closed
		defer close(done)
		for e := range events {
			switch e.State {
			case zk.StateHasSession:
				ready <- struct{}{}
			case zk.StateDisconnected:
				u.lost <- time.Now()
			}
		}
	}()
	s.Cleanup(func() {
		conn.Close()
		<-done
	})
	select {
	case <-ready:
		for len(u.lost) > 0 { // of attempts before
			<-u.lost
		}
		return u
	case <-time.After(patience):
		s.must(errors.New("no session"))
		return nil
	}
}

// longSession is the longest timeout granted by the servers. A client pings every third of
// the timeout.
const longSession = 40 * tick

// answer notes whether a request is answered within a tick, and how.
func (u *user) answer(what string, do func() error) {
	limit, silence := tick, what+": no answer"
	if n := len(u.notes); n < len(u.embedded) && u.embedded[n] != silence {
		limit = patience
	}
	got := make(chan error, 1)
	go func() { got <- do() }() // ends when the client is closed
	select {
	case err := <-got:
		u.note("%s: %v", what, err)
	case <-time.After(limit):
		u.note("%s", silence)
	}
}

func (u *user) read(name string) func() error {
	return func() error { _, _, err := u.Get(u.path(name)); return err }
}

func (u *user) create(name string, flags int32) func() error {
	return func() error { _, err := u.Create(u.path(name), nil, flags, zk.WorldACL(zk.PermAll)); return err }
}

func (u *user) stat(name string) zk.Stat {
	_, stat, err := u.Get(u.path(name))
	u.must(err)
	return *stat
}

func (u *user) sync() error { _, err := u.Sync("/"); return err }

// disconnected notes whether the connection breaks between two numbers of ticks since
// begin.
func (u *user) disconnected(begin time.Time, least, most int) {
	select {
	case at := <-u.lost:
		u.note("disconnected after %d to %d ticks: %v", least, most, u.within(at.Sub(begin), least, most))
	case <-time.After(patience):
		u.note("never disconnected")
	}
}

func followerIsCutOff(s *scenario) {
	_, cut, other := s.roles()
	reader, writer, syncer := s.connect(cut, longSession), s.connect(cut, longSession), s.connect(cut, longSession)
	u := s.connect(other, longSession)
	s.must(u.create("before", 0)())
	s.must(reader.sync())
	begin := time.Now()
	s.must(s.servers.isolate(cut))
	s.must(u.create("after", 0)())
	reader.answer("read what was there", reader.read("before"))
	reader.answer("read what is new", reader.read("after"))
	writer.answer("write", writer.create("lost", 0))
	syncer.answer("sync", syncer.sync)
	reader.disconnected(begin, 4, 6)
	u.answer("read at another member", u.read("after"))
	s.must(s.servers.heal())
	s.awaitAnswer(reader, "after")
	s.must(reader.sync())
	reader.answer("the write that was not answered", reader.read("lost"))
}

// awaitAnswer waits until a client can read a node.
func (s *scenario) awaitAnswer(u *user, name string) {
	for begin := time.Now(); u.read(name)() != nil; time.Sleep(tick / 10) {
		require.Less(s, time.Since(begin), patience, "%s cannot be read", name)
	}
}

func leaderIsCutOff(s *scenario) {
	old, a, _ := s.roles()
	reader, writer, syncer := s.connect(old, longSession), s.connect(old, longSession), s.connect(old, longSession)
	u := s.connect(a, longSession)
	s.must(reader.create("before", 0)())
	begin := time.Now()
	s.must(s.servers.isolate(old))
	reader.answer("read", reader.read("before"))
	syncer.answer("sync", syncer.sync)
	writer.answer("write", writer.create("lost", 0))
	syncer.answer("sync behind a write", syncer.sync)
	reader.disconnected(begin, 4, 7)
	u.disconnected(begin, 4, 6)
	s.awaitLeader(old)
	s.awaitAnswer(u, "before")
	u.answer("write at the next leader", u.create("new", 0))
	s.must(s.servers.heal())
	s.awaitAnswer(reader, "new")
	reader.answer("the write that was not answered", reader.read("lost"))
}

func leaderIsKilled(s *scenario) {
	old, a, b := s.roles()
	u, other := s.connect(a, longSession), s.connect(b, longSession)
	s.must(u.create("a", zk.FlagEphemeral)())
	s.must(other.sync())
	before := other.stat("a")
	begin := time.Now()
	s.must(s.servers.kill(old))
	u.disconnected(begin, 0, 1)
	s.awaitLeader(old)
	s.note("elected within 4 ticks: %v", s.within(time.Since(begin), 0, 4))
	s.awaitAnswer(other, "a")
	u.answer("write", u.create("b", 0))
	s.note("epochs later: %d", u.stat("b").Czxid>>32-before.Czxid>>32)
	s.note("the ephemeral is the same: %v", other.stat("a").Czxid == before.Czxid)
	s.must(s.servers.restart(old))
	late := s.connect(old, longSession)
	late.answer("read at the one that came back", late.read("b"))
}

func leaderIsPaused(s *scenario) {
	old, a, _ := s.roles()
	reader, u := s.connect(old, longSession), s.connect(a, longSession)
	s.must(u.create("a", 0)())
	begin := time.Now()
	s.must(s.servers.pause(old))
	reader.answer("read", reader.read("a"))
	u.disconnected(begin, 4, 6)
	s.awaitLeader(old)
	s.must(s.servers.resume(old))
	begin = time.Now()
	reader.disconnected(begin, 0, 2)
	s.awaitAnswer(reader, "a")
}

func majorityIsKilled(s *scenario) {
	old, a, b := s.roles()
	u := s.connect(a, 8*tick)
	s.must(u.create("a", zk.FlagEphemeral)())
	s.must(s.servers.kill(b))
	u.answer("write with one follower", u.create("b", 0))
	begin := time.Now()
	s.must(s.servers.kill(old))
	u.disconnected(begin, 0, 1)
	time.Sleep(10 * tick) // longer than the session's timeout
	s.must(s.servers.restart(old))
	s.awaitAnswer(u, "b")
	u.answer("the ephemeral", u.read("a")) // the owner may have got a new session only if the old one expired
	s.must(s.servers.restart(b))
	late := s.connect(b, longSession)
	late.answer("read at the one that came back", late.read("b"))
}

// sessionsAfterDeath: the next leader gives every session its full timeout.
func sessionsAfterDeath(s *scenario) {
	old, a, _ := s.roles()
	owner, u := s.connect(old, 8*tick), s.connect(a, longSession)
	s.must(owner.create("a", zk.FlagEphemeral)())
	s.must(s.servers.kill(old)) // the owner's only server, so the owner stays disconnected
	s.awaitLeader(old)
	s.awaitAnswer(u, "a")
	for u.read("a")() == nil {
		time.Sleep(tick / 20)
		require.Less(s, time.Since(s.leaderless), patience, "the session does not expire")
	}
	took := time.Since(s.leaderless)
	s.must(s.servers.restart(old))
	s.note("expired 7 to 11 ticks after the election: %v", s.within(took, 7, 11))
}
