package plays

// This file has an observer.

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/zktest/bubble"
)

// Observer is a loop over Observe in a separate goroutine.
type Observer struct {
	testing.TB
	Values chan Observed // closed when the loop has ended
	Cancel context.CancelFunc
	ctx    context.Context
}

// Observed is a value of the loop.
type Observed struct {
	lockpool.Queue
	Err error
	At  time.Time
}

// String returns the owners of the holders, and of the next one behind a bar, or the error.
func (o Observed) String() string {
	if o.Err != nil {
		return o.Err.Error()
	}
	var b strings.Builder
	for _, c := range o.Contenders {
		if !c.Holds {
			b.WriteString("|")
		}
		b.WriteString(c.Owner)
	}
	return b.String()
}

// Observe follows a lock until the test ends.
func Observe(ctx context.Context, t testing.TB, p *lockpool.Pool, name string) *Observer {
	loop, cancel := context.WithCancel(ctx)
	o := &Observer{t, make(chan Observed, 10_000), cancel, ctx}
	t.Cleanup(func() {
		cancel()
		for range o.Values { // until the loop has ended
		}
	})
	go func() { // ends with loop
		defer close(o.Values)
		for q, err := range p.Observe(loop, name) {
			o.Values <- Observed{q, err, time.Now()}
		}
	}()
	return o
}

// Next returns the next value.
func (o *Observer) Next() Observed {
	o.Helper()
	select {
	case v, ok := <-o.Values:
		require.True(o, ok, "the loop has ended")
		return v
	case <-o.ctx.Done():
		require.FailNow(o, "nothing is observed")
		return Observed{}
	}
}

// Sees requires the next state to be the given one. Outside a bubble, the service may be slow
// to answer, and what was seen before is then seen again.
func (o *Observer) Sees(state string) Observed {
	o.Helper()
	v := o.Next()
	if !bubble.Inside() && errors.Is(v.Err, lockpool.ErrUnavailable) {
		return o.ComesToSee(state)
	}
	require.NoError(o, v.Err)
	require.Equal(o, state, v.String())
	return v
}

// ComesToSee waits until a state is seen.
func (o *Observer) ComesToSee(state string) Observed {
	o.Helper()
	for {
		if v := o.Next(); v.String() == state {
			return v
		}
	}
}

// SeesNothing requires that there is no value.
func (o *Observer) SeesNothing() {
	o.Helper()
	select {
	case v := <-o.Values:
		require.FailNow(o, "unexpected", "%s", v)
	default:
	}
}

// Ended requires the next value to be the last one, an error, and returns the error.
func (o *Observer) Ended() error {
	o.Helper()
	last := o.Next()
	_, goesOn := <-o.Values
	require.False(o, goesOn, "the loop goes on")
	return last.Err
}
