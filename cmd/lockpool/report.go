package main

// This file has the report of the command doctor.

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
)

// report is the output of lockpool doctor --json. Durations are in milliseconds. What
// could not be found out is null.
type report struct {
	Servers  []serverReport `json:"servers"`
	Voters   *int           `json:"voters"` // in the ensemble's configuration; 1 without one
	Session  *sessionReport `json:"session_timeout"`
	Latency  *latencyReport `json:"latency"`
	Chroot   string         `json:"chroot"`
	Probe    string         `json:"probe"` // the node created and removed
	Rights   *rightsReport  `json:"rights"`
	Contains *bool          `json:"containers"`
	Lock     *float64       `json:"lock_ms"` // to take a lock, and to release it

	// By how much the service's clock is ahead of this machine's, and the uncertainty.
	Clock      *float64 `json:"clock_difference_ms"`
	ClockError *float64 `json:"clock_uncertainty_ms"`

	Findings []finding `json:"findings"`
}

type serverReport struct {
	Address string `json:"address"`
	Error   string `json:"error,omitempty"`
	Version string `json:"version,omitempty"` // empty if the server does not tell
	Mode    string `json:"mode,omitempty"`
	TickMS  int    `json:"tick_ms,omitempty"`
	Sync    int    `json:"sync_limit,omitempty"` // in ticks

	keeper bool
}

type sessionReport struct {
	Asked   float64 `json:"asked_ms"`
	Granted float64 `json:"granted_ms"`
	Min     float64 `json:"min_ms,omitempty"` // of ZooKeeper
	Max     float64 `json:"max_ms,omitempty"`
}

type latencyReport struct {
	Requests    int     `json:"requests"` // of each kind
	ReadMedian  float64 `json:"read_median_ms"`
	ReadWorst   float64 `json:"read_worst_ms"`
	WriteMedian float64 `json:"write_median_ms"`
	WriteWorst  float64 `json:"write_worst_ms"`
}

type rightsReport struct {
	Create bool `json:"create"`
	Read   bool `json:"read"`
	Write  bool `json:"write"`
	Delete bool `json:"delete"`
	Admin  bool `json:"admin"`
}

// A finding is an error, or advice not followed.
type finding struct {
	Level string `json:"level"`
	What  string `json:"what"`
	Why   string `json:"why"`
	Do    string `json:"do"`
}

const (
	wrong  = "wrong"
	advice = "advice"
)

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// span prints milliseconds.
func span(ms float64) string { return time.Duration(ms * float64(time.Millisecond)).String() }

// print prints the report for people.
func (r report) print(w io.Writer) error {
	b := new(strings.Builder)
	var rows [][]string
	add := func(what, format string, args ...any) {
		rows = append(rows, []string{what, fmt.Sprintf(format, args...)})
	}
	for _, s := range r.Servers {
		said := cmp.Or(s.Error, strings.Join(slices.DeleteFunc([]string{s.Version, s.Mode}, func(s string) bool { return s == "" }), ", "),
			"opens sessions; it does not allow srvr, which tells its version")
		add("server", "%s: %s", s.Address, printable(said))
	}
	if r.Voters != nil {
		add("ensemble", "%s that can vote", count(*r.Voters, "server"))
	}
	if s := r.Session; s != nil {
		limits := ""
		if s.Max > 0 {
			limits = fmt.Sprintf("; the servers allow %s to %s", span(s.Min), span(s.Max))
		}
		add("session timeout", "asked for %s, granted %s%s", span(s.Asked), span(s.Granted), limits)
	}
	if l := r.Latency; l != nil {
		add("latency", "%d reads: median %s, worst %s; %d writes: median %s, worst %s",
			l.Requests, span(l.ReadMedian), span(l.ReadWorst), l.Requests, span(l.WriteMedian), span(l.WriteWorst))
	}
	if a := r.Rights; a != nil {
		var has, lacks []string
		for _, right := range []struct {
			name string
			has  bool
		}{{"CREATE", a.Create}, {"READ", a.Read}, {"WRITE", a.Write}, {"DELETE", a.Delete}, {"ADMIN", a.Admin}} {
			if right.has {
				has = append(has, right.name)
			} else {
				lacks = append(lacks, right.name)
			}
		}
		text := strings.Join(has, ", ")
		if len(lacks) > 0 {
			text += "; without " + strings.Join(lacks, ", ")
		}
		if a.Create {
			text += fmt.Sprintf(" (found out by creating and removing %s)", quoted(r.Probe))
		}
		add("rights", "on %s: %s", quoted(r.Chroot), text)
	}
	if r.Contains != nil {
		add("containers", "%s", map[bool]string{true: "supported", false: "not supported"}[*r.Contains])
	}
	if r.Lock != nil {
		add("lock", "taken and released in %s", span(*r.Lock))
	}
	if r.Clock != nil {
		add("clock", "the service's is %s %s this machine's, give or take %s", span(math.Abs(*r.Clock)),
			map[bool]string{true: "behind", false: "ahead of"}[*r.Clock < 0], span(*r.ClockError))
	}
	for _, l := range columns(rows) {
		fmt.Fprintln(b, l)
	}
	for _, f := range r.Findings {
		fmt.Fprintf(b, "\n%s: %s\n  why: %s\n  do:  %s\n", f.Level, printable(f.What), f.Why, f.Do)
	}
	if len(r.Findings) == 0 {
		fmt.Fprintln(b, "\nNothing to say against it.")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
