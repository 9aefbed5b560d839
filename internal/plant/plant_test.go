package plant

// This file tests the reading of lists of bugs.

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBugThatNoLongerAppliesIsFound(t *testing.T) {
	t.Parallel()
	b := Bug{Name: "b", File: "f.go", before: []string{"for {"}, old: "i++", new: "i--", after: []string{"}"}}
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
	bugs, err := parse("# A comment.\n\n"+good, "source")
	require.NoError(t, err)
	require.Equal(t, []Bug{{Name: "a", File: "f.go", old: "x", new: "y", Notes: map[string]string{"breaks": "All.", "source": "Here."}}}, bugs)
	for text, want := range map[string]string{
		"file f.go\n":                          "no bug begins here",
		good + good:                            "not a new name",
		"bug A\n":                              "not a new name",
		"bug a\n-x\n-y\n":                      "not understood",
		"bug a\n+y\n":                          "not understood",
		"bug a\nfile f.go\nsource s\nbreaks b": "lacks",
		"bug a\nfiel f.go\n":                   "not understood",
	} {
		_, err := parse(text, "source")
		require.ErrorContains(t, err, want, text)
	}
}
