package lockpool

// This file finds the places in the program where locks are asked for.

import (
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ownFunctions begins the names of this package's functions.
const ownFunctions = "github.com/lockpool/lockpool."

// A stack has the addresses of the innermost calls of a goroutine.
type stack [32]uintptr

// sites has the call sites of stacks, because a program makes the same calls again and
// again, and a lookup of the names takes as long as the rest of a nested lock.
var sites = struct {
	sync.Mutex
	of map[stack]string
}{of: map[stack]string{}}

// maxSites bounds the memory that sites takes, to about half a megabyte.
const maxSites = 1000

// stacks are for reuse. A stack in a local variable would double the memory of each waiter.
var stacks = sync.Pool{New: func() any { return new(stack) }}

// callSite returns the place of the call into this package, and the places of its callers,
// as many as fit into a node: "main.refund (refund.go:24) from main.serve (main.go:57)".
func callSite() string {
	s := stacks.Get().(*stack)
	defer stacks.Put(s)
	clear(s[runtime.Callers(2, s[:]):])
	sites.Lock()
	defer sites.Unlock()
	if site, ok := sites.of[*s]; ok {
		return site
	}
	return s.newSite()
}

// newSite adds the stack to sites, which are locked.
func (s *stack) newSite() string {
	if len(sites.of) == maxSites {
		for other := range sites.of {
			delete(sites.of, other)
			break
		}
	}
	site := s.site()
	sites.of[*s] = site
	return site
}

// placeToTell is callSite, unless nodes are not to say it.
func (a *acquisition) placeToTell() string {
	if a.local.at == "" && !a.pool.telemetry.NoLinks {
		a.pool.local.noteSite(&a.local, callSite())
	}
	return a.local.at
}

// isSlow reports whether calls wait for longer than the search for the place of a call takes,
// many times.
func (q *localQueue) isSlow(w *localWaiter) bool {
	var before time.Time
	if q.waiters.Len() > 0 {
		before = q.first().began
	} else if q.turns != nil {
		before = q.turns.asked
	}
	return !before.IsZero() && w.began.Sub(before) > 10*time.Millisecond
}

// noteSite records where the goroutine's call was made, which may have a turn already.
func (ls *localQueues) noteSite(w *localWaiter, at string) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	w.at = at
	if t := w.turns; t != nil && t.last == w.turn {
		t.at = at
	}
}

func (s *stack) site() (site string) {
	const most = 120 // bytes: the log of the service has them, too
	frames := runtime.CallersFrames(s[:])
	for more := true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		if f.Function == "" || strings.HasPrefix(f.Function, ownFunctions) || strings.HasPrefix(f.Function, "runtime.") {
			continue
		}
		frame := afterSlash(f.Function) + " (" + afterSlash(f.File) + ":" + strconv.Itoa(f.Line) + ")"
		if site != "" {
			frame = " from " + frame
		}
		if site != "" && len(site)+len(frame) > most {
			break
		}
		site += frame
	}
	return site
}

func afterSlash(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }
