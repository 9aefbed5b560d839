package main

// This file runs scenarios, and writes their figures as a table.

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// scenario is an activity of clients in turns.
type scenario struct {
	name    string   // for -row
	clients []string // in the order of their turns
	lines   []line
	// turn is one turn of a client. It returns a figure for each line.
	turn func(client string) []float64
}

// line is a line of the table: one figure of each client.
type line struct {
	what      string
	reference string // the client to compare lockpool with, if any
	more      bool   // more is better
	target    string
}

// figures are the results of each client for one line, in the order of turns.
type figures map[string][]float64

// run lets the clients take turns. The first turn of each warms up the server, and is not
// counted.
func (s scenario) run(turns int) []figures {
	results := make([]figures, len(s.lines))
	for i := range results {
		results[i] = figures{}
	}
	for turn := range turns + 1 {
		for _, client := range s.clients {
			for i, figure := range s.turn(client) {
				if turn > 0 {
					results[i][client] = append(results[i][client], figure)
				}
			}
		}
	}
	return results
}

// columns are the clients with a column.
var columns = []string{floor, zkLock, ours, off, keeps}

// header returns the first two rows of the table.
func header() string {
	cells := slices.Concat([]string{""}, columns, []string{"beside", "target"})
	return row(cells) + "|" + strings.Repeat("---|", len(cells)) + "\n"
}

func row(cells []string) string { return "| " + strings.Join(cells, " | ") + " |\n" }

// row returns the row of a line. The figure of a client is the median of all turns, with
// the worst one in parentheses. Below "beside" are the ratios of a client of ours to the
// reference: the median, and the worst, of the ratios of consecutive turns. A median worse
// than the reference is in bold.
func (l line) row(f figures) string {
	cells := []string{l.what}
	for _, client := range columns {
		cell := ""
		if own := f[client]; own != nil {
			cell = l.summary(own)
		}
		cells = append(cells, cell)
	}
	var beside []string
	for _, client := range []string{ours, off, keeps} {
		own := f[client]
		if own == nil || f[l.reference] == nil || client == l.reference {
			continue
		}
		ratios := make([]float64, len(own))
		for turn := range own {
			ratios[turn] = own[turn] / f[l.reference][turn]
		}
		median, worst := l.medianAndWorst(ratios)
		text := fmt.Sprintf("%s (%s)", number(median), number(worst))
		if median < 1 == l.more && median != 1 {
			text = fmt.Sprintf("**%s** (%s)", number(median), number(worst))
		}
		if client != ours {
			text = client + ": " + text
		}
		beside = append(beside, text)
	}
	if len(beside) > 0 {
		beside[0] += " × " + l.reference
	}
	return row(append(cells, strings.Join(beside, ", "), l.target))
}

func (l line) summary(values []float64) string {
	median, worst := l.medianAndWorst(values)
	return fmt.Sprintf("%s (%s)", number(median), number(worst))
}

func (l line) medianAndWorst(values []float64) (median, worst float64) {
	if worst = slices.Max(values); l.more {
		worst = slices.Min(values)
	}
	return middle(values), worst
}

func middle[T time.Duration | float64](values []T) T {
	return slices.Sorted(slices.Values(values))[len(values)/2]
}

// number formats a figure with three digits or, if large, as an integer.
func number(f float64) string {
	switch {
	case f >= 100 || f == float64(int64(f)):
		return fmt.Sprintf("%.0f", f)
	case f >= 10:
		return fmt.Sprintf("%.1f", f)
	case f > 0 && f < 0.005:
		return "< 0.01"
	}
	return fmt.Sprintf("%.2f", f)
}

// writeTables runs the scenarios and writes the table, row by row, and a shorter one
// with the first line of each scenario in brief.
func writeTables(long, short io.Writer, scenarios []scenario, turns int) error {
	if _, err := io.WriteString(io.MultiWriter(long, short), header()); err != nil {
		return err
	}
	for _, s := range scenarios {
		for i, f := range s.run(turns) {
			out := long
			if i == 0 && slices.Contains(brief, s.name) {
				out = io.MultiWriter(long, short)
			}
			if _, err := io.WriteString(out, s.lines[i].row(f)); err != nil {
				return err
			}
		}
	}
	return nil
}

const (
	blockBegins = "<!-- written by make bench -->\n"
	blockEnds   = "<!-- end of what make bench writes -->\n"
)

// replaceBlock replaces what is between the marks in a file.
func replaceBlock(file, text string) error {
	page, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, begins := bytes.Cut(page, []byte(blockBegins))
	_, after, ends := bytes.Cut(rest, []byte(blockEnds))
	if !begins || !ends {
		return fmt.Errorf("%s has no line %q with a line %q after it", file, strings.TrimSpace(blockBegins), strings.TrimSpace(blockEnds))
	}
	page = slices.Concat(before, []byte(blockBegins), []byte(text), []byte(blockEnds), after)
	return os.WriteFile(file, page, 0o644)
}
