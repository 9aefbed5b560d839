// Command zkserve runs the embedded ZooKeeper of package zktest until it is interrupted,
// for tests in any language and for experiments. The server keeps everything in memory and
// listens on the loopback interface only. Do not use it in production.
//
//	go run ./testing/zktest/zkserve [flags]
//
// The first line of output is the connect string for clients. SIGINT or SIGTERM ends the
// command. go run does not forward SIGTERM, so build the command for use in scripts. The
// flag -help lists the flags: addresses, members, ticks and limits.
//
// # The control interface
//
// With -control 127.0.0.1:0, or with another port, an HTTP server stops and starts the
// ZooKeeper or its members, expires sessions, breaks connections and injects faults. The
// second line of output is the address, such as http://127.0.0.1:36223:
//
//	curl http://127.0.0.1:36223/                                   the list of the commands
//	curl http://127.0.0.1:36223/sessions                           JSON
//	curl -X POST 'http://127.0.0.1:36223/restart?down=2s'          the tree and the sessions are kept
//	curl -X POST 'http://127.0.0.1:36223/expire?session=0x1000a'
//	curl -X POST 'http://127.0.0.1:36223/inject?op=create&prefix=/locks&action=DropAfterApply'
//
// Parameters are in the URL or in the body, as sent by an HTML form (curl -d). GET requests
// read, and answer with JSON or text. POST requests act, and are answered after the action.
// An error is one line of text, and nothing has changed. The status is 400 for wrong,
// unknown or missing parameters, 404 for an unknown command, session, connection, member or
// fault, and 409 for an impossible action, such as starting a running server.
//
// The faults are described in the documentation of package zktest. There is no other
// control interface, such as lines on the standard input: every language has an HTTP
// client, several processes can use one server, and each answer belongs to a request.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/lockpool/lockpool/testing/zktest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	conf, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "zkserve:", err)
		os.Exit(2)
	}
	if err := run(ctx, conf, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "zkserve:", err)
		os.Exit(1)
	}
}

// config is what the flags say.
type config struct {
	server  []zktest.Option
	control *net.TCPAddr // nil without a control interface
	log     bool
}

func parse(args []string) (config, error) {
	flags := flag.NewFlagSet("zkserve", flag.ContinueOnError)
	var text strings.Builder
	flags.SetOutput(&text)
	addr := flags.String("addr", "127.0.0.1:0", "loopback address of the first member, `HOST:PORT`; port 0 is any free port")
	members := flags.Int("members", 1, "`number` of members of the ensemble; the others have free ports of 127.0.0.1")
	tick := flags.Duration("tick", 500*time.Millisecond, "ZooKeeper's tickTime")
	minTimeout := flags.Duration("min-timeout", 0, "shortest session timeout that clients can negotiate (default two ticks)")
	maxTimeout := flags.Duration("max-timeout", 40*time.Second, "longest session timeout that clients can negotiate")
	maxConns := flags.Int("max-conns", 60, "`limit` of connections from one client address; 0 is no limit")
	containers := flags.Duration("container-interval", time.Minute, "`period` of the deletion of empty containers and expired TTL nodes")
	extended := flags.Bool("extended-types", false, "allow TTL nodes")
	super := flags.String("super", "", "credentials of the super user, `USER:PASSWORD`")
	seed := flags.Uint64("seed", 1, "`number` that determines the order in which children are listed")
	control := flags.String("control", "", "loopback address of the HTTP control interface, `HOST:PORT`; port 0 is any free port (default none)")
	log := flags.Bool("log", false, "log the commands of the control interface to the standard error")
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Print("zkserve runs an embedded ZooKeeper for tests and development, not for production.\n", text.String())
		return config{}, err
	}
	if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q: only flags are allowed", flags.Arg(0))
	}
	if err != nil {
		return config{}, fmt.Errorf("%w (see -help)", err)
	}
	if *minTimeout == 0 {
		*minTimeout = 2 * *tick
	}
	conf := config{log: *log, server: []zktest.Option{
		zktest.Addr(*addr), zktest.Members(*members), zktest.TickTime(*tick), zktest.SessionTimeouts(*minTimeout, *maxTimeout),
		zktest.MaxClientConns(*maxConns), zktest.ContainerInterval(*containers), zktest.Seed(*seed),
	}}
	if *extended {
		conf.server = append(conf.server, zktest.ExtendedTypes())
	}
	if *super != "" {
		conf.server = append(conf.server, zktest.SuperUser(*super))
	}
	if *control != "" {
		conf.control, err = net.ResolveTCPAddr("tcp", *control)
		if err != nil {
			return config{}, fmt.Errorf("-control: %w", err)
		}
		if !conf.control.IP.IsLoopback() {
			return config{}, fmt.Errorf("-control: the address %q is not on the loopback interface: use 127.0.0.1:%d", *control, conf.control.Port)
		}
	}
	return conf, nil
}

// run serves until ctx ends. It prints the connect string and, if any, the address of the
// control interface when both serve.
func run(ctx context.Context, conf config, out io.Writer) (err error) {
	s, err := zktest.Run(ctx, conf.server...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	lines := s.ConnectString() + "\n"
	ended := make(chan error)
	if conf.control != nil {
		ln, err := net.ListenTCP("tcp", conf.control)
		if err != nil {
			return err
		}
		log := slog.New(slog.DiscardHandler)
		if conf.log {
			log = slog.Default()
		}
		c := newControl(s, "http://"+ln.Addr().String(), log)
		server := c.httpServer(ctx)
		go func() { ended <- server.Serve(ln) }() // ends with Close
		defer func() {
			err = errors.Join(err, server.Close())
			<-ended
		}()
		lines += c.url + "\n"
	}
	if _, err := io.WriteString(out, lines); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}
