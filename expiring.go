package lockpool

// This file has the warning of holders whose lease runs out.

import (
	"context"
	"math"
	"sync"
	"time"
)

// Expiring returns a channel that is closed ahead of the loss of a lock whose service does
// not answer: when the lock will be lost in ahead, or about 50 ms later, unless there is an
// answer. The warning is for work that takes time to stop, such as a process that is
// signaled first and killed later. The channel is also closed with the channel of
// [Lock.Lost].
//
// The channel stays closed, even if the service answers again and the lock is not lost.
// Unlocking does not close the channel. If the machine was suspended, or the service has
// ended the session, less time than ahead may be left, or none.
//
// While the service answers in time, a lock is never closer to a loss than four tenths of
// the session timeout (a fifth, just after the session has been idle), so ahead should be
// shorter. All entries into a lock share one channel for each value of ahead, until the
// channel is closed.
func (l *Lock) Expiring(ahead time.Duration) <-chan struct{} { return l.hold.expiring(ahead).Done() }

// expiring returns a context that ends when the channel of Lock.Expiring is closed.
func (h *hold) expiring(ahead time.Duration) context.Context {
	lost := h.life.after(&h.life.lost)
	l, lease := &h.life, h.tenancy.session.Lease()
	l.mu.Lock()
	defer l.mu.Unlock()
	ahead = grain(ahead)
	a := l.alarms[ahead]
	if a != nil && a.ctx.Err() != nil { // has rung
		a = nil
	}
	switch {
	case l.cause != nil || lease == math.MaxInt64: // nothing runs out
		return lost
	case a == nil && lease <= ahead: // rings at once, so no alarm is kept
		return canceled
	case a == nil:
		a = &alarm{session: h.tenancy.session, ahead: ahead}
		a.ctx, a.ring = context.WithCancel(lost)
		if l.alarms == nil {
			l.alarms = map[time.Duration]*alarm{}
		}
		l.alarms[ahead] = a
		a.start()
	}
	return a.ctx
}

// grain rounds to a millisecond, so that a lease has room for a bounded number of alarms,
// however many values callers ask for.
func grain(ahead time.Duration) time.Duration { return max(ahead, 0).Round(time.Millisecond) }

// alarm rings when the lease of a session has ahead left, or a little more.
type alarm struct {
	session *session
	ahead   time.Duration
	ctx     context.Context // ends when the alarm has rung, or the lock is lost
	ring    context.CancelFunc
}

// alarms are the pending alarms of a session. If there are any, one timer looks at the
// lease for all of them.
type alarms struct {
	mu    sync.Mutex
	set   map[*alarm]struct{}
	timer *time.Timer // nil before the first alarm
}

// alarmTick is how often the lease is read. A timer for the rest of the time would stand
// still while the machine is suspended. All sessions read their leases together, so that an
// idle process wakes once for all of them.
const alarmTick = 50 * time.Millisecond

func (a *alarm) start() {
	s := a.session
	s.alarms.mu.Lock()
	defer s.alarms.mu.Unlock()
	if s.alarms.set == nil {
		s.alarms.set = map[*alarm]struct{}{}
	}
	if len(s.alarms.set) == 0 {
		s.alarms.timer = time.AfterFunc(0, s.checkAlarms) // ends with the last alarm
	}
	s.alarms.set[a] = struct{}{}
}

func (a *alarm) stop() {
	s := a.session
	s.alarms.mu.Lock()
	defer s.alarms.mu.Unlock()
	delete(s.alarms.set, a)
	if len(s.alarms.set) == 0 {
		s.alarms.timer.Stop()
	}
}

// checkAlarms rings the alarms due before the next tick.
func (s *session) checkAlarms() {
	s.alarms.mu.Lock()
	defer s.alarms.mu.Unlock()
	if len(s.alarms.set) == 0 { // the last one was stopped while the timer fired
		return
	}
	lease := s.Lease()
	for a := range s.alarms.set {
		if lease-alarmTick <= a.ahead {
			delete(s.alarms.set, a)
			a.ring()
		}
	}
	if len(s.alarms.set) > 0 { // else the last one has rung
		s.alarms.timer.Reset(alarmTick - time.Duration(time.Now().UnixNano())%alarmTick)
	}
}
