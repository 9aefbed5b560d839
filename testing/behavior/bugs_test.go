package behavior

// This file has the test of planted bugs in lockpool.

import (
	_ "embed"
	"flag"
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
			out, err := plant.Test(t.Context(), "../..", t.TempDir(), "./driver/memory/behavior_test.go",
				[]string{"-test.run=^TestBehavior$/^bubbles$/^" + group + "$"}, bug)
			require.Error(t, err, "the tests of %s do not find that: %s", group, bug.Notes["breaks"])
			require.NotContains(t, out, "panic: test timed out")
			require.Regexp(t, "--- FAIL: TestBehavior/bubbles/"+group+"|^panic: |\npanic: |\nfatal error: ", out)
		})
	}
	require.Empty(t, without, "groups without a bug")
}
