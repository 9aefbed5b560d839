package main

import (
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEveryBugCompiles builds the library with all bugs, as many at a time as are in
// different lines.
func TestEveryBugCompiles(t *testing.T) {
	bugs, err := parseBugs(bugsText)
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(bugs), 30)
	root, err := filepath.Abs("../../..")
	require.NoError(t, err)
	for len(bugs) > 0 {
		var together, others []bug
		for _, b := range bugs {
			if slices.ContainsFunc(together, func(other bug) bool { return other.file == b.file && other.old == b.old }) {
				others = append(others, b)
			} else {
				together = append(together, b)
			}
		}
		bugs = others
		overlay, err := plant(root, t.TempDir(), together...)
		require.NoError(t, err)
		cmd := exec.CommandContext(t.Context(), "go", "build", "-overlay", overlay, ".", "./driver/zookeeper", "./recipe")
		cmd.Dir = root
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
}

func TestBugThatNoLongerAppliesIsFound(t *testing.T) {
	t.Parallel()
	b := bug{name: "b", file: "f.go", before: []string{"for {"}, old: "i++", new: "i--", after: []string{"}"}}
	changed, err := b.apply("i++\n\tfor {\n\t\ti++\n\t}\n")
	require.NoError(t, err)
	require.Equal(t, "i++\n\tfor {\n\t\ti--\n\t}\n", changed)

	_, err = b.apply("for {\ni += 1\n}")
	require.ErrorContains(t, err, "not there any more")
	_, err = b.apply("for {\ni++\n}\nfor {\ni++\n}")
	require.ErrorContains(t, err, "more than once")
}

func TestMalformedListIsRefused(t *testing.T) {
	t.Parallel()
	const good = "bug a\nfile f.go\n-x\n+y\nbreaks All.\nsource Here.\n"
	bugs, err := parseBugs("# A comment.\n\n" + good)
	require.NoError(t, err)
	require.Equal(t, []bug{{name: "a", file: "f.go", old: "x", new: "y", breaks: "All.", source: "Here."}}, bugs)
	for text, want := range map[string]string{
		"file f.go\n":                          "no bug begins here",
		good + good:                            "not a new name",
		"bug A\n":                              "not a new name",
		"bug a\n-x\n-y\n":                      "not understood",
		"bug a\n+y\n":                          "not understood",
		"bug a\nfile f.go\nsource s\nbreaks b": "lacks",
		"bug a\nfiel f.go\n":                   "not understood",
	} {
		_, err := parseBugs(text)
		require.ErrorContains(t, err, want, text)
	}
}

func TestOutcomeIsRead(t *testing.T) {
	t.Parallel()
	const totals = "violations=1 leaked_nodes=0 stuck_waiters=0 grants=7 faults=1 losses=0 deadlocks=0 rescues=0 virtual=1h0m0s real=2s\n"
	require.Equal(t, outcome{"", "1h0m0s", "2s"}, readOutcome("20 bubbles: all well\n"+totals))
	require.Equal(t, outcome{"LEFT: a node", "1h0m0s", "2s"}, readOutcome("LEFT in bubble 3 of seed 4: a node\nSTUCK in bubble 3 of seed 4: b\n"+totals))
	require.Empty(t, readOutcome("panic: x"))
}
