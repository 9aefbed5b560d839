// Package waterfall draws what went on when: rows of bars along one axis of time, as text for
// a terminal and as a picture.
package waterfall

import (
	"encoding/xml"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Chart is what is drawn.
type Chart struct {
	Title   string   // of the picture
	Columns []Column // to the left of the axis
	Width   int      // of the axis of the text, in characters
	Total   time.Duration
	Marks   []Mark
	Rows    []Row
	Arrows  []Arrow // in the picture
}

// Column is a column of text.
type Column struct {
	Name  string
	Width int // in characters
}

// Mark is how the bars of one kind look.
type Mark struct {
	Rune rune   // in the text
	Fill string // in the picture
	Name string // in the legend
}

// Row is a line of bars.
type Row struct {
	Cells []string // a text for each column
	Bars  []Bar    // a bar covers the earlier ones
	After string   // text behind the axis
	Below []string // further lines of the text
}

// Bar is something with a duration.
type Bar struct {
	Mark       int // the index of the mark
	Begin, End time.Duration
	Text       string // shown at the pointer
}

// Arrow leads from a row to another one.
type Arrow struct {
	At       time.Duration
	From, To int // rows
	Dashed   bool
	Text     string // shown at the pointer
}

// Text draws the chart for a terminal.
func (c *Chart) Text() string {
	var b strings.Builder
	line := func(cells []string, rest string) {
		for i, column := range c.Columns {
			fmt.Fprintf(&b, "%-*s  ", column.Width, cells[i])
		}
		b.WriteString(strings.TrimRight(rest, " ") + "\n")
	}
	var names, legend []string
	for _, column := range c.Columns {
		names = append(names, column.Name)
	}
	const zero = "0 s"
	line(names, fmt.Sprintf("%s%*s", zero, c.Width-len(zero), fmt.Sprintf("%.1f s", c.Total.Seconds())))
	for _, r := range c.Rows {
		line(r.Cells, string(c.runes(r))+"  "+r.After)
		for _, below := range r.Below {
			b.WriteString(below + "\n")
		}
	}
	for _, m := range c.Marks {
		legend = append(legend, fmt.Sprintf("%c %s", m.Rune, m.Name))
	}
	line(make([]string, len(c.Columns)), strings.Join(legend, "   "))
	return b.String()
}

// runes draws the bars of a row, each with at least one rune.
func (c *Chart) runes(r Row) []rune {
	runes := slices.Repeat([]rune{' '}, c.Width)
	column := func(d time.Duration) int {
		return int(math.Round(float64(c.Width) * d.Seconds() / max(c.Total, 1).Seconds()))
	}
	for _, bar := range r.Bars {
		from := min(max(column(bar.Begin), 0), c.Width-1)
		for i := from; i < min(max(column(bar.End), from+1), c.Width); i++ {
			runes[i] = c.Marks[bar.Mark].Rune
		}
	}
	return runes
}

// Measures of the picture, in pixels.
const (
	charWidth = 7
	rowHeight = 18
	plotWidth = 720
	top       = 64
	margin    = 16
	minBar    = 1.5
)

// SVG draws the chart as a picture.
func (c *Chart) SVG() string {
	left := margin
	for _, column := range c.Columns {
		left += charWidth * (column.Width + 1)
	}
	x := func(d time.Duration) float64 {
		return float64(left) + plotWidth*min(max(d.Seconds()/max(c.Total, 1).Seconds(), 0), 1)
	}
	bottom := top + rowHeight*len(c.Rows)
	width, height := left+plotWidth+10*charWidth, bottom+40
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" font-family="Helvetica, Arial, sans-serif" font-size="11" fill="#1f2328">
<title>%s</title>
<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#b3261e"/></marker></defs>
<rect width="100%%" height="100%%" fill="#ffffff"/>
<text x="%d" y="28" font-size="16" font-weight="bold">%s</text>
`, width, height, escape(c.Title), margin, escape(c.Title))
	for i := range 11 {
		at := c.Total * time.Duration(i) / 10
		fmt.Fprintf(&b, `<path d="M%.1f %dV%d" stroke="#e4e8ed"/><text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n",
			x(at), top, bottom, x(at), top-6, at.Round(time.Millisecond))
	}
	for i, r := range c.Rows {
		c.drawRow(&b, r, top+rowHeight*i, x)
	}
	c.drawArrows(&b, x)
	at := left
	for _, m := range c.Marks {
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="20" height="11" fill="%s"/><text x="%d" y="%d">%s</text>`+"\n",
			at, bottom+16, m.Fill, at+26, bottom+26, escape(m.Name))
		at += 40 + charWidth*len(m.Name)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (c *Chart) drawRow(b *strings.Builder, r Row, y int, x func(time.Duration) float64) {
	at := margin
	for i, column := range c.Columns {
		fmt.Fprintf(b, `<text x="%d" y="%d">%s</text>`+"\n", at, y+rowHeight-5, escape(r.Cells[i]))
		at += charWidth * (column.Width + 1)
	}
	for _, bar := range r.Bars {
		fmt.Fprintf(b, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"><title>%s</title></rect>`+"\n",
			x(bar.Begin), y+2, max(x(bar.End)-x(bar.Begin), minBar), rowHeight-4, c.Marks[bar.Mark].Fill, escape(bar.Text))
	}
	if r.After != "" {
		fmt.Fprintf(b, `<text x="%.1f" y="%d" fill="#b3261e">%s</text>`+"\n", x(c.Total)+6, y+rowHeight-5, escape(r.After))
	}
}

// drawArrows draws the arrows straight up or down. No two of them coincide.
func (c *Chart) drawArrows(b *strings.Builder, x func(time.Duration) float64) {
	const apart = 5.
	var taken []float64
	for _, a := range c.Arrows {
		at := x(a.At) + apart
		for slices.ContainsFunc(taken, func(t float64) bool { return math.Abs(t-at) < apart }) {
			at += apart
		}
		taken = append(taken, at)
		from, to, dash := top+rowHeight*a.From+rowHeight/2, top+rowHeight*a.To+rowHeight, ""
		if a.To > a.From {
			to -= rowHeight
		}
		if a.Dashed {
			dash = ` stroke-dasharray="4 3"`
		}
		fmt.Fprintf(b, `<g><title>%s</title><circle cx="%.1f" cy="%d" r="2.6" fill="#b3261e"/><path d="M%.1f %dV%d" stroke="#b3261e" stroke-width="1.5" marker-end="url(#head)"%s/></g>`+"\n",
			escape(a.Text), at, from, at, from, to, dash)
	}
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder returns no errors
	return b.String()
}
