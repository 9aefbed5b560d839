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
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/lockpool/lockpool/testing/zktest"
	"github.com/lockpool/lockpool/testing/zktest/bubble"
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

// Shared returns the server of all tests without effects on each other. It runs while
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
	if bubble.Inside() {
		return zktest.StartBubble(t, own...)
	}
	return zktest.Start(t, own...)
}

// Once skips a test with real servers if the test does the same with embedded ones: a test
// without servers, or starting both kinds itself.
func Once(t *testing.T) {
	t.Helper()
	if !Embedded() {
		t.Skip("the same test runs with -server embedded")
	}
}

// Bubble runs a test for which all servers are embedded in a bubble of testing/synctest,
// where time passes when all goroutines wait, beside other tests ([bubble.Parallel]).
func Bubble(t *testing.T, test func(*testing.T)) {
	bubble.Parallel(t)
	synctest.Test(t, test)
}

// Timed runs a test of durations: in a [Bubble] with embedded servers, and alone with real
// ones.
func Timed(t *testing.T, test func(*testing.T)) {
	if Embedded() {
		Bubble(t, test)
	} else {
		test(t)
	}
}

// Slow runs a long test without measured times: in a [Bubble] with embedded servers, and
// beside other tests with real ones.
func Slow(t *testing.T, test func(*testing.T)) {
	if Embedded() {
		Bubble(t, test)
	} else {
		t.Parallel()
		test(t)
	}
}

// Main is called by TestMain: Main runs the tests while the shared server runs, and exits.
// Leftover goroutines are a failure.
func Main(m *testing.M) {
	flag.Parse()
	os.Exit(runAll(m))
}

func runAll(m *testing.M) (code int) {
	// A slow machine may need a minute between two steps of a test.
	keepContainers := zktest.ContainerInterval(time.Hour)
	var err error
	switch *kind {
	case "embedded":
		shared, err = zktest.Run(context.Background(), keepContainers)
	case "real":
		// Tests beside each other have more than 60 sessions, ZooKeeper's limit for one address.
		shared, err = zktest.RunReal(context.Background(), keepContainers, zktest.Properties(map[string]string{"maxClientCnxns": "0"}))
	default:
		err = fmt.Errorf("-server must be embedded or real, not %q", *kind)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		err, leaked := shared.Close(), goleak.Find()
		for end := time.Now().Add(Patience); leaked != nil && time.Now().Before(end); {
			leaked = goleak.Find()
		}
		if err = errors.Join(err, leaked); err != nil && code == 0 {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}()
	return m.Run()
}
