package telemetry

// This file has the gauges of the oldest wait and the oldest hold. Histograms record what has
// ended; these gauges move for a wait that never ends.

import (
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
)

// waits are the waiting acquisitions of a pool.
type waits struct {
	mu    sync.Mutex
	first *Acquisition
}

func (w *waits) add(a *Acquisition) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a.next = w.first; a.next != nil {
		a.next.previous = a
	}
	w.first = a
}

func (w *waits) remove(a *Acquisition) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a.next != nil {
		a.next.previous = a.previous
	}
	if a.previous != nil {
		a.previous.next = a.next
	} else {
		w.first = a.next
	}
	a.next, a.previous = nil, nil
}

// Oldest has, for each lock, when the oldest of several waits or holds began.
type Oldest map[Lock]time.Time

// Add adds a wait, or a hold.
func (o Oldest) Add(lock Lock, began time.Time) {
	if before, ok := o[lock]; !ok || began.Before(before) {
		o[lock] = began
	}
}

func (w *waits) oldest() Oldest {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := Oldest{}
	for a := w.first; a != nil; a = a.next {
		all.Add(a.lock, a.began)
	}
	return all
}

// observe reports the oldest of the locks that have the same labels.
func (o Oldest) observe(to metric.Observer, gauge metric.Float64Observable, m *meters, now time.Time) {
	began := map[labels]time.Time{}
	for lock, t := range o {
		l := m.labelsOf(lock)
		if before, ok := began[l]; !ok || t.Before(before) {
			began[l] = t
		}
	}
	for l, t := range began {
		to.ObserveFloat64(gauge, max(0, now.Sub(t)).Seconds(), m.option(l))
	}
}
