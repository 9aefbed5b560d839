package main

// This file tests the quickstart: the story, and misuse of the command.

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver/etcd/etcdtest"
	"github.com/lockpool/lockpool/examples/quickstart/shop/shoptest"
)

// The command of the README tells the story on etcd, too.
func TestStory(t *testing.T) {
	cluster := etcdtest.Start(t, 1)
	for name, args := range map[string][]string{
		"its own server":   nil,
		"a running server": {"-servers", cluster.Endpoints()[0]},
	} {
		t.Run(name, func(t *testing.T) {
			temp := t.TempDir()
			command := exec.CommandContext(t.Context(), "go", append([]string{"run", "./examples/quickstart", "-driver", "etcd"}, args...)...)
			command.Dir = "../../../.."
			command.Env = append(os.Environ(), "GOWORK=", "GOFLAGS=-race", "TMPDIR="+temp) // to use what the tests have compiled
			var stderr strings.Builder
			command.Stderr = &stderr
			stdout, err := command.Output()
			require.NoError(t, err, "%s", &stderr)
			t.Logf("%s", stdout)
			shoptest.RequireStory(t, string(stdout))
			require.Equal(t, args == nil, strings.Contains(string(stdout), "Using an etcd server of its own"))
			left, err := os.ReadDir(temp)
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}

func TestMisuse(t *testing.T) {
	command := exec.CommandContext(t.Context(), "go", "run", "./examples/quickstart", "-driver", "etcd", "-servers", "127.0.0.1:etcd")
	command.Dir = "../../../.."
	command.Env = append(os.Environ(), "GOWORK=", "GOFLAGS=-race")
	out, err := command.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), `the endpoint "127.0.0.1:etcd" is not host or host:port`)
}
