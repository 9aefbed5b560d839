package main

// This file draws the history: a row for each lock and each of its contenders, with bars.

import (
	"cmp"
	"fmt"
	"html/template"
	"io"
	"time"

	"github.com/charmbracelet/x/ansi"
)

// In pixels.
const (
	svgName, svgTime, svgLine = 300, 1000, 20
	svgEdge                   = 40
)

var drawing = template.Must(template.New("").Parse(`<svg xmlns="http://www.w3.org/2000/svg" width="{{.Width}}" height="{{.Height}}" font-family="sans-serif" font-size="12">
<style>
svg { color-scheme: light dark; background: light-dark(#ffffff, #0d1117); fill: light-dark(#1f2328, #e6edf3); }
.lock { font-weight: bold; }
.holds { fill: #0550ae; fill: light-dark(#0550ae, #79c0ff); }
.waits { fill: #bf8700; fill: light-dark(#bf8700, #d29922); }
.perhaps { opacity: 0.3; }
line { stroke: light-dark(#d1d9e0, #3d444d); }
</style>
<text x="8" y="20">blue: holds, yellow: waits, pale: perhaps</text>
{{range .Ticks}}<line x1="{{.X}}" x2="{{.X}}" y1="26" y2="{{$.Height}}"/><text x="{{.X}}" y="20" text-anchor="middle">{{.Text}}</text>
{{end}}{{range .Rows}}<text x="8" y="{{.Y}}" class="{{.Class}}">{{.Text}}</text>
{{range .Bars}}<rect x="{{.X}}" y="{{.Y}}" width="{{.Width}}" height="14" class="{{.Class}}"><title>{{.Text}}</title></rect>
{{end}}{{end}}</svg>
`))

type (
	svgRow struct {
		svgMark
		Bars []svgMark
	}
	svgMark struct {
		X, Y, Width int
		Class, Text string
	}
)

// draw writes the history as SVG.
func (h *history) draw(w io.Writer) error {
	x := func(t *time.Time) int {
		at := svgName + int(float64(svgTime)*float64(t.Sub(h.From))/float64(max(h.To.Sub(h.From), 1)))
		return min(max(at, svgName), svgName+svgTime)
	}
	var ticks []svgMark
	for i := range 11 {
		t := h.From.Add(h.To.Sub(h.From) * time.Duration(i) / 10)
		ticks = append(ticks, svgMark{X: x(&t), Text: t.Local().Format("15:04:05")})
	}
	var rows []*svgRow
	byName := map[string]*svgRow{}
	row := func(name, text, class string) *svgRow {
		if byName[name] == nil {
			byName[name] = &svgRow{svgMark: svgMark{Text: text, Class: class, Y: svgEdge + svgLine*(len(rows)+1)}}
			rows = append(rows, byName[name])
		}
		return byName[name]
	}
	for _, i := range h.Intervals { // by lock
		lock := quoted(i.Lock)
		row(lock, lock, "lock")
		r := row(lock+"\n"+i.who, ansi.Truncate(i.who, 40, "…"), "")
		class := "waits"
		if i.Holds {
			class = "holds"
		}
		text := fmt.Sprintf("%s: %s %s for %s, and asked at %s", lock, i.who, class, h.length(i), i.Asked.Local().Format(time.DateTime))
		bar := func(class string, from, to *time.Time) {
			if width := x(to) - x(from); width >= 0 {
				r.Bars = append(r.Bars, svgMark{x(from), r.Y - 12, max(width, 1), class, text})
			}
		}
		from, to := cmp.Or(i.From, &h.From), cmp.Or(i.To, &h.To)
		if i.FromLatest != nil || i.ToLatest != nil {
			bar(class+" perhaps", from, cmp.Or(i.ToLatest, to))
		}
		bar(class, cmp.Or(i.FromLatest, from), to)
	}
	return drawing.Execute(w, map[string]any{
		"Width": svgName + svgTime + svgEdge, "Height": svgEdge + svgLine*(len(rows)+1), "Ticks": ticks, "Rows": rows,
	})
}
