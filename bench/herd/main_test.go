package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// expected are the total costs of n waiters. They are exact: nothing depends on
// time.
var expected = map[string]func(n float64) (wakeups, requests float64){
	// The first release wakes n waiters. Each of the others wakes the remaining
	// waiters and its own client, whose last listing has left a watch.
	"children": func(n float64) (float64, float64) { return n + n*(n+1)/2, n*(n+1)/2 + n + 1 },
	// Each remaining waiter tries to create the node, and all but one watch it again.
	"onenode": func(n float64) (float64, float64) { return n * (n + 1) / 2, n*(n+1)/2 + n*(n-1)/2 + n + 1 },
	// One listing and one deletion per waiter, and the first holder's deletion.
	"zklock": func(n float64) (float64, float64) { return n, 2*n + 1 },
}

func TestWakeUpsGrowOnlyWhereAllWaitersWatchTheSameNode(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := start(ctx, "embedded")
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	for _, k := range kinds {
		for _, n := range []int{10, 30} {
			d, err := drain(ctx, s, k, n, 0, false)
			require.NoError(t, err)
			t.Logf("%s, %d waiters: %.2f wake-ups, %.2f requests", k.name, n, d.wakeups, d.requests)

			all := make([]int, n)
			for i := range all {
				all[i] = i
			}
			require.Equal(t, all, slices.Sorted(slices.Values(d.order)), "each waiter is granted the lock once")

			total, ok := expected[k.short]
			if !ok { // lockpool wakes the two nearest waiters, and tells the session of its own node
				require.InDelta(t, 3, d.wakeups, 2/float64(n))
				require.InDelta(t, 2, d.requests, 0.5+2/float64(n)) // a waiter that is late may look again
				continue
			}
			wakeups, requests := total(float64(n))
			require.InDelta(t, wakeups/float64(n), d.wakeups, 1e-9)
			require.InDelta(t, requests/float64(n), d.requests, 1e-9)
		}
	}
}

func TestTableAndPlotAreWritten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	svgFile := filepath.Join(dir, "herd.svg")
	var out, help bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-waiters", "3, 2,3", "-at-once", "-o", svgFile}, &out, &help))
	require.Empty(t, help.String())
	require.Regexp(t, `per release +2 waiters +3 waiters`, out.String())
	require.Regexp(t, `go-zookeeper's Lock +1\.00 +2\.50 +1\.00 +2\.33`, out.String())

	svg, err := os.ReadFile(svgFile)
	require.NoError(t, err)
	for d := xml.NewDecoder(bytes.NewReader(svg)); err == nil; {
		_, err = d.Token()
	}
	require.ErrorIs(t, err, io.EOF)
	for _, k := range kinds {
		var name bytes.Buffer
		require.NoError(t, xml.EscapeText(&name, []byte(k.name)))
		require.Contains(t, string(svg), name.String())
	}
	require.Equal(t, []string{svgFile}, in(t, dir), "no temporary file is left")
}

func TestInvalidFlagsAreReportedBeforeAnythingStarts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, wrong := range []struct {
		args []string
		says string
	}{
		{[]string{"-server", "zk1:2181"}, `-server must be embedded or real, not "zk1:2181"`},
		{[]string{"-waiters", ""}, `"" is not a number from 1 to 5000`},
		{[]string{"-waiters", "10,0"}, `"0" is not a number`},
		{[]string{"-waiters", "10,many"}, `"many" is not a number`},
		{[]string{"-waiters", "5001"}, `"5001" is not a number`},
		{[]string{"-o", "herd.png"}, `-o must name a .svg file`},
		{[]string{"-o", filepath.Join(dir, "missing", "herd.svg")}, filepath.Join("missing", "herd.svg")},
		{[]string{"-hold", "-1s"}, `-hold must not be negative`},
		{[]string{"10"}, `unexpected argument "10"`},
	} {
		// The last of two -o flags counts.
		args := append([]string{"-o", filepath.Join(dir, "herd.svg")}, wrong.args...)
		err := run(t.Context(), args, io.Discard, io.Discard)
		require.ErrorContains(t, err, wrong.says, "%q", wrong.args)
	}
	var help bytes.Buffer
	require.ErrorIs(t, run(t.Context(), []string{"-nonsense"}, io.Discard, &help), flag.ErrHelp)
	require.Contains(t, help.String(), "-nonsense")
	require.Empty(t, in(t, dir))
}

func TestDrainEndsWithItsContext(t *testing.T) {
	t.Parallel()
	stopped := errors.New("stopped")
	for _, k := range kinds {
		ctx, stop := context.WithCancelCause(t.Context())
		s, err := start(t.Context(), "embedded")
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() { // ends when it is stopped
			_, err := drain(ctx, s, k, 5, time.Hour, false)
			done <- err
		}()
		require.NoError(t, s.watched(t.Context(), 4)) // the fifth has the lock, or will have it
		stop(stopped)
		select {
		case err := <-done:
			require.ErrorIs(t, err, stopped)
		case <-time.After(20 * time.Second):
			t.Fatal("drain does not end")
		}
		require.NoError(t, s.Close())
	}
}

// in returns the files in a directory, hidden ones included.
func in(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	hidden, err := filepath.Glob(filepath.Join(dir, ".*"))
	require.NoError(t, err)
	return append(files, hidden...)
}
