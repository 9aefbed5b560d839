package workload

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	svg "github.com/ajstarks/svgo"
)

// A timeline shows what happened around a moment.
const (
	timeBefore = 90 * time.Second
	timeAfter  = 45 * time.Second
)

// WriteTimeline writes who did what when, as text to name.txt and as a picture to
// name.svg: everything, or what happened around a moment if that is not Never.
func WriteTimeline(rec *Record, around Instant, name string) error {
	from, until := rec.Begin, rec.End
	if around != Never {
		from, until = max(from, around.Add(-timeBefore)), around.Add(timeAfter)
	}
	t := newTimeline(rec, from, until)
	return errors.Join(writeFile(name+".txt", t.writeText), writeFile(name+".svg", t.writeSVG))
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

// bar is something that went on in a row of the picture.
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

// styles are those of bars in the picture.
var styles = [...]string{
	barFault: "fill:#e8a838", barPause: "fill:#bbbbbb", barWait: "fill:#c5d8f0", barHold: "fill:#3b76b5",
	barLoss: "fill:#cc2222", barEnd: "fill:#882288",
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

// The picture's measures, in pixels.
const (
	labelWidth = 190
	chartWidth = 1400
	rowHeight  = 16
	margin     = 24
	minBar     = 2
)

func (t *timeline) writeSVG(w io.Writer) {
	var rows []string
	for _, b := range t.bars {
		if !slices.Contains(rows, b.row) {
			rows = append(rows, b.row)
		}
	}
	slices.SortFunc(rows, func(a, b string) int {
		first := func(row string) int {
			if row == "faults" || row == "servers" {
				return 0
			}
			return 1
		}
		return cmp.Or(first(a)-first(b), cmp.Compare(a, b))
	})
	x := func(at Instant) int {
		at = min(max(at, t.from), t.until)
		return labelWidth + int(float64(chartWidth)*float64(at.Since(t.from))/float64(max(t.until.Since(t.from), 1)))
	}
	height := margin + rowHeight*len(rows)
	s := svg.New(w)
	s.Start(labelWidth+chartWidth+margin, height+margin)
	s.Rect(0, 0, labelWidth+chartWidth+margin, height+margin, "fill:white")
	const label = "font-family:sans-serif;font-size:10px"
	for n := range 11 {
		at := t.from.Add(t.until.Since(t.from) * time.Duration(n) / 10)
		s.Line(x(at), margin, x(at), height, "stroke:#dddddd")
		s.Text(x(at), margin-8, t.rec.at(at), label+";text-anchor:middle")
	}
	for n, row := range rows {
		y := margin + n*rowHeight
		s.Text(4, y+rowHeight-4, row, label)
		for _, b := range t.bars {
			if b.row != row {
				continue
			}
			s.Group()
			s.Title(fmt.Sprintf("%s, %s until %s", b.text, t.rec.at(b.begin), t.rec.at(b.end)))
			s.Rect(x(b.begin), y+2, max(x(b.end)-x(b.begin), minBar), rowHeight-4, styles[b.kind])
			s.Gend()
		}
	}
	s.Text(labelWidth, height+margin-8, "holds (blue), waits (light blue), losses (red), ends of sessions at the servers (purple), faults (orange), times in which a process cannot know of a loss (gray)", label)
	s.End()
}
