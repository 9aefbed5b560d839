package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockpool/lockpool/driver"
)

// connection is a connection to one member. It never becomes one to another member, nor is
// it made again, as the client's would: then answers before and after it proved nothing
// about each other.
type connection struct {
	endpoint string
	client   *clientv3.Client
	kv       clientv3.KV
	leases   pb.LeaseClient
	watching pb.WatchClient
	alive    pb.Lease_LeaseKeepAliveClient

	ctx  context.Context // ends with the connection; its cause says why
	fail context.CancelCauseFunc

	watches *watches // made when the first node is watched
}

var errDialed = errors.New("the connection is broken")

// dial connects to a member, within the time given.
func (c *Connector) dial(ctx context.Context, endpoint string, within time.Duration) (*connection, error) {
	cfg := c.cfg()
	to := &connection{endpoint: endpoint}
	to.ctx, to.fail = context.WithCancelCause(context.Background())
	var once sync.Once
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{endpoint}, TLS: cfg.TLS, Username: cfg.Username, Password: cfg.Password,
		Context: to.ctx, DialTimeout: within, MaxUnaryRetries: 1, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
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
		})},
	})
	if err != nil {
		to.fail(err)
		return nil, fmt.Errorf("etcd: connecting to %s: %w", endpoint, connectError(errors.Join(err, context.Cause(to.ctx))))
	}
	to.client = client
	remote := client.ActiveConnection()
	to.kv = clientv3.NewKVFromKVClient(pb.NewKVClient(remote), client)
	to.leases, to.watching = pb.NewLeaseClient(remote), pb.NewWatchClient(remote)
	to.watches = newWatches(to)
	limit, cancel := context.WithTimeoutCause(ctx, within, errSilent)
	defer cancel()
	stop := context.AfterFunc(limit, func() { to.fail(context.Cause(limit)) })
	to.alive, err = to.leases.LeaseKeepAlive(to.ctx) // waits for the connection
	if !stop() {
		err = context.Cause(limit)
	}
	if err != nil {
		to.close(err)
		return nil, fmt.Errorf("etcd: connecting to %s: %w", endpoint, connectError(errors.Join(err, context.Cause(to.ctx))))
	}
	return to, nil
}

// close ends the connection and what runs for it.
func (c *connection) close(cause error) {
	c.fail(cause)
	_ = c.client.Close()
	c.watches.stop()
}

// link is a network connection, whose end is that of its connection.
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

// connectError makes an error permanent if another attempt cannot help.
func connectError(err error) error {
	var cert *tls.CertificateVerificationError
	if errors.As(err, &cert) || isPermanent(err) {
		return fmt.Errorf("%w: %w", driver.ErrPermanent, err)
	}
	return err
}
