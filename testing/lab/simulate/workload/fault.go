package workload

// This file has what the faults of campaigns and of the simulation have in common.

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Length is how long a fault lasts.
type Length int

const (
	Moment  Length = iota // over at once
	Short                 // for less than a session timeout
	Long                  // for up to two and a half session timeouts
	Longer                // for as long, independent of the session
	Stopped               // for as long as machines stop, independent of the session timeout
)

// LeastStop and MostStop are how long machines stop.
const (
	LeastStop = 20 * time.Millisecond
	MostStop  = time.Minute
)

// Draw draws how long a fault lasts for a process with a session timeout, if the longest of
// all sessions is known, too.
func (l Length) Draw(r *rand.Rand, timeout, longest time.Duration) time.Duration {
	switch l {
	case Short:
		return Between(r, timeout/10, timeout*2/3)
	case Long:
		return Between(r, timeout, timeout*5/2)
	case Longer:
		return longest * 5 / 2
	case Stopped: // as many of them have two digits as one
		return time.Duration(float64(LeastStop) * math.Pow(float64(MostStop)/float64(LeastStop), r.Float64()))
	default:
		return 0
	}
}

// Between returns a value from least to most.
func Between[T ~int64 | ~float64](r *rand.Rand, least, most T) T {
	return least + T(r.Float64()*float64(most-least))
}

// Deck deals faults in a random order, each as often as the others.
type Deck[F any] struct {
	All  []F
	left []F
}

// Deal returns the next fault.
func (d *Deck[F]) Deal(r *rand.Rand) F { return d.DealFirst(r, func(F) bool { return true }) }

// DealFirst returns the next fault satisfying fits, or the next fault if there is none.
func (d *Deck[F]) DealFirst(r *rand.Rand, fits func(F) bool) F {
	if len(d.left) == 0 {
		d.left = slices.Clone(d.All)
		r.Shuffle(len(d.left), func(i, j int) { d.left[i], d.left[j] = d.left[j], d.left[i] })
	}
	i := max(slices.IndexFunc(d.left, fits), 0)
	f := d.left[i]
	d.left = slices.Delete(d.left, i, i+1)
	return f
}

// Describe says what a fault was injected into, if known.
func Describe(fault, what string) string {
	if what == "" {
		return fault
	}
	return fault + ": " + what
}
