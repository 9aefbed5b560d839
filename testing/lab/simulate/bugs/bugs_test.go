package main

// This file checks that each planted bug compiles, and that the outcome of a run is read.

import (
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/internal/plant"
)

// TestEveryBugCompiles builds the library with all bugs, as many at a time as are in
// different lines.
func TestEveryBugCompiles(t *testing.T) {
	bugs, err := readBugs("../../../..")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(bugs), 30)
	root, err := filepath.Abs("../../../..")
	require.NoError(t, err)
	for len(bugs) > 0 {
		var together, others []plant.Bug
		for _, b := range bugs {
			if slices.ContainsFunc(together, b.SameLine) {
				others = append(others, b)
			} else {
				together = append(together, b)
			}
		}
		bugs = others
		overlay, err := plant.Overlay(root, t.TempDir(), together...)
		require.NoError(t, err)
		cmd := exec.CommandContext(t.Context(), "go", "build", "-overlay", overlay, ".", "./driver/zookeeper", "./recipe")
		cmd.Dir = root
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
}

func TestOutcomeIsRead(t *testing.T) {
	t.Parallel()
	const totals = "violations=1 leaked_nodes=0 stuck_waiters=0 grants=7 kept_turns=0 asked_back=0 faults=1 losses=0 breaks=0 deadlocks=0 starved=0s victim_in_a_row=0 rescues=0 virtual=1h0m0s real=2s\n"
	require.Equal(t, outcome{"", "1h0m0s", "2s"}, readOutcome("20 bubbles: all well\n"+totals))
	require.Equal(t, outcome{"LEFT: a node", "1h0m0s", "2s"}, readOutcome("LEFT in bubble 3 of seed 4: a node\nSTUCK in bubble 3 of seed 4: b\n"+totals))
	require.Empty(t, readOutcome("panic: x"))
}
