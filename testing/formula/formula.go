// Package formula compares the formulas in the tables of a page with what tests count.
package formula

import (
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

// A Page has formulas, by operation and column.
type Page struct {
	*testing.T
	formulas map[string]map[string]string
	measured map[string]bool
}

// Counts are what an operation costs, by column.
type Counts map[string]float64

// Read reads the tables whose first column has the given name, and lists operations.
func Read(t *testing.T, file, first string) *Page {
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	p := &Page{t, map[string]map[string]string{}, map[string]bool{}}
	var header []string
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case cells[0] == first:
			header = cells
		case !strings.HasPrefix(line, "|"):
			header = nil
		case header != nil && !strings.HasPrefix(cells[0], "---"):
			require.Len(t, cells, len(header), line)
			require.NotContains(t, p.formulas, cells[0])
			p.formulas[cells[0]] = map[string]string{}
			for i, formula := range cells[1:] {
				p.formulas[cells[0]][header[i+1]] = formula
			}
		}
	}
	return p
}

// Compare compares what operations cost with the page, for a value of a variable. tolerance
// says how far a count may be from the page.
func (p *Page) Compare(variable string, value int, found map[string]Counts, tolerance func(operation, column string, count float64) float64) {
	p.Helper()
	for operation, counts := range found {
		require.Contains(p, p.formulas, operation)
		p.measured[operation] = true
		for column, count := range counts {
			formula := p.formulas[operation][column]
			says := evaluate(p.T, formula, variable, value)
			p.Logf("%s, %s = %d: %.6g %s, the page says %s = %.6g", operation, variable, value, count, column, formula, says)
			if math.Abs(count-says) > tolerance(operation, column, count) {
				p.Errorf("%s, %s = %d: %.6g %s, but the page says %s = %.6g", operation, variable, value, count, column, formula, says)
			}
		}
	}
}

// Reached reports whether no count of an operation is less than the page says.
func (p *Page) Reached(variable string, value int, operation string, counts Counts, tolerance func(operation, column string, count float64) float64) bool {
	p.Helper()
	for column, count := range counts {
		if evaluate(p.T, p.formulas[operation][column], variable, value)-count > tolerance(operation, column, count) {
			return false
		}
	}
	return true
}

// RequireAll requires that each operation of the page has been compared.
func (p *Page) RequireAll() {
	p.Helper()
	require.ElementsMatch(p, slices.Collect(maps.Keys(p.formulas)), slices.Collect(maps.Keys(p.measured)))
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
