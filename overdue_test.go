package lockpool_test

// This file tests WithMaxHold.

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
	"github.com/lockpool/lockpool/testing/zktest/bubble"
)

// A hold that lasts too long is told once, with the place of the call, also of a turn in
// memory. A revocable holder is asked for the lock. Leaders may lead for as long as they like.
func TestHoldThatLastsTooLongIsTold(t *testing.T) {
	bubble.Parallel(t)
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		told := func() []string {
			synctest.Wait()
			defer log.Reset()
			return strings.FieldsFunc(log.String(), func(r rune) bool { return r == '\n' })
		}
		pool := bubblePool(t, zktest.StartBubble(t), lockpool.WithLogger(slog.New(slog.NewTextHandler(&log, nil))), lockpool.WithMaxHold(time.Minute, true))
		holdFor := func(d time.Duration, opts ...lockpool.LockOption) {
			l, err := pool.Lock(t.Context(), "a", opts...)
			require.NoError(t, err)
			time.Sleep(d)
			require.NoError(t, l.Unlock(t.Context()))
		}
		go holdFor(30 * time.Second)
		synctest.Wait()
		holdFor(3 * time.Minute) // a turn in memory
		lines := told()
		require.Len(t, lines, 1)
		require.Regexp(t, `level=WARN msg="lockpool: a lock is held for too long" lock=a kind=mutex for=1m0s at="lockpool_test.TestHold\S+ \(overdue_test.go:\d+\)`, lines[0])

		holdFor(30 * time.Second)
		time.Sleep(time.Hour)
		require.Empty(t, told())

		require.NoError(t, pool.Do(t.Context(), "a", func(ctx context.Context) error {
			began := time.Now()
			<-ctx.Done()
			require.Equal(t, time.Minute, time.Since(began))
			require.ErrorIs(t, context.Cause(ctx), lockpool.ErrRevoked)
			return nil
		}, lockpool.Revocable()))
		require.Len(t, told(), 1)

		require.NoError(t, pool.Elect(t.Context(), "leader", func(context.Context) error {
			time.Sleep(time.Hour)
			return nil
		}))
		require.Empty(t, told())
	})
	_, err := lockpool.Open("memory", "", lockpool.WithMaxHold(0, false))
	require.ErrorContains(t, err, "WithMaxHold(0s): not positive")
}

// A logger that blocks delays no revocation.
func TestOverdueHolderIsAskedBeforeTheLogger(t *testing.T) {
	bubble.Parallel(t)
	synctest.Test(t, func(t *testing.T) {
		asked := make(chan struct{})
		handler := locktest.OnLog(func(slog.Record) { <-asked })
		pool := bubblePool(t, zktest.StartBubble(t), lockpool.WithLogger(slog.New(handler)), lockpool.WithMaxHold(time.Minute, true))
		require.NoError(t, pool.Do(t.Context(), "a", func(ctx context.Context) error {
			select {
			case <-ctx.Done():
			case <-time.After(time.Hour):
				t.Error("the holder is not asked")
			}
			close(asked)
			return nil
		}, lockpool.Revocable()))
	})
}
