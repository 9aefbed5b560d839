package lockpool

// This file has the report of a pool: how many calls wait in memory behind each node, and who
// has the present turn. Other processes see one node for all calls of a pool.

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/nodedata"
)

// reportEvery is how often a pool reports at most, and how long a call waits before being
// reported. So only a lock with long waits costs a request.
const reportEvery = time.Second

// crowds are what the pool reports.
func (ls *localQueues) crowds(now time.Time) (found []nodedata.Crowd) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, q := range ls.byName {
		wait := q.waiters.Len() > 0 && now.Sub(q.first().began) >= reportEvery
		c := nodedata.Crowd{Lock: q.name}
		if wait {
			c.Callers = q.waiters.Len()
		}
		if t := q.turns; t != nil && (wait && q.delegate == nil || t.hasLasted()) {
			held := nodedata.Crowd{Lock: q.name, Node: t.tenancy.nodeNow().Name, At: t.at, Trace: nodedata.Traceparent(t.holder), Revocable: t.revocable}
			if q.delegate == nil {
				held.Callers = c.Callers
			}
			found = append(found, held)
		}
		if q.delegate != nil && wait {
			c.Node = q.delegate.progress.now().node
			found = append(found, c)
		}
	}
	slices.SortFunc(found, func(a, b nodedata.Crowd) int {
		return cmp.Or(cmp.Compare(b.Callers, a.Callers), cmp.Compare(a.Lock, b.Lock))
	})
	return found
}

// hasLasted reports whether the present turn is passed on, and is the one of the last report.
func (t *turns) hasLasted() bool {
	before := t.seen
	t.seen = t.last
	return t.last == before && t.isPassedOn()
}

// isPassedOn reports whether the holder is another call than the one that the node names.
func (t *turns) isPassedOn() bool {
	return (t.last > 0 || t.tookOver) && t.holders > 0
}

// reportSoon lets the pool report, unless it is about to. The caller holds mu.
func (ls *localQueues) reportSoon() {
	if !ls.reporting && ls.report != nil {
		ls.reporting = true
		time.AfterFunc(reportEvery, ls.report)
	}
}

// reported is called after a report. again says that the pool must report once more.
func (ls *localQueues) reported(again bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.reporting = false
	for _, q := range ls.byName {
		again = again || q.waiters.Len() > 0 || q.turns != nil && q.turns.isPassedOn()
	}
	if again {
		ls.reportSoon()
	}
}

// report is a node by which the pool tells others something. It is used by one goroutine at a
// time.
type report struct {
	queue   string
	session *session // nil if there is no node
	node    driver.Node
	data    string
	refused time.Time // when the service has refused a report; not tried again for a while
}

// reportCrowds reports to the queue driver.Reports, and is called by a timer.
func (p *Pool) reportCrowds() {
	if p.begin() {
		defer p.work.Done()
		p.report.tell(p, p.owner.Report(p.local.crowds(time.Now())))
		p.local.reported(p.report.session != nil)
	}
}

// tell is publish, with patience for a service that is slow or refuses. It reports whether the
// node has the data.
func (r *report) tell(p *Pool, data []byte) bool {
	const patience, refusal = 5 * time.Second, time.Minute
	ctx, cancel := bound(context.Background(), p.alive)
	defer cancel(nil)
	ctx, end := context.WithTimeout(ctx, patience)
	defer end()
	now := time.Now()
	if now.Sub(r.refused) <= refusal {
		return false
	}
	err := r.publish(ctx, p, data)
	if isFinal(err) {
		r.refused = now
	}
	return err == nil
}

// publish makes the node have the data. Empty data removes the node. What fails is tried again
// with the next report.
func (r *report) publish(ctx context.Context, p *Pool, data []byte) (err error) {
	if r.session != nil && r.session.isOver() { // a retired session may live for long
		r.leave(canceled)
	}
	switch exists := r.session != nil; {
	case !exists && len(data) > 0:
		return r.join(ctx, p, data)
	case exists && len(data) == 0:
		r.leave(ctx)
	case exists && string(data) != r.data:
		if err = r.session.Rewrite(ctx, r.queue, r.node, data); err != nil { // carried out or not
			r.leave(canceled)
		}
		r.data = string(data)
	}
	return err
}

func (r *report) join(ctx context.Context, p *Pool, data []byte) error {
	return p.withSessionUntil(p.alive, ctx, nil, nil, func(ctx context.Context, s *session) error {
		joined, err := s.Join(ctx, r.queue, driver.Request{Kind: driver.Exclusive, Data: data})
		if err == nil {
			r.session, r.node, r.data = s, joined.Node, string(data)
		}
		return err
	})
}

func (r *report) leave(ctx context.Context) {
	_ = r.session.Leave(ctx, r.queue, r.node) // continues in the background
	r.session, r.node = nil, driver.Node{}
}

// crowds are what pools report, by lock and node.
type crowds map[[2]string]nodedata.ReportedCrowd

// addCrowds adds to the contenders what their pools report. The reports are read only if a
// contender may have any.
func addCrowds(q *Queue, read func() crowds) {
	read = sync.OnceValue(read)
	for i := range q.Contenders {
		c := &q.Contenders[i]
		if !c.passesOn || i+1 < len(q.Contenders) && q.Contenders[i+1].Local { // of this pool
			continue
		}
		crowd, ok := read()[[2]string{c.Lock, c.Node}]
		if !ok || crowd.Host != c.Host || crowd.PID != c.PID {
			continue
		}
		if c.Callers = crowd.Callers; c.Holds {
			c.Trace, c.At, c.Revocable = cmp.Or(crowd.Trace, c.Trace), crowd.At, crowd.Revocable
		}
	}
}

// crowdsOf reads what pools report. What cannot be read is not known.
func (p *Pool) crowdsOf(ctx context.Context, s *session) crowds {
	inspector, err := driver.Offer[driver.Inspector](s.Session)
	if err != nil {
		return nil
	}
	reports, _, err := inspector.Inspect(ctx, driver.Reports, nil)
	if err != nil {
		return nil
	}
	found := crowds{}
	for _, r := range reports {
		for _, c := range nodedata.ParseReport(r.Data) {
			found[[2]string{c.Lock, c.Node}] = c
		}
	}
	return found
}
