//go:build linux

package campaign

// This file tests the reports of crashed and hung clients.

import (
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockpool/lockpool/testing/lab/simulate/workload"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCrashedAndHungClientsAreReported(t *testing.T) {
	t.Parallel()
	c := &Campaign{Options: DefaultOptions(), history: workload.NewHistory(nil), clients: make([]*process, 3)}
	c.Clients, c.Grace = 3, time.Minute
	for i, script := range []string{
		"echo for that reason >&2; exit 7",
		"trap '' TERM; echo deaf >&2; while read -r line; do :; done",
		"trap 'exit 0' TERM; echo ready >&2; while read -r line; do :; done",
	} {
		require.NoError(t, c.launch(i, exec.Command("sh", "-c", script)))
	}
	<-c.client(0).done
	for _, i := range []int{1, 2} { // until their traps are set
		require.Eventually(t, func() bool { return c.client(i).stderr.String() != "" }, time.Minute, time.Millisecond)
	}
	c.client(2).end(syscall.SIGTERM)
	c.Grace = time.Second // for the deaf one
	c.endClients(syscall.SIGTERM)
	rec := new(workload.Record)
	c.history.Update(func(r *workload.Record) { *rec = *r })
	require.Len(t, rec.Crashes, 1)
	require.Contains(t, rec.Crashes[0], "exit status 7")
	require.Contains(t, rec.Crashes[0], "for that reason")
	require.Len(t, rec.Hung, 1)
	require.Contains(t, rec.Hung[0], c.client(1).name)
	require.Contains(t, rec.Hung[0], "deaf")
}
