package interop

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
)

// Curator takes permits one by one, because two who ask for several would wait
// for each other.
func TestSemaphore(t *testing.T) {
	t.Parallel()
	c := newContest(t)
	c.room = 3
	c.participants = c.peers(participant{name: "Curator", ways: []way{{"permit", 1}}}, c.curator, 2)
	one, other := openPool(t, c.name, ""), openPool(t, c.name, "")
	for i, p := range []*pool{one, one, other} {
		c.participants = append(c.participants, &participant{
			name: fmt.Sprint("lockpool ", i+1), client: p.permits(c.ctx, c.room), reenters: true,
			ways: []way{{"1", 1}, {"2", 2}, {"3", 3}},
		})
	}
	c.run(50)
	require.Contains(t, c.met, "Curator 2 and lockpool 3")
}

// permits returns one more who takes permits of the semaphore of that name.
func (p *pool) permits(ctx context.Context, limit int) client {
	session, err := p.Handle(ctx)
	require.NoError(p, err)
	return &taker{session.Semaphore(p.name, limit), nil}
}

// taker takes as many permits as the kind says.
type taker struct {
	semaphore *lockpool.Semaphore
	held      []*lockpool.Permits
}

func (s *taker) enter(ctx context.Context, kind string, atMost time.Duration) (bool, error) {
	n, err := strconv.Atoi(kind)
	if err != nil {
		return false, err
	}
	acquire := s.semaphore.Acquire
	if atMost == 0 {
		acquire = s.semaphore.TryAcquire
	}
	if atMost > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, atMost)
		defer cancel()
	}
	permits, err := acquire(ctx, n)
	if tooLate(err, atMost) {
		return false, nil
	}
	s.held = append(s.held, permits)
	return err == nil, err
}

func (s *taker) leave(ctx context.Context, _ string) error {
	last := len(s.held) - 1
	permits := s.held[last]
	s.held = s.held[:last]
	return permits.Release(ctx)
}
