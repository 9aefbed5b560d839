package behavior

// This file has the test of planted bugs in lockpool.

import (
	_ "embed"
	"flag"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/internal/plant"
)

//go:embed bugs.txt
var bugsText string

var all = flag.Bool("all", false, "whether TestBugsAreFound plants all bugs, and not only the first two")

// TestBugsAreFound plants bugs in lockpool, one at a time. The group of tests named by a
// bug must fail, and every group has a bug.
func TestBugsAreFound(t *testing.T) {
	bugs, err := plant.Read("../..", bugsText, "group")
	require.NoError(t, err)
	without := map[string]bool{}
	for _, g := range groups {
		without[g.name] = true
	}
	for i, bug := range bugs {
		group := bug.Notes["group"]
		delete(without, group)
		if i >= 2 && !*all {
			continue
		}
		t.Run(bug.Name, func(t *testing.T) {
			t.Parallel()
			out, err := runGroup(t, group, bug)
			require.Error(t, err, "the tests of %s do not find that: %s", group, bug.Notes["breaks"])
			require.Regexp(t, "--- FAIL: TestBehavior/bubbles/"+group+"|^panic: |\npanic: |\nfatal error: ", out)
		})
	}
	require.Empty(t, without, "groups without a bug")
}

// runGroup runs a group of tests on driver/memory with bugs planted in lockpool.
func runGroup(t *testing.T, group string, bugs ...plant.Bug) (out string, err error) {
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	dir := t.TempDir()
	overlay, err := plant.Overlay(root, dir, bugs...)
	require.NoError(t, err)
	// A program with no other tests, and without the race detector, is soon built.
	program := filepath.Join(dir, "behavior.test")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-ldflags=-s", "-overlay", overlay, "-o", program, "./driver/memory/behavior_test.go")
	build.Dir = root
	text, err := build.CombinedOutput()
	require.NoError(t, err, "%s", text)
	text, err = exec.CommandContext(t.Context(), program, "-test.run=^TestBehavior$/^bubbles$/^"+group+"$", "-test.timeout=1m").CombinedOutput()
	return string(text), err
}
