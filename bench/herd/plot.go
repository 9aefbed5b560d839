package main

import (
	"bytes"
	"fmt"
	"image/color"
	"io"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	vgdraw "gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

const (
	width, height = 720, 380
	titleHeight   = 34
	legendHeight  = 46
)

// styles are the styles of the locks, in the order of kinds. Lines that coincide
// can be told apart: a broad pale line lies below a thin dark one, and a large
// dot below a small one.
var styles = []struct {
	line  vgdraw.LineStyle
	point vgdraw.GlyphStyle
}{
	{stroke(0xf4a582, 6), glyph(0xf4a582, 6.5)},
	{stroke(0xca0020, 1.5, 5, 4), glyph(0xca0020, 3.2)},
	{stroke(0x92c5de, 6), glyph(0x92c5de, 6.5)},
	{stroke(0x053061, 1.5, 5, 4), glyph(0x053061, 3.2)},
}

func rgb(c uint32) color.Color { return color.RGBA{uint8(c >> 16), uint8(c >> 8), uint8(c), 255} }

func stroke(c uint32, width vg.Length, dashes ...vg.Length) vgdraw.LineStyle {
	return vgdraw.LineStyle{Color: rgb(c), Width: width, Dashes: dashes}
}

func glyph(c uint32, radius vg.Length) vgdraw.GlyphStyle {
	return vgdraw.GlyphStyle{Color: rgb(c), Radius: radius, Shape: vgdraw.CircleGlyph{}}
}

// textStyle returns a text style of the given size.
func textStyle(size vg.Length) text.Style {
	f := font.Font{Typeface: "Liberation", Variant: "Sans", Size: size}
	return text.Style{Color: color.Black, Font: f, Handler: plot.DefaultTextHandler}
}

// draw writes the plot as an SVG: wake-ups on the left, requests on the right.
func draw(out io.Writer, results []drained) error {
	panels := []*plot.Plot{
		panel("wake-ups per release", results),
		panel("requests per release", results),
	}
	for i, d := range results {
		if i > 0 && d.lock == results[i-1].lock {
			continue
		}
		var wakeups, requests plotter.XYs
		for _, d := range results {
			if d.lock == results[i].lock {
				wakeups = append(wakeups, plotter.XY{X: float64(d.waiters), Y: d.wakeups})
				requests = append(requests, plotter.XY{X: float64(d.waiters), Y: d.requests})
			}
		}
		for j, points := range []plotter.XYs{wakeups, requests} {
			if err := addLine(panels[j], d.lock, points); err != nil {
				return err
			}
		}
	}

	canvas := vgsvg.New(width, height)
	all := vgdraw.New(canvas)
	all.SetColor(color.White) // legible on a dark page, too
	all.Fill(all.Rectangle.Path())
	title := textStyle(15)
	title.XAlign, title.YAlign = text.XCenter, text.YTop
	all.FillText(title, vg.Point{X: width / 2, Y: height - 9}, "Cost of one release of a lock at the server")
	drawLegend(vgdraw.Crop(all, 0, 0, 0, legendHeight-height))
	plots := vgdraw.Crop(all, 10, -14, legendHeight, -titleHeight)
	tiles := vgdraw.Tiles{Rows: 1, Cols: len(panels), PadX: 22}
	for i, c := range plot.Align([][]*plot.Plot{panels}, tiles, plots)[0] {
		panels[i].Draw(c)
	}

	var svg bytes.Buffer
	if _, err := canvas.WriteTo(&svg); err != nil {
		return err
	}
	// Name similar fonts as well, for systems without this one.
	family := []byte("font-family:Liberation Sans")
	_, err := out.Write(bytes.ReplaceAll(svg.Bytes(), family, slices.Concat(family, []byte(",Arial,Helvetica,sans-serif"))))
	return err
}

// panel returns axes without lines. The axes of all panels are the same.
func panel(title string, results []drained) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = color.White
	p.Title.Text, p.Title.TextStyle, p.Title.Padding = title, textStyle(12), 2
	p.Title.TextStyle.XAlign, p.Title.TextStyle.YAlign = text.XCenter, text.YTop
	p.X.Label.Text, p.X.Label.TextStyle = "waiters", textStyle(11)
	p.X.Label.TextStyle.XAlign, p.X.Label.TextStyle.YAlign = text.XCenter, text.YBottom
	least, most := math.Inf(1), 1.0
	for _, d := range results {
		least = min(least, float64(d.waiters))
		most = max(most, float64(d.waiters), d.wakeups, d.requests)
	}
	p.X.Min, p.X.Max = least/1.3, max(most, least*10)*1.3
	p.Y.Min, p.Y.Max = 0.6, max(most, least*10)*1.6
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Scale, axis.Tick.Marker = plot.LogScale{}, plot.TickerFunc(powersOfTen)
		axis.Tick.Label.Font = textStyle(11).Font
		axis.Padding = 0
	}
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = color.Gray{225}, color.Gray{225}
	p.Add(grid)
	return p
}

// powersOfTen returns the ticks of an axis: a labeled one at each power of ten,
// with eight small ones in between.
func powersOfTen(least, most float64) (ticks []plot.Tick) {
	for ten := math.Pow10(int(math.Floor(math.Log10(least)))); ten <= most; ten *= 10 {
		for digit := 1.0; digit < 10; digit++ {
			if value := digit * ten; value >= least && value <= most {
				tick := plot.Tick{Value: value}
				if digit == 1 {
					tick.Label = fmt.Sprint(value)
				}
				ticks = append(ticks, tick)
			}
		}
	}
	return ticks
}

func addLine(p *plot.Plot, lock string, points plotter.XYs) error {
	line, dots, err := plotter.NewLinePoints(points)
	if err != nil {
		return fmt.Errorf("drawing %s: %w", lock, err)
	}
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == lock })
	line.LineStyle, dots.GlyphStyle = styles[i].line, styles[i].point
	p.Add(line, dots)
	return nil
}

// drawLegend names the locks, in two rows of two.
func drawLegend(c vgdraw.Canvas) {
	style := textStyle(11.5)
	style.YAlign = text.YCenter
	for i, k := range kinds {
		left := vg.Length(150 + 270*(i/2))
		y := vg.Length(legendHeight - 14 - 18*(i%2))
		c.StrokeLine2(styles[i].line, left, y, left+36, y)
		c.DrawGlyph(styles[i].point, vg.Point{X: left + 18, Y: y})
		c.FillText(style, vg.Point{X: left + 46, Y: y}, k.name)
	}
}
