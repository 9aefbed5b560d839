package spans

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Axis is a time axis whose width is a number of characters.
type Axis struct {
	Begin time.Time
	Total time.Duration
	Width int
}

// Scale returns a heading: the times at both ends of the axis.
func (a Axis) Scale() string {
	const begin = "0 s"
	return fmt.Sprintf("%s%*s", begin, a.Width-len(begin), fmt.Sprintf("%.1f s", a.Total.Seconds()))
}

// Row is a line of text along an axis.
type Row []rune

// NewRow returns an empty row.
func (a Axis) NewRow() Row { return slices.Repeat(Row{' '}, a.Width) }

// Draw marks the time of the span, with at least one mark.
func (a Axis) Draw(row Row, s *Span, mark rune) {
	from := min(max(a.column(s.Start), 0), a.Width-1)
	to := min(max(a.column(s.End), from+1), a.Width)
	for i := from; i < to; i++ {
		row[i] = mark
	}
}

func (a Axis) column(t time.Time) int {
	return int(math.Round(float64(a.Width) * t.Sub(a.Begin).Seconds() / max(a.Total, 1).Seconds()))
}
