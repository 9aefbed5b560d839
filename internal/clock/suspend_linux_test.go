package clock

// This file tests when suspensions are measured.

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The end of a suspension sets the wall clock ahead. Not parallel: the measurement is the
// process's.
func TestSuspensionIsMeasuredWhenTheWallClockHasMoved(t *testing.T) {
	was := suspended.Load()
	defer suspended.Store(was)
	suspended.Store(was - int64(time.Hour)) // as if an hour of suspension were not measured yet
	c := Start(t.Context())
	require.Less(t, c.Now(), time.Second)
	require.InDelta(t, was-int64(time.Hour), suspended.Load(), float64(time.Second), "no clock has moved")
	moved.Add(int64(time.Hour))
	require.Greater(t, c.Now(), time.Hour-time.Second)
	require.InDelta(t, was, suspended.Load(), float64(time.Second))
}
