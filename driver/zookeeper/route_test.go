package zookeeper

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/zktest"
)

// nameServer is a DNS server that gives every name the same IPv4 addresses.
func nameServer(t *testing.T, addresses ...string) *net.Resolver {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() { // ends with conn
		query := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(query)
			if err != nil {
				return
			}
			end := 12
			for query[end] != 0 { // the labels of the name
				end += int(query[end]) + 1
			}
			end += 5
			isA := n >= end && binary.BigEndian.Uint16(query[end-4:]) == 1
			answer := append([]byte{query[0], query[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, query[12:end]...)
			if isA {
				answer[7] = byte(len(addresses))
				for _, a := range addresses {
					answer = append(answer, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4)
					answer = append(answer, net.ParseIP(a).To4()...)
				}
			}
			_, _ = conn.WriteTo(answer, from)
		}
	})
	t.Cleanup(func() {
		conn.Close()
		serving.Wait()
	})
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

// Of a name's addresses, one that takes the connection and says nothing does not
// keep the client from the other.
func TestEveryAddressOfANameIsTried(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.2:0")
	require.NoError(t, err)
	_, port, _ := net.SplitHostPort(silent.Addr().String())
	var heard atomic.Int32
	var serving sync.WaitGroup
	serving.Go(func() { // ends with silent
		for {
			conn, err := silent.Accept()
			if err != nil {
				return
			}
			heard.Add(1)
			serving.Go(func() { // ends with the connection
				_, _ = io.Copy(io.Discard, conn)
				conn.Close()
			})
		}
	})
	t.Cleanup(func() {
		silent.Close()
		serving.Wait()
	})
	server := zktest.Start(t)
	proxy := zktest.StartProxy(t, server.Addr())
	working, err := net.Listen("tcp", "127.0.0.3:"+port)
	require.NoError(t, err)
	proxy.Serve(working)

	c, err := NewConnector(Config{Servers: []string{"zookeeper.test:" + port}, SessionTimeout: 8 * time.Second})
	require.NoError(t, err)
	c.resolver = nameServer(t, "127.0.0.2", "127.0.0.3")
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	s, err := c.Connect(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 1, heard.Load())
	proxy.Cut(zktest.Selector{})
	require.NoError(t, s.Ping(ctx))
	require.NoError(t, s.Err())
	require.EqualValues(t, 1, heard.Load(), "the other address was of use")
	require.NoError(t, s.Close(ctx))
	require.NoError(t, c.Close())
}

// A session that comes back needs no name server: it knows the address that was
// of use.
func TestSessionComesBackWithoutItsNameServer(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(context.Context) error{
		"refused": func(context.Context) error { return errors.New("no name server") },
		"silent":  func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := zktest.Start(t)
			proxy := zktest.StartProxy(t, server.Addr())
			_, port, _ := net.SplitHostPort(proxy.Addr())
			c, err := NewConnector(Config{Servers: []string{"zookeeper.test:" + port}, SessionTimeout: 4 * time.Second})
			require.NoError(t, err)
			names := nameServer(t, "127.0.0.1")
			var gone atomic.Bool
			c.resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
				if gone.Load() {
					return nil, fail(ctx)
				}
				return names.Dial(ctx, network, address)
			}}
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			s, err := c.Connect(ctx)
			require.NoError(t, err)
			gone.Store(true)
			proxy.Cut(zktest.Selector{})
			require.NoError(t, s.Ping(ctx))
			require.NoError(t, s.Close(ctx))
			require.NoError(t, c.Close())
		})
	}
}

// An address of a name that makes the handshake and says nothing more does not
// keep the client from the other, although it was of use.
func TestAddressThatFellSilentIsTriedLast(t *testing.T) {
	t.Parallel()
	server := zktest.Start(t)
	silent, other := zktest.StartProxy(t, server.Addr()), zktest.StartProxy(t, server.Addr())
	first, err := net.Listen("tcp", "127.0.0.2:0")
	require.NoError(t, err)
	silent.Serve(first)
	_, port, _ := net.SplitHostPort(first.Addr().String())
	second, err := net.Listen("tcp", "127.0.0.3:"+port)
	require.NoError(t, err)
	other.Serve(second)

	c, err := NewConnector(Config{Servers: []string{"zookeeper.test:" + port}, SessionTimeout: 4 * time.Second})
	require.NoError(t, err)
	c.resolver = nameServer(t, "127.0.0.2", "127.0.0.3")
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	s, err := c.Connect(ctx)
	require.NoError(t, err)
	silent.Inject(zktest.Rule{
		Match: zktest.Match{Where: func(r zktest.Request) bool { return r.Op != zktest.OpConnect }},
		Times: zktest.Always, Do: zktest.Freeze(),
	})
	require.NoError(t, s.Ping(ctx))
	require.NoError(t, s.Close(ctx))
	require.NoError(t, c.Close())
}
