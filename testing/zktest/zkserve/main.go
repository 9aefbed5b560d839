// Command zkserve runs the embedded ZooKeeper of package zktest until it is
// interrupted. It is for development and experiments: it keeps everything in
// memory and listens on the loopback interface only. Do not use it in production.
//
//	go run ./testing/zktest/zkserve [-addr HOST:PORT] [-tick DURATION]
//
// The first line of its output is the connect string for clients. SIGINT or
// SIGTERM ends the command. go run does not forward SIGTERM, so build the command
// for use in scripts.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/lockpool/lockpool/testing/zktest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	opts, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "zkserve:", err)
		os.Exit(2)
	}
	if err := run(ctx, opts); err != nil {
		fmt.Fprintln(os.Stderr, "zkserve:", err)
		os.Exit(1)
	}
}

func parse(args []string) ([]zktest.Option, error) {
	flags := flag.NewFlagSet("zkserve", flag.ContinueOnError)
	var text strings.Builder
	flags.SetOutput(&text)
	addr := flags.String("addr", "", "loopback address to listen on, `HOST:PORT` (default: a free port of 127.0.0.1)")
	tick := flags.Duration("tick", 0, "ZooKeeper's tickTime (default 500ms)")
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Print("zkserve runs an embedded ZooKeeper for tests and development, not for production.\n", text.String())
		return nil, err
	}
	if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q: only flags are allowed", flags.Arg(0))
	}
	if err != nil {
		return nil, fmt.Errorf("%w (see -help)", err)
	}
	var opts []zktest.Option
	if *addr != "" {
		opts = append(opts, zktest.Addr(*addr))
	}
	if *tick != 0 {
		opts = append(opts, zktest.TickTime(*tick))
	}
	return opts, nil
}

func run(ctx context.Context, opts []zktest.Option) error {
	s, err := zktest.Run(ctx, opts...)
	if err != nil {
		return err
	}
	fmt.Println(s.ConnectString())
	<-ctx.Done()
	return s.Close()
}
