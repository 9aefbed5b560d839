package main

// This file compares the formulas of docs/scale.md with what a server counts.

import (
	"flag"
	"go/constant"
	"go/token"
	"go/types"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	sessions  = flag.Int("sessions", long+50, "the largest `number` of contenders, each with a session, whose counts are compared with the page")
	processes = flag.Int("processes", 10, "the largest `number` of idle processes whose counts are compared with the page")
)

// The formulas of docs/scale.md are compared with what the server counts, for several
// values of their variables.
func TestPageStatesWhatTheServerCounts(t *testing.T) {
	page := read(t, "../docs/scale.md")
	var stated, measured []string
	for operation := range page {
		stated = append(stated, operation)
	}
	check := func(variable string, value int, found operations) {
		t.Helper()
		for operation, counted := range found {
			require.Contains(t, page, operation)
			measured = append(measured, operation)
			for column, count := range counted {
				formula := page[operation][column]
				says := evaluate(t, formula, variable, value)
				t.Logf("%s, %s = %d: %.6g %s, the page says %s = %.6g", operation, variable, value, count, column, formula, says)
				if math.Abs(count-says) > tolerance(operation, column, count) {
					t.Errorf("%s, %s = %d: %.6g %s, but the page says %s = %.6g", operation, variable, value, count, column, formula, says)
				}
			}
		}
	}
	for _, k := range []int{1, 2, 10} {
		check("k", k, uncontended(t, k))
	}
	for _, n := range []int{2, 3, 4, 10, *sessions} {
		check("n", n, contended(t, n))
	}
	for _, n := range []int{1, *processes} {
		check("n", n, idle(t, n))
	}
	slices.Sort(measured)
	require.ElementsMatch(t, stated, slices.Compact(measured), "each row of the page is measured")
}

// tolerance is how far a count may be from the page. Rates vary, as sessions look at
// their watches at random times; the length of nodes depends on the name of the machine.
func tolerance(operation, column string, count float64) float64 {
	switch {
	case strings.Contains(column, "bytes"):
		return max(0.2*count, 40)
	case strings.Contains(operation, " for "):
		return 0.15 * count
	case strings.Contains(operation, "reconnect"): // of many sessions, one may look at that moment
		return 0.01 * count
	}
	return 0
}

// read returns the formulas of a page's tables, by operation and column.
func read(t *testing.T, file string) map[string]map[string]string {
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	page := map[string]map[string]string{}
	var header []string
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case cells[0] == "operation":
			header = cells
		case !strings.HasPrefix(line, "|"):
			header = nil
		case header != nil && !strings.HasPrefix(cells[0], "---"):
			require.Len(t, cells, len(header), line)
			require.NotContains(t, page, cells[0])
			page[cells[0]] = map[string]string{}
			for i, formula := range cells[1:] {
				page[cells[0]][header[i+1]] = formula
			}
		}
	}
	return page
}

// evaluate returns the value of a formula, a constant expression of Go.
func evaluate(t *testing.T, formula, variable string, value int) float64 {
	t.Helper()
	scope := types.NewPackage("page", "page")
	scope.Scope().Insert(types.NewConst(token.NoPos, scope, variable, types.Typ[types.UntypedFloat],
		constant.ToFloat(constant.MakeInt64(int64(value)))))
	result, err := types.Eval(token.NewFileSet(), scope, token.NoPos, formula)
	require.NoError(t, err, formula)
	require.NotNil(t, result.Value, "%s is not a number", formula)
	f, _ := constant.Float64Val(constant.ToFloat(result.Value))
	return f
}

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
	require.Equal(t, map[string]map[string]string{"`Lock`": {"requests": "n + 1", "writes": "1"}}, read(t, file))
	require.Equal(t, []string{"`Lock`"}, slices.Collect(maps.Keys(read(t, file))))
}
