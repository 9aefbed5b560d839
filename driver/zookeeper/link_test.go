package zookeeper

// This file tests connections that are slow, break anywhere, or carry wrong answers.

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/testing/zktest"
	"github.com/lockpool/lockpool/testing/zktest/bubble"
)

// A server is silent only if nothing arrives: an answer, or a stream of answers that never
// ends with a packet, may take longer than the server may be silent.
func TestSlowAnswerIsNotSilence(t *testing.T) {
	once(t)
	bubble.Parallel(t)
	synctest.Test(t, func(t *testing.T) {
		server := zktest.StartBubble(t)
		session := open(t, server, Config{SessionTimeout: 20 * time.Second})
		require.NoError(t, server.Create("/a", nil))
		const nodes = 400
		for i := range nodes {
			require.NoError(t, server.Create(fmt.Sprintf("/a/%s%d", strings.Repeat("n", 100), i), nil))
		}
		server.Throttle(zktest.Selector{}, 1000, 170*time.Millisecond)
		began := time.Now()
		l := session.listOnce("/a")
		require.NoError(t, l.err(), "the connection was given up")
		require.Len(t, l.children(), nodes)
		require.Greater(t, time.Since(began), 20*time.Second/4+time.Second)
	})
}

// connectThrough returns a session whose first connection is wrapped.
func connectThrough(t *testing.T, server *zktest.Server, wrap func(net.Conn) net.Conn) *session {
	var once sync.Once
	return open(t, server, Config{Dial: func(ctx context.Context, address string) (net.Conn, error) {
		conn, err := server.Dial(ctx, address)
		if err == nil {
			once.Do(func() { conn = wrap(conn) })
		}
		return conn, err
	}})
}

// useQueue joins a queue twice, waits in it, and leaves it.
func useQueue(t *testing.T, s *session) {
	ctx := t.Context()
	joined := join(t, s, "a")
	first := joined.Node
	require.Equal(t, []driver.Node{first}, joined.Queue)
	joined = join(t, s, "a")
	second := joined.Node
	require.Equal(t, []driver.Node{first, second}, joined.Queue)
	watches, err := s.Watch(ctx, "a", first, second)
	require.NoError(t, err)
	require.NoError(t, s.Verify(ctx, driver.Located{Queue: "a", Node: second}))
	require.NoError(t, s.Leave(ctx, "a", first))
	fired, _ := driver.First(watches[0])
	<-fired
	queue, err := s.List(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, []driver.Node{second}, queue)
	require.NoError(t, s.Leave(ctx, "a", second))
	queue, err = s.List(ctx, "a")
	require.NoError(t, err)
	require.Empty(t, queue)
}

// Wherever a connection breaks, each call has its effect once, and nothing stays behind. The
// steps are shorter than any number in a packet.
func TestConnectionBreaksAnywhere(t *testing.T) {
	once(t)
	bubble.Parallel(t)
	run := func(in, out int) (received, sent int) {
		synctest.Test(t, func(t *testing.T) {
			server := zktest.StartBubble(t)
			var connecting atomic.Bool
			connecting.Store(true)
			var first *breakingConn
			session := connectThrough(t, server, func(conn net.Conn) net.Conn {
				first = &breakingConn{Conn: conn, calm: &connecting, in: in, out: out}
				return first
			})
			connecting.Store(false)
			useQueue(t, session)
			require.NoError(t, session.Close(t.Context()))
			first.mu.Lock()
			defer first.mu.Unlock()
			received, sent = in-first.in, out-first.out
		})
		return received, sent
	}
	const step, all = 3, math.MaxInt
	received, sent := run(all, all)
	for n := 0; n < received; n += step {
		run(n, all)
	}
	for n := 0; n < sent; n += step {
		run(all, n)
	}
}

// Wherever a context ends, the call returns within the grace, and nothing stays behind. The
// answers arrive so slowly that contexts end in the middle of them.
func TestContextEndsAnywhere(t *testing.T) {
	once(t)
	bubble.Parallel(t)
	synctest.Test(t, func(t *testing.T) {
		server := zktest.StartBubble(t)
		session := open(t, server, Config{})
		server.Throttle(zktest.Selector{}, 4, time.Millisecond)
		within := func(timeout time.Duration, call func(ctx context.Context) error) error {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			began := time.Now()
			err := call(ctx)
			require.LessOrEqual(t, time.Since(began), timeout+grace)
			if err != nil {
				require.ErrorIs(t, err, context.DeadlineExceeded)
			}
			return err
		}
		for joined, left, timeout := 0, 0, time.Duration(0); left == 0; timeout += time.Millisecond {
			var node driver.Node
			if within(timeout, func(ctx context.Context) error {
				joined, err := session.Join(ctx, "a", driver.Request{Kind: driver.Exclusive})
				node = joined.Node
				return err
			}) == nil {
				joined++
				require.NotEmpty(t, server.State().Nodes["/a"].Children)
				if within(time.Duration(joined)*time.Millisecond, func(ctx context.Context) error {
					return session.Leave(ctx, "a", node)
				}) == nil {
					left++
				}
			}
			time.Sleep(time.Second) // until the calls have ended in the background
			require.Empty(t, server.State().Nodes["/a"].Children)
		}
	})
}

// alteredConn is a connection whose packets from the server are altered.
type alteredConn struct {
	net.Conn
	alter func(packet []byte) []byte // with its length
	out   []byte
}

func (c *alteredConn) Read(p []byte) (int, error) {
	for len(c.out) == 0 {
		packet := make([]byte, 4)
		if _, err := io.ReadFull(c.Conn, packet); err != nil {
			return 0, err
		}
		packet = append(packet, make([]byte, binary.BigEndian.Uint32(packet))...)
		if _, err := io.ReadFull(c.Conn, packet[4:]); err != nil {
			return 0, err
		}
		c.out = c.alter(packet)
	}
	n := copy(p, c.out)
	c.out = c.out[n:]
	return n, nil
}

// Whatever a server answers, calls have the effect that they report, or the connection is
// given up for another.
func TestServerAnswersWrongly(t *testing.T) {
	once(t)
	bubble.Parallel(t)
	xid := func(packet []byte) int32 { return int32(binary.BigEndian.Uint32(packet[4:])) }
	withXID := func(packet []byte, xid int32) []byte {
		packet = append([]byte{}, packet...)
		binary.BigEndian.PutUint32(packet[4:], uint32(xid))
		return packet
	}
	event := slices.Repeat([]byte{0xff}, headLength+4)
	var held []byte
	for _, test := range []struct {
		name   string
		breaks bool // the connection
		alter  func(packet []byte) []byte
	}{
		{"twice", true, func(packet []byte) []byte { return append(packet, packet...) }},
		{"to a request that was never sent", true, func(packet []byte) []byte {
			return append(withXID(packet, xid(packet)+1000), packet...)
		}},
		{"in another order", true, func(packet []byte) []byte {
			if held == nil {
				held = packet
				return nil
			}
			both := append(packet, held...)
			held = nil
			return both
		}},
		{"with less than a head", true, func(packet []byte) []byte { return []byte{0, 0, 0, 4, 0, 0, 0, 0} }},
		{"with a negative length", true, func(packet []byte) []byte {
			binary.BigEndian.PutUint32(packet, 0xffffff00)
			return packet
		}},
		{"with a length that is too large", true, func(packet []byte) []byte {
			binary.BigEndian.PutUint32(packet, 0x7fffffff)
			return packet
		}},
		{"with an event that is cut short", true, func(packet []byte) []byte {
			return slices.Concat(binary.BigEndian.AppendUint32(nil, headLength+4), event, packet)
		}},
		{"with an event that is too long", true, func(packet []byte) []byte {
			return slices.Concat(binary.BigEndian.AppendUint32(nil, 1<<20), event, packet)
		}},
		{"with a head alone", false, func(packet []byte) []byte {
			packet = packet[:4+headLength]
			binary.BigEndian.PutUint32(packet, headLength)
			binary.BigEndian.PutUint32(packet[16:], 0)
			return packet
		}},
		{"with bytes that mean nothing", false, func(packet []byte) []byte {
			for i := 4 + headLength; i < len(packet); i++ {
				packet[i] = 0xee
			}
			return packet
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				before := allocated()
				server := zktest.StartBubble(t)
				var mu sync.Mutex
				wrong := 0 // answers so far
				session := connectThrough(t, server, func(conn net.Conn) net.Conn {
					return &alteredConn{Conn: conn, alter: func(packet []byte) []byte {
						mu.Lock()
						defer mu.Unlock()
						if len(packet) < 8 || xid(packet) < firstXID || wrong == 8 {
							return packet
						}
						wrong++
						return test.alter(packet)
					}}
				})
				first := session.connection.current()
				useQueue(t, session)
				require.Equal(t, test.breaks, session.connection.current() != first)
				require.Less(t, allocated()-before, uint64(64<<20), "bytes")
				mu.Lock()
				require.NotZero(t, wrong)
				mu.Unlock()
			})
		})
	}
}

// The limit is for answers whose length others determine, not for those to a session's own
// transactions: its leases are few, but their paths may be long.
func TestAnswersToOwnTransactionsAreAccepted(t *testing.T) {
	once(t)
	bubble.Parallel(t)
	synctest.Test(t, func(t *testing.T) {
		server := zktest.StartBubble(t)
		s := open(t, server, Config{MaxPacket: 4 << 10})
		before := s.connection.current()
		_, err := s.Join(t.Context(), strings.Repeat("a", 512)+"/leases", driver.Request{Kind: driver.Permit, Permits: 20, Limit: 20})
		require.NoError(t, err)
		require.Same(t, before, s.connection.current(), "the connection is given up")
	})
}
