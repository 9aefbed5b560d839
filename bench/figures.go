package main

import (
	"fmt"
	"io"
	"os"
	"slices"
)

// figures are the results of each client, one for each of its turns.
type figures map[string][]float64

func (f figures) add(client string, figure float64) { f[client] = append(f[client], figure) }

// comparison is how a client's figures are compared with the reference client's.
type comparison struct {
	ratio func(figure, reference float64) float64
	worst func([]float64) float64 // of ratios
}

var (
	lowerIsBetter  = comparison{quotient, slices.Max[[]float64]}
	higherIsBetter = comparison{quotient, slices.Min[[]float64]}
	// speedup compares times by how many times as fast as the reference a client is.
	speedup = comparison{func(figure, reference float64) float64 { return reference / figure }, slices.Min[[]float64]}
)

func quotient(figure, reference float64) float64 { return figure / reference }

const header = "| scenario | client | median | range | ratio | worst turn | target |\n|---|---|---|---|---|---|---|\n"

// out receives the table.
var out io.Writer = os.Stdout

// print writes a row for each client. The first client is the reference, and the
// target is lockpool's.
func (f figures) print(scenario string, clients []string, c comparison, format, target string) {
	for _, client := range clients {
		if client == "lockpool" {
			f.row(scenario, client, clients[0], c, format, target)
		} else {
			f.row(scenario, client, clients[0], c, format, "")
		}
	}
}

func (f figures) row(scenario, client, reference string, c comparison, format, target string) {
	own, others := f[client], f[reference]
	ratios := make([]float64, len(own))
	for turn := range own {
		ratios[turn] = c.ratio(own[turn], others[turn])
	}
	m := median(own)
	fmt.Fprintf(out, "| %s | %s | "+format+" | "+format+" to "+format+" | %.2f | %.2f | %s |\n",
		scenario, client, m, slices.Min(own), slices.Max(own), c.ratio(m, median(others)), c.worst(ratios), target)
}

func median(values []float64) float64 {
	return slices.Sorted(slices.Values(values))[len(values)/2]
}
