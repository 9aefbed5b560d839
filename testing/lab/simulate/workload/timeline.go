package workload

// This file draws what happened, as text and as a picture.

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/lockpool/lockpool/testing/waterfall"
)

// A timeline shows what happened around a moment.
const (
	timeBefore = 90 * time.Second
	timeAfter  = 45 * time.Second
)

// WriteTimeline writes who did what when, as text to name.txt and as a picture to name.svg:
// everything, or the events around a moment other than Never.
func WriteTimeline(rec *Record, around Instant, name string) error {
	from, until := rec.Begin, rec.End
	if around != Never {
		from, until = max(from, around.Add(-timeBefore)), around.Add(timeAfter)
	}
	t := newTimeline(rec, from, until)
	return errors.Join(writeFile(name+".txt", t.writeText), writeFile(name+".svg", func(w io.Writer) { _, _ = io.WriteString(w, t.chart().SVG()) }))
}

func writeFile(name string, write func(io.Writer)) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	write(w)
	return errors.Join(w.Flush(), f.Close())
}

// timeline is what happened in a time.
type timeline struct {
	rec         *Record
	from, until Instant
	bars        []bar
}

// bar is an activity in a row of the picture.
type bar struct {
	row        string
	kind       barKind
	text       string
	begin, end Instant
}

type barKind int

const (
	barFault barKind = iota
	barPause
	barWait
	barHold
	barLoss
	barEnd
)

// marks are how bars look in the picture.
var marks = []waterfall.Mark{
	barFault: {Fill: "#e8a838", Name: "faults"}, barPause: {Fill: "#bbbbbb", Name: "cannot know of a loss"},
	barWait: {Fill: "#c5d8f0", Name: "waits"}, barHold: {Fill: "#3b76b5", Name: "holds"},
	barLoss: {Fill: "#cc2222", Name: "losses"}, barEnd: {Fill: "#882288", Name: "ends of sessions"},
}

// verbs are what the text says at the beginning and at the end of a bar.
var verbs = [...][2]string{
	barFault: {"begins", "is over"}, barPause: {"cannot know of a loss", "can know again"}, barWait: {"asks for", "waited for"},
	barHold: {"holds", "no longer holds"}, barLoss: {"has lost", ""}, barEnd: {"", ""},
}

func newTimeline(rec *Record, from, until Instant) *timeline {
	t := &timeline{rec: rec, from: from, until: until}
	for _, f := range rec.Faults {
		t.add(bar{"faults", barFault, f.Process, f.Begin, f.End})
	}
	for _, end := range rec.Ends {
		t.add(bar{"servers", barEnd, fmt.Sprintf("end a session with the order numbers %#x", end.Orders), end.At, end.At})
	}
	for _, p := range rec.Pauses {
		t.add(bar{p.Process, barPause, "", p.Begin, p.End})
	}
	row := func(process string, worker int) string { return fmt.Sprintf("%s, goroutine %d", process, worker) }
	for _, c := range rec.calls {
		if c.permits > 0 && (c.end > c.begin || c.err != "") {
			t.add(bar{row(c.process, c.worker), barWait, fmt.Sprintf("%s (%s, %s) %s", c.lock, c.op, c.portion, c.err), c.begin, c.end})
		}
	}
	for _, h := range rec.holds {
		t.add(bar{row(h.process, h.worker), barHold, fmt.Sprintf("%s (%s, token %#x)", h.lock, h.portion, h.token), h.begin, h.end})
		if h.lost {
			t.add(bar{row(h.process, h.worker), barLoss, h.lock, h.end, h.end})
		}
	}
	slices.SortStableFunc(t.bars, func(a, b bar) int { return cmp.Compare(a.begin, b.begin) })
	return t
}

func (t *timeline) add(b bar) {
	if b.end >= t.from && b.begin <= t.until {
		t.bars = append(t.bars, b)
	}
}

func (t *timeline) writeText(w io.Writer) {
	type line struct {
		at   Instant
		text string
	}
	var lines []line
	add := func(at Instant, b bar, verb string) {
		if t.from <= at && at <= t.until {
			lines = append(lines, line{at, fmt.Sprintf("%s %s %s", b.row, verb, b.text)})
		}
	}
	for _, b := range t.bars {
		add(b.begin, b, verbs[b.kind][0])
		if b.end > b.begin && b.kind != barWait || b.kind == barFault {
			add(b.end, b, verbs[b.kind][1])
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.at, b.at) })
	for _, l := range lines {
		fmt.Fprintf(w, "%12s  %s\n", t.rec.at(l.at), l.text)
	}
}

// chart returns the bars, with a row for each goroutine below the rows of faults and
// servers.
func (t *timeline) chart() *waterfall.Chart {
	var names []string
	for _, b := range t.bars {
		if !slices.Contains(names, b.row) {
			names = append(names, b.row)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		first := func(row string) int { return slices.Index([]string{"servers", "faults"}, row) }
		return cmp.Or(first(b)-first(a), cmp.Compare(a, b))
	})
	c := &waterfall.Chart{
		Title:   fmt.Sprintf("From %s until %s", t.rec.at(t.from), t.rec.at(t.until)),
		Columns: []waterfall.Column{{Width: 30}},
		Total:   t.until.Since(t.from), Marks: marks,
	}
	for _, name := range names {
		row := waterfall.Row{Cells: []string{name}}
		for _, b := range t.bars {
			if b.row == name {
				row.Bars = append(row.Bars, waterfall.Bar{
					Mark: int(b.kind), Begin: b.begin.Since(t.from), End: b.end.Since(t.from),
					Text: fmt.Sprintf("%s, %s until %s", b.text, t.rec.at(b.begin), t.rec.at(b.end)),
				})
			}
		}
		c.Rows = append(c.Rows, row)
	}
	return c
}
