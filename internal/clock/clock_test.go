package clock

// This file tests the clock on suspended, stopped and badly running machines.

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestClockRunsWhileMachineIsSuspended(t *testing.T) {
	t.Parallel()
	var m Machine
	c, other := Start(m.On(t.Context())), Start(t.Context())
	m.Suspend(time.Hour)
	late := Start(m.On(t.Context()))
	require.InDelta(t, time.Hour, c.Now(), float64(time.Minute))
	require.InDelta(t, 0, c.Skew(), float64(time.Second))
	require.Less(t, late.Now(), time.Minute, "a clock that was started after the suspension")
	require.InDelta(t, 0, late.Skew(), float64(time.Second))
	require.Less(t, other.Now(), time.Minute)
}

func TestSkewShowsThatWallClockWasSet(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{time.Hour, -time.Hour} {
		var m Machine
		c := Start(m.On(t.Context()))
		m.SetWallClock(d)
		require.InDelta(t, d, c.Skew(), float64(time.Second))
		require.Less(t, c.Now(), time.Minute)
	}
}

// In a synctest bubble the system's clocks run on in real time.
func TestClockFollowsVirtualTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := Start(t.Context())
		time.Sleep(time.Hour)
		require.Equal(t, time.Hour, c.Now())
		require.Zero(t, c.Skew())
	})
}

// A machine stops in virtual time: the clocks stand still, and then they jump.
func TestClockStopsWithItsMachine(t *testing.T) {
	t.Parallel()
	for _, reported := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var m Machine
			c := Start(m.On(t.Context()))
			time.Sleep(time.Hour)
			m.Stop()
			time.Sleep(time.Minute)
			require.Equal(t, time.Hour, c.Now())
			require.Zero(t, c.Skew())
			require.Equal(t, stoppedSpan, c.Span(1))
			m.Resume(reported)
			late := Start(m.On(t.Context()))
			time.Sleep(time.Second)
			require.Equal(t, time.Second, late.Now())
			require.Zero(t, late.Skew())
			if reported {
				require.Equal(t, time.Hour+time.Minute+time.Second, c.Now())
				require.Zero(t, c.Skew())
				require.Equal(t, time.Minute, c.Suspended())
			} else {
				require.Equal(t, time.Hour+time.Second, c.Now())
				require.Equal(t, time.Minute, c.Skew())
				require.Zero(t, c.Suspended())
			}
		})
	}
}

func TestClockRunsAtTheRateOfItsMachine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var m Machine
		m.SetRate(0.5)
		c, other := Start(m.On(t.Context())), Start(t.Context())
		time.Sleep(time.Hour)
		require.Equal(t, 30*time.Minute, c.Now())
		require.Equal(t, time.Hour, c.Span(30*time.Minute))
		m.SetRate(1.5)
		require.EqualValues(t, 1, c.Span(1), "a timer that ends too early would be set again and again")
		require.Equal(t, time.Hour, other.Now())
		require.Equal(t, time.Hour, other.Span(time.Hour))
	})
}

func BenchmarkNow(b *testing.B) {
	c := Start(b.Context())
	for b.Loop() {
		c.Now()
	}
}
