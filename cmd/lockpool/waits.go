package main

// This file has the command waits.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/cmd/lockpool/insights"
	"github.com/lockpool/lockpool/cmd/lockpool/waitsdot"
)

// waitFormats are the values of --format other than text.
var waitFormats = map[string]func(ctx context.Context, w io.Writer, g lockpool.WaitGraph) error{
	"json": func(_ context.Context, w io.Writer, g lockpool.WaitGraph) error { return printJSON(w, waitsOf(g)) },
	"dot": func(_ context.Context, w io.Writer, g lockpool.WaitGraph) error {
		_, err := io.WriteString(w, waitsdot.DOT(g))
		return err
	},
	"svg": func(ctx context.Context, w io.Writer, g lockpool.WaitGraph) error {
		svg, err := waitsdot.SVG(ctx, g)
		switch {
		case errors.Is(err, exec.ErrNotFound):
			return fmt.Errorf("%w; install Graphviz, or use --format dot", err)
		case err == nil:
			_, err = w.Write(svg)
		}
		return err
	},
}

func waitsCommand(c *connection) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "waits [PREFIX]",
		Short: "Show who waits for whom, and deadlocks",
		Long: `Waits shows who waits for whom, over all locks or those below PREFIX: for each lock that
somebody waits for its holders, below them its waiters, and below each of those the
waiters of the locks that it holds meanwhile. A deadlock is where the tree comes back to a
lock above.

With --format json it prints what docs/command.md describes, with dot a drawing for
Graphviz, and with svg a picture, for which Graphviz must be installed.`,
		Example:           "  lockpool waits\n  lockpool waits orders --format svg > waits.svg",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: c.complete,
	}
	cmd.Flags().StringVar(&format, "format", "text", "text, json, dot or svg")
	cmd.RunE = classified(func(cmd *cobra.Command, args []string) error {
		print := waitFormats[format]
		if print == nil && format != "text" {
			return misused("there is no format %s; use text, json, dot or svg", quoted(format))
		}
		return inspecting(c, func(ctx context.Context, pool *lockpool.Pool, cmd *cobra.Command, args []string) error {
			prefix := strings.Join(args, "")
			g, err := pool.Waits(ctx, prefix)
			if err == nil && format == "text" {
				var known background
				known.refresh(ctx, pool, prefix)
				known.locate(ctx, c, g.Queues...)
				err = printWaits(cmd.OutOrStdout(), g, known.Insights, time.Now())
			} else if err == nil {
				err = print(ctx, cmd.OutOrStdout(), g)
			}
			if err == nil {
				err = unread(g)
			}
			return err
		})(cmd, args)
	})
	return cmd
}

// printWaits prints trees.
func printWaits(w io.Writer, g lockpool.WaitGraph, in insights.Insights, now time.Time) error {
	waiting := 0
	for _, p := range g.Parties {
		if p.Wait != nil {
			waiting++
		}
	}
	for _, q := range g.Queues {
		for _, c := range q.Contenders {
			waiting += c.Callers
		}
	}
	_, err := fmt.Fprintf(w, "%s%s, %s\n", newForest(g, in).String(now), count(waiting, "waiter"), count(len(g.Deadlocks), "deadlock"))
	return err
}

// waitsJSON is the output of lockpool waits --format json.
type waitsJSON struct {
	Parties   []partyJSON `json:"parties"`
	Deadlocks [][]int     `json:"deadlocks"`
	Unread    []string    `json:"unread"`
}

type partyJSON struct {
	Owner string      `json:"owner,omitempty"`
	Host  string      `json:"host,omitempty"`
	PID   int         `json:"pid,omitempty"`
	Holds []standJSON `json:"holds"`
	Wait  *standJSON  `json:"waits_for"` // null if not waiting
	For   []int       `json:"behind"`
}

type standJSON struct {
	Lock    string    `json:"lock"`
	Kind    string    `json:"kind"`
	Permits int       `json:"permits,omitempty"`
	Kept    bool      `json:"kept,omitempty"`
	Asked   time.Time `json:"asked,omitzero"`
	At      string    `json:"at,omitempty"`
	Trace   string    `json:"traceparent,omitempty"`
	Session string    `json:"session"`
	Node    string    `json:"node"`
}

func waitsOf(g lockpool.WaitGraph) waitsJSON {
	stand := func(s lockpool.Contender) standJSON {
		return standJSON{s.Lock, s.Kind, s.Permits, s.Kept, s.Asked.UTC(), s.At, s.Trace, s.Session, s.Node}
	}
	out := waitsJSON{[]partyJSON{}, append([][]int{}, g.Deadlocks...), append([]string{}, g.Unread...)}
	for _, p := range g.Parties {
		party := partyJSON{p.Owner, p.Host, p.PID, []standJSON{}, nil, append([]int{}, p.For...)}
		for _, s := range p.Holds {
			party.Holds = append(party.Holds, stand(s))
		}
		if p.Wait != nil {
			wait := stand(*p.Wait)
			party.Wait = &wait
		}
		out.Parties = append(out.Parties, party)
	}
	return out
}
