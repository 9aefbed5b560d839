// Metrics shows lockpool's metrics in Prometheus: how long locks are waited for
// and which, how much time that costs, which locks are lost, and whether the
// pools are large enough.
//
//	go run ./examples/metrics
//	go run ./examples/metrics -addr 127.0.0.1:9464
//
// It serves http://ADDR/metrics for Prometheus to scrape, until Ctrl-C. Beside it
// are a dashboard for Grafana to import, dashboard.json, and rules for alerts,
// alerts.yml, with their tests, alerts_test.yml.
//
// What metrics take is in telemetry.go. The shop that makes some, in shop.go, is
// busy, and has its share of trouble.
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
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/zktest"
)

const usage = `usage: metrics [-addr HOST:PORT] [-zookeeper HOST:PORT]

Serves the metrics of a small shop that uses locks, at http://HOST:PORT/metrics,
until it is interrupted. HOST is an address of this machine alone, such as
127.0.0.1; without -addr it is that, and a free port. Without -zookeeper the shop
uses an embedded ZooKeeper server, which this program starts.
`

func main() {
	flag.Usage = func() { fmt.Fprint(flag.CommandLine.Output(), usage) }
	at, address := "127.0.0.1:0", ""
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
	flag.Func("zookeeper", "`HOST:PORT` of a running server", func(value string) error {
		address = value
		if strings.ContainsAny(value, "/?") {
			return errors.New("not of the form HOST:PORT")
		}
		_, err := zookeeper.ParseDSN(value)
		return err
	})
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(flag.CommandLine.Output(), "unexpected argument %q\n%s", flag.Arg(0), usage)
		os.Exit(2)
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stdout, nil))) // lockpool warns there of what is lost
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	if err := run(ctx, at, address); err != nil {
		fmt.Fprintln(os.Stderr, "metrics:", err)
		os.Exit(1)
	}
}

// run lets the shop work and serves its metrics until ctx ends.
func run(ctx context.Context, at, address string) (err error) {
	listener, err := net.Listen("tcp", at)
	if err != nil {
		return err
	}
	defer listener.Close()
	var embedded *zktest.Server
	if address == "" {
		embedded, err = zktest.Run(ctx, zktest.Logger(slog.New(slog.DiscardHandler)))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, embedded.Close()) }()
		address = embedded.Addr()
		fmt.Printf("An embedded ZooKeeper, for trying things out and never for production, serves on %s.\n", address)
	}

	registry, meters, err := newMeters()
	if err != nil {
		return err
	}
	defer func() {
		patience, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		err = errors.Join(err, meters.Shutdown(patience))
	}()
	s, err := openShop(ctx, address, meters)
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
	go func() { worked <- s.work(ctx, embedded) }() // ends with ctx
	select {
	case err = <-failed:
	case err := <-worked:
		return err
	}
	cancel(err)
	<-worked
	return err
}
