//go:build unix

package zktest

// This file has the tests of real servers.

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"
)

const testTimeout = 2 * time.Minute

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

type silentLogger struct{}

func (silentLogger) Printf(string, ...any) {}

func connect(t *testing.T, addrs ...string) *zk.Conn {
	t.Helper()
	conn, _, err := zk.Connect(addrs, 5*time.Second, zk.WithLogger(silentLogger{}))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	return conn
}

// exists retries until the client has a connection.
func exists(t *testing.T, conn *zk.Conn, path string) bool {
	t.Helper()
	var found bool
	require.Eventually(t, func() bool {
		var err error
		found, _, err = conn.Exists(path)
		return err == nil
	}, testTimeout, pollInterval)
	return found
}

// requireEmptyTemp makes the launcher use a temporary directory of the test, and checks at
// the end of the test that the directory is empty.
func requireEmptyTemp(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	t.Cleanup(func() {
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, left)
	})
}

func TestRealServerServesClients(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	s := StartReal(t, TickTime(250*time.Millisecond), Properties(map[string]string{"minSessionTimeout": "300"}))
	t.Logf("started in %v", time.Since(begin))
	conf, err := s.Command(testContext(t), "conf")
	require.NoError(t, err)
	require.Regexp(t, `(?s)tickTime=250\n.*minSessionTimeout=300\nmaxSessionTimeout=40000\n`, conf)

	conn := connect(t, s.ConnectString())
	_, err = conn.Create("/a", []byte("x"), 0, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)

	answer, err := s.Command(testContext(t), "ruok")
	require.NoError(t, err)
	require.Equal(t, "imok", answer)
	before, err := s.Stat(testContext(t), "zk_watch_count")
	require.NoError(t, err)
	require.Zero(t, before)
	_, _, _, err = conn.ExistsW("/a")
	require.NoError(t, err)
	after, err := s.Stat(testContext(t), "zk_watch_count")
	require.NoError(t, err)
	require.EqualValues(t, 1, after)

	_, err = s.Command(testContext(t), "hello")
	require.ErrorContains(t, err, "does not have four letters")
	_, err = s.Stat(testContext(t), "zk_no_such_thing")
	require.ErrorContains(t, err, `no "zk_no_such_thing"`)
	_, err = s.Stat(testContext(t), "zk_version")
	require.ErrorIs(t, err, strconv.ErrSyntax)
}

func TestRealServerRestartKeepsDataAndPort(t *testing.T) {
	t.Parallel()
	s := StartReal(t)
	addr := s.Addr()
	_, err := connect(t, addr).Create("/kept", nil, 0, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)

	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, end := range []struct {
		name string
		do   func() error
		want error
	}{
		{"stopped", func() error { return s.Stop(testContext(t)) }, nil},
		{"killed", s.Kill, nil},
		{"stopped while paused", func() error { return errors.Join(s.Pause(), s.Stop(testContext(t))) }, nil},
		{"killed while paused", func() error { return errors.Join(s.Pause(), s.Kill()) }, nil},
		{"stopped with an ended context", func() error { return errors.Join(s.Pause(), s.Stop(cancelled)) }, context.Canceled},
	} {
		pid := s.PID()
		require.NotZero(t, pid, end.name)
		require.ErrorContains(t, s.Start(testContext(t)), "running already", end.name)

		if err := end.do(); err != nil { // else the server has ended as fast as the context
			require.ErrorIs(t, err, end.want, end.name)
		}
		require.Zero(t, s.PID(), end.name)
		_, err := s.Command(testContext(t), "ruok")
		require.Error(t, err, end.name)
		require.NoError(t, s.Stop(testContext(t)), end.name)
		require.NoError(t, s.Kill(), end.name)
		require.ErrorIs(t, s.Pause(), errNotRunning, end.name)
		require.ErrorIs(t, s.Resume(), errNotRunning, end.name)

		require.NoError(t, s.Start(testContext(t)), end.name)
		require.Equal(t, addr, s.Addr(), end.name)
		require.NotEqual(t, pid, s.PID(), end.name)
		// A new client, because an old one may be stuck: see Start.
		require.True(t, exists(t, connect(t, addr), "/kept"), end.name)
	}
}

func TestRealServerAnswersAfterResume(t *testing.T) {
	t.Parallel()
	s := StartReal(t)
	for range 2 {
		require.NoError(t, s.Pause())
		require.NoError(t, s.Pause())
		short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		_, err := s.Command(short, "ruok")
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)

		require.NoError(t, s.Resume())
		answer, err := s.Command(testContext(t), "ruok")
		require.NoError(t, err)
		require.Equal(t, "imok", answer)
	}
}

func TestRealServerStatDuringRestarts(t *testing.T) {
	t.Parallel()
	s := StartReal(t)
	ctx, cancel := context.WithCancel(testContext(t))
	var asking sync.WaitGroup
	for range 4 {
		asking.Go(func() {
			for ctx.Err() == nil {
				_, _ = s.Stat(ctx, "zk_watch_count")
				s.PID()
			}
		})
	}
	require.NoError(t, s.Kill())
	require.NoError(t, s.Start(testContext(t)))
	require.NoError(t, s.Stop(testContext(t)))

	// Start fails if the server is closed meanwhile, unless the server was faster.
	started := make(chan error)
	go func() { started <- s.Start(ctx) }()
	require.Eventually(t, func() bool { return s.PID() != 0 }, testTimeout, time.Millisecond)
	require.NoError(t, s.Close())
	if err := <-started; err != nil {
		require.ErrorContains(t, err, "starting ZooKeeper")
	}
	cancel()
	asking.Wait()
}

func TestRealServerStartErrorContainsTheLog(t *testing.T) {
	requireEmptyTemp(t)
	_, err := RunReal(testContext(t), Properties(map[string]string{"tickTime": "tomorrow"}))
	require.ErrorContains(t, err, "the server exited (exit status 2)")
	require.ErrorContains(t, err, `NumberFormatException: For input string: "tomorrow"`)
	require.NotErrorIs(t, err, context.DeadlineExceeded, "the exit was noticed late")

	_, err = RunReal(testContext(t), JVMFlags("-XX:NoSuchFlag"))
	require.ErrorContains(t, err, "NoSuchFlag")

	_, err = RunRealEnsemble(testContext(t), 2, Properties(map[string]string{"syncLimit": "never"}))
	require.ErrorContains(t, err, `NumberFormatException: For input string: "never"`)
}

func TestRealServerStartEndsWithItsContext(t *testing.T) {
	requireEmptyTemp(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := RunReal(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestRealServerInAnyTemporaryDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), `ö \`)
	require.NoError(t, os.Mkdir(dir, 0o700))
	t.Setenv("TMPDIR", dir)
	t.Setenv("LC_ALL", "C.UTF-8") // for the command line of java
	StartReal(t, TLS(tls.NoClientCert))
}

func TestRealServerRefusesImpossibleOptions(t *testing.T) {
	t.Parallel()
	_, err := RunReal(testContext(t), nil)
	require.ErrorContains(t, err, "a nil RealOption")
	_, err = RunReal(testContext(t), FourLetterWords("ruok", "srvr"))
	require.ErrorContains(t, err, "conf and srvr")
	_, err = newRealConfig([]RealOption{FourLetterWords("ruok", "srvr", "conf")})
	require.NoError(t, err)
	for _, key := range []string{"dataDir", "clientPort", "clientPortAddress", "server.1"} {
		_, err := RunReal(testContext(t), Properties(map[string]string{key: "1"}))
		require.ErrorContains(t, err, "the property "+key)
	}
}

func TestRealServerReplacesATakenPort(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	taken := port{host: loopback, number: l.Addr().(*net.TCPAddr).Port}
	reserved := 0
	s := StartReal(t, realOption(func(c *realConfig) {
		c.reserve = func() (port, error) {
			if reserved++; reserved == 1 {
				return taken, nil
			}
			return reservePort()
		}
	}))
	require.Equal(t, 2, reserved)
	require.NotEqual(t, taken.addr(), s.Addr())

	_, err = RunReal(t.Context(), realOption(func(c *realConfig) {
		c.reserve = func() (port, error) { return taken, nil }
	}))
	require.ErrorIs(t, err, errPortTaken)

	// A restart must not change the port.
	require.NoError(t, s.Stop(testContext(t)))
	squatter, err := net.Listen("tcp4", s.Addr())
	require.NoError(t, err)
	require.ErrorIs(t, s.Start(testContext(t)), errPortTaken)
	require.Zero(t, s.PID())
	require.NoError(t, squatter.Close())
	require.NoError(t, s.Start(testContext(t)))
}

func TestMissingInstallationIsExplained(t *testing.T) {
	requireEmptyTemp(t)
	home := t.TempDir()
	t.Setenv("ZOOKEEPER_HOME", home)
	_, err := RunReal(testContext(t))
	require.ErrorContains(t, err, "ZOOKEEPER_HOME is "+home)
	require.ErrorContains(t, err, "apt-get install zookeeper")
	_, err = RunRealEnsemble(testContext(t), 3)
	require.ErrorContains(t, err, "ZOOKEEPER_HOME is "+home)
}

func TestMissingJavaIsExplained(t *testing.T) {
	requireEmptyTemp(t)
	t.Setenv("PATH", t.TempDir())
	_, err := RunReal(testContext(t))
	require.ErrorContains(t, err, "needs java on the PATH")
}

func TestDistributionIsFoundByZookeeperHome(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	lib := filepath.Join(home, "lib")
	require.NoError(t, os.Mkdir(lib, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(lib, "zookeeper-3.9.3.jar"), nil, 0o600))
	path, err := findClassPath(home, false)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(lib, "*")+":"+filepath.Join(home, "*"), path)

	conf := filepath.Join(home, "conf")
	require.NoError(t, os.Mkdir(conf, 0o700))
	path, err = findClassPath(home, false)
	require.NoError(t, err)
	require.Equal(t, conf+":"+filepath.Join(lib, "*")+":"+filepath.Join(home, "*"), path)
}
