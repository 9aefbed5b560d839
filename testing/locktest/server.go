// Package locktest provides what tests of locks share: a server, embedded or real, and
// a [Bench] for each test.
package locktest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/lockpool/lockpool/testing/zktest"
)

var kind = flag.String("server", "embedded", "the ZooKeeper server of the tests: `embedded or real`")

// Embedded reports whether the tests run on embedded servers. They must pass on
// real ones as well.
func Embedded() bool { return *kind == "embedded" }

// Server is a ZooKeeper server of either kind.
type Server interface {
	Addr() string
	Stat(ctx context.Context, key string) (int64, error)
	Command(ctx context.Context, word string) (string, error)
	Pause() error
	Resume() error
	Kill() error
	Stop(ctx context.Context) error
	Start(ctx context.Context) error
	Close() error
}

var shared Server

// Shared returns the server of all tests that do not disturb each other. It runs while
// [Main] does.
func Shared() Server { return shared }

// StartServer starts a server for one test.
func StartServer(t testing.TB, opts ...zktest.CommonOption) Server {
	if !Embedded() {
		var own []zktest.RealOption
		for _, opt := range opts {
			own = append(own, opt)
		}
		return zktest.StartReal(t, own...)
	}
	var own []zktest.Option
	for _, opt := range opts {
		own = append(own, opt)
	}
	return zktest.Start(t, own...)
}

// Main is called by TestMain: it runs the tests while the shared server runs, and
// exits. It fails if goroutines are left.
func Main(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	var err error
	switch *kind {
	case "embedded":
		shared, err = zktest.Run(context.Background())
	case "real":
		shared, err = zktest.RunReal(context.Background())
	default:
		err = fmt.Errorf("-server must be embedded or real, not %q", *kind)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		err := errors.Join(shared.Close(), goleak.Find())
		if err != nil && code == 0 {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}()
	return m.Run()
}
