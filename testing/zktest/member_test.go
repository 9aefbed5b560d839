package zktest_test

// This file has the tests of embedded ensembles.

import (
	"io"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/zktest"
	"github.com/lockpool/lockpool/testing/zktest/bubble"
)

// The tick of the ensembles here, and how long their members wait for each other.
const (
	memberTick = time.Second
	patience   = 5 * memberTick
)

// TestEnsemble runs each test on a new ensemble, led by the last member, in virtual time.
func TestEnsemble(t *testing.T) {
	for _, test := range ensembleTests {
		t.Run(test.name, func(t *testing.T) {
			bubble.Parallel(t)
			synctest.Test(t, func(t *testing.T) {
				e := ensemble{t, zktest.StartBubble(t, zktest.Members(test.members), zktest.TickTime(memberTick))}
				require.Equal(t, test.members, e.Leader())
				test.run(t, e)
			})
		})
	}
}

type ensemble struct {
	t *testing.T
	*zktest.Server
}

func (e ensemble) dial(member int) *client {
	conn, err := e.Dial(e.t.Context(), e.Members()[member-1])
	require.NoError(e.t, err)
	e.t.Cleanup(func() { _ = conn.Close() })
	return &client{t: e.t, conn: conn}
}

func (e ensemble) connect(member int, h handshake) *client {
	c := e.dial(member)
	c.write(h.frame())
	c.receiveWelcome(h)
	return c
}

func (e ensemble) open(member int) *client {
	c := e.connect(member, newSession(longTimeout))
	require.NotZero(e.t, c.welcome.Session)
	return c
}

// refuses checks that a member closes the connection of a client asking for a session.
func (e ensemble) refuses(member int) {
	c := e.dial(member)
	c.write(newSession(longTimeout).frame())
	c.waitEnd()
}

// awaitLeader waits until another member than old leads.
func (e ensemble) awaitLeader(old int) int {
	poll(e.t, "there is another leader", func() bool { return e.Leader() != old && e.Leader() != 0 })
	return e.Leader()
}

// silent checks that the server sends nothing for d.
func (c *client) silent(d time.Duration) {
	c.t.Helper()
	require.NoError(c.t, c.conn.SetReadDeadline(time.Now().Add(d)))
	n, err := c.conn.Read(make([]byte, 1))
	require.Zero(c.t, n, "a packet arrived")
	require.ErrorIs(c.t, err, os.ErrDeadlineExceeded, "the connection ended")
}

// endsWithin checks that the server ends the connection between two times from now.
func (c *client) endsWithin(least, most time.Duration) {
	c.t.Helper()
	begin := time.Now()
	if least > 0 {
		c.silent(least)
	}
	require.NoError(c.t, c.conn.SetReadDeadline(begin.Add(most)))
	_, err := c.conn.Read(make([]byte, 1))
	require.Error(c.t, err)
	require.NotErrorIs(c.t, err, os.ErrDeadlineExceeded, "the connection is still open after %v", most)
}

var ensembleTests = []struct {
	name    string
	members int
	run     func(t *testing.T, e ensemble)
}{
	{"members share one state", 3, func(t *testing.T, e ensemble) {
		var clients []*client
		for member := 1; member <= 3; member++ {
			clients = append(clients, e.open(member))
		}
		clients[0].fails(zktest.ErrNoNode, exists("/a", true))
		zxid := clients[1].must(create("/a", []byte("1"), ephemeral)).Zxid
		require.Equal(t, []event{{zktest.NodeCreated, "/a"}}, clients[0].newEvents())
		for _, c := range clients {
			got := c.must(getData("/a", false))
			require.Equal(t, zxid, got.Zxid)
			require.Equal(t, clients[1].welcome.Session, got.Stat.EphemeralOwner)
		}
		clients[1].must(closeSession())
		clients[2].fails(zktest.ErrNoNode, getData("/a", false))
	}},
	// A follower cut off answers reads, pings and nothing else, until the follower notices.
	{"follower that is cut off", 3, func(t *testing.T, e ensemble) {
		reader, writer, syncer, other := e.open(1), e.open(1), e.open(1), e.open(2)
		reader.must(create("/a", []byte("old"), persistent))
		reader.must(getData("/a", true))
		require.NoError(t, e.Isolate(1))
		cut := time.Now()
		other.must(setData("/a", []byte("new"), anyVersion))
		require.Equal(t, "old", string(reader.must(getData("/a", false)).Data))
		reader.must(ping())
		require.Empty(t, reader.events)

		writer.send(create("/b", nil, persistent), ping())
		syncer.send(syncPath("/"))
		again := e.dial(1) // the leader has to confirm the session
		again.write(other.credentials().frame())
		writer.silent(memberTick)
		syncer.silent(memberTick)
		again.silent(memberTick)
		reader.endsWithin(0, patience+memberTick-time.Since(cut))
		for _, c := range []*client{writer, syncer, again} {
			c.endsWithin(0, time.Millisecond)
		}
		e.refuses(1)
		other.must(ping())

		e.HealMembers()
		time.Sleep(memberTick)
		back := e.connect(1, writer.credentials())
		require.Equal(t, "new", string(back.must(getData("/a", false)).Data))
		back.fails(zktest.ErrNoNode, getData("/b", false))
	}},
	// The leader knows of the sessions of followers only what the followers report. So the
	// leader expires the sessions of a follower cut off, although the follower still
	// answers their pings.
	{"sessions at follower that is cut off expire", 3, func(t *testing.T, e ensemble) {
		c := e.connect(1, newSession(2*memberTick))
		other := e.open(2)
		c.must(create("/a", nil, ephemeral))
		active := func(d time.Duration) {
			for begin := time.Now(); time.Since(begin) < d; time.Sleep(memberTick / 4) {
				c.must(ping())
			}
		}
		active(10 * memberTick)
		other.must(getData("/a", false))
		require.NoError(t, e.Isolate(1))
		active(2*memberTick - memberTick/2)
		other.must(getData("/a", false))
		active(2 * memberTick)
		other.fails(zktest.ErrNoNode, getData("/a", false))
		require.Equal(t, c.welcome.Session, c.must(getData("/a", false)).Stat.EphemeralOwner)
		require.NoError(t, e.StopMember(1))
		e.HealMembers()
		require.NoError(t, e.StartMember(1))
		time.Sleep(memberTick)
		require.Zero(t, e.connect(1, c.credentials()).welcome.Session)
	}},
	// A leader cut off answers syncs until the leader notices, even when the others have
	// another one. Nothing is committed, and the sessions get their full timeout from the
	// next leader.
	{"leader that is cut off", 3, func(t *testing.T, e ensemble) {
		c, writer, other := e.open(3), e.open(3), e.open(1)
		short := e.connect(1, newSession(2*memberTick))
		short.must(create("/short", nil, ephemeral))
		time.Sleep(memberTick)
		require.NoError(t, e.Isolate(3))
		cut := time.Now()
		writer.send(create("/lost", nil, persistent))
		require.NoError(t, e.StopMember(2)) // 1 and 2 elect before 3 notices
		require.NoError(t, e.StopMember(1))
		other.waitEnd()
		require.NoError(t, e.StartMember(1))
		require.NoError(t, e.StartMember(2))
		require.Equal(t, 2, e.awaitLeader(3))
		elected := time.Now()
		require.Less(t, elected.Sub(cut), patience)

		other = e.open(1)
		time.Sleep(2*memberTick - memberTick/10 - time.Since(elected))
		other.must(getData("/short", false))
		time.Sleep(memberTick + memberTick/10)
		other.fails(zktest.ErrNoNode, getData("/short", false))
		zxid := other.must(create("/new", nil, persistent)).Zxid
		require.Equal(t, int64(2), zxid>>32)
		c.must(syncPath("/")) // the hanging write is not in the way
		c.fails(zktest.ErrNoNode, getData("/new", false))
		again := e.connect(3, c.credentials())
		require.Equal(t, c.welcome.Session, again.welcome.Session)
		c.waitEnd() // the same member closes the former connection
		again.silent(patience - memberTick - time.Since(cut))
		again.endsWithin(0, 3*memberTick)
		writer.waitEnd()
		e.HealMembers()
		time.Sleep(memberTick)
		c = e.connect(3, c.credentials())
		c.must(getData("/new", false))
		c.fails(zktest.ErrNoNode, getData("/lost", false))
	}},
	{"ensemble needs majority", 3, func(t *testing.T, e ensemble) {
		c := e.open(1)
		c.must(create("/a", nil, persistent))
		require.NoError(t, e.StopMember(2))
		c.must(setData("/a", nil, anyVersion))
		require.NoError(t, e.StopMember(3))
		c.waitEnd()
		require.Zero(t, e.Leader())
		require.Error(t, e.Create("/b", nil))
		_, err := e.Dial(t.Context(), e.Members()[2])
		require.ErrorContains(t, err, "refused")
		time.Sleep(time.Hour) // no session expires meanwhile
		require.NoError(t, e.StartMember(3))
		require.NoError(t, e.StartMember(3))
		e.awaitLeader(0)
		c = e.connect(1, c.credentials())
		c.must(getData("/a", false))
		require.NoError(t, e.StartMember(2))
		time.Sleep(memberTick)
		e.open(2).must(getData("/a", false))
		require.ErrorContains(t, e.StopMember(4), "from 1 to 3")
	}},
	// What a member has accepted may be committed by the next leader, although the client
	// got no answer.
	{"next leader commits what it has accepted", 3, func(t *testing.T, e ensemble) {
		c := e.open(3)
		require.NoError(t, e.Separate(3, 2))
		require.NoError(t, e.PauseMember(1))
		c.send(create("/a", nil, persistent))
		c.silent(memberTick)
		require.NoError(t, e.StopMember(3))
		c.waitEnd()
		require.NoError(t, e.ResumeMember(1)) // with the proposal, and the end of the leader
		require.Equal(t, 1, e.awaitLeader(3), "the one that has accepted more")
		e.open(2).must(getData("/a", false))
	}},
	// A member believes in a leader only if a majority confirms the leader, not the leader
	// alone (FastLeaderElection.receivedFollowingNotification).
	{"member that does not reach a majority joins no leader", 3, func(t *testing.T, e ensemble) {
		require.NoError(t, e.StopMember(1))
		require.NoError(t, e.Separate(1, 2))
		require.NoError(t, e.StartMember(1))
		time.Sleep(2 * patience)
		e.refuses(1)
		require.Equal(t, 3, e.Leader())
		e.HealMembers()
		time.Sleep(memberTick)
		e.open(1)
	}},
	// A member joining a leader gets what the leader has committed but not applied yet.
	{"member joins leader that lags", 3, func(t *testing.T, e ensemble) {
		require.NoError(t, e.StopMember(1))
		require.NoError(t, e.Lag(3))
		c := e.open(2)
		c.must(create("/a", nil, persistent))
		require.NoError(t, e.StartMember(1))
		time.Sleep(memberTick)
		c.must(setData("/a", []byte("new"), anyVersion))
		require.Equal(t, "new", string(e.open(1).must(getData("/a", false)).Data))
		require.NoError(t, e.CatchUp(3))
		require.NoError(t, e.Invariants())
	}},
	// A member joining a lagging leader applies earlier writes again, without a second
	// answer to the clients.
	{"member answers a write once", 3, func(t *testing.T, e ensemble) {
		c := e.open(2)
		require.NoError(t, e.Lag(3))
		c.must(create("/a", nil, persistent))
		c.must(create("/b", nil, persistent))
		require.NoError(t, e.StopMember(2))
		require.NoError(t, e.StartMember(2))
		time.Sleep(memberTick)
		e.open(2).must(getData("/b", false))
		require.NoError(t, e.Invariants())
	}},
	// The leader counts a rejoined follower once, even before hearing of the end of the
	// first connection.
	{"follower that joins again counts once", 5, func(t *testing.T, e ensemble) {
		require.NoError(t, e.StopMember(1))
		require.NoError(t, e.SlowMember(4, 3*memberTick))
		require.NoError(t, e.StopMember(4))
		require.NoError(t, e.StartMember(4))
		time.Sleep(memberTick)
		require.NoError(t, e.StopMember(2))
		require.NoError(t, e.StopMember(3)) // two of five are left
		time.Sleep(memberTick + memberTick/2)
		require.Zero(t, e.Leader())
	}},
	// While the leader's answer is under way, the session has no connection.
	{"reconnect to slow member", 3, func(t *testing.T, e ensemble) {
		c := e.open(1)
		require.NoError(t, e.SlowMember(1, memberTick))
		for range 2 {
			again := e.dial(1)
			again.write(c.credentials().frame())
			time.Sleep(memberTick + memberTick/2)
			require.Zero(t, e.State().Sessions[0].Conn)
			require.NoError(t, e.Invariants())
			require.NoError(t, again.conn.Close())
			time.Sleep(memberTick)
			require.Zero(t, e.State().Sessions[0].Conn)
		}
		e.connect(1, c.credentials())
		require.NotZero(t, e.State().Sessions[0].Conn)
	}},
	// A server without an ensemble leads again as soon as possible.
	{"only member leads while it runs", 1, func(t *testing.T, e ensemble) {
		c := e.open(1)
		require.NoError(t, e.StopMember(1))
		c.waitEnd()
		require.Zero(t, e.Leader())
		require.NoError(t, e.StartMember(1))
		require.Equal(t, 1, e.Leader())
		e.connect(1, c.credentials()).must(ping())

		require.NoError(t, e.PauseMember(1))
		require.NoError(t, e.Restart(t.Context(), memberTick))
		e.connect(1, c.credentials()).must(ping())

		require.NoError(t, e.Lag(1))
		require.NoError(t, e.Create("/a", nil))
		require.NoError(t, e.Restart(t.Context(), memberTick))
		e.connect(1, c.credentials()).must(getData("/a", false))
	}},
	// A new leader applies everything accepted, even after lagging at the election.
	{"member that lags is elected", 3, func(t *testing.T, e ensemble) {
		require.NoError(t, e.Lag(2))
		e.open(1).must(create("/a", nil, persistent))
		require.NoError(t, e.StopMember(3))
		require.NoError(t, e.Lag(2)) // again, because 2 has left the leader
		require.Equal(t, 2, e.awaitLeader(3))
		e.open(1).must(getData("/a", false))
	}},
	{"slow follower", 3, func(t *testing.T, e ensemble) {
		reader, writer := e.open(1), e.open(2)
		reader.fails(zktest.ErrNoNode, exists("/a", true))
		require.NoError(t, e.SlowMember(1, 100*time.Millisecond))
		begin := time.Now()
		writer.must(create("/a", nil, persistent))
		require.Zero(t, time.Since(begin), "a majority is fast")
		reader.fails(zktest.ErrNoNode, getData("/a", false))
		require.Equal(t, event{zktest.NodeCreated, "/a"}, reader.event())
		require.Equal(t, 100*time.Millisecond, time.Since(begin))
		reader.must(setData("/a", nil, anyVersion))
		require.Equal(t, 300*time.Millisecond, time.Since(begin))
		reader.send(create("/b", nil, persistent), ping(), getData("/b", false)) // answered in order
		require.Zero(t, reader.reply().Err)
		require.Equal(t, xidPing, reader.reply().Xid)
		require.Zero(t, reader.reply().Err)
		require.Equal(t, 500*time.Millisecond, time.Since(begin))
	}},
	{"session moves to another member", 3, func(t *testing.T, e ensemble) {
		first := e.open(1)
		second := e.connect(2, first.credentials())
		first.must(getData("/", false)) // a follower does not know
		second.must(create("/a", nil, ephemeral))
		first.send(create("/b", nil, ephemeral))
		first.waitEnd()
		require.NotContains(t, e.State().Nodes, "/b")
		require.Equal(t, first.welcome.Session, second.must(getData("/a", false)).Stat.EphemeralOwner)
		second.must(closeSession())
	}},
	{"paused leader is replaced", 3, func(t *testing.T, e ensemble) {
		c, idle := e.open(3), e.open(3)
		require.NoError(t, e.PauseMember(3))
		c.send(ping())
		c.silent(memberTick)
		require.Equal(t, 2, e.awaitLeader(3))
		e.open(1).must(create("/new", nil, persistent))
		require.NoError(t, e.ResumeMember(3))
		require.Zero(t, c.reply().Err)
		idle.must(syncPath("/"))
		idle.fails(zktest.ErrNoNode, getData("/new", false))
		idle.endsWithin(0, memberTick+time.Millisecond)
		time.Sleep(memberTick)
		e.connect(3, idle.credentials()).must(getData("/new", false))
		require.NoError(t, e.StopMember(3))
		require.ErrorContains(t, e.PauseMember(3), "start it first")
	}},
	{"whole ensemble restarts", 3, func(t *testing.T, e ensemble) {
		c := e.open(2)
		c.must(create("/a", nil, ephemeral))
		require.NoError(t, e.Restart(t.Context(), time.Hour))
		c = e.connect(1, c.credentials())
		require.Equal(t, c.welcome.Session, c.must(getData("/a", false)).Stat.EphemeralOwner)

		require.NoError(t, e.Stop(t.Context()))
		require.NoError(t, e.StopMember(1))
		require.NoError(t, e.StartMember(1))
		require.NoError(t, e.AcceptConnections())
		for _, member := range e.Members() {
			_, err := e.Dial(t.Context(), member)
			require.ErrorContains(t, err, "refused")
		}
		require.NoError(t, e.Start(t.Context()))
		c = e.connect(1, c.credentials())

		require.NoError(t, e.Pause())
		time.Sleep(2 * patience)
		require.NoError(t, e.Resume())
		c.must(ping())
		require.Equal(t, 3, e.Leader())

		require.NoError(t, e.PauseMember(1))
		require.NoError(t, e.Pause())
		require.NoError(t, e.Restart(t.Context(), memberTick))
		e.connect(1, c.credentials()).must(ping())
	}},
	{"stop ends connections that hang", 3, func(t *testing.T, e ensemble) {
		require.NoError(t, e.HangConnections())
		a, b := e.dial(1), e.dial(2)
		require.NoError(t, e.StopMember(1))
		a.waitEnd()
		b.silent(memberTick)
		require.NoError(t, e.Stop(t.Context()))
		b.waitEnd()
	}},
	{"members say what they are", 3, func(t *testing.T, e ensemble) {
		say := func(member int, word string) string {
			c := e.dial(member)
			c.write([]byte(word))
			answer, err := io.ReadAll(c.conn)
			require.NoError(t, err)
			return string(answer)
		}
		c := e.open(1)
		require.Contains(t, say(1, "srvr"), "\nConnections: 2\n", "the one that asks, too")
		require.Contains(t, say(1, "srvr"), "\nMode: follower\n")
		require.Contains(t, say(3, "srvr"), "\nMode: leader\n")
		require.Contains(t, say(1, "mntr"), "\nzk_server_state\tfollower\nzk_peer_state\tfollowing - broadcast\n")
		require.Contains(t, say(3, "mntr"), "\nzk_synced_followers\t2\n")
		require.Equal(t, "server.1=127.0.0.1:2888:3888:participant;127.0.0.1:1\n"+
			"server.2=127.0.0.2:2889:3889:participant;127.0.0.2:1\n"+
			"server.3=127.0.0.3:2890:3890:participant;127.0.0.3:1\nversion=0", string(c.must(getData("/zookeeper/config", false)).Data))
		require.NoError(t, e.StopMember(3))
		require.NoError(t, e.StopMember(2))
		require.Equal(t, "This ZooKeeper instance is not currently serving requests\n", say(1, "srvr"))
		require.Equal(t, "null", say(1, "isro"))
		require.Equal(t, "imok", say(1, "ruok"))
	}},
	// A replaced leader may have accepted more than the followers of the next one. What no
	// other member has was never committed.
	{"replaced leader loses election", 3, func(t *testing.T, e ensemble) {
		c := e.open(3)
		require.NoError(t, e.Isolate(3))
		c.send(create("/lost", nil, persistent))
		require.Equal(t, 2, e.awaitLeader(3))
		c.endsWithin(0, patience+memberTick)
		require.NoError(t, e.StopMember(2))
		e.HealMembers()
		require.Equal(t, 1, e.awaitLeader(2))
		time.Sleep(memberTick)
		e.open(3).fails(zktest.ErrNoNode, getData("/lost", false))
	}},
}
