package drivertest

// This file has the test of planted bugs in drivers.

import (
	_ "embed"
	"flag"
	"path"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/internal/plant"
)

//go:embed bugs.txt
var bugsText string

// provers are the tests of the laws, by the directories of the drivers.
var provers = map[string]string{
	"driver/memory":    "TestLaws",
	"driver/zookeeper": "TestLaws/curator",
}

var all = flag.Bool("all", false, "whether TestBugsAreFound plants all bugs, which takes minutes, and not only one for each law")

// TestBugsAreFound plants bugs in a driver, one at a time. The tests of the broken law must
// fail.
func TestBugsAreFound(t *testing.T) {
	bugs, err := plant.Read("../..", bugsText, "law")
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
	for _, bug := range bugs {
		law, breaks, dir := bug.Notes["law"], bug.Notes["breaks"], path.Dir(bug.File)
		if !unbroken[law] && !*all {
			continue
		}
		delete(unbroken, law)
		t.Run(bug.Name, func(t *testing.T) {
			t.Parallel()
			out, err := runLaws(t, dir, provers[dir]+"/^"+law+"$", bug)
			require.Error(t, err, "the tests of the law %s do not find that: %s", law, breaks)
			require.Contains(t, out, "--- FAIL: "+provers[dir]+"/"+law)
		})
	}
	require.Empty(t, unbroken, "laws without a bug")
}

// runLaws runs tests of a driver with bugs planted in the driver.
func runLaws(t *testing.T, driver, tests string, bugs ...plant.Bug) (out string, err error) {
	return plant.Test(t.Context(), "../..", t.TempDir(), "./"+driver+"/contract_test.go", []string{"-test.v", "-test.run=" + tests}, bugs...)
}
