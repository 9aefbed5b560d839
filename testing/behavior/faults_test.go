package behavior

import (
	_ "embed"
	"flag"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/internal/plant"
)

//go:embed faults.txt
var faultsText string

var all = flag.Bool("all", false, "whether TestFaultsAreFound plants all faults, and not only the first two")

// TestFaultsAreFound plants faults in lockpool, one at a time, and requires that the group
// of tests that it names fails. Every group has one.
func TestFaultsAreFound(t *testing.T) {
	faults, err := plant.Parse(faultsText, "group")
	require.NoError(t, err)
	without := map[string]bool{}
	for _, g := range groups {
		without[g.name] = true
	}
	for i, fault := range faults {
		group := fault.Notes["group"]
		delete(without, group)
		if i >= 2 && !*all {
			continue
		}
		t.Run(fault.Name, func(t *testing.T) {
			t.Parallel()
			out, err := runGroup(t, group, fault)
			require.Error(t, err, "the tests of %s do not find that: %s", group, fault.Notes["breaks"])
			require.Regexp(t, "--- FAIL: TestBehavior/bubbles/"+group+"|^panic: |\npanic: |\nfatal error: ", out)
		})
	}
	require.Empty(t, without, "groups without a fault")
}

// runGroup runs a group of tests on driver/memory, after planting faults in lockpool.
func runGroup(t *testing.T, group string, faults ...plant.Bug) (out string, err error) {
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	dir := t.TempDir()
	overlay, err := plant.Overlay(root, dir, faults...)
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
