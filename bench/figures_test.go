package main

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRowsShowMedianRangeAndWorstTurn(t *testing.T) {
	var table bytes.Buffer
	out = &table
	defer func() { out = os.Stdout }()
	f := figures{"zklock": {100, 200, 100}, "lockpool": {150, 120, 50}}
	clients := []string{"zklock", "lockpool"}
	f.print("times", clients, lowerIsBetter, "%.0f", "at most 1.1")
	f.print("rates", clients, higherIsBetter, "%.1f", "")
	f.print("speed", clients, speedup, "%.0f", "at least 1")
	require.Equal(t, `| times | zklock | 100 | 100 to 200 | 1.00 | 1.00 |  |
| times | lockpool | 120 | 50 to 150 | 1.20 | 1.50 | at most 1.1 |
| rates | zklock | 100.0 | 100.0 to 200.0 | 1.00 | 1.00 |  |
| rates | lockpool | 120.0 | 50.0 to 150.0 | 1.20 | 0.50 |  |
| speed | zklock | 100 | 100 to 200 | 1.00 | 1.00 |  |
| speed | lockpool | 120 | 50 to 150 | 0.83 | 0.67 | at least 1 |
`, table.String())
}
