package lockpool

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
)

// dyingSession is over when it is told. It answers nothing else, because
// nothing else may be asked of it.
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

// The moment between the end of a session and the pool's taking notice can not
// be held open from outside, so it is set up here.
func TestUnlockOfALockWhoseSessionHasJustEndedSaysLost(t *testing.T) {
	t.Parallel()
	conn := &dyingSession{}
	home := &session{Session: conn, holds: map[*hold]struct{}{}}
	cfg, err := newConfig(nil)
	require.NoError(t, err)
	handle := &Handle{pool: &Pool{telemetry: newTelemetry(cfg, nameless{}), alive: context.Background()}, holds: map[string]*hold{}}
	h := (&hold{handle: handle, name: "a", session: home}).begun()
	require.NoError(t, handle.pool.addHold(h))
	handle.holds["a"] = h
	l := h.enter(false)
	conn.over = true
	require.ErrorIs(t, l.Unlock(context.Background()), ErrLockLost)
	<-l.Lost()
	require.ErrorIs(t, l.Unlock(context.Background()), ErrNotHeld)
	require.Empty(t, handle.holds)
	require.Zero(t, handle.pool.held)
}

// closingSession is one that is being closed.
type closingSession struct {
	dyingSession
	closed chan struct{}
}

func (s *closingSession) Close(context.Context) error {
	close(s.closed)
	return nil
}

// Who is granted a lock on a session that is about to be closed queues again; it
// would lose it at once.
func TestNothingIsHeldOnASessionThatIsDismissed(t *testing.T) {
	t.Parallel()
	conn := &closingSession{closed: make(chan struct{})}
	home := &session{Session: conn, holds: map[*hold]struct{}{}}
	home.retired.Store(true)
	p := &Pool{alive: context.Background()}
	p.closeIfIdle(home)
	h := (&hold{handle: &Handle{pool: p}, name: "a", session: home}).begun()
	require.ErrorIs(t, p.addHold(h), driver.ErrSessionLost)
	<-conn.closed
	p.closeIfIdle(home) // closes it once
	p.work.Wait()
}

// nameless is a connector of which only the name is asked for.
type nameless struct{ driver.Connector }

func (nameless) DriverName() string { return "" }
