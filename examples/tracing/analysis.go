package main

// This file finds out, from the spans, which requests waited for which others.

import (
	"cmp"
	"slices"
	"strings"

	"github.com/lockpool/lockpool/examples/internal/spans"
)

// request is a trace, represented by the first span.
type request struct {
	spans.Span
	locks []*lock // in the order of asking
}

// lock is one lock asked for by a request.
type lock struct {
	spans.Span                // of the acquisition
	of            *request    // the asking request
	wait, hold    *spans.Span // nil without a wait, or without a grant
	behind        []obstacle  // the holder first, then the waiters before in the queue
	name, outcome string
}

// obstacle is a lock, of another request, in the way.
type obstacle struct {
	*lock
	role string
}

// analyze finds the requests in finished spans, in any order, and determines which of them
// waited for which others.
func analyze(all []spans.Span) []*request {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b spans.Span) int { return a.Start.Compare(b.Start) })
	requests, locks := map[string]*request{}, map[string]*lock{}
	var order []*request
	for _, s := range all {
		if s.Parent == "" && requests[s.Trace] == nil {
			requests[s.Trace] = &request{Span: s}
			order = append(order, requests[s.Trace])
		}
	}
	for _, s := range all {
		if of := requests[s.Trace]; of != nil && s.Name == spans.Acquire {
			l := &lock{Span: s, of: of, name: s.Attrs[spans.KeyLock], outcome: s.Attrs[spans.KeyOutcome]}
			locks[s.ID] = l
			of.locks = append(of.locks, l)
		}
	}
	for i := range all {
		s := &all[i]
		switch s.Name {
		case spans.Wait:
			if l := locks[s.Parent]; l != nil {
				l.wait = s
			}
		case spans.Hold:
			if l := requests[s.Trace].acquired(s); l != nil {
				l.hold = s
			}
		}
	}
	for _, l := range locks {
		if l.wait == nil {
			continue
		}
		for _, to := range l.wait.Links {
			if other := locks[to.ID]; other != nil {
				l.behind = append(l.behind, obstacle{other, to.Role})
			}
		}
		slices.SortStableFunc(l.behind, func(a, b obstacle) int {
			return cmp.Or(strings.Compare(a.role, b.role), a.Start.Compare(b.Start)) // "holder" < "predecessor"
		})
	}
	return slices.DeleteFunc(order, func(r *request) bool { return len(r.locks) == 0 })
}

// acquired returns the lock whose hold began with the span.
func (r *request) acquired(hold *spans.Span) (last *lock) {
	if r == nil {
		return nil
	}
	for _, l := range r.locks {
		if l.name == hold.Attrs[spans.KeyLock] && !l.Start.After(hold.Start) && l.hold == nil {
			last = l
		}
	}
	return last
}
