package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/lockpool/lockpool/examples/internal/spans"
)

// Sizes and positions in the picture, in pixels.
const (
	width      = 960
	left       = 16  // of the names of requests
	lockLeft   = 168 // of the names of locks
	plotLeft   = 258 // of the time axis
	right      = 20
	top        = 78
	rowHeight  = 26
	barHeight  = 16
	headHeight = 30 // of the name of a process
)

// svg draws the same as waterfall: a row for every lock that a request asked for,
// grouped by process, and an arrow from each wait to the requests in the way.
func svg(requests []*request) string {
	if len(requests) == 0 {
		return `<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"/>` + "\n"
	}
	begin, total := extent(requests)
	x := func(t time.Time) float64 {
		return plotLeft + (width-plotLeft-right)*t.Sub(begin).Seconds()/max(total, time.Millisecond).Seconds()
	}
	var back, bars, arrows, labels bytes.Buffer
	y := top + 10.0
	rows := map[*lock]float64{} // the y of each row's middle
	for _, service := range services(requests) {
		y += headHeight
		fmt.Fprintf(&back, `<text x="%d" y="%.0f" class="process">%s</text>`+"\n", left, y-10, escape(service))
		fmt.Fprintf(&back, `<path d="M%d %.0fH%d" stroke="#d0d7de"/>`+"\n", left, y-3, width-right)
		for _, r := range requests {
			if r.Service != service {
				continue
			}
			fmt.Fprintf(&back, `<text x="%d" y="%.0f">%s</text>`+"\n", left, y+rowHeight/2+4, escape(r.Name))
			fmt.Fprintf(&back, `<rect x="%.1f" y="%.1f" width="%.1f" height="%d" rx="3" fill="#e4e8ed"><title>%s, trace %s</title></rect>`+"\n",
				x(r.Start), y+2, max(x(r.End)-x(r.Start), 1), rowHeight*len(r.locks)-4, escape(r.Name), escape(r.Trace))
			for _, l := range r.locks {
				rows[l] = y + rowHeight/2
				drawLock(&back, &bars, &labels, l, rows[l], x)
				y += rowHeight
			}
		}
	}
	height := y + 46
	drawLinks(&arrows, requests, rows, x)

	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%.0f" viewBox="0 0 %d %.0f" role="img" font-family="Helvetica, Arial, sans-serif" font-size="12.5" fill="#1f2328">`+"\n", width, height, width, height)
	b.WriteString(`<title>Which requests waited for which</title>
<style>.process { font-weight: bold; font-size: 14px } .small { font-size: 11px; fill: #59636e } .in { font-size: 11px; pointer-events: none; stroke-width: 4px; paint-order: stroke }</style>
<defs><marker id="at" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#b3261e"/></marker>
<marker id="by" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#8250a8"/></marker></defs>
<rect width="100%" height="100%" fill="#ffffff"/>
`)
	fmt.Fprintf(&b, `<text x="%d" y="28" font-size="17" font-weight="bold">Which requests waited for which</text>`+"\n", left)
	text, _, _ := strings.Cut(summary(requests), "\n")
	fmt.Fprintf(&b, `<text x="%d" y="48" class="small">%s</text>`+"\n", left, escape(fmt.Sprintf("%d processes, %s", len(services(requests)), text)))
	drawAxis(&b, begin, total, y, x)
	b.Write(back.Bytes())
	b.Write(bars.Bytes())
	b.Write(arrows.Bytes())
	b.Write(labels.Bytes()) // on top, with a rim, so that arrows do not hide them
	drawLegend(&b, height-18)
	b.WriteString("</svg>\n")
	return b.String()
}

// services returns the names of the processes, in the order of their first
// requests.
func services(requests []*request) (names []string) {
	for _, r := range requests {
		if !slices.Contains(names, r.Service) {
			names = append(names, r.Service)
		}
	}
	return names
}

func drawAxis(b *bytes.Buffer, begin time.Time, total time.Duration, bottom float64, x func(time.Time) float64) {
	step := 100 * time.Millisecond
	for _, s := range []time.Duration{200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, time.Minute} {
		if total > 10*step {
			step = s
		}
	}
	for at := time.Duration(0); at <= total; at += step {
		fmt.Fprintf(b, `<path d="M%.1f %dV%.0f" stroke="#eaeef2"/><text x="%.1f" y="%d" class="small" text-anchor="middle">%d ms</text>`+"\n",
			x(begin.Add(at)), top, bottom+4, x(begin.Add(at)), top-6, at.Milliseconds())
	}
}

func drawLock(back, bars, labels *bytes.Buffer, l *lock, middle float64, x func(time.Time) float64) {
	fmt.Fprintf(back, `<text x="%d" y="%.0f" class="small">%s</text>`+"\n", lockLeft, middle+4, escape(l.name))
	bar := func(s *spans.Span, fill, ink, label string) {
		if s == nil {
			return
		}
		from, wide := x(s.Start), max(x(s.End)-x(s.Start), 1.5)
		fmt.Fprintf(bars, `<rect x="%.1f" y="%.1f" width="%.1f" height="%d" rx="2" fill="%s"><title>%s %s, %d ms</title></rect>`+"\n",
			from, middle-barHeight/2, wide, barHeight, fill, escape(s.Name), escape(l.name), s.Duration().Milliseconds())
		if wide > 6.5*float64(len(label)) {
			fmt.Fprintf(labels, `<text x="%.1f" y="%.1f" class="in" text-anchor="middle" fill="%s" stroke="%s">%s</text>`+"\n",
				from+wide/2, middle+4, ink, fill, escape(label))
		}
	}
	if l.wait != nil {
		bar(l.wait, "#f6c453", "#4d3800", fmt.Sprintf("%d ms", l.wait.Duration().Milliseconds()))
		if l.outcome != "acquired" {
			fmt.Fprintf(labels, `<text x="%.1f" y="%.1f" class="in" fill="#b3261e" stroke="#ffffff" font-weight="bold">%s</text>`+"\n",
				x(l.End)+6, middle+4, escape(l.outcome))
		}
	}
	fill, kind := "#2166ac", l.Attrs[spans.KeyKind]
	if kind == "read" || kind == "semaphore" {
		fill = "#2e7d5b"
	}
	bar(l.hold, fill, "#ffffff", map[string]string{"read": "reads", "semaphore": "permit"}[kind])
}

// drawLinks draws the arrows, straight up or down from the beginning of a wait.
func drawLinks(b *bytes.Buffer, requests []*request, rows map[*lock]float64, x func(time.Time) float64) {
	var taken []float64 // so that no two arrows coincide
	for _, r := range requests {
		for _, l := range r.locks {
			for _, other := range l.behind {
				at := x(l.wait.Start) + 5
				for slices.ContainsFunc(taken, func(t float64) bool { return math.Abs(t-at) < 5 }) {
					at += 5
				}
				taken = append(taken, at)
				from, to := rows[l], rows[other.lock]+barHeight/2+1
				if rows[other.lock] > from {
					to = rows[other.lock] - barHeight/2 - 1
				}
				color, marker, dash := "#b3261e", "at", ""
				if other.role != spans.Holder {
					color, marker, dash = "#8250a8", "by", ` stroke-dasharray="4 3"`
				}
				fmt.Fprintf(b, `<g><title>%s waited behind %s in %s</title><circle cx="%.1f" cy="%.1f" r="2.6" fill="%s"/><path d="M%.1f %.1fV%.1f" stroke="%s" stroke-width="1.5" marker-end="url(#%s)"%s/></g>`+"\n",
					escape(r.Name), escape(other.of.Name), escape(other.of.Service), at, from, color, at, from, to, color, marker, dash)
			}
		}
	}
}

func drawLegend(b *bytes.Buffer, y float64) {
	at := float64(left)
	for _, item := range []struct{ fill, text string }{
		{"#e4e8ed", "the request"}, {"#f6c453", "waits for the lock"}, {"#2166ac", "holds it alone"}, {"#2e7d5b", "shares it"},
	} {
		fmt.Fprintf(b, `<rect x="%.0f" y="%.1f" width="22" height="11" rx="2" fill="%s"/><text x="%.0f" y="%.0f" class="small">%s</text>`+"\n",
			at, y-10, item.fill, at+28, y, item.text)
		at += 48 + 6*float64(len(item.text))
	}
	for _, item := range []struct{ color, marker, dash, text string }{
		{"#b3261e", "at", "", "link to the holder"}, {"#8250a8", "by", ` stroke-dasharray="4 3"`, "link to the predecessor in the queue"},
	} {
		fmt.Fprintf(b, `<path d="M%.0f %.1fh26" stroke="%s" stroke-width="1.5" marker-end="url(#%s)"%s/><text x="%.0f" y="%.0f" class="small">%s</text>`+"\n",
			at, y-4.5, item.color, item.marker, item.dash, at+32, y, item.text)
		at += 52 + 6*float64(len(item.text))
	}
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder returns no errors
	return b.String()
}
