package main

// This file has the commands ls and show, as text and as JSON.

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"

	"github.com/spf13/cobra"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/cmd/lockpool/insights"
)

func lsCommand(c *connection) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls [PREFIX]",
		Short: "List the locks that have a holder or a waiter",
		Long: `Ls lists the locks that have a holder or a waiter: all, or those below PREFIX, such as
orders. HELD is the time since the first holder asked, which is the longest that it can
have held the lock: the service does not record the grant. A kept lock may be unused: its
process keeps the lock until another one asks. WAITING is the time since the first waiter
asked.`,
		Example:           "  lockpool ls\n  lockpool ls orders --json",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: c.complete,
		RunE: inspecting(c, func(ctx context.Context, pool *lockpool.Pool, cmd *cobra.Command, args []string) error {
			g, err := pool.Waits(ctx, strings.Join(args, ""))
			if err == nil {
				err = list(cmd.OutOrStdout(), g.Queues, time.Now(), asJSON)
			}
			if err == nil {
				err = unread(g)
			}
			return err
		}),
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func showCommand(c *connection) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show who holds a lock, and who waits for it",
		Long: `Show prints the holders and waiters of a lock in the order in which they asked: who they
are, when they asked by the service's clock, and their token, trace, session and node.
A kept lock may be unused: its process keeps the lock until another one asks.
Nodes are what lockpool break and lockpool revoke accept.`,
		Example:           "  lockpool show orders/42\n  lockpool show orders/42 --json",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.complete,
		RunE: inspecting(c, func(ctx context.Context, pool *lockpool.Pool, cmd *cobra.Command, args []string) error {
			q, err := pool.Queue(ctx, args[0])
			if err != nil {
				return err
			}
			var known background
			if !asJSON {
				known.refresh(ctx, pool, "")
				known.locate(ctx, c, q)
			}
			return show(cmd.OutOrStdout(), q, known.Insights, time.Now(), asJSON)
		}),
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func jsonFlag(cmd *cobra.Command, asJSON *bool) {
	cmd.Flags().BoolVar(asJSON, "json", false, "print JSON, which docs/command.md describes")
}

// inspecting returns a RunE with a pool and a limited time.
func inspecting(c *connection, run func(ctx context.Context, pool *lockpool.Pool, cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return classified(func(cmd *cobra.Command, args []string) error {
		pool, err := c.visit()
		if err != nil {
			return err
		}
		defer pool.Close()
		return reaching(pool, func(ctx context.Context) error { return run(ctx, pool, cmd, args) })
	})
}

// lockJSON is a lock in the output of lockpool ls --json.
type lockJSON struct {
	Name    string     `json:"name"`
	Kind    string     `json:"kind"`
	Holders int        `json:"holders"`
	Kept    int        `json:"kept"` // of the holders
	Waiters int        `json:"waiters"`
	Held    *time.Time `json:"first_holder_asked"` // null if there is none
	Waited  *time.Time `json:"first_waiter_asked"`
}

func locksOf(queues []lockpool.Queue) []lockJSON {
	locks := []lockJSON{}
	for _, q := range queues {
		s := summarize(q)
		locks = append(locks, lockJSON{q.Name, s.kind, s.holders, s.kept, s.waiters, timeOrNull(s.held), timeOrNull(s.waited)})
	}
	return locks
}

// list prints a line for each lock.
func list(w io.Writer, queues []lockpool.Queue, now time.Time, asJSON bool) error {
	rows := [][]string{{"NAME", "KIND", "HOLDERS", "WAITERS", "HELD", "WAITING"}}
	for _, q := range queues {
		s := summarize(q)
		rows = append(rows, []string{
			quoted(q.Name), s.kind, strconv.Itoa(s.holders), strconv.Itoa(s.waiters), s.heldFor(now), waitedFor(now, s.waited),
		})
	}
	switch {
	case asJSON:
		return printJSON(w, map[string]any{"locks": locksOf(queues)})
	case len(queues) == 0:
		return nil // as ls prints nothing for an empty directory
	}
	_, err := fmt.Fprintln(w, strings.Join(columns(rows, 2, 3, 4, 5), "\n"))
	return err
}

// queueJSON is the output of lockpool show --json.
type queueJSON struct {
	Name       string          `json:"name"`
	Contenders []contenderJSON `json:"contenders"` // in the order of asking
	Foreign    []string        `json:"foreign"`
}

type contenderJSON struct {
	Holds   bool      `json:"holds"`
	Kept    bool      `json:"kept,omitempty"`
	Kind    string    `json:"kind"`
	Permits int       `json:"permits,omitempty"`
	Asked   time.Time `json:"asked,omitzero"`
	Owner   string    `json:"owner,omitempty"`
	Host    string    `json:"host,omitempty"`
	PID     int       `json:"pid,omitempty"`
	Trace   string    `json:"traceparent,omitempty"`
	At      string    `json:"at,omitempty"`
	Callers int       `json:"callers,omitempty"`
	Listens bool      `json:"revocable,omitempty"`
	Token   int64     `json:"token,omitempty"`
	Session string    `json:"session"`
	Node    string    `json:"node"`
}

func contenderOf(c lockpool.Contender) contenderJSON {
	return contenderJSON{c.Holds, c.Kept, c.Kind, c.Permits, c.Asked.UTC(), c.Owner, c.Host, c.PID, c.Trace, c.At, c.Callers, c.Revocable, c.Token, c.Session, c.Node}
}

// show prints the holders and waiters of a lock.
func show(w io.Writer, q lockpool.Queue, in insights.Insights, now time.Time, asJSON bool) error {
	if asJSON {
		out := queueJSON{Name: q.Name, Contenders: []contenderJSON{}, Foreign: append([]string{}, q.Foreign...)}
		for _, c := range q.Contenders {
			out.Contenders = append(out.Contenders, contenderOf(c))
		}
		return printJSON(w, out)
	}
	s := summarize(q)
	b := new(strings.Builder)
	fmt.Fprintf(b, "%s: %s, %s\n", quoted(q.Name), count(s.holders, "holder"), count(s.waiters, "waiter"))
	for i, c := range q.Contenders {
		state, usual := "waits for "+waitedFor(now, c.Asked)+left(in.Left(q, i, now)), ""
		if c.Holds {
			state, usual = "holds for "+heldFor(now, c.Asked), usually(in.Usual(q.Name))
		}
		fmt.Fprintf(b, "\n%s: %s (%s%s)\n", state, who(c), kindOf(c), usual)
		for _, line := range details(c) {
			fmt.Fprintf(b, "  %s\n", line)
		}
	}
	if s.holders > 0 && s.waiters > 0 {
		fmt.Fprint(b, "\n", remedies(q.Name))
	}
	for _, node := range q.Foreign {
		fmt.Fprintf(b, "\nnot a contender that lockpool knows: %s\n", quoted(node))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// details returns lines about a contender.
func details(c lockpool.Contender) []string {
	rows := [][]string{{"asked", c.Asked.Format("2006-01-02 15:04:05.000 MST")}}
	if c.Token != 0 {
		rows = append(rows, []string{"token", strconv.FormatInt(c.Token, 10)})
	}
	if c.Trace != "" {
		rows = append(rows, []string{"trace", quoted(c.Trace)})
	}
	if c.At != "" {
		rows = append(rows, []string{"asked in", printable(c.At)})
	}
	return columns(append(rows, []string{"session", quoted(c.Session)}, []string{"node", quoted(c.Node)}))
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

func timeOrNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// printJSON prints v with escapes for anything terminals might not print.
func printJSON(w io.Writer, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, r := range string(text) {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	_, err = fmt.Fprintln(w, b.String())
	return err
}
