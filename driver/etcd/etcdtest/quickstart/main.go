// Quickstart is examples/quickstart with the driver for etcd, built and run by the
// quickstart:
//
//	go run ./examples/quickstart -driver etcd
//
// The program is in this module because of the included server.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/lockpool/lockpool/driver/etcd"
	"github.com/lockpool/lockpool/examples/quickstart/shop"
)

func main() {
	shop.Main(shop.Engine{
		Driver: "etcd",
		DSN:    dsn,
		Check: func(servers string) error {
			_, err := etcd.ParseDSN(dsn(servers, 0))
			return err
		},
		Start: start,
	})
}

func dsn(servers string, id int) string {
	return fmt.Sprintf("%s/quickstart-%d?ttl=10s", servers, id)
}

// start starts a server of one member in this process.
func start(ctx context.Context) (address string, stop func() error, err error) {
	dir, err := os.MkdirTemp("", "quickstart-")
	if err != nil {
		return "", nil, err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(dir)
		}
	}()
	config := embed.NewConfig()
	config.Dir, config.UnsafeNoFsync = dir, true // the data is thrown away
	config.LogLevel, config.LogOutputs = "fatal", []string{os.DevNull}
	free := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	config.ListenClientUrls, config.AdvertiseClientUrls = free, free
	config.ListenPeerUrls, config.AdvertisePeerUrls = free, free
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	server, err := embed.StartEtcd(config)
	if err != nil {
		return "", nil, fmt.Errorf("etcd: %w", err)
	}
	select {
	case <-server.Server.ReadyNotify():
	case err := <-server.Err():
		server.Close()
		return "", nil, errors.Join(fmt.Errorf("etcd: %w", err), os.RemoveAll(dir))
	case <-ctx.Done():
		server.Close()
		return "", nil, errors.Join(context.Cause(ctx), os.RemoveAll(dir))
	}
	address = server.Clients[0].Addr().String()
	fmt.Printf("Using an etcd server of its own on %s, for demonstration only.\n\n", address)
	return address, func() error {
		server.Close()
		return os.RemoveAll(dir)
	}, nil
}
