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

	"github.com/lockpool/lockpool/driver"
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

// connectByName opens a session on the server zookeeper.test, and closes it at the
// end of the test.
func connectByName(t *testing.T, names *net.Resolver, port string, timeout time.Duration) (context.Context, driver.Session) {
	c, err := NewConnector(Config{Servers: []string{"zookeeper.test:" + port}, SessionTimeout: timeout})
	require.NoError(t, err)
	c.lookup = names.LookupIPAddr
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	s, err := c.Connect(ctx)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Close(ctx))
		require.NoError(t, c.Close())
	})
	return ctx, s
}

// listen returns a listener at the address, and its port.
func listen(t *testing.T, addr string) (l net.Listener, port string) {
	l, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return l, port
}

// If one address of a name accepts the connection and stays silent, the client tries
// the next.
func TestEveryAddressOfANameIsTried(t *testing.T) {
	t.Parallel()
	silent, port := listen(t, "127.0.0.2:0")
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
	working, _ := listen(t, "127.0.0.3:"+port)
	proxy.Serve(working)

	ctx, s := connectByName(t, nameServer(t, "127.0.0.2", "127.0.0.3"), port, 8*time.Second)
	require.EqualValues(t, 1, heard.Load())
	proxy.Cut(zktest.Selector{})
	require.NoError(t, s.Ping(ctx))
	require.NoError(t, s.Err())
	require.EqualValues(t, 1, heard.Load(), "the other address had worked")
}

// If the name server fails, a session reconnects to the address that last worked.
func TestSessionReconnectsWithoutNameServer(t *testing.T) {
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
			names := nameServer(t, "127.0.0.1")
			var gone atomic.Bool
			failing := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
				if gone.Load() {
					return nil, fail(ctx)
				}
				return names.Dial(ctx, network, address)
			}}
			ctx, s := connectByName(t, failing, port, 4*time.Second)
			gone.Store(true)
			proxy.Cut(zktest.Selector{})
			require.NoError(t, s.Ping(ctx))
		})
	}
}

// An address that completes the handshake and then falls silent is tried after the
// name's other addresses, although it was the last that worked.
func TestAddressThatFellSilentIsTriedLast(t *testing.T) {
	t.Parallel()
	server := zktest.Start(t)
	silent, other := zktest.StartProxy(t, server.Addr()), zktest.StartProxy(t, server.Addr())
	first, port := listen(t, "127.0.0.2:0")
	silent.Serve(first)
	second, _ := listen(t, "127.0.0.3:"+port)
	other.Serve(second)

	ctx, s := connectByName(t, nameServer(t, "127.0.0.2", "127.0.0.3"), port, 4*time.Second)
	silent.Inject(zktest.Rule{
		Match: zktest.Match{Where: func(r zktest.Request) bool { return r.Op != zktest.OpConnect }},
		Times: zktest.Always, Do: zktest.Freeze(),
	})
	require.NoError(t, s.Ping(ctx))
}
