package main

// This file has the tests of the command itself.

import (
	"bufio"
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"
)

// TestMain makes the test binary act as the command.
func TestMain(m *testing.M) {
	if os.Getenv("ZKSERVE_TEST") == "1" {
		main()
		return
	}
	os.Exit(m.Run())
}

func zkserve(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "ZKSERVE_TEST=1")
	return cmd
}

func TestServesUntilInterrupted(t *testing.T) {
	for _, flags := range [][]string{{"-addr", "localhost:0", "-tick", "100ms"}, {"-control", "localhost:0", "-log"}} {
		cmd := zkserve(flags...)
		var log bytes.Buffer
		cmd.Stderr = &log
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		lines := bufio.NewScanner(out)
		require.True(t, lines.Scan())

		conn, events, err := zk.Connect([]string{lines.Text()}, 20*time.Second, zk.WithLogInfo(false))
		require.NoError(t, err)
		_, err = conn.Create("/a", nil, 0, zk.WorldACL(zk.PermAll))
		require.NoError(t, err)
		conn.Close()
		for range events { // closed when the client has ended
		}
		controlled := flags[0] == "-control"
		if controlled {
			require.True(t, lines.Scan())
			resp, err := http.Get(lines.Text() + "/members")
			require.NoError(t, err)
			require.Equal(t, http.StatusOK, resp.StatusCode)
			require.NoError(t, resp.Body.Close())
		}

		require.NoError(t, cmd.Process.Signal(os.Interrupt))
		require.False(t, lines.Scan(), "more than the addresses")
		require.NoError(t, cmd.Wait())
		require.Equal(t, controlled, strings.Contains(log.String(), "command=/members"))
	}
}

func TestInvalidArgumentsAreExplained(t *testing.T) {
	for want, args := range map[string][]string{
		"loopback":      {"-addr", "0.0.0.0:2181"},
		"not host:port": {"-addr", "2181"},
		"shorter than":  {"-tick", "1us"},
		"unexpected":    {"here"},
		"-adr":          {"-adr", "127.0.0.1:0"},
		"-control: the address \":80\" is not on the loopback interface": {"-control", ":80"},
		"-control: address 80": {"-control", "80"},
	} {
		out, err := zkserve(args...).CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(out), want)
	}
}
