package main

// This file summarizes queues and contenders for the commands that show them.

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/charmbracelet/x/ansi"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/cmd/lockpool/insights"
)

// survey is what was seen of the locks.
type survey struct {
	queues []lockpool.Queue // the most contended first
	background
	graph lockpool.WaitGraph
	began time.Time
	took  time.Duration
	err   error
}

// background is what is asked for less often than the locks.
type background struct {
	costs
	addresses
}

// costs are what pools have published, read as often as they do.
type costs struct {
	insights.Insights
	read time.Time
	err  error
}

// refresh reads the costs if they are old. Costs that cannot be read are not known: they are not
// needed to see who waits.
func (c *costs) refresh(ctx context.Context, pool *lockpool.Pool, prefix string) {
	if time.Since(c.read) < time.Minute {
		return
	}
	var all []lockpool.PoolCosts
	all, c.err = pool.Costs(ctx)
	c.read, c.Insights = time.Now(), insights.Of(all, prefix)
}

// The times between two looks: at least a second, and enough to keep looking at a tenth of
// the time.
const (
	lookInterval = time.Second
	restFactor   = 9
)

// surveyOf looks at the locks below a prefix. before is of an earlier survey.
func surveyOf(c *connection, pool *lockpool.Pool, prefix string, before background) survey {
	s := survey{began: time.Now(), background: before}
	s.err = reaching(pool, func(ctx context.Context) (err error) {
		s.graph, err = pool.Waits(ctx, prefix)
		s.refresh(ctx, pool, prefix)
		return err
	})
	s.took = time.Since(s.began)
	s.locate(context.Background(), c, s.graph.Queues...)
	s.queues = s.graph.Queues
	return s
}

// rest is the time between the survey and the next.
func (s survey) rest() time.Duration { return max(lookInterval, restFactor*s.took) }

// title says how many of the locks there are, which is said too, and how old the survey is if
// it is late.
func (s survey) title(locks []lockpool.Queue, which string, now time.Time) string {
	n := 0
	for _, q := range locks {
		n += summarize(q).waiters
	}
	title := fmt.Sprintf("%s%s, %s", count(len(locks), "lock"), which, count(n, "waiter"))
	if n := len(s.graph.Deadlocks); n > 0 {
		title += ", " + count(n, "deadlock")
	}
	if n := len(s.graph.Unread); n > 0 {
		title += fmt.Sprintf(", %s not read for want of rights", count(n, "name"))
	}
	const late = 2 * time.Second
	if s.err != nil || now.Sub(s.began) > s.took+s.rest()+late {
		title = fmt.Sprintf("%s, seen %s ago", title, waitedFor(now, s.began))
	}
	if s.err != nil {
		title += ": " + oneLine(s.err)
	}
	return title
}

// noteGrants sets the time of the grant for contenders that waited in the last survey, or
// whose grant was seen then: at the earliest the beginning of this survey.
func noteGrants(before, now survey) {
	known := map[string]time.Time{}
	for _, q := range before.queues {
		for _, c := range q.Contenders {
			switch {
			case !c.Holds:
				known[q.Name+"\x00"+c.Node] = before.began
			case !c.Granted.IsZero():
				known[q.Name+"\x00"+c.Node] = c.Granted
			}
		}
	}
	for _, q := range now.queues {
		for i := range q.Contenders {
			if c := &q.Contenders[i]; c.Holds {
				c.Granted = known[q.Name+"\x00"+c.Node]
			}
		}
	}
}

// unread returns the error for unreadable locks, if there are any.
func unread(g lockpool.WaitGraph) error {
	if len(g.Unread) == 0 {
		return nil
	}
	var names []string
	for _, name := range g.Unread[:min(len(g.Unread), 3)] {
		names = append(names, quoted(name))
	}
	if more := len(g.Unread) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return fmt.Errorf("%w to read %s", lockpool.ErrNoPermission, strings.Join(names, ", "))
}

// summary is what one line says about a lock.
type summary struct {
	kind             string // of the first contender
	holders, waiters int
	kept             int       // holders whose pools keep the lock, used or not
	held, waited     time.Time // the longest time of the first holder, and of the first waiter
}

func summarize(q lockpool.Queue) (s summary) {
	callers := 0
	for i, c := range q.Contenders {
		if i == 0 {
			s.kind = c.Kind
		}
		n, since := &s.waiters, &s.waited
		if c.Holds {
			n, since = &s.holders, &s.held
		}
		if *n++; *n == 1 || heldSince(c).Before(*since) {
			*since = heldSince(c)
		}
		if c.Holds && c.Kept {
			s.kept++
		}
		callers += c.Callers
	}
	s.waiters += callers
	return s
}

// heldFor is the time since the first holder asked, or says that all holders keep the lock,
// which may be unused.
func (s summary) heldFor(now time.Time) string {
	if s.holders > 0 && s.kept == s.holders {
		return "kept"
	}
	return heldFor(now, s.held)
}

// heldSince is the earliest possible time of a contender's grant, or of asking.
func heldSince(c lockpool.Contender) time.Time {
	if c.Granted.IsZero() {
		return c.Asked
	}
	return c.Granted
}

// who names a contender as far as known.
func who(c lockpool.Contender) string {
	switch {
	case c.Host == "" && c.PID == 0:
		return "session " + quoted(c.Session)
	case c.Owner == "":
		return where(c)
	}
	return c.Owner + ", " + where(c)
}

// remedies are the commands that end waits for a lock. A name that a shell could misunderstand
// is left out.
func remedies(name string) string {
	if name != printable(name) || strings.Contains(name, "'") || strings.HasPrefix(name, "-") {
		return ""
	}
	if strings.ContainsFunc(name, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("/._-:@%+=,", r)
	}) {
		name = "'" + name + "'"
	}
	return fmt.Sprintf("to ask the holders for the lock: lockpool revoke %s\nto take the lock from them: lockpool break %s\n", name, name)
}

func where(c lockpool.Contender) string {
	switch {
	case c.Host == "":
		return fmt.Sprintf("process %d", c.PID)
	case c.PID == 0:
		return "a process on " + c.Host
	}
	return fmt.Sprintf("process %d on %s", c.PID, c.Host)
}

// kindOf returns the kind of a contender, how many permits the contender has or wants, whether
// its pool keeps the lock, whether a holder releases the lock when asked, and how many calls
// wait behind in memory.
func kindOf(c lockpool.Contender) string {
	text := c.Kind
	if c.Permits > 0 {
		text += fmt.Sprintf(", %d permits", c.Permits)
	}
	if c.Kept {
		text += ", kept"
	}
	if c.Revocable {
		text += ", revocable"
	}
	if c.Callers > 0 {
		text += ", with " + count(c.Callers, "caller") + " behind in memory"
	}
	return text
}

// heldFor and waitedFor are the times since a contender asked. A waiter has waited as long.
// A holder has held the lock for at most as long, since nothing records the grant.
func heldFor(now, asked time.Time) string   { return since("≤", now, asked) }
func waitedFor(now, asked time.Time) string { return since("", now, asked) }

func since(prefix string, now, asked time.Time) string {
	if asked.IsZero() {
		return "-"
	}
	d := max(0, now.Sub(asked)) // the clocks may differ
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%s%ds", prefix, d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%s%dm%02ds", prefix, d/time.Minute, d%time.Minute/time.Second)
	case d < 48*time.Hour:
		return fmt.Sprintf("%s%dh%02dm", prefix, d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%s%dd", prefix, d/(24*time.Hour))
}

// quoted returns s unchanged if a terminal shows s as one word, and otherwise in quotation
// marks, with escapes. Other clients may have chosen any name.
func quoted(s string) string {
	if s == "" || strings.ContainsFunc(s, func(r rune) bool {
		return r == ' ' || r == '"' || r == unicode.ReplacementChar || !unicode.IsPrint(r)
	}) {
		return strconv.Quote(s)
	}
	return s
}

// columns returns the rows with their cells below each other. The columns of the given
// numbers are aligned to the right.
func columns(rows [][]string, right ...int) (lines []string) {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], ansi.StringWidth(cell))
		}
	}
	for _, row := range rows {
		var b strings.Builder
		for i, cell := range row {
			gap := strings.Repeat(" ", widths[i]-ansi.StringWidth(cell))
			if slices.Contains(right, i) {
				cell = gap + cell
			} else {
				cell += gap
			}
			b.WriteString(cell + "  ")
		}
		lines = append(lines, strings.TrimRight(b.String(), " "))
	}
	return lines
}

// byContention orders the most contended first: by the number of waiters, then by who
// has waited longest.
func byContention(a, b lockpool.Queue) int {
	x, y := summarize(a), summarize(b)
	return cmp.Or(cmp.Compare(y.waiters, x.waiters), x.waited.Compare(y.waited), cmp.Compare(a.Name, b.Name))
}

// printable returns s with escapes for what a terminal might not print.
func printable(s string) string {
	var b strings.Builder
	for _, r := range s {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}
