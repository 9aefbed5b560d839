package zktest_test

// This file tests what only the embedded server can do. The conformance checks test what
// both servers have in common, and the fault tests the faults also injected by a proxy.

import (
	"context"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/zktest"
	"github.com/lockpool/lockpool/testing/zktest/bubble"
)

func longContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), ioTimeout)
	t.Cleanup(cancel)
	return ctx
}

func shortContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// requireNoticed makes a change while WaitFor waits for the change.
func requireNoticed(t *testing.T, s *zktest.Server, change func() error, changed func(*zktest.State) bool) {
	ctx, asked, noticed := longContext(t), make(chan struct{}), make(chan error)
	ask := sync.OnceFunc(func() { close(asked) })
	go func() { // ends with ctx
		noticed <- s.WaitFor(ctx, func(st *zktest.State) bool { ask(); return changed(st) })
	}()
	<-asked
	require.NoError(t, change())
	require.NoError(t, <-noticed)
}

func TestServerLag(t *testing.T) {
	t.Parallel()
	s := zktest.Start(t, zktest.Members(3))
	require.Len(t, s.Members(), 3)
	require.Equal(t, 2, strings.Count(s.ConnectString(), ","))
	other, follower := open(t, s.Members()[0], longTimeout), open(t, s.Members()[1], longTimeout)
	other.must(create("/a", []byte("1"), persistent))
	follower.must(getData("/a", true))
	require.NoError(t, s.Lag(2))
	zxid := other.must(setData("/a", []byte("2"), anyVersion)).Zxid
	other.must(create("/b", nil, persistent))

	require.Equal(t, "1", string(follower.must(getData("/a", false)).Data))
	follower.fails(zktest.ErrNoNode, exists("/b", true))
	require.Empty(t, follower.events)
	require.Equal(t, []int{1, 2}, []int{s.State().Conns[0].Member, s.State().Conns[1].Member})

	// A client with a later zxid cannot connect there.
	h := newSession(longTimeout)
	h.LastZxid = zxid
	greet(t, s.Members()[1], h).waitEnd()
	connect(t, s.Members()[2], h)

	// The member catches up before answering a sync, and sends the events first.
	got := follower.must(syncPath("/a"))
	require.Equal(t, []event{{zktest.NodeDataChanged, "/a"}, {zktest.NodeCreated, "/b"}}, got.Events)
	require.Equal(t, "2", string(follower.must(getData("/a", false)).Data))

	require.NoError(t, s.Lag(2))
	other.must(remove("/b", anyVersion))
	follower.must(exists("/b", true)) // still exists there
	require.Equal(t, []event{{zktest.NodeDeleted, "/b"}}, follower.must(create("/c", nil, persistent)).Events)

	require.NoError(t, s.Lag(2))
	follower.must(getChildren("/", true))
	other.must(create("/d", nil, persistent))
	require.Empty(t, follower.newEvents())
	requireNoticed(t, s, func() error { return s.CatchUp(2) }, func(st *zktest.State) bool { return st.ChildWatchesOf("/") == 0 })
	require.Equal(t, []event{{zktest.NodeChildrenChanged, "/"}}, follower.newEvents())
	require.ErrorContains(t, s.Lag(4), "from 1 to 3")

	require.NoError(t, s.RefuseConnections(2))
	_, err := net.Dial("tcp", s.Members()[1])
	require.ErrorContains(t, err, "refused")
	open(t, s.Members()[0], longTimeout)
	require.Error(t, s.RefuseConnections(0))
}

func TestServerAnswersAfterResume(t *testing.T) {
	bubble.Parallel(t)
	synctest.Test(t, func(t *testing.T) { // the short session must live until the pause
		s := ensemble{t, zktest.StartBubble(t, zktest.TickTime(10*time.Millisecond))}
		a, short := s.open(1), s.connect(1, newSession(20*time.Millisecond))
		require.NoError(t, s.Pause())
		a.send(create("/a", nil, persistent))
		late := s.dial(1)
		late.write(newSession(longTimeout).frame())
		long, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond) // ten timeouts of the short session
		defer cancel()
		require.ErrorIs(t, s.WaitFor(long, func(st *zktest.State) bool { return len(st.Sessions) != 2 || len(st.Nodes) != 4 }),
			context.DeadlineExceeded)
		require.NoError(t, s.Resume())
		require.Equal(t, "/a", a.reply().Path)
		late.receiveWelcome(handshake{})
		require.NotZero(t, late.welcome.Session)
		short.waitEnd()
	})
}

func TestServerSetSequence(t *testing.T) {
	t.Parallel()
	s := zktest.Start(t)
	a := open(t, s.Addr(), longTimeout)
	requireNoticed(t, s, func() error { return s.SetSequence("/", math.MaxInt32-1) },
		func(st *zktest.State) bool { return st.Nodes["/"].Stat.Cversion != -1 })
	require.Equal(t, "/x-2147483646", a.must(create("/x-", nil, sequential)).Path)
	require.Equal(t, "/x-2147483647", a.must(create("/x-", nil, sequential)).Path)
	a.fails(zktest.ErrNodeExists, create("/x-", nil, sequential)) // the counter has stopped
	require.Equal(t, "/y-2147483647", a.must(create("/y-", nil, sequential)).Path)
	require.Error(t, s.SetSequence("/", -1))
	require.Error(t, s.SetSequence("/none", 1))
}

func TestServerCreateSetDelete(t *testing.T) {
	t.Parallel()
	s := zktest.Start(t)
	a := open(t, s.Addr(), longTimeout)
	a.must(getChildren("/", true))
	require.NoError(t, s.Create("/a", []byte("1")))
	a.must(getData("/a", true))
	require.NoError(t, s.Set("/a", []byte("2")))
	a.must(setACL("/", anyVersion, acl{permRead, "world", "anyone"}))
	require.NoError(t, s.Delete("/a"), "the ACL does not matter")
	require.Equal(t, []event{{zktest.NodeChildrenChanged, "/"}, {zktest.NodeDataChanged, "/a"}}, a.events)
	require.ErrorIs(t, s.Create("/b/c", nil), zktest.ErrNoNode)
	require.ErrorIs(t, s.Set("/a", nil), zktest.ErrNoNode)
	require.ErrorContains(t, s.Delete("/zookeeper"), `deleting "/zookeeper": bad arguments (-8)`)
}

func TestServerShowsItsState(t *testing.T) {
	t.Parallel()
	s := zktest.Start(t)
	a, b := open(t, s.Addr(), longTimeout), open(t, s.Addr(), longTimeout)
	a.must(create("/q", nil, persistent))
	first := a.must(create("/q/x-", []byte("d"), ephemeralSequential)).Path

	done := make(chan error)
	go func() { done <- s.WaitWatch(longContext(t), first, 1) }()
	second := b.must(create("/q/x-", nil, ephemeralSequential)).Path
	require.NoError(t, s.WaitFor(longContext(t), func(*zktest.State) bool { return true }))
	b.must(getData(first, true))
	require.NoError(t, <-done)
	require.ErrorContains(t, s.WaitWatch(shortContext(t), first, 2), "waiting for 2 watches on "+first+", there are 1: context deadline exceeded")
	require.Error(t, s.WaitWatch(longContext(t), first, 0))
	require.Error(t, s.WaitWatch(longContext(t), "nope", 1))

	st := s.State()
	require.Equal(t, []string{first[3:], second[3:]}, st.Children("/q"))
	require.Equal(t, "d", string(st.Nodes[first].Data))
	require.Equal(t, a.welcome.Session, st.Nodes[first].Stat.EphemeralOwner)
	require.Equal(t, []string{first}, st.Sessions[0].Ephemerals)
	require.Equal(t, 1, st.Sessions[0].Conn)
	require.LessOrEqual(t, st.Sessions[0].ExpiresIn, longTimeout+time.Second)
	require.Equal(t, []zktest.Watch{{Path: first, Conn: 2, Session: b.welcome.Session}}, st.Watches)

	a.must(closeSession())

	var trace strings.Builder
	for _, r := range s.Trace() {
		trace.WriteString(r.String() + "\n")
	}
	for _, want := range []string{
		`conn 1 session 0x0 request connect`,
		`request create "/q/x-"`,
		`reply getData "` + first + `" zxid`,
		`event NodeDeleted "` + first + `"`,
		`reply closeSession zxid`,
	} {
		require.Contains(t, trace.String(), want)
	}
}

func TestServerRefusesInvalidOptions(t *testing.T) {
	t.Parallel()
	for want, opt := range map[string]zktest.Option{
		"use 127.0.0.1:2181":   zktest.Addr("10.0.0.1:2181"),
		"not host:port":        zktest.Addr("2181"),
		"0 (any) and 65535":    zktest.Addr("localhost:http"),
		"members is 0":         zktest.Members(0),
		"shorter than 1 ms":    zktest.TickTime(time.Microsecond),
		"timeout is 0s":        zktest.SessionTimeouts(0, time.Second),
		"exceeds the maximum":  zktest.SessionTimeouts(time.Minute, time.Second),
		"negative: -1":         zktest.MaxClientConns(-1),
		"interval is 0s":       zktest.ContainerInterval(0),
		"command \"helo\"":     zktest.FourLetterWords("helo"),
		"form user:password":   zktest.SuperUser("super"),
		"the Logger is nil":    zktest.Logger(nil),
		"address already in u": zktest.Addr(takenAddr(t)),
	} {
		_, err := zktest.Run(t.Context(), opt)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "zktest: ")
		if real, ok := opt.(zktest.RealOption); ok {
			_, err := zktest.RunReal(t.Context(), real)
			require.Error(t, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := zktest.Run(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

func TestInjectRefusesInvalidRules(t *testing.T) {
	t.Parallel()
	s := zktest.Start(t)
	for want, rule := range map[string]zktest.Rule{
		"use Pass":          {},
		"delay is negative": {Do: zktest.DelayApply(-1)},
		"bytes is negative": {Do: zktest.TruncateReply(-1)},
		"FailWith(OK)":      {Do: zktest.FailWith(zktest.OK)},
		"function is nil":   {Do: zktest.Call(nil)},
		"Skip is negative":  {Skip: -1, Do: zktest.Pass()},
		"use Always":        {Times: -2, Do: zktest.Pass()},
		"numbered from 1":   {Match: zktest.Match{Selector: zktest.Selector{Member: -1}}, Do: zktest.Pass()},
		"must begin with /": {Match: zktest.Match{Prefix: "a"}, Do: zktest.Pass()},
		"match OpEvent":     {Do: zktest.Swallow()},
		"only be swallowed": {Match: zktest.Match{Ops: []zktest.Op{zktest.OpEvent}}, Do: zktest.DropAfterApply()},
		"match OpMulti":     {Match: zktest.Match{Ops: []zktest.Op{zktest.OpCheck}}, Do: zktest.Pass()},
	} {
		require.Contains(t, panicOf(func() { s.Inject(rule) }), want)
		require.ErrorContains(t, rule.Validate(), want)
	}
	require.Contains(t, panicOf(func() { s.Partition(zktest.Selector{}, 7) }), "Both, Inbound or Outbound")
	require.Contains(t, panicOf(func() { s.Throttle(zktest.Selector{}, -1, 0) }), "must not be negative")

	f := s.Inject(zktest.Rule{Match: zktest.Match{Ops: zktest.Lists, Prefix: "/a"}, Times: 2, Do: zktest.HoldReply()})
	open(t, s.Addr(), longTimeout).send(getChildren("/a", false))
	require.NoError(t, s.WaitFor(longContext(t), func(*zktest.State) bool { return f.Fired() == 1 }))
	f.Remove()
	require.ErrorContains(t, f.Wait(shortContext(t)), "waiting for HoldReply on getChildren, getChildren2 of /a...: "+
		"happened 1 of 2 times, 1 requests matched (the rule was removed): context deadline exceeded")
}

// panicOf returns the text with which f panics.
func panicOf(f func()) (text string) {
	defer func() { text, _ = recover().(string) }()
	f()
	return ""
}

func TestClosedServerReturnsErrors(t *testing.T) {
	t.Parallel()
	s := zktest.Start(t)
	require.NoError(t, s.Create("/a", nil))
	a := open(t, s.Addr(), longTimeout)
	a.must(createContainer("/empty", container))
	a.must(create("/empty/a", nil, persistent))
	a.must(remove("/empty/a", anyVersion))
	require.NoError(t, s.Close())
	for what, err := range map[string]error{
		"Create": s.Create("/b", nil), "Delete": s.Delete("/a"), "Set": s.Set("/a", nil), "SetSequence": s.SetSequence("/a", 1),
		"Lag": s.Lag(1), "CatchUp": s.CatchUp(1), "ExpireAll": s.ExpireAll(), "ExpireSession": s.ExpireSession(1),
		"Start": s.Start(t.Context()), "AcceptConnections": s.AcceptConnections(), "RefuseConnections": s.RefuseConnections(), "Pause": s.Pause(),
	} {
		require.Error(t, err, what)
	}
	s.ReapContainers()
	require.Contains(t, s.State().Nodes, "/a", "the state is still readable")
	require.Contains(t, s.State().Nodes, "/empty", "a method changed the state")
	require.NoError(t, s.Close())
}

func takenAddr(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

func TestServerLogsThatItIsNotForProduction(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	s, err := zktest.Run(t.Context(), zktest.Logger(slog.New(slog.NewTextHandler(&log, nil))), zktest.Addr("[::1]:0"), zktest.Seed(7))
	require.NoError(t, err)
	defer s.Close()
	require.Contains(t, log.String(), "not for production")
	require.Contains(t, log.String(), s.Addr())
	require.Contains(t, s.Addr(), "[::1]:")
	answer, err := s.Command(longContext(t), "ruok")
	require.NoError(t, err)
	require.Equal(t, "imok", answer)
	open(t, s.Addr(), longTimeout)
}

// The order of children depends on the seed only.
func TestServerShufflesChildrenBySeed(t *testing.T) {
	t.Parallel()
	list := func(seed uint64) []string {
		s := zktest.Start(t, zktest.Seed(seed))
		a := open(t, s.Addr(), longTimeout)
		for range 30 {
			a.must(create("/x-", nil, sequential))
		}
		names := a.must(getChildren("/", false)).Names
		for range 3 {
			require.Equal(t, names, a.must(getChildren("/", false)).Names)
		}
		a.must(create("/other", nil, persistent))
		for _, name := range names {
			a.must(create("/other/"+name, nil, persistent)) // including zookeeper
		}
		require.NotEqual(t, names, a.must(getChildren("/other", false)).Names, "the same children of another path")
		return names
	}
	require.Equal(t, list(1), list(1))
	require.NotEqual(t, list(1), list(2))
	require.ElementsMatch(t, list(1), list(2))
}

// FuzzConnection sends any bytes to a server, at the beginning of a connection or after a
// handshake. The connection must end, the server must not, and other connections must not
// be affected.
func FuzzConnection(f *testing.F) {
	hello, paths := newSession(5*time.Second).frame(), []string{"/a", "/"}
	for _, r := range []request{
		create("/a", []byte("x"), ephemeral), create2("/a", nil, sequential), createContainer("/a", container), createTTL("/a", ttl, time.Second),
		remove("/a", 7), exists("/a", true), getData("/", true), setData("/a", nil, anyVersion), getChildren("/", true), getChildren2("/", true),
		getACL("/a"), setACL("/", anyVersion, acl{1, "auth", ""}), syncPath("/a"), getEphemerals("/"), getAllChildrenNumber("/"),
		multi(create("/a", nil, persistent), remove("/a", 7), checkVersion("/", 0)), multiRead(getData("/", false), getChildren("/", false)),
		{Op: zktest.OpSetWatches2, Body: encoder{}.long(0).lists([][]string{paths, paths, paths, paths, paths})}, setWatches(0, paths, paths, paths),
		addWatch("/a", modeRecursive), checkWatches("/a", dataWatch), removeWatches("/a", anyWatch), auth("digest", "u:p"),
		ping(), whoAmI(), closeSession(), {Op: zktest.OpReconfig}, {Op: zktest.OpSASL}, {Op: 55},
	} {
		seed := r.frame()
		f.Add(seed, true)
		f.Add(slices.Concat(hello, seed), false)
		f.Add(seed[:len(seed)-1], true)
	}
	f.Add([]byte("ruok"), false)
	f.Add([]byte(encoder{}.int(largestPacket+1)), true)
	f.Add([]byte(encoder{}.int(-1)), false)
	f.Fuzz(func(t *testing.T, input []byte, handshake bool) {
		s := ensemble{t, zktest.Start(t, zktest.InMemory(), zktest.ExtendedTypes())} // checks the invariants at the end
		bystander, c := s.open(1), s.dial(1)
		if handshake {
			c.write(hello)
		}
		_, _ = c.conn.Write(input) // fails if the server closes the connection early
		require.NoError(t, c.conn.(interface{ CloseWrite() error }).CloseWrite())
		require.NoError(t, c.conn.SetReadDeadline(time.Now().Add(ioTimeout)))
		_, err := io.Copy(io.Discard, c.conn)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the connection does not end")
		bystander.must(ping())
	})
}
