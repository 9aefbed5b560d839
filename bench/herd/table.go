package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// writeTable writes a row for each lock.
func writeTable(out io.Writer, waiters []int, results []drained) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "wake-ups and requests per release\t")
	for _, n := range waiters {
		fmt.Fprintf(w, "%d waiters\t\t", n)
	}
	for i, d := range results {
		if i == 0 || d.lock != results[i-1].lock {
			fmt.Fprintf(w, "\n%s\t", d.lock)
		}
		fmt.Fprintf(w, "%.2f\t%.2f\t", d.wakeups, d.requests)
	}
	fmt.Fprintln(w)
	return w.Flush()
}
