package etcd

// This file has the connection to one member.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
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

// dial connects to a member, within the time given.
func (c *Connector) dial(ctx context.Context, endpoint string, within time.Duration) (*connection, error) {
	cfg := c.cfg()
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
	// Replaces the client's interceptor: that one sends requests again and, with an expired
	// token, asks etcd 3.4 for a new one without end. The session sends again, on a new
	// connection.
	options = append(options, grpc.WithUnaryInterceptor(func(ctx context.Context, method string, request, reply any, on *grpc.ClientConn, send grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		return send(ctx, method, request, reply, on, opts...)
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
