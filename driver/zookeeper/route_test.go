package zookeeper

// This file has tests of the order in which the addresses of servers are tried.

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/testing/zktest"
)

// lookup is the name service of a test.
type lookup = func(ctx context.Context, host string) ([]net.IPAddr, error)

// addresses gives every name the same addresses.
func addresses(ips ...string) lookup {
	return func(context.Context, string) (all []net.IPAddr, _ error) {
		for _, ip := range ips {
			all = append(all, net.IPAddr{IP: net.ParseIP(ip)})
		}
		return all, nil
	}
}

// connectByName opens a session on the server zookeeper.test. The session is closed when the
// test ends.
func connectByName(t *testing.T, names lookup, port string) (context.Context, driver.Session) {
	c, err := NewConnector(Config{Servers: []string{"zookeeper.test:" + port}, SessionTimeout: 12 * time.Second})
	require.NoError(t, err)
	c.lookup = names
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	s, err := c.Connect(ctx)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Close(ctx))
		require.NoError(t, c.Close())
	})
	return ctx, s
}

// An address that is silent, from the handshake on or after the handshake, is tried after
// the other addresses of the name, even if the address was the last that worked.
func TestSilentAddressIsTriedLast(t *testing.T) {
	t.Parallel()
	for name, handshake := range map[string]bool{"from the handshake on": true, "after the handshake": false} {
		t.Run(name, func(t *testing.T) {
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
			var tries atomic.Int32
			silence := func() {
				silent.Inject(zktest.Rule{
					Match: zktest.Match{Where: func(r zktest.Request) bool {
						if r.Op == zktest.OpConnect {
							tries.Add(1)
						}
						return handshake || r.Op != zktest.OpConnect
					}},
					Times: zktest.Always, Do: zktest.Freeze(),
				})
			}
			if handshake {
				silence()
			}
			ctx, s := connectByName(t, addresses("127.0.0.2", "127.0.0.3"), port)
			if handshake {
				require.EqualValues(t, 1, tries.Load())
				other.Cut(zktest.Selector{})
			} else {
				silence()
			}
			require.NoError(t, s.Ping(ctx))
			require.NoError(t, s.Err())
			require.LessOrEqual(t, tries.Load(), int32(1), "the other address had worked")
		})
	}
}

// The sessions of a server that goes spread over the other servers.
func TestSessionsOfAServerThatGoesSpread(t *testing.T) {
	t.Parallel()
	server := zktest.Start(t, zktest.Members(5), zktest.MaxClientConns(0))
	for range 100 {
		open(t, server, Config{})
	}
	members := func() map[int64]int {
		of := map[int64]int{}
		for _, c := range server.State().Conns {
			of[c.Session] = c.Member
		}
		return of
	}
	before := members()
	require.Len(t, before, 100)
	gone := server.Leader()%5 + 1
	require.NoError(t, server.StopMember(gone))
	require.Eventually(t, func() bool { return len(members()) == 100 }, time.Minute, time.Millisecond)
	moved, to := 0, map[int]int{}
	for session, member := range members() {
		if before[session] == gone {
			moved++
			to[member]++
		}
	}
	for _, n := range to {
		require.LessOrEqual(t, n, moved*4/5, "%v", to)
	}
}

// If the name service fails, a session reconnects to the address that last worked.
func TestSessionReconnectsWithoutNameServer(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]lookup{
		"refused": func(context.Context, string) ([]net.IPAddr, error) { return nil, errors.New("no name server") },
		"silent":  func(ctx context.Context, _ string) ([]net.IPAddr, error) { <-ctx.Done(); return nil, ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := zktest.StartProxy(t, zktest.Start(t).Addr())
			_, port, _ := net.SplitHostPort(proxy.Addr())
			var gone atomic.Bool
			ctx, s := connectByName(t, func(ctx context.Context, host string) ([]net.IPAddr, error) {
				if gone.Load() {
					return fail(ctx, host)
				}
				return addresses("127.0.0.1")(ctx, host)
			}, port)
			gone.Store(true)
			proxy.Cut(zktest.Selector{})
			require.NoError(t, s.Ping(ctx))
		})
	}
}
