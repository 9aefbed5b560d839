package lockpool

// This file has looks: a nested wait reads who waits for whom, in search of a cycle.

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/nodedata"
	"github.com/lockpool/lockpool/internal/waitgraph"
)

// A look reads who waits for the holds of a nested wait's handle, and so on. The first look
// comes when the call has waited for a while, or has joined another queue since. Each look
// watches queues before reading them: any later end of a cycle (a contender joins one of
// the queues, or a limit is set) fires a watch, and then the wait looks again, but not all
// the time. So a wait asks nothing as long as nothing changes.
const (
	lookAgain       = time.Second      // after a look, if something has changed
	lookRarely      = 10 * time.Second // after a look, if not all queues could be watched
	lookAfterFailed = 500 * time.Millisecond

	maxLocksRead = 200 // of one look
	locksAtATime = 16
)

// looks are what the looks of a wait have in common.
type looks struct {
	mu      sync.Mutex
	read    map[string]*queueRead // by the last look
	stops   []func()              // end following changed
	unseen  bool                  // a queue could not be watched
	missing bool                  // a queue could not be read, perhaps for a moment
}

// queueRead is a queue as read, with watches for changes.
type queueRead struct {
	contenders []driver.Contender
	others     []string
	watches    []*driver.Watch // nil if there are none
}

func (q *queueRead) isCurrent() bool {
	return q != nil && q.watches != nil && !slices.ContainsFunc(q.watches, func(w *driver.Watch) bool { return w.Fired() != 0 })
}

// lookSoon lets the wait look after some time, or after the look under way. It is called
// with mu held.
func (w *nestedWait) lookSoon(after time.Duration) {
	switch {
	case w.timer == nil || w.ctx.Err() != nil:
	case w.looking:
		w.again = true
	default:
		w.timer.Reset(after)
	}
}

// wake is called after a change in the queues of the last look.
func (w *nestedWait) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lookSoon(time.Until(w.soonest))
}

// lookOnTime looks for a deadlock. It is called by the timer.
func (w *nestedWait) lookOnTime() {
	p := w.pool
	if w.ctx.Err() != nil || !p.begin() {
		return
	}
	defer p.work.Done()
	w.mu.Lock()
	if w.looking {
		w.again = true
		w.mu.Unlock()
		return
	}
	w.looking, w.again = true, false
	w.mu.Unlock()
	next := w.look()
	w.mu.Lock()
	w.looking, w.soonest = false, time.Now().Add(lookAgain)
	if w.again {
		next = p.cfg.checkAfter
	}
	if next > 0 {
		w.lookSoon(next)
	}
	w.mu.Unlock()
	w.looks.follow(w.wake)
	if w.ctx.Err() != nil {
		w.looks.unfollow()
	}
}

// look leaves if the wait is the victim of a cycle. It returns the time until the next look
// in any case, or 0.
func (w *nestedWait) look() (next time.Duration) {
	var c *cycle
	err := w.show()
	if err == nil {
		c, err = w.findCycle()
	}
	if err == nil && c != nil {
		err = w.leave(c)
	}
	switch {
	case w.ctx.Err() != nil, errors.Is(err, errors.ErrUnsupported), errors.Is(err, driver.ErrSessionLost):
		return 0
	case errors.Is(err, driver.ErrTooMany), errors.Is(err, driver.ErrNoPermission):
		return lookRarely
	case errors.Is(err, driver.ErrRemoved): // something has changed since the read
		w.looks.forget()
		return lookAfterFailed
	case err != nil, w.looks.missing:
		return lookAfterFailed
	case w.looks.unseen:
		return lookRarely
	}
	return 0
}

// findCycle reads what waits for the wait, directly or through others. It returns the cycle
// with the wait as the victim, if there is one.
func (w *nestedWait) findCycle() (*cycle, error) {
	w.looks.unfollow()
	before := w.looks.begin()
	var queues []waitgraph.Queue
	seen := map[string]bool{}
	var locks []string // to read
	add := func(holds []nodedata.Hold) {
		for _, h := range holds { // possibly written by any client
			if !seen[h.Lock] && (len(seen) < maxLocksRead || h.Lock == w.name) && w.pool.checkName(h.Lock) == nil {
				seen[h.Lock] = true
				locks = append(locks, h.Lock)
			}
		}
	}
	inspect := func(queue string, _ headOf) ([]driver.Contender, []string, error) {
		return w.inspect(queue, before[queue])
	}
	for add(w.named); len(locks) > 0; {
		now := locks[:min(len(locks), locksAtATime)]
		locks = locks[len(now):]
		read, errs := make([][]waitgraph.Queue, len(now)), make([]error, len(now))
		var all sync.WaitGroup
		for i, lock := range now {
			all.Go(func() { read[i], _, errs[i] = readWaits(w.ctx, w.on, lock, inspect) }) // ends with ctx
		}
		all.Wait()
		for i, err := range errs {
			switch {
			case err == nil:
				for _, q := range read[i] {
					for j := range q.Contenders {
						c := &q.Contenders[j]
						c.Ended = len(c.Record.Holds) > 0 && w.pool.hasEnded(q.Lock, c.Record.Ask)
						if j > 0 || q.Name == waitgraph.Waits(q.Lock) { // may wait
							add(c.Record.Holds)
						}
					}
				}
				queues = append(queues, read[i]...)
			case w.ctx.Err() != nil || errors.Is(err, driver.ErrSessionLost) || errors.Is(err, errors.ErrUnsupported):
				return nil, err
			case errors.Is(err, driver.ErrNoPermission): // no contender there counts as stuck
				w.looks.unseen = true
			default:
				w.looks.missing = true
			}
		}
		if !seen[w.name] {
			continue
		}
		// Far from the service, what is left to read would take seconds.
		if c := victimOf(waitgraph.New(queues), w.ask); c != nil && (len(locks) == 0 || c.isCertain()) {
			return c, nil
		}
	}
	return nil, nil
}

// begin begins a look. It returns the queues read by the last one.
func (l *looks) begin() (before map[string]*queueRead) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before, l.read, l.unseen, l.missing = l.read, map[string]*queueRead{}, false, false
	return before
}

// forget makes the next look read everything.
func (l *looks) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.read = nil
}

// follow calls a function when a queue has changed since the read.
func (l *looks) follow(changed func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, q := range l.read {
		for _, watch := range q.watches {
			fired, stop := watch.Before(context.Background())
			halt := context.AfterFunc(fired, changed)
			l.stops = append(l.stops, func() { halt(); stop() })
		}
	}
}

func (l *looks) unfollow() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, stop := range l.stops {
		stop()
	}
	l.stops = nil
}

// inspect returns the contenders of a queue. It asks nothing if the queue has not changed
// since the last read, and reads each node once: the data of a node rarely change, and are
// checked before any decision.
func (w *nestedWait) inspect(queue string, before *queueRead) (_ []driver.Contender, _ []string, err error) {
	now := before
	if !before.isCurrent() {
		if now, err = w.readQueue(queue, before); err != nil {
			return nil, nil, err
		}
	}
	w.looks.mu.Lock()
	defer w.looks.mu.Unlock()
	w.looks.read[queue] = now
	w.looks.unseen = w.looks.unseen || now.watches == nil
	return now.contenders, now.others, nil
}

func (w *nestedWait) readQueue(queue string, before *queueRead) (*queueRead, error) {
	inspector, err := driver.Offer[driver.Inspector](w.on.Session)
	if err != nil {
		return nil, err
	}
	now, known := new(queueRead), map[string]driver.Contender{}
	if before != nil {
		for _, c := range before.contenders {
			known[c.Name] = c
		}
	}
	if follower, ok := w.on.Session.(driver.Follower); ok {
		f, err := follower.Follow(w.ctx, queue, func([]driver.Node) (int, bool) { return 0, false })
		if err != nil && !errors.Is(err, driver.ErrNoPermission) {
			return nil, err
		}
		now.watches = f.Watches
	}
	now.contenders, now.others, err = inspector.Inspect(w.ctx, queue, func(n driver.Node) bool { return known[n.Name].Created == 0 })
	for i, c := range now.contenders {
		if c.Created == 0 {
			now.contenders[i] = known[c.Name]
		}
	}
	if err == nil && now.watches != nil && slices.Contains(now.others, driver.Limit) {
		var limit []*driver.Watch
		limit, err = w.on.Watch(w.ctx, queue, driver.Node{Name: driver.Limit})
		now.watches = slices.Concat(now.watches, limit)
	}
	return now, err
}
