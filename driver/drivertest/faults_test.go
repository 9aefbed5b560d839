package drivertest

import (
	_ "embed"
	"flag"
	"os/exec"
	"path"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/internal/plant"
)

//go:embed faults.txt
var faultsText string

// provers are the tests of drivers that prove the laws, by the directories of the drivers.
var provers = map[string]string{
	"driver/memory":    "TestLaws",
	"driver/zookeeper": "TestLaws/curator",
}

var all = flag.Bool("all", false, "whether TestFaultsAreFound plants all faults, which takes minutes, and not only one for each law")

// TestFaultsAreFound plants faults in a driver, one at a time, and requires that the tests of the law
// that it breaks fail.
func TestFaultsAreFound(t *testing.T) {
	faults, err := plant.Parse(faultsText, "law")
	require.NoError(t, err)
	unbroken := map[string]bool{}
	for _, law := range laws {
		unbroken[law.name] = true
	}
	for dir, prover := range provers {
		t.Run("none in "+dir, func(t *testing.T) {
			t.Parallel()
			out, err := runLaws(t, dir, prover)
			require.NoError(t, err, "%s", out)
			require.Contains(t, out, "--- PASS: "+prover)
		})
	}
	for _, fault := range faults {
		law, breaks, dir := fault.Notes["law"], fault.Notes["breaks"], path.Dir(fault.File)
		if !unbroken[law] && !*all {
			continue
		}
		delete(unbroken, law)
		t.Run(fault.Name, func(t *testing.T) {
			t.Parallel()
			out, err := runLaws(t, dir, provers[dir]+"/^"+law+"$", fault)
			require.Error(t, err, "the tests of the law %s do not find that: %s", law, breaks)
			require.Contains(t, out, "--- FAIL: "+provers[dir]+"/"+law)
		})
	}
	require.Empty(t, unbroken, "laws without a fault")
}

// runLaws runs tests of a driver, after planting faults in that.
func runLaws(t *testing.T, driver, tests string, faults ...plant.Bug) (out string, err error) {
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	dir := t.TempDir()
	overlay, err := plant.Overlay(root, dir, faults...)
	require.NoError(t, err)
	// A program with no other tests, and without the race detector, is soon built.
	program := filepath.Join(dir, "laws.test")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-ldflags=-s", "-overlay", overlay, "-o", program, "./"+driver+"/contract_test.go")
	build.Dir = root
	text, err := build.CombinedOutput()
	require.NoError(t, err, "%s", text)
	text, err = exec.CommandContext(t.Context(), program, "-test.v", "-test.run="+tests, "-test.timeout=1m").CombinedOutput()
	return string(text), err
}
