package etcd

// This file has the connection to one member.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// connection is a connection to one member. Unlike connections of etcd's client, a
// connection is never made again, nor to another member: otherwise two answers would prove
// nothing about each other.
type connection struct {
	endpoint string
	client   *clientv3.Client
	kv       clientv3.KV
	leases   pb.LeaseClient
	watching pb.WatchClient
	alive    pb.Lease_LeaseKeepAliveClient

	ctx  context.Context // ends with the connection; the cause says why
	fail context.CancelCauseFunc

	watches *watches // made when the first node is watched
}

// window is how many bytes a member may send without an acknowledgment.
const window = 1 << 20

var errDialed = errors.New("the connection is broken")

// attempt is the outcome of an attempt to connect to a member. An attempt with the endpoint alone
// says that the loop has tried the one before, and an empty attempt that there will be no more.
type attempt struct {
	endpoint string
	conn     *connection
	err      error
}

// attempts connects to the members until ctx or the loop ends, and yields the outcomes. An
// attempt succeeds when ask, unless nil, does.
//
// A member may be busy with the passwords of many clients. Another attempt would only add to
// the work, so an attempt may take long, the next member is asked meanwhile, and no member is
// asked again before the loop has tried the connection. Each failure doubles the pause.
func (c *Connector) attempts(ctx context.Context, ask func(context.Context, *connection) error) iter.Seq[attempt] {
	cfg := c.cfg()
	return func(yield func(attempt) bool) {
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan attempt)
		members, running := rand.Perm(len(cfg.Endpoints)), 0
		defer func() {
			for cancel(); running > 0; {
				if a := <-done; a.endpoint == "" {
					running--
				} else if a.conn != nil {
					a.conn.close(errClosed)
				}
			}
		}()
		begin := func() {
			if len(members) > 0 && ctx.Err() == nil {
				go c.attempt(ctx, cfg.Endpoints[members[0]], ask, done) // ends with ctx
				members = members[1:]
				running++
			}
		}
		late := time.NewTicker(cfg.TTL / 8)
		defer late.Stop()
		for begin(); running > 0; {
			select {
			case a := <-done:
				switch {
				case a.endpoint == "":
					running--
				case a.conn == nil && a.err == nil: // the loop had no use for the member
					begin()
				case !yield(a):
					return
				}
			case <-late.C:
				begin()
			}
		}
	}
}

// attempt connects to one member again and again until ctx ends.
func (c *Connector) attempt(ctx context.Context, endpoint string, ask func(context.Context, *connection) error, done chan<- attempt) {
	for longest := 20 * time.Millisecond; ctx.Err() == nil; longest = min(2*longest, longestPause) {
		conn, err := c.dial(ctx, endpoint)
		if err == nil && ask != nil {
			if err = ask(ctx, conn); err != nil {
				conn.close(err)
				conn, err = nil, c.connectError(endpoint, err)
			}
		}
		done <- attempt{endpoint, conn, err}
		done <- attempt{endpoint: endpoint} // received when the loop has tried the connection
		pause(ctx, longest/2+rand.N(longest/2))
	}
	done <- attempt{}
}

// longestPause bounds the pause between two attempts to connect to a member.
const longestPause = 300 * time.Millisecond

// dial connects to a member. The member has half of the TTL to accept the user, and a quarter to
// accept the network connection and to answer the handshakes.
func (c *Connector) dial(ctx context.Context, endpoint string) (*connection, error) {
	cfg := c.cfg()
	within := cfg.TTL / 2
	to := &connection{endpoint: endpoint}
	to.ctx, to.fail = context.WithCancelCause(context.Background())
	var once sync.Once
	options := []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		err := errDialed
		var conn net.Conn
		once.Do(func() {
			dial := cfg.Dial
			if dial == nil {
				dial = func(ctx context.Context, address string) (net.Conn, error) {
					return (&net.Dialer{}).DialContext(ctx, "tcp", address)
				}
			}
			if conn, err = dial(ctx, endpoint); err != nil {
				to.fail(err)
			}
		})
		if err != nil {
			return nil, err
		}
		return link{conn, to}, nil
	})}
	// These replace the client's interceptors. The client's own send requests again (the session
	// does so, on a new connection), with an expired token ask etcd 3.4 for another one without
	// end, and have the password checked again for each stream.
	options = append(options, grpc.WithUnaryInterceptor(func(ctx context.Context, method string, request, reply any, on *grpc.ClientConn, send grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		return send(ctx, method, request, reply, on, opts...)
	}), grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, on *grpc.ClientConn, method string, begin grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		return begin(ctx, desc, on, method, opts...)
	}))
	options = append(options, grpc.WithConnectParams(grpc.ConnectParams{
		MinConnectTimeout: cfg.TTL / 4, Backoff: backoff.DefaultConfig, // unused, because there is one connection
	}))
	// With windows of a fixed size, gRPC does not measure the link with a ping for each answer.
	options = append(options, grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window))
	if cfg.TLS != nil {
		options = append(options, grpc.WithTransportCredentials(secured{credentials.NewTLS(cfg.TLS), cfg.TLS.ServerName, to}))
	}
	limit, cancel := context.WithTimeoutCause(ctx, within, errSilent)
	defer cancel()
	stop := context.AfterFunc(limit, func() { to.fail(context.Cause(limit)) })
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{endpoint}, TLS: cfg.TLS, Username: cfg.Username, Password: cfg.Password,
		Context: to.ctx, DialTimeout: within, Logger: zap.NewNop(),
		DialOptions: options,
	})
	if err != nil {
		to.fail(err) // an earlier failure remains the reason
		return nil, c.connectError(endpoint, to.why(err))
	}
	to.client = client
	remote := client.ActiveConnection()
	to.kv = clientv3.NewKVFromKVClient(pb.NewKVClient(remote), client)
	to.leases, to.watching = pb.NewLeaseClient(remote), pb.NewWatchClient(remote)
	to.watches = newWatches(to)
	to.alive, err = to.leases.LeaseKeepAlive(to.ctx) // waits for the connection
	if !stop() {
		err = context.Cause(limit)
	}
	if err != nil {
		to.close(err)
		return nil, c.connectError(endpoint, to.why(err))
	}
	return to, nil
}

// why returns why connecting failed: because of an answer, or because the connection broke. Of
// the latter err has only the text.
func (c *connection) why(err error) error {
	broke := context.Cause(c.ctx)
	if isConclusive(err) || broke == nil || errors.Is(broke, net.ErrClosed) { // by us
		return err
	}
	return broke
}

// close ends the connection and the connection's goroutines.
func (c *connection) close(cause error) {
	c.fail(cause)
	_ = c.client.Close()
	c.watches.stop()
}

// link is a network connection. The connection ends with the link.
type link struct {
	net.Conn
	of *connection
}

func (l link) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	if err != nil {
		l.of.fail(fmt.Errorf("the connection to %s broke: %w", l.of.endpoint, err))
	}
	return n, err
}

// secured are TLS credentials whose errors end the connection: gRPC would turn the errors
// into text. A server name in the configuration is checked instead of the endpoint (etcd's
// client would have gRPC check the endpoint).
type secured struct {
	credentials.TransportCredentials
	server string
	of     *connection
}

func (s secured) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	over, info, err := s.TransportCredentials.ClientHandshake(ctx, cmp.Or(s.server, authority), conn)
	if err != nil {
		s.of.fail(err)
		return nil, nil, err
	}
	return link{over, s.of}, info, nil // servers may refuse the client's certificate later
}

func (s secured) Clone() credentials.TransportCredentials {
	return secured{s.TransportCredentials.Clone(), s.server, s.of}
}
