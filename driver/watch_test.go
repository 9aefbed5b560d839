package driver_test

// This file tests watches.

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
)

func TestWatchFiresOnce(t *testing.T) {
	t.Parallel()
	w := driver.NewWatch()
	require.Zero(t, w.Fired())
	w.Fire(driver.Changed)
	w.Fire(driver.Deleted)
	require.Equal(t, driver.Changed, w.Fired())
}

func TestFirstReceivesOneValueOfTheFirstWatchThatFires(t *testing.T) {
	t.Parallel()
	for _, before := range []bool{true, false} { // First is called
		a, b, c := driver.NewWatch(), driver.NewWatch(), driver.NewWatch()
		if before {
			b.Fire(driver.Deleted)
			c.Fire(driver.Changed)
		}
		fired, stop := driver.First(a, b, c)
		if !before {
			require.Empty(t, fired)
			b.Fire(driver.Deleted)
			c.Fire(driver.Changed)
		}
		require.Len(t, fired, 1)
		<-fired
		require.Empty(t, fired)
		stop()
		a.Fire(driver.Deleted)
		require.Empty(t, fired)
	}
}

// Waiters come and go without effect on the others.
func TestWaitersOfOneWatchStopInAnyOrder(t *testing.T) {
	t.Parallel()
	w := driver.NewWatch()
	var stops []func()
	var waiting []<-chan struct{}
	for range 5 {
		fired, stop := driver.First(w)
		waiting, stops = append(waiting, fired), append(stops, stop)
	}
	for _, i := range []int{2, 0, 4} {
		stops[i]()
	}
	w.Fire(driver.Deleted)
	for i, fired := range waiting {
		require.Len(t, fired, i%2, "%d", i)
	}
	for _, stop := range stops { // again, or after the watch has fired
		stop()
	}
}

func TestFirstBesideFire(t *testing.T) {
	t.Parallel()
	for range 1000 {
		a, b := driver.NewWatch(), driver.NewWatch()
		var firing sync.WaitGroup
		firing.Go(func() { a.Fire(driver.Deleted) })
		firing.Go(func() { b.Fire(driver.Deleted) })
		fired, stop := driver.First(a, b)
		<-fired
		stop()
		firing.Wait()
	}
}

func TestBeforeEndsWithTheWatchOrTheContext(t *testing.T) {
	t.Parallel()
	w := driver.NewWatch()
	ctx, end := w.Before(t.Context())
	ended, endOther := w.Before(ctx)
	endOther()
	require.ErrorIs(t, ended.Err(), context.Canceled)
	require.NoError(t, ctx.Err())
	w.Fire(driver.Changed)
	require.ErrorIs(t, ctx.Err(), context.Canceled)
	end()
	late, end := w.Before(t.Context())
	defer end()
	require.ErrorIs(t, late.Err(), context.Canceled)
	var none *driver.Watch
	never, end := none.Before(t.Context())
	require.NoError(t, never.Err())
	end()
	require.ErrorIs(t, never.Err(), context.Canceled)
}

func TestOnFire(t *testing.T) {
	t.Parallel()
	for _, before := range []bool{true, false} { // OnFire is called
		w, calls, stopped := driver.NewWatch(), 0, 0
		if before {
			w.Fire(driver.Deleted)
		}
		stop := w.OnFire(func() { calls++ })
		if !before {
			require.Zero(t, calls)
			w.OnFire(func() { stopped++ })()
			w.Fire(driver.Deleted)
		}
		w.Fire(driver.Changed)
		require.Equal(t, 1, calls)
		stop()
		stop()
		require.Zero(t, stopped)
	}
}
