package nodedata

// This file encodes what the waits and holds of a pool have cost.

import (
	"encoding/json"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Cost is what a line of a program has cost at a lock, or what other lines have cost the program
// there.
type Cost struct {
	Lock    string `json:"lock"`
	Kind    string `json:"kind"`
	At      string `json:"at,omitempty"`
	Foreign bool   `json:"foreign,omitempty"`
	Host    string `json:"host,omitempty"`
	PID     int    `json:"pid,omitempty"`

	Holds  float64       `json:"holds,omitempty"`
	Held   time.Duration `json:"held,omitempty"`
	Inside time.Duration `json:"inside,omitempty"`
	Within string        `json:"within,omitempty"`

	Waits  float64       `json:"waits,omitempty"`
	Waited time.Duration `json:"waited,omitempty"`
	GaveUp float64       `json:"gave_up,omitempty"`
	Vain   time.Duration `json:"vain,omitempty"`
	Own    float64       `json:"own,omitempty"`

	Asks  float64       `json:"asks,omitempty"`
	Asked time.Duration `json:"asked,omitempty"`
	Again float64       `json:"again,omitempty"`
}

// numbers are the sums.
func (c *Cost) numbers() (counts [6]*float64, times [5]*time.Duration) {
	return [6]*float64{&c.Holds, &c.Waits, &c.GaveUp, &c.Own, &c.Asks, &c.Again}, [5]*time.Duration{&c.Held, &c.Inside, &c.Waited, &c.Vain, &c.Asked}
}

// Add adds the sums of other, each so many times.
func (c *Cost) Add(other *Cost, times float64) {
	counts, sums := c.numbers()
	added, also := other.numbers()
	for i := range counts {
		*counts[i] += times * *added[i]
	}
	for i := range sums {
		*sums[i] += time.Duration(times * float64(*also[i]))
	}
}

// Limit bounds each time.
func (c *Cost) Limit(most time.Duration) {
	_, times := c.numbers()
	for _, t := range times {
		*t = min(max(0, *t), most)
	}
}

// Costs are those of a pool.
type Costs struct {
	Origin
	Over       time.Duration `json:"over"`
	LocalTurns bool          `json:"local_turns"`
	KeptLocks  bool          `json:"kept_locks"`
	Costs      []Cost        `json:"costs"`
}

// Encode returns the data of a node with as many of the costs as fit, without the span of the owner.
func (o Owner) Encode(c Costs) []byte {
	c.Origin = o.Origin
	return fitting(c.Costs, func(costs []Cost) any { c.Costs = costs; return c })
}

// ParseCosts reads the data of a node. Nothing is trusted.
func ParseCosts(data []byte) (c Costs, ok bool) {
	const most = 1000 // calls at a time
	if len(data) > MaxNode || json.Unmarshal(data, &c) != nil || !c.IsOurs() || c.Over < time.Second || c.Over > 24*time.Hour {
		return Costs{}, false
	}
	c.Owner, c.Host, c.Trace = printable(c.Owner), printable(c.Host), ""
	for i := range c.Costs {
		cost := &c.Costs[i]
		cost.Kind, cost.At, cost.Host = printable(cost.Kind), printable(cost.At), printable(cost.Host)
		counts, _ := cost.numbers()
		for _, n := range counts {
			*n = min(max(0, *n), 1e9)
		}
		cost.Limit(most * c.Over)
		cost.Inside, cost.Vain = min(cost.Inside, cost.Held), min(cost.Vain, cost.Waited)
		cost.GaveUp, cost.Own = min(cost.GaveUp, cost.Waits), min(cost.Own, cost.Waits)
	}
	unfit := func(name string) bool {
		return !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl)
	}
	c.Costs = slices.DeleteFunc(c.Costs, func(c Cost) bool { return c.Lock == "" || unfit(c.Lock) || unfit(c.Within) })
	return c, true
}
