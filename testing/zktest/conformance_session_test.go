package zktest_test

// This file has the checks of handshakes, sessions and expiry.

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/zktest"
)

var sessionChecks = []check{
	{1, "a handshake of 44 bytes is answered with 36", shared, func(t *testing.T, s checkEnv) {
		h := newSession(longTimeout)
		h.Short = true
		a, b := connect(t, s.addr, h), connect(t, s.addr, h)
		for _, c := range []*client{a, b} {
			require.Equal(t, 36, c.welcome.Size)
			require.Zero(t, c.welcome.Protocol)
			require.Equal(t, longTimeout, c.welcome.Timeout)
			require.NotZero(t, c.welcome.Session)
			require.Len(t, c.welcome.Password, 16)
			c.must(ping())
		}
		require.NotEqual(t, a.welcome.Session, b.welcome.Session)
		require.NotEqual(t, a.welcome.Password, b.welcome.Password)
	}},
	{2, "a handshake of 45 bytes is answered with 37", shared, func(t *testing.T, s checkEnv) {
		for _, readOnly := range []bool{false, true} {
			h := newSession(longTimeout)
			h.ReadOnly = readOnly
			c := connect(t, s.addr, h)
			require.Equal(t, 37, c.welcome.Size)
			require.NotZero(t, c.welcome.Session)
			require.Zero(t, c.welcome.ReadOnly)
			c.must(create(s.path("n"), nil, ephemeral))
			c.must(closeSession())
		}
	}},
	{3, "the session timeout is kept within the bounds", strict, func(t *testing.T, s checkEnv) {
		for asked, granted := range map[time.Duration]time.Duration{
			-5 * time.Millisecond:     time.Second,
			0:                         time.Second,
			time.Millisecond:          time.Second,
			1234 * time.Millisecond:   1234 * time.Millisecond,
			999999 * time.Millisecond: 10 * time.Second,
		} {
			require.Equal(t, granted, open(t, s.addr, asked).welcome.Timeout, "requested %v", asked)
		}
	}},
	{7, "an unknown session is refused", shared, func(t *testing.T, s checkEnv) {
		h := s.open(t).credentials()
		h.Session ^= 1 << 30
		c := connect(t, s.addr, h)
		require.Equal(t, refusedWelcome, c.welcome)
		c.waitEnd()

		h.Short = true
		c = connect(t, s.addr, h)
		require.Equal(t, welcome{Size: 36, Password: make([]byte, 16)}, c.welcome)
		c.waitEnd()
	}},
	{9, "a client that has seen a later zxid is disconnected without a reply", exclusive, func(t *testing.T, s checkEnv) {
		a := s.open(t)
		a.must(create(s.path("n"), nil, ephemeral))
		zxid := a.zxid
		for _, h := range []handshake{newSession(longTimeout), a.credentials()} {
			h.LastZxid = zxid + 50
			greet(t, s.addr, h).waitEnd()
		}
		a.must(exists(s.path("n"), false)) // the old connection is open

		same := a.credentials()
		same.LastZxid = zxid
		require.Equal(t, a.welcome, connect(t, s.addr, same).welcome)
		same = newSession(longTimeout)
		same.LastZxid = zxid
		connect(t, s.addr, same).must(closeSession())
	}},
	{15, "a request after closeSession is not applied", shared, func(t *testing.T, s checkEnv) {
		a := s.open(t)
		a.send(closeSession(), create(s.path("n"), nil, persistent))
		reply := a.reply()
		require.Equal(t, zktest.OpCloseSession, reply.Op)
		require.Zero(t, reply.Err)
		if late, err := a.tryReply(); err == nil {
			require.Equal(t, zktest.ErrSessionExpired, late.Err)
			a.waitEnd()
		}
		s.open(t).fails(zktest.ErrNoNode, exists(s.path("n"), false))
	}},
	{16, "reattaching negotiates the timeout again", shared, func(t *testing.T, s checkEnv) {
		a := s.open(t)
		for asked, granted := range map[time.Duration]time.Duration{
			5 * time.Second:  5 * time.Second,
			12 * time.Second: 12 * time.Second,
			time.Millisecond: 2 * tick,
		} {
			h := a.credentials()
			h.Timeout = asked
			b := connect(t, s.addr, h)
			require.Equal(t, a.welcome.Session, b.welcome.Session)
			require.Equal(t, granted, b.welcome.Timeout)
		}
	}},
	{65, "a restart keeps nodes, sessions, the zxid and sequence numbers, but no watches", waiting, func(t *testing.T, s checkEnv) {
		const timeout = 12 * tick // on a slow machine, starting a server takes part of the timeout
		server := s.start(t, quietOptions...)
		a, brief := open(t, server.Addr(), longTimeout), open(t, server.Addr(), timeout)
		a.must(create("/q", []byte("x"), persistent))
		require.Equal(t, "/q/n-0000000000", a.must(create("/q/n-", nil, ephemeralSequential)).Path)
		a.must(getData("/q", true))
		a.must(getChildren("/q", true))
		brief.must(create("/brief", nil, ephemeral))
		before := a.must(getData("/q", false))

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.NoError(t, server.Stop(ctx))
		a.waitEnd()
		brief.waitEnd()
		time.Sleep(timeout)
		require.NoError(t, server.Start(ctx))
		time.Sleep(2 * tick) // too long if sessions did not get their full timeout again

		c := brief.reattach()
		require.Equal(t, brief.welcome, c.welcome)
		require.Equal(t, c.welcome.Session, c.must(exists("/brief", false)).Stat.EphemeralOwner)

		h := a.credentials()
		h.LastZxid = before.Zxid
		b := connect(t, server.Addr(), h)
		require.Equal(t, a.welcome, b.welcome)
		after := b.must(getData("/q", false))
		require.Equal(t, before.Data, after.Data)
		require.Equal(t, before.Stat, after.Stat)
		require.GreaterOrEqual(t, after.Zxid, before.Zxid)
		require.Equal(t, a.welcome.Session, b.must(exists("/q/n-0000000000", false)).Stat.EphemeralOwner)
		next := b.must(create("/q/n-", nil, ephemeralSequential))
		require.Equal(t, "/q/n-0000000001", next.Path)
		require.Greater(t, next.Zxid, before.Zxid)
		b.must(setData("/q", nil, anyVersion))
		b.must(closeSession())
		require.Empty(t, b.events)
		b.waitEnd()
		require.Empty(t, c.must(getChildren("/q", false)).Names)
	}},
	{103, "a new session needs no password", shared, func(t *testing.T, s checkEnv) {
		for _, password := range [][]byte{nil, {}, []byte("any")} {
			c := connect(t, s.addr, handshake{Timeout: longTimeout, Password: password})
			require.NotZero(t, c.welcome.Session)
			require.Len(t, c.welcome.Password, 16)
		}
	}},
	{104, "requests may be sent with the handshake", shared, func(t *testing.T, s checkEnv) {
		n := s.path("n")
		send := func(h handshake, list []string) *client {
			c := dial(t, s.addr)
			reqs := []request{
				auth("digest", "u:p").withXid(xidAuth),
				setWatches(0, list, nil, nil).withXid(xidSetWatches),
				create(s.path("s-"), nil, sequential).withXid(7),
			}
			b := h.frame()
			for _, r := range reqs {
				b = append(b, r.frame()...)
			}
			c.pending = reqs
			c.write(b)
			c.receiveWelcome(h)
			require.NotZero(t, c.welcome.Session)
			return c
		}
		answers := func(c *client) map[int32]result {
			all := map[int32]result{} // by xid: the reply to auth may come early
			for range 3 {
				r := c.reply()
				require.Zero(t, r.Err)
				all[r.Xid] = r
			}
			require.Len(t, all, 3)
			return all
		}
		a := send(newSession(longTimeout), nil)
		require.Equal(t, s.path("s-0000000000"), answers(a)[7].Path)
		a.must(create(n, nil, ephemeral))
		require.Len(t, a.must(whoAmI()).ACL, 2)
		a.cut()

		b := send(a.credentials(), []string{n})
		require.Equal(t, s.path("s-0000000002"), answers(b)[7].Path)
		require.Equal(t, []event{{zktest.NodeDataChanged, n}}, b.events)
		require.Equal(t, a.welcome, b.welcome)
		require.Len(t, b.must(whoAmI()).ACL, 2)
	}},
}

// refusedWelcome is the reply to a handshake with an ended session.
var refusedWelcome = welcome{Size: 37, Password: make([]byte, 16)}

// expiryTimeout is the timeout of sessions meant to expire.
const expiryTimeout = 8 * tick

// timeChecks are the checks of when sessions expire.
var timeChecks = []check{
	{10, "a silent session expires after its timeout and within another tick", waiting, func(t *testing.T, s checkEnv) {
		nodes := []string{s.path("x"), s.path("y")}
		a, b := open(t, s.addr, expiryTimeout), s.open(t)
		want := []event{}
		for _, n := range nodes {
			a.must(create(n, nil, ephemeral))
			b.must(exists(n, true))
			want = append(want, event{zktest.NodeDeleted, n})
		}
		since := startSilence(func() { a.must(ping()) })
		got := []event{b.event(), b.event()}
		since.requireExpiry(t, expiryTimeout)
		require.ElementsMatch(t, want, got)
		require.Empty(t, b.must(getChildren(s.root, false)).Names)
		a.waitEnd()
		since.requireExpiry(t, expiryTimeout)
		require.Equal(t, refusedWelcome, connect(t, s.addr, a.credentials()).welcome)
	}},
	{11, "pings keep a session alive", waiting, func(t *testing.T, s checkEnv) {
		const timeout = 12 * tick // a ping may come late
		a := open(t, s.addr, timeout)
		a.must(create(s.path("n"), nil, ephemeral))
		for range 3 {
			time.Sleep(5 * tick)
			a.must(ping())
		}
		require.Equal(t, a.welcome.Session, s.open(t).must(exists(s.path("n"), false)).Stat.EphemeralOwner)
		a.reattach().must(setData(s.path("n"), nil, anyVersion))
	}},
	{12, "reattaching gives the session its full timeout again", waiting, func(t *testing.T, s checkEnv) {
		// Without reattaching, the session would expire before the last request.
		const timeout = 12 * tick
		a, b := open(t, s.addr, timeout), s.open(t)
		a.must(create(s.path("n"), nil, ephemeral))
		a.cut()
		time.Sleep(timeout * 6 / 10)
		c := a.reattach()
		time.Sleep(timeout * 6 / 10)
		b.must(exists(s.path("n"), false))
		c.must(setData(s.path("n"), nil, anyVersion))
	}},
	{130, "an expiry takes one zxid for all ephemerals", exclusive, func(t *testing.T, s checkEnv) {
		a, b := s.open(t), s.open(t)
		for _, name := range []string{"x", "y", "z"} {
			a.must(create(s.path(name), nil, ephemeral))
		}
		before := b.must(getChildren(s.root, true))
		require.Len(t, before.Names, 3)
		h := a.credentials()
		h.Timeout = 2 * tick // the machine cannot be late for the rest
		connect(t, s.addr, h).cut()
		require.Equal(t, event{zktest.NodeChildrenChanged, s.root}, b.event())
		after := b.must(getChildren2(s.root, false))
		require.Empty(t, after.Names)
		require.Equal(t, before.Zxid+1, after.Zxid)
		require.Equal(t, before.Zxid+1, after.Stat.Pzxid)
	}},
	{105, "reattaching changes the timeout", waiting, func(t *testing.T, s checkEnv) {
		a, b := s.open(t), s.open(t)
		a.must(create(s.path("n"), nil, ephemeral))
		b.must(exists(s.path("n"), true))
		h := a.credentials()
		h.Timeout = expiryTimeout
		since := startSilence(func() { connect(t, s.addr, h).cut() })
		require.Equal(t, event{zktest.NodeDeleted, s.path("n")}, b.event())
		since.requireExpiry(t, expiryTimeout)
	}},
	{106, "reads keep a session alive, events do not", waiting, func(t *testing.T, s checkEnv) {
		n := s.path("n")
		silent, reader, writer := open(t, s.addr, expiryTimeout), open(t, s.addr, expiryTimeout), s.open(t)
		silent.must(create(n, nil, ephemeral))
		silent.must(create(s.path("other"), nil, persistent))
		reader.must(create(s.path("reader"), nil, ephemeral))
		since := startSilence(func() { silent.must(addWatch(s.path("other"), modePersistent)) })
		poll(t, "the silent session expires", func() bool {
			time.Sleep(tick / 4)
			reader.must(getData(s.path("other"), false))
			return writer.pipeline(setData(s.path("other"), nil, anyVersion), exists(n, false))[1].Err == zktest.ErrNoNode
		})
		since.requireExpiry(t, expiryTimeout)
		_, err := silent.tryReply()
		require.ErrorIs(t, err, errEnd)
		require.NotEmpty(t, silent.events)
		writer.must(exists(s.path("reader"), false))
	}},
}

// silenceStart is the time of the last request of a session, between two times.
type silenceStart struct{ after, before time.Time }

func startSilence(last func()) silenceStart {
	var s silenceStart
	s.after = time.Now()
	last()
	s.before = time.Now()
	return s
}

// requireExpiry checks the time of an expiry just observed. The observation may be late on
// a slow machine, but the expiry is never early.
func (s silenceStart) requireExpiry(t *testing.T, timeout time.Duration) {
	t.Helper()
	const slack = 10 * tick
	require.GreaterOrEqual(t, time.Since(s.after), timeout)
	require.LessOrEqual(t, time.Since(s.before), timeout+tick+slack)
}
