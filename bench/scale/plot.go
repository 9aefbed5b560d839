package main

import (
	"image/color"
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// writePlot writes an SVG with one plot for each cost.
func writePlot(file string, lines []line) (err error) {
	canvas := vgsvg.New(30*vg.Centimeter, 8*vg.Centimeter)
	area := draw.New(canvas)
	area.SetColor(color.White) // legible on a dark page, too
	area.Fill(area.Rectangle.Path())
	plots := make([]*plot.Plot, len(costs))
	for i, cost := range costs {
		p := plot.New()
		p.Title.Text, p.X.Label.Text = cost.name, "waiters of one process"
		p.Legend.Top, p.Legend.Left = true, true
		p.Y.Min = 0
		var named []any
		for _, l := range lines {
			var points plotter.XYs
			for _, point := range l.points {
				points = append(points, plotter.XY{X: float64(point.waiters), Y: cost.of(point.Cost)})
			}
			named = append(named, l.name, points)
		}
		if err := plotutil.AddLinePoints(p, named...); err != nil {
			return err
		}
		plots[i] = p
	}
	tiles := draw.Tiles{Rows: 1, Cols: len(plots), PadX: vg.Centimeter, PadTop: vg.Millimeter, PadBottom: vg.Millimeter, PadLeft: vg.Millimeter, PadRight: 5 * vg.Millimeter}
	for i, c := range plot.Align([][]*plot.Plot{plots}, tiles, area)[0] {
		plots[i].Draw(c)
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = canvas.WriteTo(f)
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}
