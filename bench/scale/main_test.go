package main

import (
	"bytes"
	"encoding/xml"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockpool/lockpool/bench/internal/crowd"
	"github.com/lockpool/lockpool/testing/zktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCostsAreMeasuredAndDrawn(t *testing.T) {
	s, err := zktest.Run(t.Context(), zktest.MaxClientConns(0), zktest.Logger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	numbers := []int{5, 20, 40}
	lines, err := measure(t.Context(), s.Addr(), numbers, 1)
	require.NoError(t, err)
	require.Len(t, lines, len(kinds))
	for _, l := range lines {
		require.Len(t, l.points, len(numbers))
		for i, p := range l.points {
			require.Equal(t, numbers[i], p.waiters)
			require.Positive(t, p.Time)
			require.Positive(t, p.Bytes)
		}
	}
	most := func(l line) int64 { return l.points[2].Bytes }
	require.Greater(t, most(lines[1]), 4*most(lines[0]), "waiters of a pool with local turns do not queue at the server")

	var table bytes.Buffer
	require.NoError(t, writeTable(&table, lines))
	require.Regexp(t, `(?s)local turns .*\n +5 .*\n +40 .*without local turns .*\n +40 `, table.String())
	file := filepath.Join(t.TempDir(), "scale.svg")
	require.NoError(t, writePlot(file, lines))
	svg, err := os.ReadFile(file)
	require.NoError(t, err)
	for d := xml.NewDecoder(bytes.NewReader(svg)); err == nil; {
		_, err = d.Token()
	}
	require.ErrorIs(t, err, io.EOF)
	for _, k := range kinds {
		require.Contains(t, string(svg), k.name)
	}
}

func TestBentLinesAreReported(t *testing.T) {
	grow := func(cost func(n int64) int64) []line {
		l := line{name: "pool"}
		for _, n := range []int64{100, 1000, 2000, 4000, 6000, 8000, 10000} {
			l.points = append(l.points, point{int(n), crowd.Cost{Heap: cost(n)}})
		}
		return []line{l}
	}
	require.Empty(t, bent(grow(func(n int64) int64 { return 1_000_000 + 14_000*n })))
	require.Empty(t, bent(grow(func(n int64) int64 { return 100 * n * n % 3 })))
	bentLines := bent(grow(func(n int64) int64 { return 65 * n * n }))
	require.Len(t, bentLines, 1)
	require.Contains(t, bentLines[0], "pool, heap with stacks, MB: ")
}

func TestWrongNumbersAreRefused(t *testing.T) {
	for _, list := range []string{"", "1,2", "1,3,2", "0,1,2", "1,2,many"} {
		_, err := parse(list)
		require.Error(t, err, list)
	}
	numbers, err := parse("1,2,30")
	require.NoError(t, err)
	require.Equal(t, []int{1, 2, 30}, numbers)
}
