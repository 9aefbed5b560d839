package interop

// This file has what the tests share: servers and compiled clients.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockpool/lockpool/testing/zktest"
)

const (
	curatorJars  = "/usr/share/java/curator-recipes.jar:/usr/share/java/slf4j-simple.jar" // their manifests name the other jars
	debianPython = "/usr/bin/python3"                                                     // another Python on the PATH would lack kazoo
)

var (
	// server is shared by all tests. Each uses a different lock.
	server *zktest.RealServer
	// classes is the directory of the compiled Peer.java.
	classes string
)

func TestMain(m *testing.M) {
	os.Exit(func() (code int) {
		err := prepare()
		if err == nil {
			code = m.Run()
		}
		if server != nil {
			err = errors.Join(err, server.Close())
		}
		if err = errors.Join(err, os.RemoveAll(classes), goleak.Find()); err != nil && code == 0 {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		return code
	}())
}

func prepare() (err error) {
	if _, err := os.Stat(debianPython); err != nil {
		return errors.New("kazoo is missing: apt-get install python3-kazoo")
	}
	if _, err := os.Stat("/usr/share/java/curator-recipes.jar"); err != nil {
		return errors.New("Curator is missing: apt-get install libcurator-recipes-java")
	}
	if classes, err = os.MkdirTemp("", "interop-"); err != nil {
		return err
	}
	out, err := exec.Command("javac", "-cp", curatorJars, "-d", classes, "testdata/Peer.java").CombinedOutput()
	if err != nil {
		return fmt.Errorf("javac (apt-get install default-jdk-headless): %w: %s", err, out)
	}
	// The server removes empty containers while tests run, so that sequence numbers
	// start anew.
	server, err = zktest.RunReal(context.Background(), zktest.JVMFlags("-Dznode.container.checkIntervalMs=50"))
	if err != nil {
		return err
	}
	// The other clients fail if the parent is removed while they create its children, so
	// the parent must be no container.
	conn, events, err := connect()
	if err != nil {
		return err
	}
	_, err = conn.Create(chroot, nil, 0, zk.WorldACL(zk.PermAll))
	disconnect(conn, events)
	return err
}

const (
	// patience is how long tests wait for what must happen before they fail.
	patience = 60 * time.Second
	// peerTimeout is the session timeout of processes, some of them killed. It is long
	// enough for a busy machine.
	peerTimeout = 5 * time.Second
)

func connect() (*zk.Conn, <-chan zk.Event, error) {
	return zk.Connect([]string{server.Addr()}, 20*time.Second, zk.WithLogInfo(false), zk.WithLogger(quiet{}))
}

func disconnect(conn *zk.Conn, events <-chan zk.Event) {
	conn.Close()
	for range events { // closed when the client's goroutines have ended
	}
}

func dial(t testing.TB) *zk.Conn {
	conn, events, err := connect()
	require.NoError(t, err)
	t.Cleanup(func() { disconnect(conn, events) })
	for conn.State() != zk.StateHasSession {
		<-events
	}
	return conn
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

var locks atomic.Int32

// newName returns the name of a lock not used by any other test.
func newName() string { return fmt.Sprint("lock", locks.Add(1)) }

// chroot is the parent of all locks.
const chroot = "/interop"
