// Command zkserve runs the embedded ZooKeeper of package zktest until it is
// interrupted, for development and for trying things out, never for
// production: everything is in memory.
//
//	go run ./testing/zktest/zkserve [-addr HOST:PORT]
//
// The first line of its output is the connect string for clients.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/lockpool/lockpool/testing/zktest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "zkserve:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("zkserve", flag.ContinueOnError)
	addr := flags.String("addr", "", "loopback address to listen on, `HOST:PORT` (default: a free port of 127.0.0.1)")
	tick := flags.Duration("tick", 0, "ZooKeeper's tickTime (default 500ms)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%q is not expected: there are only flags, see -help", flags.Arg(0))
	}
	var opts []zktest.Option
	if *addr != "" {
		opts = append(opts, zktest.Addr(*addr))
	}
	if *tick != 0 {
		opts = append(opts, zktest.TickTime(*tick))
	}
	s, err := zktest.Run(ctx, opts...)
	if err != nil {
		return err
	}
	fmt.Println(s.ConnectString())
	<-ctx.Done()
	return s.Close()
}
