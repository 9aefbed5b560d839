package main

// This file has the poller that all browsers of serve share, and the last hour of the locks.

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockpool/lockpool"
)

// hub knows what was seen of the locks last. It looks when a browser wants that, as often as
// top at most, and follows the locks that browsers have open by events.
type hub struct {
	server        *connection
	pool          *lockpool.Pool
	prefix, trace string
	work          sync.WaitGroup
	reading       chan struct{} // full while a followed lock is read, and nine times as long after

	mu      sync.Mutex
	closed  bool
	latest  survey        // the last successful one, with the error of a later one; queues are replaced, not changed
	looked  chan struct{} // closed at the end of the last look
	ended   time.Time     // when that was
	changed chan struct{} // closed at the next change
	past    lastHour
	list    cached
}

func newHub(server *connection, pool *lockpool.Pool, prefix, trace string) *hub {
	h := &hub{
		server: server, pool: pool, prefix: prefix, trace: trace, reading: make(chan struct{}, 1),
		looked: make(chan struct{}), changed: make(chan struct{}), past: lastHour{},
	}
	close(h.looked)
	return h
}

// close ends everything, with the pool.
func (h *hub) close() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.pool.Close()
	h.work.Wait()
}

// covers reports whether the page is about a lock. Without a name it is.
func (h *hub) covers(lock string) bool {
	return h.prefix == "" || lock == "" || lock == h.prefix || strings.HasPrefix(lock, h.prefix+"/")
}

// look begins a survey, unless one is under way or fresh, and returns a channel closed at the
// end of the last one. An unsuccessful survey leaves what was seen before.
func (h *hub) look() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-h.looked:
	default:
		return h.looked
	}
	if h.closed || time.Since(h.ended) < h.latest.rest() {
		return h.looked
	}
	before := h.latest.background
	h.looked = make(chan struct{})
	h.work.Go(func() { // ends with the survey
		s := surveyOf(h.server, h.pool, h.prefix, before)
		h.mu.Lock()
		defer h.mu.Unlock()
		if s.err != nil {
			h.latest.err = s.err
		} else {
			noteGrants(h.latest, s)
			h.latest = s
			h.past.note(s)
		}
		h.ended = time.Now()
		close(h.looked)
		h.tell()
	})
	return h.looked
}

// tell tells the browsers of a change.
func (h *hub) tell() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// follow reads a lock's queue after each event until ctx ends. All followed locks are read for
// at most a tenth of the time. Names without a lock are not followed, because each would leave
// a watch at the service.
func (h *hub) follow(ctx context.Context, lock string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || !slices.ContainsFunc(h.latest.queues, func(q lockpool.Queue) bool { return q.Name == lock }) {
		return
	}
	h.work.Go(func() { // ends with ctx, or the pool
		for range h.pool.Observe(ctx, lock) { // look finds and shows errors as well
			select {
			case h.reading <- struct{}{}:
			case <-ctx.Done():
				return
			}
			began := time.Now()
			if q, err := h.pool.Queue(ctx, lock); err == nil {
				h.replace(q, began)
			}
			sleep(ctx, restFactor*time.Since(began))
			<-h.reading
		}
	})
}

// replace replaces a lock's queue in the latest survey, unless the survey is newer.
func (h *hub) replace(q lockpool.Queue, began time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if began.After(h.latest.began) {
		h.latest.name(q)
		noteGrants(h.latest, survey{queues: []lockpool.Queue{q}})
		h.latest.queues = slices.DeleteFunc(slices.Clone(h.latest.queues), func(o lockpool.Queue) bool { return o.Name == q.Name })
		if len(q.Contenders) > 0 {
			h.latest.queues = append(h.latest.queues, q)
		}
		h.tell()
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// costOf is the sum of the waits for a lock: the waiters times their mean waiting time.
func costOf(q lockpool.Queue, now time.Time) (cost time.Duration) {
	for _, c := range q.Contenders {
		if !c.Holds {
			cost += max(0, now.Sub(c.Asked))
		}
	}
	return cost
}

// lastHour has points of each lock, the oldest first: one for each minute of the last hour in
// which the lock was seen. It has at most so many locks, and takes 2 MB.
type lastHour map[string][]point

const (
	maxRemembered = 1000
	minutes       = 60
)

// point is the most that was seen in a minute.
type point struct{ minute, waiters, seconds uint32 }

func minuteOf(t time.Time) uint32 { return uint32(t.Unix() / 60) }

// note remembers a survey, and forgets the quietest locks if there are too many.
func (h lastHour) note(s survey) {
	now := minuteOf(s.began)
	for _, q := range s.queues {
		points := h[q.Name]
		if len(points) == 0 || points[len(points)-1].minute != now {
			points = append(points, point{minute: now})
		}
		h[q.Name] = points
		if sum, p := summarize(q), &points[len(points)-1]; sum.waiters > 0 {
			p.waiters = max(p.waiters, uint32(sum.waiters))
			p.seconds = max(p.seconds, uint32(max(0, s.began.Sub(sum.waited)/time.Second)))
		}
	}
	noise := map[string]uint64{}
	for name, points := range h {
		h[name] = slices.DeleteFunc(points, func(p point) bool { return p.minute+minutes <= now })
		for _, p := range h[name] {
			noise[name] += 1 + uint64(p.waiters)*uint64(p.seconds)
		}
	}
	names := slices.SortedFunc(maps.Keys(h), func(a, b string) int { return cmp.Compare(noise[b], noise[a]) })
	for i, name := range names {
		if i >= maxRemembered || noise[name] == 0 {
			delete(h, name)
		}
	}
}

// pathOf returns a line through numbers of the points as an SVG path, 60 wide and 20 high, with
// gaps, and the largest number.
func pathOf(points []point, now time.Time, number func(point) uint32) (path string, most uint32) {
	for _, p := range points {
		most = max(most, number(p))
	}
	var b strings.Builder
	for i, p := range points {
		command := 'L'
		if i == 0 || points[i-1].minute+1 != p.minute {
			command = 'M'
		}
		fmt.Fprintf(&b, "%c%d %dh1", command, p.minute+minutes-1-minuteOf(now), 19-18*number(p)/max(most, 1))
	}
	return b.String(), most
}
