package drivertest_test

import (
	_ "embed"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/internal/plant"
)

//go:embed faults.txt
var faultsText string

// TestFaultsAreFound plants each fault in driver/memory, and requires that the tests of the
// law that it breaks fail.
func TestFaultsAreFound(t *testing.T) {
	faults, err := plant.Parse(faultsText, "law")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(faults), 24)
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		out, err := runLaws(t, "TestLaws")
		require.NoError(t, err, "%s", out)
		require.Contains(t, out, "--- PASS: TestLaws")
	})
	for _, fault := range faults {
		t.Run(fault.Name, func(t *testing.T) {
			t.Parallel()
			law, breaks := fault.Notes["law"], fault.Notes["breaks"]
			out, err := runLaws(t, "TestLaws/^"+law+"$", fault)
			require.Error(t, err, "the tests of the law %s do not find that: %s", law, breaks)
			require.Contains(t, out, "--- FAIL: TestLaws/"+law)
		})
	}
}

// runLaws runs tests of laws with driver/memory, after planting faults in that.
func runLaws(t *testing.T, tests string, faults ...plant.Bug) (out string, err error) {
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	dir := t.TempDir()
	overlay, err := plant.Overlay(root, dir, faults...)
	require.NoError(t, err)
	// A program with no other tests, and without the race detector, takes a second to build.
	program := filepath.Join(dir, "laws.test")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-ldflags=-s", "-overlay", overlay, "-o", program, "./driver/memory/contract_test.go")
	build.Dir = root
	text, err := build.CombinedOutput()
	require.NoError(t, err, "%s", text)
	text, err = exec.CommandContext(t.Context(), program, "-test.v", "-test.run="+tests, "-test.timeout=30s").CombinedOutput()
	return string(text), err
}
