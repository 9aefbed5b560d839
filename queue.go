package lockpool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/recipe"
)

// Queue is who holds a lock and who waits for it, at one moment.
type Queue struct {
	Name       string
	Contenders []Contender // in the order in which they asked
	Foreign    []string    // what else is there, by name: no contenders, and in nobody's way
}

// Contender is one who holds a lock or waits for it, of whatever client.
type Contender struct {
	Node    string    // the name of its node, which Pool.Break takes
	Kind    string    // mutex (alone), read, or write (alone, in Curator's read/write lock)
	Holds   bool      // or waits
	Token   int64     // see Lock.Token
	Session string    // its session with the service
	Since   time.Time // when it asked, by the service's clock

	// What it says of itself, if it is one of lockpool.
	Host string
	PID  int
}

// Queue returns who holds the lock of that name and who waits for it. It only
// reads. The list is made node by node, so in a lock that changes hands quickly
// it may show two holders that came one after the other.
func (p *Pool) Queue(ctx context.Context, name string) (Queue, error) {
	q := Queue{Name: name}
	if err := p.checkName(name); err != nil {
		return q, &LockError{opQueue.String(), name, err}
	}
	err := p.asking(ctx, func(ctx context.Context, m *member) error {
		contenders, foreign, err := m.Inspect(ctx, name)
		q.Foreign = foreign
		nodes := make([]driver.Node, len(contenders))
		for i, c := range contenders {
			nodes[i] = c.Node
		}
		for i, c := range contenders {
			obstacles, _ := recipe.RuleOf(c.Kind)(nodes, i)
			var owner ownerRecord
			_ = json.Unmarshal(c.Data, &owner) // others write what they like
			q.Contenders = append(q.Contenders, Contender{
				Node: c.Name, Kind: c.Kind.String(), Holds: len(obstacles) == 0, Token: c.Created,
				Session: c.Session, Since: c.Since, Host: owner.Host, PID: owner.PID,
			})
		}
		return err
	})
	if err != nil {
		return q, &LockError{opQueue.String(), name, err}
	}
	return q, nil
}

// Locks returns the names of the locks below prefix, such as orders, that
// somebody holds or waits for, sorted; the empty prefix means all. It lists
// every node there, one after the other.
func (p *Pool) Locks(ctx context.Context, prefix string) (names []string, err error) {
	if prefix != "" {
		err = p.checkName(prefix)
	}
	if err == nil {
		err = p.asking(ctx, func(ctx context.Context, m *member) (err error) {
			names, err = m.Queues(ctx, prefix)
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("lockpool: locks below %q: %w", prefix, bare(err))
	}
	return names, nil
}

// Break takes the lock, or the place in its queue, from a contender, by the name
// of its node that [Pool.Queue] gave. It is for a contender that is stuck, and
// is recorded in the log. A holder of lockpool is told that it has lost the
// lock, and a waiter queues again; but what a holder does that does not listen
// goes on beside the next one's work. If the contender has gone already, the
// error is ErrNotHeld.
func (p *Pool) Break(ctx context.Context, name, node string) error {
	err := p.checkName(name)
	if err == nil && !p.connector.IsContender(node) {
		err = fmt.Errorf("%q is not the name of a contender's node: take it from Queue", node)
	}
	if err == nil {
		err = p.asking(ctx, func(ctx context.Context, m *member) error { return m.Break(ctx, name, node) })
	}
	if errors.Is(err, driver.ErrRemoved) {
		err = fmt.Errorf("%w: %s has gone", ErrNotHeld, node)
	}
	if err != nil {
		return &LockError{opBreak.String(), name, err}
	}
	return nil
}

// asking calls do with a session that stands.
func (p *Pool) asking(ctx context.Context, do func(ctx context.Context, m *member) error) error {
	s, err := p.newSession()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.giveBack(ErrSessionClosed)
	return p.bounded(ctx, func(ctx context.Context) error {
		if err := s.reseat(ctx); err != nil {
			return err
		}
		return do(ctx, s.seat.Value().member)
	})
}
