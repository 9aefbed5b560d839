package main

// This file has the command insights.

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/cmd/lockpool/insights"
)

func insightsCommand(c *connection) *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:   "insights [PREFIX]",
		Short: "Show what waiting for locks has cost, and what would help",
		Long: `Insights shows how many calls have waited for each lock at a time, on average over the last
hour or two, which lines of the programs held the lock meanwhile, and what would help, with
the numbers. The pools of lockpool count the waits and holds that have ended, and publish
the largest costs once a minute. Five locks or more below a name are one row.`,
		Example:           "  lockpool insights\n  lockpool insights orders --json",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: c.complete,
		RunE: inspecting(c, func(ctx context.Context, pool *lockpool.Pool, cmd *cobra.Command, args []string) error {
			costs, err := pool.Costs(ctx)
			if err != nil {
				return err
			}
			in := insights.Of(costs, strings.Join(args, ""))
			if asJSON {
				return printJSON(cmd.OutOrStdout(), in)
			}
			return printInsights(cmd.OutOrStdout(), in)
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, as described in docs/command.md")
	return cmd
}

const (
	shownCosts = 20 // locks
	shownLines = 3  // of each
)

// printInsights prints the insights, a paragraph for each lock and each advice.
func printInsights(w io.Writer, in insights.Insights) error {
	_, err := io.WriteString(w, strings.Join(insightLines(in), "\n")+"\n")
	return err
}

// insightLines says the insights in sentences, which end with the advice.
func insightLines(in insights.Insights) (lines []string) {
	if in.Pools == 0 {
		return []string{"No pool has published costs: one does a minute after its calls have begun to wait, if they have waited for a second in all."}
	}
	waiting := 0.0
	for _, l := range in.Locks {
		waiting += l.Waiting
	}
	lines = append(lines, fmt.Sprintf("%s published, over %s: %.2f calls waited at a time.", count(in.Pools, "pool"), seconds(in.Over), waiting))
	for _, l := range in.Locks[:min(len(in.Locks), shownCosts)] {
		line := fmt.Sprintf("%s: %.2f calls waited at a time, of %.1f a second, for %s in the mean", quoted(l.Lock), l.Waiting, l.Calls, seconds(l.MeanWait))
		if l.GaveUp > 0 {
			line += fmt.Sprintf("; %.2f a second gave up", l.GaveUp)
		}
		for i, at := range l.Lines[:min(len(l.Lines), shownLines)] {
			line += [2]string{". Behind ", "; "}[min(i, 1)] + fmt.Sprintf("%s: %.2f, %.1f holds a second of %s", placeOr(at.At), at.Waiting, at.Holds, seconds(at.MeanHold))
		}
		lines = append(lines, line+".")
	}
	for _, a := range in.Advice[:min(len(in.Advice), shownCosts)] {
		also := ""
		if a.Also > 0 {
			also = fmt.Sprintf(" and %d like it", a.Also)
		}
		lines = append(lines, "Advice for "+quoted(a.Lock)+also+": "+printable(a.Text))
	}
	return lines
}

func placeOr(at string) string {
	if at == "" {
		return "a line that is not known"
	}
	return printable(at)
}

// seconds is a duration for people.
func seconds(s float64) string {
	return insights.Round(time.Duration(s * float64(time.Second))).String()
}

// usually says how long a lock is held as a rule, and left how long a wait is going to last.
func usually(d time.Duration) string { return known(", usually for %s", d) }
func left(d time.Duration) string    { return known(", and about %s more", d) }

func known(format string, d time.Duration) string {
	if d == 0 {
		return ""
	}
	return fmt.Sprintf(format, insights.Round(d))
}
