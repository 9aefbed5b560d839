// Metrics shows lockpool's metrics in Prometheus: which locks have waiters, how long they
// wait, how much time the locks cost, which locks are lost, and whether the pools are large
// enough.
//
//	go run ./examples/metrics
//	go run ./examples/metrics -addr 127.0.0.1:9464
//
// The example serves http://ADDR/metrics for Prometheus to scrape, until Ctrl-C. The same
// directory has a dashboard for Grafana to import, dashboard.json, and alerting rules,
// alerts.yml, with their tests, alerts_test.yml.
//
// The file telemetry.go shows how a pool gets metrics. The shop in shop.go generates some:
// a busy shop, with its share of trouble.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/lockpool/lockpool/examples/internal/demo"
)

const usage = `usage: metrics [-addr HOST:PORT] [-zookeeper HOST:PORT]

Serves the metrics of a small shop that uses locks, at http://HOST:PORT/metrics,
until it is interrupted. HOST must be a loopback address; the default is
127.0.0.1 with a free port. Without -zookeeper the shop uses an embedded ZooKeeper
server, which this program starts.
`

func main() {
	at := "127.0.0.1:0"
	flag.Func("addr", "`HOST:PORT` to serve metrics at", func(value string) error {
		at = value
		parsed, err := netip.ParseAddrPort(value)
		if err != nil {
			return err
		}
		if !parsed.Addr().IsLoopback() {
			return errors.New("not a loopback address")
		}
		return nil
	})
	address := demo.ZooKeeperFlag()
	demo.ParseFlags(usage)
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stdout, nil))) // where lockpool logs lost locks
	demo.Main("metrics", func(ctx context.Context) error { return run(ctx, at, *address) })
}

// run opens the shop and serves its metrics until ctx ends.
func run(ctx context.Context, at, address string) (err error) {
	listener, err := net.Listen("tcp", at)
	if err != nil {
		return err
	}
	defer listener.Close()
	zookeeper, err := demo.OpenServer(ctx, address)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, zookeeper.Close()) }()

	registry, meters, err := newMeters()
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		err = errors.Join(err, meters.Shutdown(ctx))
	}()
	s, err := openShop(ctx, zookeeper.Address, meters)
	if err != nil {
		return err
	}
	defer s.close()

	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }() // ends with server.Close
	defer server.Close()
	fmt.Printf("The metrics are at http://%s/metrics, until Ctrl-C.\n", listener.Addr())

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	worked := make(chan error, 1)
	go func() { worked <- s.work(ctx, zookeeper.Embedded) }() // ends with ctx
	select {
	case err = <-failed:
	case err := <-worked:
		return err
	}
	cancel(err)
	<-worked
	return err
}
