package lockpool

// This file tests sessions that end or close during a call.

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
)

// dyingSession is a session that ends when the test says so. It implements nothing
// else, because nothing else may be called.
type dyingSession struct {
	driver.Session
	over bool
}

func (s *dyingSession) Err() error {
	if !s.over {
		return nil
	}
	return errors.Join(driver.ErrSessionLost, errors.New("expired"))
}

func (s *dyingSession) Alive(context.Context) error { return s.Err() }

// The moment between the end of a session and the pool's reaction to it cannot be
// held open from outside, so it is set up here.
func TestUnlockReportsASessionThatHasJustEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // no time passes, after which the node would be watched
		conn := &dyingSession{}
		standing := &session{Session: conn, tenancies: map[string][]*tenancy{}}
		cfg, err := newConfig(nil)
		require.NoError(t, err)
		handle := &Handle{pool: &Pool{telemetry: newTelemetry(cfg, nameless{}), alive: context.Background()}}
		h := newTestHold(handle, standing)
		require.NoError(t, handle.pool.addHold(h))
		handle.holds.add(h)
		l := Lock{hold: h, entry: h.entries.add(false)}
		conn.over = true
		require.ErrorIs(t, l.Unlock(context.Background()), ErrLockLost)
		<-l.Lost()
		require.ErrorIs(t, l.Unlock(context.Background()), ErrNotHeld)
		require.Nil(t, handle.holds.find("a"))
		require.Zero(t, handle.pool.held)
	})
}

// closingSession is a session that reports its Close.
type closingSession struct {
	dyingSession
	closed chan struct{}
}

func (s *closingSession) Close(context.Context) error {
	close(s.closed)
	return nil
}

// A lock that is granted on a session about to be closed would be lost at once, so
// the caller queues again.
func TestNoLockIsGrantedOnAClosingSession(t *testing.T) {
	t.Parallel()
	conn := &closingSession{closed: make(chan struct{})}
	retired := &session{Session: conn, tenancies: map[string][]*tenancy{}}
	retired.retired.Store(true)
	p := &Pool{alive: context.Background()}
	p.closeIfIdle(retired)
	a := &acquisition{pool: p, name: "a", req: request{op: opLock}}
	h := newHold(&Handle{pool: p}, a.name, &a.req, newTenancy(a, retired, driver.Node{}), 0)
	require.ErrorIs(t, p.addHold(h), driver.ErrSessionLost)
	<-conn.closed
	p.closeIfIdle(retired) // a second call closes nothing
	p.work.Wait()
}

// nameless is a connector that implements only DriverName.
type nameless struct{ driver.Connector }

func (nameless) DriverName() string { return "" }

// A session may be lost at the moment at which the context of a call ends.
func TestErrorOfACallWhoseContextHasEndedSaysSo(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("the request was abandoned")
	cancel(cause)
	err := new(Pool).withCause(ctx, nil, driver.ErrSessionLost)
	require.ErrorIs(t, err, driver.ErrSessionLost)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, cause)
}

// Tokens of later nodes are larger, whatever the turns. An order number that leaves no
// room for the turn is an error, and never a wrong token.
func TestTokensOfTurns(t *testing.T) {
	t.Parallel()
	last, err := packToken(7, maxTurns)
	require.NoError(t, err)
	next, err := packToken(8, 0)
	require.NoError(t, err)
	require.Greater(t, next, last)
	const largest = 0x1f_ffff_ffff_ffff // the epoch 2^21-1
	last, err = packToken(largest, maxTurns)
	require.NoError(t, err)
	require.EqualValues(t, math.MaxInt64, last)
	for _, created := range []int64{largest + 1, math.MaxInt64, -1} {
		token, err := packToken(created, 0)
		require.ErrorContains(t, err, "53 bits")
		require.Zero(t, token)
	}
}
