package lockpool_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// The node of a downgraded lock is younger than those of the waiters, so its token
// is that of the first node.
func TestDowngradeKeepsTheToken(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p, others := b.Pool(), b.Pool()
	h := b.Handle(p)
	write := b.Lock(h, "a")
	read := b.Lock(h, "a", lockpool.Shared())
	w := b.Enqueue(others, "a", 2)
	b.Unlock(write) // before any read of the token
	first := b.Token(read)
	q, err := others.Queue(b.Ctx, "a")
	require.NoError(t, err)
	require.Len(t, q.Contenders, 2)
	require.Equal(t, first, q.Contenders[0].Token)
	require.Equal(t, "read", q.Contenders[0].Kind)
	b.Unlock(read)
	second := w.Granted()
	require.Greater(t, b.Token(second), first)
	require.Equal(t, b.Token(second), q.Contenders[1].Token)
	b.Unlock(second)
	require.NoError(t, h.Close(b.Ctx))
}

// With downgrades, revocations and broken locks, a later holder still has a larger
// token.
func TestTokensGrowUnderContention(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	const clients, turns = 6, 60
	var highest highest
	var wg sync.WaitGroup
	for i := range clients {
		p := b.Pool()
		random := rand.New(rand.NewPCG(9, uint64(i)))
		wg.Go(func() {
			for range turns {
				if err := highest.turn(b.Ctx, p, random); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	p, random := b.Pool(), rand.New(rand.NewPCG(9, 9))
	for {
		select {
		case <-done:
			b.Until(func() bool { return len(b.Contenders("/")) == 0 }, "no contender is left")
			return
		default:
		}
		q, err := p.Queue(b.Ctx, "a")
		require.NoError(t, err)
		if len(q.Contenders) == 0 {
			continue
		}
		at := random.IntN(len(q.Contenders))
		switch random.IntN(20) {
		case 0:
			err = p.Break(b.Ctx, "a", q.Contenders[at].Node)
		case 1:
			err = p.Revoke(b.Ctx, "a", q.Contenders[at].Node)
		}
		if err != nil {
			require.ErrorIs(t, err, lockpool.ErrNotHeld)
		}
	}
}

// highest holds the largest tokens so far.
type highest struct {
	sync.Mutex
	any, alone int64
}

// turn holds the lock once. Its token must be larger than those of all earlier
// holders; a reader's is not compared with other readers', which may hold the lock
// at the same time and read their tokens in any order.
func (h *highest) turn(ctx context.Context, p *lockpool.Pool, random *rand.Rand) error {
	handle, err := p.Handle(ctx)
	if err != nil {
		return err
	}
	defer handle.Close(ctx)
	opts, alone := []lockpool.LockOption{lockpool.Revocable()}, random.IntN(3) > 0
	if !alone {
		opts = append(opts, lockpool.Shared())
	}
	l, err := handle.Lock(ctx, "a", opts...)
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
		read, err := handle.Lock(ctx, "a", lockpool.Shared())
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
		return fmt.Errorf("the token %d is not larger than %d, that of an earlier holder", token, before)
	}
	h.Lock() // before the unlock, so that it counts for every later grant
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

func TestVerifyAsksTheServer(t *testing.T) {
	t.Parallel()
	b, proxy := locktest.NewBehindProxy(t)
	p := b.Pool()
	l := b.Lock(p, "a")
	require.NoError(t, l.Verify(b.Ctx))
	f := proxy.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpMulti}}, Times: zktest.Always, Do: zktest.HoldReply()})
	ctx, cancel := context.WithTimeout(b.Ctx, 50*time.Millisecond)
	defer cancel()
	err := l.Verify(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, lockpool.ErrLockLost, "no answer is no loss")
	require.Equal(t, 1, l.Depth())
	f.Remove()
	f.Release()
	require.NoError(t, l.Verify(b.Ctx))
	b.Unlock(l)
	require.ErrorIs(t, l.Verify(b.Ctx), lockpool.ErrNotHeld)
	_, err = l.Token(b.Ctx)
	require.ErrorIs(t, err, lockpool.ErrNotHeld)
	require.ErrorContains(t, err, `lockpool: token of "a": not held`)
}

func TestTokenGrows(t *testing.T) {
	t.Parallel()
	own := locktest.StartServer(t)
	b := locktest.NewOn(t, own)
	p, others := b.Pool(), b.Pool()
	last := int64(0)
	grows := func(l *lockpool.Lock) {
		t.Helper()
		token := b.Token(l)
		require.Greater(t, token, last)
		last = token
	}
	l := b.Lock(p, "a")
	grows(l)
	again, err := p.Lock(l.Context(b.Ctx), "a")
	require.NoError(t, err)
	require.Equal(t, last, b.Token(again), "the same hold")
	b.Unlock(again)
	waiter := b.Enqueue(others, "a", 2)
	b.Unlock(l)
	l = waiter.Granted()
	grows(l)
	b.Unlock(l)

	for range 3 { // the sequence starts again
		require.NoError(t, b.Admin.Delete(b.Chroot+"/a", -1))
		l = b.Lock(p, "a")
		require.True(t, strings.HasSuffix(b.Children("a")[0], "-0000000000"))
		grows(l)
		b.Unlock(l)
	}
	for range 20 { // also without listings
		l = b.Lock(p, "a")
		grows(l)
		b.Unlock(l)
	}
	require.NoError(t, own.Kill())
	require.NoError(t, own.Start(b.Ctx))
	l = b.Lock(p, "a")
	grows(l)
	b.Unlock(l)
}
