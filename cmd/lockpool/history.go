package main

// This file has the command history: who held and waited for locks, by ZooKeeper's own files.

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/spf13/cobra"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/cmd/lockpool/txnlog"
	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/nodedata"
	"github.com/lockpool/lockpool/internal/waitgraph"
	"github.com/lockpool/lockpool/internal/znode"
)

func historyCommand() *cobra.Command {
	var logs, snapshots, from, to, chroot string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "history --txnlog DIR [NAME...]",
		Short: "Show who held and waited for locks, from ZooKeeper's own files",
		Long: `History reads the transaction logs and snapshots of a ZooKeeper server, which may run, and
shows each change of the locks of all clients, or of those with a NAME and below. --from
and --to are 15:04 or 15:04:05 of the last day, RFC 3339, or 90m for ninety minutes ago.`,
		Example: "  lockpool history --txnlog /var/lib/zookeeper --chroot /locks --from 02:10 --to 02:40 orders",
		RunE: classified(func(cmd *cobra.Command, names []string) error {
			h := newHistory(chroot, names)
			err := h.read(logs, snapshots, from, to)
			if err == nil && asJSON {
				err = printJSON(cmd.OutOrStdout(), h)
			} else if err == nil {
				_, err = fmt.Fprint(cmd.OutOrStdout(), h.changeLines(), h.summary())
			}
			return err
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&logs, "txnlog", "", "the `directory` of the logs: the server's dataLogDir, dataDir or version-2")
	flags.StringVar(&snapshots, "snapshots", "", "the `directory` of the snapshots, if another one")
	flags.StringVar(&from, "from", "", "the `time` to begin with (default an hour before the end of the log)")
	flags.StringVar(&to, "to", "", "the `time` to end with (default the end of the log)")
	flags.StringVar(&chroot, "chroot", "", "the `path` below which the locks are, such as /locks")
	_ = cmd.MarkFlagRequired("txnlog") // the flag exists
	jsonFlag(cmd, &asJSON)
	return cmd
}

// history follows locks through ZooKeeper's files, and is the output of lockpool history --json.
type history struct {
	From      time.Time   `json:"from"`
	To        time.Time   `json:"to"`
	Intervals []*interval `json:"intervals"` // by lock, in the order of their beginnings
	Notes     []string    `json:"notes"`
	chroot    string
	names     []string
	nodes     map[string]map[string]*lockNode // by queue and name; a plain lock's has no name
	sessions  map[int64]map[place]bool        // nodes
	present   map[string]map[place]*interval  // by lock
	last      txnlog.Header                   // of a transaction
}

// interval is a hold or a wait.
type interval struct {
	Lock string `json:"lock"`
	contenderJSON
	From         *time.Time `json:"from"` // null if unknown
	To           *time.Time `json:"to"`   // null if after the end
	End          string     `json:"end,omitempty"`
	EndedBy      string     `json:"ended_by,omitempty"` // the session that removed the node of another
	who, ask     string
	before       *interval // of the same contender
	begun, ended int64     // by these transactions
}

const granted, downgraded = "granted", "downgraded" // to another interval of the contender

type (
	place    struct{ queue, name string } // of a node
	lockNode struct {
		raw    []byte
		stat   zk.Stat
		record nodedata.Record
	}
)

func newHistory(chroot string, names []string) *history {
	return &history{Intervals: []*interval{}, chroot: strings.TrimRight(chroot, "/"), names: names,
		nodes: map[string]map[string]*lockNode{}, sessions: map[int64]map[place]bool{}, present: map[string]map[place]*interval{}}
}

// read reads the files.
func (h *history) read(logs, snapshots, from, to string) error {
	files, err := txnlog.Find(logs, snapshots)
	if err != nil {
		return err
	}
	last := files.Last()
	if h.From, err = pastTime(from, time.Now(), last.Add(-time.Hour)); err == nil {
		h.To, err = pastTime(to, time.Now(), last)
	}
	if err == nil && last.IsZero() {
		err = fmt.Errorf("no transaction can be read in %s; give the server's dataLogDir", logs)
	} else if err == nil && h.To.Before(h.From) {
		err = misused("nothing is between %s and %s; the log ends at %s", h.From.Local(), h.To.Local(), last)
	}
	if err == nil {
		h.Notes, err = files.Walk(h.From, h.apply)
	}
	h.Intervals = slices.DeleteFunc(h.Intervals, func(i *interval) bool { return i.To != nil && i.To.Before(h.From) })
	slices.SortStableFunc(h.Intervals, func(a, b *interval) int { return cmp.Compare(a.Lock, b.Lock) })
	h.Notes = append(h.Notes,
		"a hold begins when the nodes allow it: the client learns of the grant later",
		"a hold of one process may be turns of several callers, and a kept lock may be unused",
		"waiters for a plain lock have no nodes in its queue",
		"times are by the clock of ZooKeeper's leader, and the newest transactions may yet be withdrawn")
	return err
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

// locate finds the place of a node, if the node may be a contender's for a wanted lock.
func (h *history) locate(path string) (at place, ok bool) {
	at.queue, ok = strings.CutPrefix(path, h.chroot+"/")
	first, _, _ := strings.Cut(at.queue, "/")
	if first == driver.Records || first == driver.Waits || first == "zookeeper" && h.chroot == "" {
		return at, false
	}
	if i := strings.LastIndexByte(at.queue, '/'); znode.IsContender(at.queue[i+1:]) {
		at = place{at.queue[:max(i, 0)], at.queue[i+1:]}
	}
	return at, ok && at.queue != "" && (len(h.names) == 0 || slices.ContainsFunc(h.names, func(name string) bool {
		return strings.HasPrefix(znode.LockOf(at.queue)+"/", name+"/")
	}))
}

// apply takes in a transaction, or a snapshot.
func (h *history) apply(t txnlog.Txn) (more bool) {
	if t.Time.After(h.To) {
		return false
	}
	changed := map[string]bool{} // locks
	if t.Zxid == 0 {
		for queue := range h.nodes {
			changed[znode.LockOf(queue)] = true
		}
		clear(h.nodes)
		clear(h.sessions)
	} else {
		h.last = t.Header
	}
	for _, op := range t.Ops {
		if at, ok := h.locate(op.Path); ok && h.change(at, op) {
			changed[znode.LockOf(at.queue)] = true
		}
	}
	if t.Ends {
		for at := range h.sessions[t.Session] {
			changed[znode.LockOf(at.queue)] = h.change(at, txnlog.Op{Kind: txnlog.Delete})
		}
		delete(h.sessions, t.Session)
	}
	for lock := range changed {
		h.see(t, lock)
	}
	return true
}

// change changes a node, if the node is a contender's.
func (h *history) change(at place, op txnlog.Op) bool {
	n := h.nodes[at.queue][at.name]
	if n == nil && (op.Kind != txnlog.Create || at.name == "" && !op.Ephemeral) { // unknown, or a directory
		return false
	}
	if n != nil && op.Kind != txnlog.SetData {
		delete(h.sessions[n.stat.EphemeralOwner], at)
		delete(h.nodes[at.queue], at.name)
	}
	if op.Kind == txnlog.Delete {
		return true
	}
	if op.Kind == txnlog.Create {
		n = &lockNode{stat: zk.Stat{Czxid: op.Zxid, Ctime: op.Time.UnixMilli()}}
		if op.Ephemeral {
			n.stat.EphemeralOwner = op.Session
		}
		insert(h.nodes, at.queue, at.name, n)
		insert(h.sessions, n.stat.EphemeralOwner, at, true)
	}
	n.raw, n.stat.Version = bytes.Clone(op.Data), op.Version
	_, stored := znode.CutPlainData(n.raw)
	n.record = nodedata.Parse(stored)
	return true
}

func insert[K, L comparable, V any](m map[K]map[L]V, k K, l L, v V) {
	if m[k] == nil {
		m[k] = map[L]V{}
	}
	m[k][l] = v
}

// queue returns the contenders of a lock, as lockpool.Pool.Queue does.
func (h *history) queue(lock string) []*waitgraph.Contender {
	var queues []waitgraph.Queue
	for _, name := range []string{lock, lock + "/" + driver.Guards, lock + "/" + driver.Leases} {
		nodes := h.nodes[name]
		contenders := znode.Contenders(slices.Collect(maps.Keys(nodes)))
		if n := nodes[""]; n != nil {
			contenders = append(contenders, znode.PlainNode(n.raw, &n.stat))
		}
		q := waitgraph.Queue{Lock: lock, Name: name, Contenders: make([]waitgraph.Contender, 0, len(contenders))}
		for _, node := range contenders {
			n := cmp.Or(nodes[node.Name], nodes[""])
			q.Contenders = append(q.Contenders, waitgraph.Contender{Contender: znode.NewContender(node, n.raw, &n.stat), Record: n.record})
		}
		queues = append(queues, q)
	}
	return waitgraph.New(queues).Shown()
}

// see takes in the queue of a lock after a transaction or a snapshot.
func (h *history) see(t txnlog.Txn, lock string) {
	before, now := h.present[lock], map[place]*interval{}
	for _, c := range h.queue(lock) {
		at, i := find(before, c)
		delete(before, at)
		if i == nil || i.Holds == c.Waits || i.Kind != c.Kind().String() {
			i = h.begin(t, c, i)
			h.Intervals = append(h.Intervals, i)
		}
		i.ask, i.Node, i.Kept = c.Record.Ask, c.Name, c.Record.Kept
		now[place{c.Queue, c.Name}] = i
	}
	for _, i := range before {
		h.end(i, t, "")
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
func (h *history) begin(t txnlog.Txn, c *waitgraph.Contender, before *interval) *interval {
	told := lockpool.Contender{
		Kind: c.Kind().String(), Holds: !c.Waits, Permits: c.Permits, Session: c.Session, Asked: c.Joined,
		Origin: lockpool.Origin(c.Record.Origin), At: c.Record.At, Revocable: c.Record.Revocable, Token: c.Created << nodedata.TurnBits,
	}
	told.Token = min(told.Token, cmp.Or(max(c.Record.Token, 0), told.Token)) // of a downgraded lock
	if !c.Record.IsOurs() {                                                  // Curator writes the address
		told.Host = c.Record.String()
	}
	i := &interval{Lock: c.Lock, contenderJSON: contenderOf(told), who: who(told), before: before, begun: h.last.Zxid, From: timeOrNull(t.Time)}
	if before != nil {
		i.Asked = before.Asked
		h.end(before, t, map[bool]string{true: downgraded, false: granted}[before.Holds])
	}
	if c.Waits {
		i.From = &i.Asked
	}
	return i
}

// end ends an interval, because of how, or as the transaction says.
func (h *history) end(i *interval, t txnlog.Txn, how string) {
	switch by := znode.SessionID(t.Session); {
	case how != "":
	case t.Zxid == 0:
		how = "unknown"
	case by != i.Session:
		how, i.EndedBy = "removed", by
	case t.Ends && t.Cxid == 0: // asked by the server
		how = "session expired"
	case t.Ends:
		how = "session closed"
	case i.Holds:
		how = "released"
	default:
		how = "gave up"
	}
	i.To, i.End, i.ended = timeOrNull(h.last.Time), how, h.last.Zxid
}

// length returns how long an interval was, or at least was.
func (h *history) length(i *interval) time.Duration {
	return cmp.Or(i.To, &h.To).Sub(*cmp.Or(i.From, &h.From)).Round(time.Millisecond)
}

// changeLines returns a line for each beginning and end of a hold or wait.
func (h *history) changeLines() string {
	type change struct {
		*interval
		order int64
	}
	var changes []change
	for _, i := range h.Intervals {
		changes = append(changes, change{i, i.begun<<2 + 2})
		if i.End == granted || i.End == downgraded {
			changes = append(changes, change{i, i.ended<<2 + 1})
		} else if i.To != nil {
			changes = append(changes, change{i, i.ended << 2})
		}
	}
	slices.SortStableFunc(changes, func(a, b change) int { return cmp.Compare(a.order, b.order) })
	b := new(strings.Builder)
	fmt.Fprintf(b, "from %s to %s\n\nTIME          HOLD  WAIT  CHANGE           LOCK\n", h.From.Local().Format(time.RFC3339), h.To.Local().Format(time.RFC3339))
	counts := map[string]map[bool]int{} // by lock and whether holding
	const clock = "15:04:05.000"
	for _, c := range changes {
		n, at, what, more := 1, cmp.Or(c.From, &h.From), map[bool]string{true: "holds", false: "waits"}[c.Holds], ""
		switch {
		case c.order&2 == 0: // an end
			n, at, what, more = -1, c.To, c.End, fmt.Sprintf(", %s for %s", map[bool]string{true: "held", false: "waited"}[c.Holds], h.length(c.interval))
			more += strings.TrimSuffix(", by session "+c.EndedBy, ", by session ")
		case c.From == nil:
			more = ", asked at " + c.Asked.Local().Format(clock)
		case at.Before(h.From):
			at, more = &h.From, ", since "+c.From.Local().Format(clock)
		case c.before != nil:
			more = fmt.Sprintf(", %s for %s", map[bool]string{true: "held", false: "waited"}[c.before.Holds], h.length(c.before))
		}
		if c.At != "" && n > 0 {
			more += ", in " + printable(c.At)
		}
		insert(counts, c.Lock, c.Holds, counts[c.Lock][c.Holds]+n)
		if what != granted && what != downgraded {
			fmt.Fprintf(b, "%s  %4d  %4d  %-15s  %s: %s (%s)%s\n", at.Local().Format(clock), counts[c.Lock][true], counts[c.Lock][false], what, quoted(c.Lock), c.who, c.Kind, more)
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
			sum, d := sums[who][i.Holds], h.length(i)
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
