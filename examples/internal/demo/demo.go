// Package demo is what the example programs share: flags, signals, and a
// ZooKeeper server to try them on.
package demo

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/zktest"
)

// ZooKeeperFlag defines the flag -zookeeper, the address of a running server.
func ZooKeeperFlag() *string {
	address := new(string)
	flag.Func("zookeeper", "`HOST:PORT` of a running server", func(value string) error {
		*address = value
		return CheckZooKeeper(value)
	})
	return address
}

// CheckZooKeeper returns an error if address is not a server's.
func CheckZooKeeper(address string) error {
	if strings.ContainsAny(address, "/?") {
		return errors.New("not of the form HOST:PORT")
	}
	_, err := zookeeper.ParseDSN(address)
	return err
}

// ParseFlags parses the command line. For an invalid command line, ParseFlags prints the
// usage and exits.
func ParseFlags(usage string) {
	flag.Usage = func() { fmt.Fprint(flag.CommandLine.Output(), usage) }
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(flag.CommandLine.Output(), "unexpected argument %q\n%s", flag.Arg(0), usage)
		os.Exit(2)
	}
}

// Main calls run, prints the error, and exits. An interrupt cancels the context of run; a
// second one ends the program at once.
func Main(name string, run func(context.Context) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	Exit(name, run(ctx))
}

// Exit ends the program, with status 1 if there is an error to print.
func Exit(name string, err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Server is the ZooKeeper server of an example.
type Server struct {
	Address  string
	Embedded *zktest.Server // nil if the server was already running
}

// OpenServer returns the server at the address, or starts an embedded one if the
// address is empty.
func OpenServer(ctx context.Context, address string) (*Server, error) {
	if address != "" {
		return &Server{Address: address}, nil
	}
	embedded, err := zktest.Run(ctx, zktest.Logger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, err
	}
	fmt.Printf("Using an embedded ZooKeeper server on %s, for demonstration only.\n\n", embedded.Addr())
	return &Server{embedded.Addr(), embedded}, nil
}

// Close stops the server if started by OpenServer.
func (s *Server) Close() error {
	if s.Embedded == nil {
		return nil
	}
	return s.Embedded.Close()
}
