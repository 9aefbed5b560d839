package main

// This file tests the table and its scenarios.

import (
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/zktest"
)

// Scenarios start this program again, with flags only for them.
func TestMain(m *testing.M) {
	flag.Parse()
	if *child != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestEveryClientOfEveryScenarioHasItsFigures(t *testing.T) {
	s, err := zktest.Run(t.Context(), zktest.MaxClientConns(0), zktest.Logger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	defer s.Close()
	*server, *duration = s.Addr(), 30*time.Millisecond
	t.Setenv("GORACE", "atexit_sleep_ms=10") // of the processes started by scenarios
	tooLong := []string{"processes-4x50", "fifth-process", "loner", "drain", "sessions-1000", "sessions-100-distant", "waiters-1000", "waiters-5000",
		"handles-10000", "idle", "held-10000", "queue-5000", "list-10000", "kept-100000", "fleet"}
	for _, s := range scenarios {
		if slices.Contains(tooLong, s.name) {
			continue
		}
		for _, client := range s.clients {
			start := time.Now()
			figures := s.turn(client)
			require.Len(t, figures, len(s.lines), "%s, %s", s.name, client)
			for i, figure := range figures {
				require.GreaterOrEqual(t, figure, 0.0, "%s, %s: %s", s.name, client, s.lines[i].what)
			}
			t.Log(s.name, client, figures, time.Since(start))
		}
	}
}

func TestRowsShowTheMedianAndTheWorst(t *testing.T) {
	f := figures{zkLock: {100, 200, 100}, ours: {150, 120, 50}, off: {300, 100, 100}}
	less := line{"times", zkLock, false, "1.1"}
	more := line{"rates", zkLock, true, ""}
	alone := line{"alone", "", true, "0"}
	require.Equal(t, "| times |  | 100 (200) | 120 (150) | 100 (300) |  | 0.60 (1.50) × zk.Lock, off: 1 (3) | 1.1 |\n", less.row(f))
	require.Equal(t, "| rates |  | 100 (100) | 120 (50) | 100 (100) |  | **0.60** (0.50) × zk.Lock, off: 1 (0.50) |  |\n", more.row(f))
	require.Equal(t, "| alone |  | 100 (100) | 120 (50) | 100 (100) |  |  | 0 |\n", alone.row(f))
	require.Equal(t, "| times |  |  | 12.3 (12.3) |  |  |  | 1.1 |\n", less.row(figures{ours: {12.345}}))
	require.Equal(t, "| times |  |  | < 0.01 (< 0.01) |  |  |  | 1.1 |\n", less.row(figures{ours: {0.004}}))
	require.Equal(t, strings.Count(header(), "|"), 2*strings.Count(less.row(f), "|"))
}

func TestFirstTurnsAreNotCountedAndClientsAlternate(t *testing.T) {
	var order []string
	s := scenario{"s", all, []line{{}}, func(client string) []float64 {
		order = append(order, client)
		return []float64{float64(len(order))}
	}}
	require.Equal(t, []figures{{floor: {4, 7}, zkLock: {5, 8}, ours: {6, 9}}}, s.run(2))
	require.Equal(t, slices.Concat(all, all, all), order)
}

func TestShortTableHasTheFirstLineOfEachScenarioInBrief(t *testing.T) {
	for _, name := range brief {
		require.Contains(t, names(), name)
	}
	var long, short strings.Builder
	other := scenario{"s", []string{ours}, []line{{what: "first"}, {what: "second"}}, func(string) []float64 { return []float64{1, 2} }}
	inBrief := other
	inBrief.name = brief[0]
	require.NoError(t, writeTables(&long, &short, []scenario{inBrief, other}, 1))
	first, second := "| first |  |  | 1 (1) |  |  |  |  |\n", "| second |  |  | 2 (2) |  |  |  |  |\n"
	require.Equal(t, header()+first+second+first+second, long.String())
	require.Equal(t, header()+first, short.String())
}

func TestBlockIsReplaced(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	require.NoError(t, os.WriteFile(page, []byte("before\n"+blockBegins+"old\n"+blockEnds+"after\n"), 0o600))
	require.NoError(t, replaceBlock(page, "new\n"))
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Equal(t, "before\n"+blockBegins+"new\n"+blockEnds+"after\n", string(text))
	require.NoError(t, os.WriteFile(page, []byte(blockEnds+blockBegins), 0o600))
	require.ErrorContains(t, replaceBlock(page, "new"), "has no line")
}

func TestPagesHaveABlock(t *testing.T) {
	for _, page := range []string{readme, performance} {
		text, err := os.ReadFile(filepath.Join("..", page))
		require.NoError(t, err)
		_, block, ok := strings.Cut(string(text), blockBegins)
		require.True(t, ok, page)
		require.Contains(t, block, blockEnds, page)
	}
}
