package main

// This file compares the formulas of docs/scale.md with what a server counts.

import (
	"flag"
	"strings"
	"testing"

	"github.com/lockpool/lockpool/testing/formula"
)

var (
	sessions  = flag.Int("sessions", long+50, "the largest `number` of contenders, each with a session, whose counts are compared with the page")
	processes = flag.Int("processes", 10, "the largest `number` of idle processes whose counts are compared with the page")
)

// The formulas of docs/scale.md are compared with what the server counts, for several
// values of their variables.
func TestPageStatesWhatTheServerCounts(t *testing.T) {
	page := formula.Read(t, "../docs/scale.md", "operation")
	for _, k := range []int{1, 2, 10} {
		page.Compare("k", k, uncontended(t, k), tolerance)
	}
	for _, n := range []int{2, 3, 4, 10, *sessions} {
		page.Compare("n", n, contended(t, n), tolerance)
	}
	for _, n := range []int{1, *processes} {
		page.Compare("n", n, idle(t, n), tolerance)
	}
	page.RequireAll()
}

// tolerance is how far a count may be from the page. Rates vary, as sessions look at
// their watches at random times; the length of nodes depends on the name of the machine.
// A reconnection can meet a look, of one request for the directory.
func tolerance(operation, column string, count float64) float64 {
	const look = 200 // bytes, for two contenders
	switch reconnect := operation == "all reconnect, as after an election"; {
	case reconnect && column == "requests":
		return max(1, 0.01*count)
	case reconnect && strings.Contains(column, "bytes"):
		return max(0.2*count, look)
	case strings.Contains(column, "bytes"):
		return max(0.2*count, 40)
	case strings.Contains(operation, " for "):
		return 0.15 * count
	}
	return 0
}
