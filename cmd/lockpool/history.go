package main

// This file has the command history: who held and waited for locks.

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/nodedata"
	"github.com/lockpool/lockpool/internal/waitgraph"
)

func historyCommand(c *connection) *cobra.Command {
	var logs, snapshots, from, to, chroot string
	var asJSON, asSVG bool
	cmd := &cobra.Command{
		Use:   "history [--txnlog DIR] [NAME...]",
		Short: "Show who held and waited for locks, from what the servers have kept",
		Long: `History shows each change of the locks of all clients, or of those with a NAME and below,
from the transaction logs and snapshots of a ZooKeeper server, which may run, or from the
revisions that etcd has not compacted. --from and --to are 15:04 or 15:04:05 of the last day,
RFC 3339, or 90m for ninety minutes ago.`,
		Example: "  lockpool history --txnlog /var/lib/zookeeper --chroot /locks --from 02:10 --to 02:40 orders\n  lockpool history --server etcd://host1:2379/locks --from 90m orders",
		RunE: classified(func(cmd *cobra.Command, names []string) error {
			var h *history
			var err error
			for i, name := range names {
				names[i] = strings.TrimRight(name, "/") // what is below a name has the name with a slash
				if err := driver.CheckName(names[i]); err != nil {
					return misused("%s is not the name of a lock: %w", quoted(name), err)
				}
			}
			switch {
			case chroot != "" && chroot[0] != '/':
				err = misused("--chroot %s begins without a slash; write /%s", quoted(chroot), chroot)
			case logs != "":
				h, err = readFiles(logs, snapshots, chroot, names, from, to)
			case cmp.Or(snapshots, chroot) != "":
				err = misused("--snapshots and --chroot need --txnlog; on etcd, the connect string ends with the prefix")
			default:
				h, err = c.readRevisions(cmd.Context(), names, from, to)
			}
			switch out := cmd.OutOrStdout(); {
			case err != nil:
			case asJSON:
				err = printJSON(out, h)
			case asSVG:
				err = h.draw(out)
			default:
				_, err = fmt.Fprint(out, h.changeLines(), h.summary())
			}
			return err
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&logs, "txnlog", "", "the `directory` of ZooKeeper's logs: the server's dataLogDir, dataDir or version-2")
	flags.StringVar(&snapshots, "snapshots", "", "the `directory` of the snapshots, if another one")
	flags.StringVar(&from, "from", "", "the `time` to begin with (default an hour before the end)")
	flags.StringVar(&to, "to", "", "the `time` to end with (default the end of the log, or now)")
	flags.StringVar(&chroot, "chroot", "", "the `path` below which the locks are, such as /locks")
	jsonFlag(cmd, &asJSON)
	flags.BoolVar(&asSVG, "svg", false, "print a picture for a browser, with a bar for each hold and wait")
	cmd.MarkFlagsMutuallyExclusive("json", "svg")
	return cmd
}

// history is the output of lockpool history --json.
type history struct {
	From      time.Time   `json:"from"`
	To        time.Time   `json:"to"`
	Intervals []*interval `json:"intervals"` // by lock, in the order of their beginnings
	Notes     []string    `json:"notes"`
	names     []string
	present   map[string]map[place]*interval // by lock
}

// interval is a hold or a wait.
type interval struct {
	Lock string `json:"lock"`
	contenderJSON
	From         *time.Time `json:"from"`                  // null if unknown
	To           *time.Time `json:"to"`                    // null if unknown, or after the end
	FromLatest   *time.Time `json:"from_latest,omitempty"` // null if no later than From
	ToLatest     *time.Time `json:"to_latest,omitempty"`
	End          string     `json:"end,omitempty"`
	EndedBy      string     `json:"ended_by,omitempty"` // the session that removed the node of another
	who, ask     string
	before       *interval // of the same contender
	begun, ended *instant
}

// instant is when contenders changed, or were seen after changes that are unknown.
type instant struct {
	order      int64
	at, latest time.Time // zero if unknown
	unseen     bool
}

const granted, downgraded = "granted", "downgraded" // to another interval of the contender

type place struct{ queue, name string } // of a node

func newHistory(names []string) *history {
	return &history{Intervals: []*interval{}, names: names, present: map[string]map[place]*interval{}}
}

// between sets the time to show, until the end unless to is given.
func (h *history) between(from, to string, end time.Time) (err error) {
	if h.From, err = pastTime(from, time.Now(), end.Add(-time.Hour)); err == nil {
		h.To, err = pastTime(to, time.Now(), end)
	}
	if now := time.Now().UTC(); h.To.After(now) {
		h.To = now
	}
	if err == nil && h.To.Before(h.From) {
		err = misused("nothing is between %s and %s; the history ends at %s", h.From.Local(), h.To.Local(), end)
	}
	return err
}

// wants reports whether the history of a lock is asked for.
func (h *history) wants(lock string) bool {
	return len(h.names) == 0 || slices.ContainsFunc(h.names, func(name string) bool { return strings.HasPrefix(lock+"/", name+"/") })
}

// finish completes the output.
func (h *history) finish(notes []string) {
	for _, i := range h.Intervals {
		if i.From != &i.Asked && i.begun.latest.After(i.begun.at) {
			i.FromLatest = timeOrNull(i.begun.latest)
		}
		if i.ended != nil && i.ended.latest.After(i.ended.at) {
			i.ToLatest = timeOrNull(i.ended.latest)
		}
	}
	h.Intervals = slices.DeleteFunc(h.Intervals, func(i *interval) bool {
		end := cmp.Or(i.ToLatest, i.To)
		return end != nil && end.Before(h.From) || i.From != nil && i.From.After(h.To)
	})
	for _, i := range h.Intervals {
		if i.To != nil && i.To.After(h.To) {
			i.To, i.ToLatest, i.End, i.EndedBy, i.ended = nil, nil, "", "", nil
		}
	}
	slices.SortStableFunc(h.Intervals, func(a, b *interval) int { return cmp.Compare(a.Lock, b.Lock) })
	h.Notes = append(notes,
		"a hold begins when the nodes allow it: the client learns of the grant later",
		"a hold of one process may be turns of several callers, and a kept lock may be unused",
		"waiters for a plain lock have no nodes in its queue")
}

func pastTime(text string, now, otherwise time.Time) (time.Time, error) {
	if text == "" {
		return otherwise.UTC(), nil
	}
	if d, err := time.ParseDuration(text); err == nil {
		return now.Add(-d).UTC(), nil
	}
	for _, layout := range []string{time.RFC3339, "15:04", "15:04:05"} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			if t.Year() == 0 { // of the last day
				if t = time.Date(now.Year(), now.Month(), now.Day(), t.Hour(), t.Minute(), t.Second(), 0, now.Location()); t.After(now) {
					t = t.AddDate(0, 0, -1)
				}
			}
			return t.UTC(), nil
		}
	}
	return now, misused("%s is no time; give 15:04, 15:04:05, RFC 3339 such as 2006-01-02T15:04:05Z, or 90m for ninety minutes ago", quoted(text))
}

func insert[K, L comparable, V any](m map[K]map[L]V, k K, l L, v V) {
	if m[k] == nil {
		m[k] = map[L]V{}
	}
	m[k][l] = v
}

// shown returns the contenders of a lock, as lockpool.Pool.Queue does, from the nodes of each queue.
func shown(lock string, contenders func(queue string) []waitgraph.Contender) []*waitgraph.Contender {
	var queues []waitgraph.Queue
	for _, name := range []string{lock, lock + "/" + driver.Guards, lock + "/" + driver.Leases} {
		queues = append(queues, waitgraph.Queue{Lock: lock, Name: name, Contenders: contenders(name)})
	}
	return waitgraph.New(queues).Shown()
}

// see takes in the contenders of a lock at an instant. ending says how an interval has ended.
func (h *history) see(p *instant, lock string, contenders []*waitgraph.Contender, ending func(*interval) (how, by string)) {
	before, now := h.present[lock], map[place]*interval{}
	for _, c := range contenders {
		at, i := find(before, c)
		delete(before, at)
		if i == nil || i.Holds == c.Waits || i.Kind != c.Kind().String() {
			i = begin(p, c, i)
			h.Intervals = append(h.Intervals, i)
		}
		i.ask, i.Node, i.Kept = c.Record.Ask, c.Name, c.Record.Kept
		now[place{c.Queue, c.Name}] = i
	}
	for _, i := range before {
		i.end(p, "unknown")
		if !p.unseen {
			i.End, i.EndedBy = ending(i)
		}
	}
	h.present[lock] = now
}

// find finds the interval of a contender: of the node, of the node before a downgrade, or of
// the guard of a call for permits, which the call leaves for a lease.
func find(present map[place]*interval, c *waitgraph.Contender) (place, *interval) {
	at := place{c.Queue, c.Name}
	if c.Record.Was != "" && present[at] == nil {
		at.name = c.Record.Was
	}
	if present[at] != nil || c.Queue != c.Lock+"/"+driver.Leases {
		return at, present[at]
	}
	for guard, i := range present {
		if guard.queue == c.Lock+"/"+driver.Guards && i.Session == c.Session && i.ask == c.Record.Ask {
			return guard, i
		}
	}
	return at, nil
}

// begin begins an interval, perhaps after another one of the same contender.
func begin(p *instant, c *waitgraph.Contender, before *interval) *interval {
	told := lockpool.Contender{
		Kind: c.Kind().String(), Holds: !c.Waits, Permits: c.Permits, Session: c.Session, Asked: c.Joined,
		Origin: lockpool.Origin(c.Record.Origin), At: c.Record.At, Revocable: c.Record.Revocable, Token: c.Created << nodedata.TurnBits,
	}
	told.Token = min(told.Token, cmp.Or(max(c.Record.Token, 0), told.Token)) // of a downgraded lock
	if !c.Record.IsOurs() {                                                  // Curator writes the address
		told.Host = c.Record.String()
	}
	i := &interval{Lock: c.Lock, contenderJSON: contenderOf(told), who: who(told), before: before, begun: p}
	if !p.unseen {
		i.From = timeOrNull(p.at)
	}
	if before != nil {
		i.Asked = before.Asked
		before.end(p, map[bool]string{true: downgraded, false: granted}[before.Holds])
	}
	if c.Waits && !i.Asked.IsZero() {
		i.From = &i.Asked
	}
	return i
}

// end ends an interval.
func (i *interval) end(p *instant, how string) {
	i.To, i.End, i.ended = timeOrNull(p.at), how, p
}

// left says how an interval has ended whose contender has left.
func (i *interval) left() string {
	if i.Holds {
		return "released"
	}
	return "gave up"
}

// lengths returns how long an interval was, at least and at most, or has been at least.
func (h *history) lengths(i *interval) (least, most time.Duration) {
	least = cmp.Or(i.To, &h.To).Sub(*cmp.Or(i.FromLatest, i.From, &h.From))
	most = cmp.Or(i.ToLatest, i.To, &h.To).Sub(*cmp.Or(i.From, &h.From))
	if i.ended != nil && i.To == nil {
		least = 0
	}
	return max(least, 0).Round(time.Millisecond), max(most, 0).Round(time.Millisecond)
}

func (h *history) length(i *interval) string {
	least, most := h.lengths(i)
	if least == most {
		return least.String()
	}
	return fmt.Sprint(least, " to ", most)
}

// changeLines returns a line for each beginning and end of a hold or wait.
func (h *history) changeLines() string {
	type change struct {
		*interval
		order int64
	}
	var changes []change
	for _, i := range h.Intervals {
		changes = append(changes, change{i, i.begun.order<<2 + 2})
		if i.End == granted || i.End == downgraded {
			changes = append(changes, change{i, i.ended.order<<2 + 1})
		} else if i.ended != nil {
			changes = append(changes, change{i, i.ended.order << 2})
		}
	}
	slices.SortStableFunc(changes, func(a, b change) int { return cmp.Compare(a.order, b.order) })
	b := new(strings.Builder)
	fmt.Fprintf(b, "from %s to %s\n\nTIME          HOLD  WAIT  CHANGE           LOCK\n", h.From.Local().Format(time.RFC3339), h.To.Local().Format(time.RFC3339))
	counts := map[string]map[bool]int{} // by lock and whether holding
	const clock = "15:04:05.000"
	for _, c := range changes {
		n, at, latest, what, more := 1, cmp.Or(c.From, &h.From), c.FromLatest, map[bool]string{true: "holds", false: "waits"}[c.Holds], ""
		switch {
		case c.order&2 == 0: // an end
			n, at, latest, what, more = -1, cmp.Or(c.To, &h.From), c.ToLatest, c.End, fmt.Sprintf(", %s for %s", map[bool]string{true: "held", false: "waited"}[c.Holds], h.length(c.interval))
			more += strings.TrimSuffix(", by session "+c.EndedBy, ", by session ")
		case c.From == nil && !c.Asked.IsZero():
			more = ", asked at " + c.Asked.Local().Format(clock)
		case at.Before(h.From):
			at, more = &h.From, ", since "+c.From.Local().Format(clock)
		case c.before != nil:
			more = fmt.Sprintf(", %s for %s", map[bool]string{true: "held", false: "waited"}[c.before.Holds], h.length(c.before))
		}
		mark := " "
		if latest != nil {
			mark = "+"
		}
		if c.At != "" && n > 0 {
			more += ", in " + printable(c.At)
		}
		insert(counts, c.Lock, c.Holds, counts[c.Lock][c.Holds]+n)
		if what != granted && what != downgraded {
			fmt.Fprintf(b, "%s%s %4d  %4d  %-15s  %s: %s (%s)%s\n", at.Local().Format(clock), mark, counts[c.Lock][true], counts[c.Lock][false], what, quoted(c.Lock), c.who, c.Kind, more)
		}
	}
	return b.String() + "\n"
}

// summary returns the numbers and times of each lock, and of each party, and the notes.
func (h *history) summary() string {
	rows := [][]string{{"LOCK", "HOLDS", "LONGEST", "TOTAL", "WAITS", "LONGEST", "TOTAL"}}
	sums := map[string]map[bool][3]time.Duration{} // the number, the longest and the total, by lock and party, and whether holding
	for _, i := range h.Intervals {
		for _, who := range []string{quoted(i.Lock), quoted(i.Lock) + "\n  " + i.who} {
			sum := sums[who][i.Holds]
			d, _ := h.lengths(i)
			insert(sums, who, i.Holds, [3]time.Duration{sum[0] + 1, max(sum[1], d), sum[2] + d})
		}
	}
	for _, who := range slices.Sorted(maps.Keys(sums)) {
		row := []string{who[strings.IndexByte(who, '\n')+1:]}
		for _, holds := range []bool{true, false} {
			sum := sums[who][holds]
			row = append(row, fmt.Sprint(int(sum[0])), sum[1].String(), sum[2].String())
		}
		rows = append(rows, row)
	}
	return strings.Join(columns(rows, 1, 2, 3, 4, 5, 6), "\n") + "\n\nnote: " + strings.Join(h.Notes, "\nnote: ") + "\n"
}
