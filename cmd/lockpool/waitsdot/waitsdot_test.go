package waitsdot_test

// This file has the drawings of a graph whose names are chosen to break them.

import (
	"context"
	"encoding/xml"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/cmd/lockpool/waitsdot"
)

func hostileGraph() lockpool.WaitGraph {
	of := func(lock string, permits int) lockpool.Contender {
		return lockpool.Contender{Lock: lock, Permits: permits}
	}
	wait := func(lock string, c lockpool.Contender) *lockpool.Contender {
		c.Lock = lock
		return &c
	}
	const hostile = "a\"];\r\n\\N<b>&amp;\u202e\x1b[31m"
	long := strings.Repeat("long/", 40)
	return lockpool.WaitGraph{
		Parties: []lockpool.Party{
			{Origin: lockpool.Origin{Owner: hostile, Host: "web1", PID: 101}, Holds: []lockpool.Contender{of(hostile, 0)}, Wait: wait(long, lockpool.Contender{At: "main.f (f.go:1) from main.g (g.go:2)"}), For: []int{1}},
			{Origin: lockpool.Origin{Host: "web2"}, Holds: []lockpool.Contender{of(long, 0), of("s", 2)}, Wait: wait(hostile, lockpool.Contender{}), For: []int{0}},
			{Origin: lockpool.Origin{PID: 303}, Wait: wait("s", lockpool.Contender{Permits: 1}), For: []int{1}},
			{Wait: wait("s", lockpool.Contender{Session: "0x1"}), For: []int{2}},
			{Origin: lockpool.Origin{Owner: "idle", Host: "web4", PID: 404}, Holds: []lockpool.Contender{of("other", 0)}},
		},
		Deadlocks: [][]int{{0, 1}},
	}
}

func TestDOT(t *testing.T) {
	t.Parallel()
	require.Equal(t, `
	p0 [label="a\"];\\r\\n\\N<b>&amp;amp;\\u202e\\x1b[31m\nprocess 101 on web1\nholds a\"];\\r\\n\\N<b>&amp;amp;\\u202e\\x1b[31m\nwaits in main.f (f.go:1)", color="#b3261e", fillcolor="#fdeceb", penwidth=2]
	p1 [label="a process on web2\nholds long/long/long/long/long/long/…ong/long/long/long/long/long/\nholds s (2 permits)", color="#b3261e", fillcolor="#fdeceb", penwidth=2]
	p2 [label="process 303"]
	p3 [label="session 0x1"]
	p0 -> p1 [label=" waits for long/long/long/long/long/long/…ong/long/long/long/long/long/ ", color="#b3261e", fontcolor="#b3261e", penwidth=2]
	p1 -> p0 [label=" waits for a\"];\\r\\n\\N<b>&amp;amp;\\u202e\\x1b[31m ", color="#b3261e", fontcolor="#b3261e", penwidth=2]
	p2 -> p1 [label=" waits for s (1 permit) "]
	p3 -> p2 [label=" waits for s "]
}
`, waitsdot.DOT(hostileGraph())[strings.Index(waitsdot.DOT(hostileGraph()), "\n\tp0"):])
}

func TestSVG(t *testing.T) {
	t.Parallel()
	svg, err := waitsdot.SVG(t.Context(), hostileGraph())
	require.NoError(t, err)
	var text strings.Builder
	for d := xml.NewDecoder(strings.NewReader(string(svg))); ; {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		if chars, ok := token.(xml.CharData); ok {
			text.Write(chars)
		}
	}
	for _, part := range []string{`\N<b>&amp;\u202e\x1b[31m`, "process 101 on web1", "holds s (2 permits)", "session 0x1"} {
		require.Contains(t, text.String(), part)
	}
	require.NotContains(t, text.String(), "idle")
	require.Contains(t, string(svg), `fill="white"`)
	require.Less(t, len(svg), 8_000)

	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	cancel(cause)
	_, err = waitsdot.SVG(ctx, hostileGraph())
	require.ErrorIs(t, err, cause)
}

func TestSVGWithoutGraphviz(t *testing.T) {
	t.Setenv("PATH", "")
	_, err := waitsdot.SVG(t.Context(), hostileGraph())
	require.ErrorIs(t, err, exec.ErrNotFound)
}
