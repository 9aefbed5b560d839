//go:build linux

package zktest

// This file has the tests of partitions between real members.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"
)

// startSeparated starts three members and returns the index of the leader.
func startSeparated(t *testing.T, opts ...RealOption) (*RealEnsemble, int) {
	begin := time.Now()
	e := StartRealEnsemble(t, 3, append(opts, Separated())...)
	t.Logf("started in %v", time.Since(begin))
	leader, err := e.Leader(testContext(t))
	require.NoError(t, err)
	return e, slices.Index(e.servers, leader)
}

// awaitMode waits until the server says that the server serves in the mode or, for the mode
// "", does not serve. A timeout on a slow machine says neither.
func awaitMode(t *testing.T, s *RealServer, want string) {
	t.Helper()
	begin := time.Now()
	require.Eventually(t, func() bool {
		mode, err := s.serving(t.Context())
		return mode == want && (err != nil) == (want == "") && !errors.Is(err, context.DeadlineExceeded)
	}, testTimeout, pollInterval)
	t.Logf("%s has the mode %q after %v", s.Addr(), want, time.Since(begin))
}

// dialFrom connects from member i to another member, and returns the exit code of timeout:
// 0 if connected, 1 if refused, 124 if there was no answer within the seconds.
func dialFrom(e *RealEnsemble, i, to int, seconds string) int {
	argv := append(e.network.nsenter(i), "timeout", seconds, "bash", "-c", "exec 3<>/dev/tcp/$1/2181", "bash", e.network.host(to))
	cmd := exec.Command(argv[0], argv[1:]...)
	_ = cmd.Run()
	return cmd.ProcessState.ExitCode()
}

// commandLater connects from member i to another member. When the caller closes the pipe,
// the connection sends a four letter command; the channel receives the answer.
func commandLater(t *testing.T, e *RealEnsemble, i, to int) (io.Closer, <-chan string) {
	argv := append(e.network.nsenter(i), "timeout", "300", "bash", "-c",
		"exec 3<>/dev/tcp/$1/2181; echo connected; read; printf ruok >&3; cat <&3", "bash", e.network.host(to))
	cmd := exec.Command(argv[0], argv[1:]...)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	connected := make([]byte, len("connected\n"))
	_, err = io.ReadFull(out, connected)
	require.NoError(t, err)
	answer := make(chan string, 1)
	go func() {
		all, _ := io.ReadAll(out)
		_ = cmd.Wait()
		answer <- string(all)
	}()
	return in, answer
}

func TestIsolatedFollowerServesUntilItMissesItsLeader(t *testing.T) {
	t.Parallel()
	e, leader := startSeparated(t, Properties(map[string]string{
		"syncLimit":                  "10",     // time to read
		"nio.sessionlessCnxnTimeout": "300000", // ms: a server closes a connection that has sent no command for 10 s
	}))
	follower, other := (leader+1)%3, (leader+2)%3
	conn := connect(t, e.Member(follower).Addr())
	_, err := conn.Create("/before", nil, 0, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)

	command, answer := commandLater(t, e, follower, other)

	require.NoError(t, e.Isolate(follower))
	require.NoError(t, e.Isolate(follower))
	require.NoError(t, command.Close())
	_, _, err = conn.Get("/before")
	require.NoError(t, err)
	_, err = connect(t, e.Member(leader).Addr()).Create("/meanwhile", nil, 0, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	found, _, err := conn.Exists("/meanwhile")
	require.NoError(t, err)
	require.False(t, found)

	awaitMode(t, e.Member(follower), "")
	awaitMode(t, e.Member(leader), "leader")
	awaitMode(t, e.Member(other), "follower")
	for i := range 3 {
		answer, err := e.Member(i).Command(testContext(t), "ruok")
		require.NoError(t, err)
		require.Equal(t, "imok", answer)
	}
	require.Equal(t, 124, dialFrom(e, follower, leader, "1"))
	require.Equal(t, 124, dialFrom(e, other, follower, "1"))
	require.Zero(t, dialFrom(e, follower, follower, "60"))
	require.Zero(t, dialFrom(e, other, leader, "60"))

	require.Empty(t, answer, "the connection is silent, not broken")

	require.NoError(t, e.Heal())
	require.NoError(t, e.Heal())
	require.Zero(t, dialFrom(e, follower, leader, "60"))
	begin := time.Now()
	require.Equal(t, "imok", <-answer)
	t.Logf("an old connection resumes after %v", time.Since(begin))
	awaitMode(t, e.Member(follower), "follower")
	require.True(t, exists(t, connect(t, e.Member(follower).Addr()), "/meanwhile"))
}

func TestIsolatedLeaderIsReplaced(t *testing.T) {
	t.Parallel()
	e, old := startSeparated(t)
	require.NoError(t, e.Isolate(old))
	awaitMode(t, e.Member(old), "")
	begin := time.Now()
	leader, err := e.Leader(testContext(t))
	require.NoError(t, err)
	t.Logf("next leader %v after that", time.Since(begin))
	require.NotSame(t, e.Member(old), leader)

	require.NoError(t, e.Heal())
	awaitMode(t, e.Member(old), "follower")

	// A member's network outlives the process.
	require.NoError(t, e.Isolate(old))
	require.NoError(t, e.Member(old).Kill())
	require.Equal(t, 124, dialFrom(e, (old+1)%3, old, "1"))
	short, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	require.ErrorIs(t, e.Member(old).Start(short), context.DeadlineExceeded)
	require.NoError(t, e.Heal())
	require.Equal(t, 1, dialFrom(e, (old+1)%3, old, "60"))
	require.NoError(t, e.Member(old).Start(testContext(t)))
	awaitMode(t, e.Member(old), "follower")
	require.NoError(t, e.Member(old).Pause())
	require.NoError(t, e.Member(old).Resume())
	awaitMode(t, e.Member(old), "follower")

	require.True(t, isLink(e.network.link))
	pid := e.Member(0).PID()
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	require.NoError(t, err)
	require.Equal(t, "java\n", string(comm))
	require.NoError(t, e.Close())
	require.NoError(t, e.Close())
	require.True(t, hasEnded(pid))
	require.False(t, isLink(e.network.link))
	require.ErrorIs(t, e.Isolate(0), errClosed)
	require.ErrorIs(t, e.Heal(), errClosed)
}

func TestIsolateNeedsSeparatedMembers(t *testing.T) {
	t.Parallel()
	e := StartRealEnsemble(t, 1)
	leader, err := e.Leader(testContext(t))
	require.NoError(t, err)
	require.Same(t, e.Member(0), leader)
	require.ErrorContains(t, e.Isolate(0), "with the option Separated")
	require.ErrorContains(t, e.Heal(), "with the option Separated")
	require.ErrorContains(t, e.Isolate(1), "there is no member 1 to isolate: members are numbered from 0 to 0")
	_, err = RunReal(testContext(t), Separated())
	require.ErrorContains(t, err, "use StartRealEnsemble")
	_, err = RunRealEnsemble(testContext(t), 0)
	require.ErrorContains(t, err, "an ensemble cannot have 0 servers")
}

func TestSeparatedExplainsWhatItNeeds(t *testing.T) {
	requireEmptyTemp(t)
	bin := t.TempDir()
	for _, command := range []string{"java", "sh", "cat", "rm"} {
		path, err := exec.LookPath(command)
		require.NoError(t, err)
		require.NoError(t, os.Symlink(path, filepath.Join(bin, command)))
	}
	t.Setenv("PATH", bin)
	_, err := RunRealEnsemble(testContext(t), 1, Separated())
	require.ErrorContains(t, err, "apt-get install iproute2 util-linux")
	require.ErrorContains(t, err, `"nsenter": executable file not found`)
}
