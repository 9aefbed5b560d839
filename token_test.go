package lockpool_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
)

// The node that takes the place of a holder's is later than the nodes of others
// that wait already.
func TestTokenOfASharedLockIsThatOfItsFirstNode(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.pool()
	s := b.session(p)
	write, err := s.Lock(b.ctx, "a")
	require.NoError(t, err)
	read, err := s.RLock(b.ctx, "a")
	require.NoError(t, err)
	w := b.wait(others, "a", 2)
	b.unlock(write) // nobody has looked yet
	first := b.token(read)
	q, err := others.Queue(b.ctx, "a")
	require.NoError(t, err)
	require.Len(t, q.Contenders, 2)
	require.Equal(t, first, q.Contenders[0].Token)
	require.Equal(t, "read", q.Contenders[0].Kind)
	b.unlock(read)
	second := b.granted(w)
	require.Greater(t, b.token(second), first)
	require.Equal(t, b.token(second), q.Contenders[1].Token)
	b.unlock(second)
	require.NoError(t, s.Close(b.ctx))
}

// Whoever shares, queues again, is revoked or broken: a holder that comes later
// has the larger token.
func TestTokensGrowWhateverHappens(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const clients, turns = 6, 60
	var highest highest
	var wg sync.WaitGroup
	for i := range clients {
		p := b.pool()
		random := rand.New(rand.NewPCG(9, uint64(i)))
		wg.Go(func() {
			for range turns {
				if err := highest.turn(b.ctx, p, random); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	p, random := b.pool(), rand.New(rand.NewPCG(9, 9))
	for {
		select {
		case <-done:
			b.until(func() bool { return len(b.contenders("/")) == 0 }, "that nothing is held")
			return
		default:
		}
		q, err := p.Queue(b.ctx, "a")
		require.NoError(t, err)
		if len(q.Contenders) == 0 {
			continue
		}
		at := random.IntN(len(q.Contenders))
		switch random.IntN(20) {
		case 0:
			err = p.Break(b.ctx, "a", q.Contenders[at].Node)
		case 1:
			err = p.Revoke(b.ctx, "a", q.Contenders[at].Node)
		}
		if err != nil {
			require.ErrorIs(t, err, lockpool.ErrNotHeld)
		}
	}
}

// highest are the largest tokens of the holders that have let go.
type highest struct {
	sync.Mutex
	any, alone int64
}

// turn holds the lock once. When it is granted, the tokens of earlier holders are
// smaller: of all of them for one that is alone, and for a reader of all but
// other readers, which hold the lock together, whoever learns of it first.
func (h *highest) turn(ctx context.Context, p *lockpool.Pool, random *rand.Rand) error {
	s, err := p.Handle(ctx)
	if err != nil {
		return err
	}
	defer s.Close(ctx)
	lock, alone := s.Lock, random.IntN(3) > 0
	if !alone {
		lock = s.RLock
	}
	l, err := lock(ctx, "a", lockpool.Revocable())
	if errors.Is(err, lockpool.ErrRevoked) {
		return nil
	}
	if err != nil {
		return err
	}
	h.Lock()
	before := h.alone
	if alone {
		before = h.any
	}
	h.Unlock()
	if alone && random.IntN(2) == 0 {
		read, err := s.RLock(ctx, "a")
		if err == nil {
			err = l.Unlock(ctx)
			l = read
		}
		if err != nil {
			return onlyLost(err)
		}
	}
	token, err := l.Token(ctx)
	if err != nil {
		return onlyLost(err)
	}
	if token <= before {
		return fmt.Errorf("the token %d is no larger than %d, which is that of an earlier holder", token, before)
	}
	h.Lock() // it has not let go, so it is an earlier one for whoever is granted from now on
	h.any = max(h.any, token)
	if alone {
		h.alone = max(h.alone, token)
	}
	h.Unlock()
	return onlyLost(l.Unlock(ctx))
}

func onlyLost(err error) error {
	if errors.Is(err, lockpool.ErrLockLost) {
		return nil
	}
	return err
}
