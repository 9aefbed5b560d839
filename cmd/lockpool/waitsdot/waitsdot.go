// Package waitsdot draws who waits for whom, as returned by [lockpool.Pool.Waits].
package waitsdot

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/lockpool/lockpool"
)

// DOT returns the graph as a drawing for Graphviz: a box for each party waiting or waited
// for, and an arrow to each awaited party. Deadlocks are red. The same graph has the same
// text, and names in the graph, chosen by any client, are only names.
func DOT(g lockpool.WaitGraph) string {
	drawn, inDeadlock := make([]bool, len(g.Parties)), make([]int, len(g.Parties))
	for i, p := range g.Parties {
		drawn[i] = drawn[i] || p.Wait != nil
		for _, other := range p.For {
			drawn[other] = true
		}
	}
	for i, parties := range g.Deadlocks {
		for _, p := range parties {
			inDeadlock[p] = i + 1
		}
	}
	var b strings.Builder
	b.WriteString(`digraph waits {
	graph [bgcolor=white, nodesep=0.4, ranksep=0.6]
	node [shape=box, style="rounded,filled", fontname=Helvetica, fontsize=12, color="#8c959f", fillcolor="#f6f8fa", fontcolor="#1f2328"]
	edge [fontname=Helvetica, fontsize=11, color="#59636e", fontcolor="#59636e"]
`)
	for i, p := range g.Parties {
		if !drawn[i] {
			continue
		}
		red := ""
		if inDeadlock[i] > 0 {
			red = `, color="#b3261e", fillcolor="#fdeceb", penwidth=2`
		}
		fmt.Fprintf(&b, "\tp%d [label=%s%s]\n", i, dotString(labelOf(p)...), red)
	}
	for i, p := range g.Parties {
		for _, other := range p.For {
			red := ""
			if inDeadlock[i] > 0 && inDeadlock[i] == inDeadlock[other] {
				red = `, color="#b3261e", fontcolor="#b3261e", penwidth=2`
			}
			fmt.Fprintf(&b, "\tp%d -> p%d [label=%s%s]\n", i, other, dotString(" waits for "+nameOf(*p.Wait)+" "), red)
		}
	}
	b.WriteString("}\n")
	return b.String()
}

// labelOf describes a party in a few lines.
func labelOf(p lockpool.Party) (lines []string) {
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	if p.Owner != "" {
		add("%s", shortened(p.Owner))
	}
	switch {
	case p.Host == "" && p.PID == 0 && p.Wait != nil:
		add("session %s", p.Wait.Session)
	case p.Host == "" && p.PID == 0:
		add("session %s", p.Holds[0].Session)
	case p.Host == "":
		add("process %d", p.PID)
	case p.PID == 0:
		add("a process on %s", shortened(p.Host))
	default:
		add("process %d on %s", p.PID, shortened(p.Host))
	}
	const most = 5
	for _, h := range p.Holds[:min(len(p.Holds), most)] {
		add("holds %s", nameOf(h))
	}
	if more := len(p.Holds) - most; more > 0 {
		add("and %d more", more)
	}
	if p.Wait != nil && p.Wait.At != "" {
		at, _, _ := strings.Cut(p.Wait.At, " from ") // without the callers
		add("waits in %s", shortened(at))
	}
	return lines
}

// nameOf returns the name of the lock, with the number of permits if the lock is a semaphore.
func nameOf(s lockpool.Contender) string {
	name := shortened(s.Lock)
	switch s.Permits {
	case 0:
		return name
	case 1:
		return name + " (1 permit)"
	default:
		return fmt.Sprintf("%s (%d permits)", name, s.Permits)
	}
}

// shortened returns a long s without the middle.
func shortened(s string) string {
	const most = 60 // runes
	if r := []rune(s); len(r) > most {
		return string(r[:most/2]) + "…" + string(r[len(r)-most/2+1:])
	}
	return s
}

// dotString returns lines as a string of the DOT language. A label there has special
// escapes, and entities as in HTML.
func dotString(lines ...string) string {
	var b strings.Builder
	for i, line := range lines {
		if i > 0 {
			b.WriteString(`\n`)
		}
		for _, r := range line {
			switch {
			case r == '"' || r == '\\':
				b.WriteString(`\` + string(r))
			case r == '&':
				b.WriteString("&amp;")
			case unicode.IsPrint(r):
				b.WriteRune(r)
			default:
				b.WriteString(`\` + strings.Trim(strconv.QuoteRune(r), "'"))
			}
		}
	}
	return `"` + b.String() + `"`
}

// SVG returns the drawing of [DOT] as a picture on a white background. SVG runs Graphviz's
// program dot; if dot is not installed, the error wraps [exec.ErrNotFound]. Drawing a large
// graph takes long, until the context ends.
func SVG(ctx context.Context, g lockpool.WaitGraph) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "dot", "-Tsvg")
	cmd.Stdin = strings.NewReader(DOT(g))
	cmd.WaitDelay = time.Second
	var stderr strings.Builder
	cmd.Stderr = &stderr
	svg, err := cmd.Output()
	switch {
	case err == nil:
		return svg, nil
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case stderr.Len() > 0:
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return nil, fmt.Errorf("drawing with Graphviz: %w", err)
}
