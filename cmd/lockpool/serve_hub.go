package main

// This file has the poller that all browsers of serve share, and the last hour of the locks.

import (
	"cmp"
	"context"
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
	pool          *lockpool.Pool
	prefix, trace string
	work          sync.WaitGroup
	reading       sync.Mutex // held while a followed lock is read, and ten times as long

	mu      sync.Mutex
	closed  bool
	latest  survey        // the last successful one, with the error of a later one; queues are replaced, not changed
	looked  chan struct{} // closed at the end of the last look
	ended   time.Time     // when that was
	changed chan struct{} // closed at the next change
	past    history
	list    cached
}

func newHub(pool *lockpool.Pool, prefix, trace string) *hub {
	h := &hub{pool: pool, prefix: prefix, trace: trace, looked: make(chan struct{}), changed: make(chan struct{}), past: history{}}
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
	h.looked = make(chan struct{})
	h.work.Go(func() { // ends with the survey
		s := surveyOf(h.pool, h.prefix)
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

// follow reads a lock's queue after each event. All followed locks are read for at most a tenth
// of the time.
func (h *hub) follow(ctx context.Context, lock string) {
	for range h.pool.Observe(ctx, lock) { // look finds and shows errors as well
		h.reading.Lock()
		began := time.Now()
		if q, err := h.pool.Queue(ctx, lock); err == nil {
			h.replace(q, began)
		}
		sleep(ctx, restFactor*time.Since(began))
		h.reading.Unlock()
	}
}

// replace replaces a lock's queue in the latest survey, unless the survey is newer.
func (h *hub) replace(q lockpool.Queue, began time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if began.After(h.latest.began) {
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

// The history has a point for each minute of the last hour, of so many locks, and takes at
// most 1.5 MB: 720 bytes a lock, and the name.
const (
	maxRemembered = 1000
	minutes       = 60
)

type history map[string]*[minutes]point

// point is the most that was seen in a minute.
type point struct{ minute, waiters, seconds uint32 }

func minuteOf(t time.Time) uint32 { return uint32(t.Unix() / 60) }

// note remembers a survey, and forgets the quietest locks if there are too many.
func (h history) note(s survey) {
	now := minuteOf(s.began)
	for _, q := range s.queues {
		if h[q.Name] == nil {
			h[q.Name] = new([minutes]point)
		}
		p := &h[q.Name][now%minutes]
		if p.minute != now {
			*p = point{minute: now}
		}
		if sum := summarize(q); sum.waiters > 0 {
			p.waiters = max(p.waiters, uint32(sum.waiters))
			p.seconds = max(p.seconds, uint32(max(0, s.began.Sub(sum.waited)/time.Second)))
		}
	}
	noise := map[string]uint64{}
	for name := range h {
		for _, p := range h.lastHour(name, s.began) {
			noise[name] += uint64(min(p.minute, 1)) + uint64(p.waiters)*uint64(p.seconds)
		}
	}
	names := slices.SortedFunc(maps.Keys(noise), func(a, b string) int { return cmp.Compare(noise[b], noise[a]) })
	for i, name := range names {
		if i >= maxRemembered || noise[name] == 0 {
			delete(h, name)
		}
	}
}

// lastHour returns the points of a lock, the oldest first. A minute in which the lock was not
// seen has the zero point.
func (h history) lastHour(name string, now time.Time) (points [minutes]point) {
	if all := h[name]; all != nil {
		for i := range points {
			minute := minuteOf(now) - minutes + 1 + uint32(i)
			if p := all[minute%minutes]; p.minute == minute {
				points[i] = p
			}
		}
	}
	return points
}
