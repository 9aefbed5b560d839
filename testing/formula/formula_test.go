package formula

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFormulasAreEvaluated(t *testing.T) {
	for formula, want := range map[string]float64{
		"3": 3, "-1": -1, "n + 2": 12, "min(n, 4)": 4, "3600*n / (30 + 0.02*n)": 36000 / 30.2, "n * n": 100,
	} {
		require.InDelta(t, want, evaluate(t, formula, "n", 10), 1e-9, formula)
	}
}

func TestPageIsRead(t *testing.T) {
	file := t.TempDir() + "/page.md"
	text := "| operation | requests | writes |\n|---|---|---|\n| `Lock` | n + 1 | 1 |\n\n| other | table |\n|---|---|\n| a | b |\n"
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	p := Read(t, file, "operation")
	require.Equal(t, map[string]map[string]string{"`Lock`": {"requests": "n + 1", "writes": "1"}}, p.formulas)
	exactly := func(string, string, float64) float64 { return 0 }
	p.Compare("n", 2, map[string]Counts{"`Lock`": {"requests": 3, "writes": 1}}, exactly)
	require.True(t, p.Reached("n", 2, "`Lock`", Counts{"requests": 4, "writes": 1}, exactly))
	require.False(t, p.Reached("n", 2, "`Lock`", Counts{"requests": 4, "writes": 0}, exactly))
	p.RequireAll()
}
