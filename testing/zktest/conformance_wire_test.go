package zktest_test

// This file has the checks of packets, connections, containers and TTL nodes.

import (
	"bytes"
	"math"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/zktest"
)

// largestPacket is the maximum length of a packet from a client.
const largestPacket = 0xfffff

var wireChecks = []check{
	{60, "the length of packets is limited", shared, func(t *testing.T, s checkEnv) {
		for _, length := range []int32{largestPacket + 1, -5, math.MaxInt32} {
			c := dial(t, s.addr)
			c.write(encoder{}.int(length))
			c.waitEnd()

			c = s.open(t)
			c.write(encoder{}.int(length))
			c.waitEnd()
			c.reattach().must(ping())
		}
		c := s.open(t)
		n := s.path("n")
		space := largestPacket + 4 - len(create(n, []byte{}, persistent).frame())
		big := create(n, bytes.Repeat([]byte("x"), space), persistent)
		require.Len(t, big.frame(), largestPacket+4)
		c.must(big)
		got := c.must(getData(n, false))
		require.Len(t, got.Data, space)
		require.EqualValues(t, space, got.Stat.DataLength)
		c.must(remove(n, anyVersion))
	}},
	{61, "the number of connections from an address is limited", exclusive, func(t *testing.T, s checkEnv) {
		const limit = 3
		addr := s.start(t, zktest.MaxClientConns(limit)).Addr()
		// tryOpen returns a connection with a session, or nil if the server ended the
		// connection without a reply, possibly before the handshake was sent.
		tryOpen := func() *client {
			conn, err := net.DialTimeout("tcp", addr, ioTimeout)
			require.NotErrorIs(t, err, syscall.ECONNREFUSED)
			if err != nil {
				return nil
			}
			t.Cleanup(func() { _ = conn.Close() })
			c, h := &client{t: t, conn: conn}, newSession(longTimeout)
			if _, err := conn.Write(h.frame()); err != nil {
				return nil
			}
			if _, err := c.packet(); err != nil {
				return nil
			}
			return c
		}
		first := make([]*client, limit)
		for i := range first {
			poll(t, "the launcher's connections have ended", func() bool {
				first[i] = tryOpen()
				return first[i] != nil
			})
		}
		for range 3 {
			require.Nil(t, tryOpen())
		}
		first[1].cut()
		poll(t, "a connection is accepted", func() bool { return tryOpen() != nil })
		require.Nil(t, tryOpen())
		for _, i := range []int{0, 2} {
			first[i].must(ping())
		}
	}},
	{63, "a container is deleted after its last child", waiting, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		used, unused, busy := s.path("used"), s.path("unused"), s.path("busy")
		for _, n := range []string{used, unused, busy} {
			c.must(createContainer(n, container))
		}
		c.must(exists(used, true))
		c.must(getChildren(s.root, true))
		// In one transaction, so that the server never sees busy empty.
		child := create(busy+"/child", nil, persistent)
		c.must(multi(child, remove(busy+"/child", 0), child))
		c.must(multi(create(used+"/child", nil, persistent), remove(used+"/child", 0)))
		require.Equal(t, event{zktest.NodeDeleted, used}, c.event())
		require.Equal(t, event{zktest.NodeChildrenChanged, s.root}, c.event())
		c.fails(zktest.ErrNoNode, exists(used, false))

		// When the next container is deleted, the server has checked the others
		// again.
		c.must(createContainer(used, container))
		c.must(exists(used, true))
		r := c.must(multi(create(used+"/-", nil, sequential), remove(used+"/-0000000000", 0)))
		require.Equal(t, []zktest.Code{0, 0}, codes(r))
		require.Equal(t, event{zktest.NodeDeleted, used}, c.event())
		require.ElementsMatch(t, []string{"unused", "busy"}, c.must(getChildren(s.root, false)).Names)
		require.Empty(t, c.newEvents())
	}},
	{64, "a node with a TTL is deleted when it is idle and has no children", waiting, func(t *testing.T, s checkEnv) {
		const life = 2 * tick
		c := s.open(t)
		idle, parent, long := s.path("idle"), s.path("parent"), s.path("long")
		r := c.must(multi(createTTL(parent, ttl, life), create(parent+"/child", nil, persistent)))
		require.Equal(t, []zktest.Code{0, 0}, codes(r))
		c.must(createTTL(long, ttl, time.Hour))
		for range 2 { // when the second one is deleted, the server has checked the others
			begin := time.Now()
			for _, r := range c.pipeline(createTTL(idle, ttl, life), exists(idle, true)) {
				require.Zero(t, r.Err)
			}
			require.Equal(t, event{zktest.NodeDeleted, idle}, c.event())
			require.Greater(t, time.Since(begin), life)
			c.fails(zktest.ErrNoNode, exists(idle, false))
		}
		require.ElementsMatch(t, []string{"parent", "long"}, c.must(getChildren(s.root, false)).Names)
	}},
	{124, "the operation makes a container, in a multi the flags do", waiting, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		byOp, byFlags := s.path("op"), s.path("flags")
		inMulti, inMultiByFlags := s.path("multi-op"), s.path("multi-flags")
		for range 2 { // after the second time, the server has checked the others again
			for _, r := range []request{
				createContainer(byOp, persistent), create(byFlags, nil, container),
				multi(createContainer(inMulti, persistent)), multi(create(inMultiByFlags, nil, container)),
			} {
				c.do(r) // the node may exist
			}
			var want, got []event
			for _, n := range []string{byOp, inMultiByFlags} {
				c.must(exists(n, true))
				want = append(want, event{zktest.NodeDeleted, n})
			}
			var ops []request
			for _, n := range []string{byFlags, inMulti, byOp, inMultiByFlags} {
				ops = append(ops, create(n+"/child", nil, persistent), remove(n+"/child", 0))
			}
			require.Equal(t, make([]zktest.Code, len(ops)), codes(c.must(multi(ops...))))
			for range want {
				got = append(got, c.event())
			}
			require.ElementsMatch(t, want, got)
			require.ElementsMatch(t, []string{"flags", "multi-op"}, c.must(getChildren(s.root, false)).Names)
		}
	}},
	{125, "replies have the xid of the request, replies to pings always -2", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		for _, xid := range []int32{math.MaxInt32, 1, 1, -77, math.MinInt32, xidPing, xidSetWatches} {
			require.Equal(t, xid, c.must(exists(s.root, false).withXid(xid)).Xid)
		}
		// Not with send: the client would expect the xid 5 in the reply.
		c.write(ping().withXid(5).frame())
		c.pending = append(c.pending, ping())
		require.Equal(t, xidPing, c.reply().Xid)
	}},
	{126, "bytes after a record are ignored, an incomplete header ends the connection", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		r := create(s.path("n"), nil, ephemeral)
		r.Body = append(r.Body, "more"...)
		c.must(r)
		require.Equal(t, c.welcome.Session, c.must(exists(s.path("n"), false)).Stat.EphemeralOwner)
		for _, size := range []int{0, 4, 7} {
			c.write(frame(make([]byte, size)))
			c.waitEnd()
			c = c.reattach()
		}
	}},
	{127, "packets may come in pieces", shared, func(t *testing.T, s checkEnv) {
		c := dial(t, s.addr)
		h := newSession(longTimeout)
		bytewise := func(b []byte) {
			for i := range b {
				c.write(b[i : i+1])
			}
		}
		bytewise(h.frame())
		c.receiveWelcome(h)
		require.NotZero(t, c.welcome.Session)
		r := create(s.path("n-"), []byte("data"), ephemeralSequential).withXid(9)
		c.pending = append(c.pending, r)
		bytewise(r.frame())
		require.Equal(t, s.path("n-0000000000"), c.reply().Path)
	}},
}
