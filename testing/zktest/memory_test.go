package zktest

// This file has the tests of servers in memory, and of the history of sessions.

import (
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/zktest/bubble"
)

func memoryPair() (client, server *memoryConn) {
	return newMemoryConn(memoryAddr("127.0.0.1:1"), memoryAddr("127.0.0.1:2181"))
}

func TestMemoryConnBuffersLikeTCP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := memoryPair()
		n, err := a.Write([]byte("hello")) // no reader yet
		require.NoError(t, err)
		require.Equal(t, 5, n)
		require.NoError(t, a.CloseWrite())
		all, err := io.ReadAll(b)
		require.NoError(t, err)
		require.Equal(t, "hello", string(all))
		_, err = b.Write([]byte("still open"))
		require.NoError(t, err)

		require.NoError(t, b.SetWriteDeadline(time.Now().Add(time.Hour)))
		n, err = b.Write(make([]byte, 2*maxBuffered)) // more than fits
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Equal(t, maxBuffered-len("still open"), n)
		require.NoError(t, a.Close())
		require.NoError(t, b.SetWriteDeadline(time.Time{}))
		_, err = b.Write([]byte("x"))
		require.ErrorIs(t, err, syscall.EPIPE)
		_, err = a.Read(make([]byte, 1))
		require.ErrorIs(t, err, net.ErrClosed)
	})
}

func TestMemoryConnResets(t *testing.T) {
	a, b := memoryPair()
	_, err := a.Write([]byte("lost"))
	require.NoError(t, err)
	require.NoError(t, a.SetLinger(0))
	require.NoError(t, a.Close())
	_, err = b.Read(make([]byte, 4))
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

func TestMemoryConnReadEndsAtItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := memoryPair()
		began := time.Now()
		require.NoError(t, b.SetReadDeadline(began.Add(time.Minute)))
		_, err := b.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Equal(t, time.Minute, time.Since(began))
		require.NoError(t, b.SetReadDeadline(time.Time{}))
		time.AfterFunc(time.Minute, func() { _, _ = a.Write([]byte("x")) })
		n, err := b.Read(make([]byte, 1))
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	})
}

func TestDialInMemory(t *testing.T) {
	s := Start(t, InMemory(), Members(2))
	require.Equal(t, []string{"127.0.0.1:1", "127.0.0.2:1"}, s.Members())
	answer, err := s.Command(t.Context(), "ruok")
	require.NoError(t, err)
	require.Equal(t, "imok", answer)
	_, err = s.Dial(t.Context(), "127.0.0.1:2181")
	require.ErrorContains(t, err, "no member has the address 127.0.0.1:2181")

	require.NoError(t, s.RefuseConnections())
	_, err = s.Dial(t.Context(), s.Addr())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.NoError(t, s.RejectConnections())
	conn, err := s.Dial(t.Context(), s.Addr())
	require.NoError(t, err)
	_, _ = io.WriteString(conn, "ruok") // would be answered
	_, err = conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}

func TestServersWithPortsRefuseBubbles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, err := Run(t.Context())
		require.ErrorIs(t, err, errBubble)
		_, err = RunReal(t.Context())
		require.ErrorIs(t, err, errBubble)
		_, err = RunProxy("127.0.0.1:2181")
		require.ErrorIs(t, err, errBubble)
		StartBubble(t)
	})
}

func TestProxyInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proxy := StartBubbleProxy(t, StartBubble(t))
		ask := func() (string, error) {
			conn, err := proxy.Dial(t.Context(), proxy.Addr())
			if err != nil {
				return "", err
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, "ruok"); err != nil {
				return "", err
			}
			answer, err := io.ReadAll(conn)
			return string(answer), err
		}
		answer, err := ask()
		require.NoError(t, err)
		require.Equal(t, "imok", answer)

		began := time.Now()
		proxy.Partition(Selector{}, Inbound)
		time.AfterFunc(5*time.Second, proxy.Heal)
		answer, err = ask()
		require.NoError(t, err)
		require.Equal(t, "imok", answer)
		require.Equal(t, 5*time.Second, time.Since(began))

		require.NoError(t, proxy.RefuseConnections())
		_, err = ask()
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		_, err = proxy.Dial(t.Context(), "127.0.0.1:2181")
		require.ErrorContains(t, err, "is not at 127.0.0.1:2181 in memory")
	})
}

// A fault of one host's connections leaves another host's alone.
func TestFaultsOfAHost(t *testing.T) {
	bubble.Parallel(t)
	synctest.Test(t, func(t *testing.T) {
		server := StartBubble(t)
		ends := server.TrackSessions()
		open := func(host string) *zk.Conn {
			dial := func(_, address string, _ time.Duration) (net.Conn, error) {
				return server.DialFrom(host)(t.Context(), address)
			}
			conn, _, err := zk.Connect(server.Members(), 4*time.Second, zk.WithDialer(dial), zk.WithLogInfo(false))
			require.NoError(t, err)
			t.Cleanup(conn.Close)
			_, err = conn.Create("/"+host, nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
			require.NoError(t, err)
			return conn
		}
		a, b := open("10.0.0.1"), open("10.0.0.2")
		_, err := a.Create("/removed", nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
		require.NoError(t, err)
		removed := server.State().Nodes["/removed"].Stat
		require.NoError(t, b.Delete("/removed", -1))
		require.Equal(t, []RemovedNode{{time.Now(), "/removed", removed.Czxid}}, ends.Removals())
		session, node := a.SessionID(), server.State().Nodes["/10.0.0.1"].Stat
		began := time.Now()
		server.Partition(Selector{Host: "10.0.0.1"}, Both)
		server.Partition(Selector{Host: "10.0.0.2"}, Both)
		server.HealOnly(Selector{Host: "10.0.0.2"}, Both)
		time.Sleep(10 * time.Second)
		require.Equal(t, zk.StateHasSession, b.State())
		server.Heal()
		history := ends.History()
		require.Len(t, history, 1)
		require.Equal(t, session, history[0].ID)
		require.Equal(t, []int64{node.Czxid}, history[0].Nodes)
		require.WithinDuration(t, began.Add(4*time.Second), history[0].At, 2*time.Second)
		require.False(t, history[0].Closed)
		b.Close()
		time.Sleep(time.Second)
		require.True(t, ends.History()[1].Closed)
		require.Len(t, ends.Removals(), 1, "what goes with its session is not removed by others")
	})
}
