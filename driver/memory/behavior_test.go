package memory_test

// This file runs the tests of behavior on a Store.

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/memory"
	"github.com/lockpool/lockpool/testing/behavior"
)

// What lockpool promises holds in memory, in bubbles and in real time.
func TestBehavior(t *testing.T) {
	t.Run("bubbles", func(t *testing.T) {
		behavior.RunInBubbles(t, nil, func(t *testing.T) behavior.Options {
			store := memory.New()
			o := options(store)
			o.Pause = func(testing.TB) func() { return store.Pause() }
			return o
		})
	})
	t.Run("real time", func(t *testing.T) { behavior.Run(t, options(memory.New())) })
}

func options(store *memory.Store) behavior.Options {
	return behavior.Options{
		Open: func(t testing.TB, opts ...lockpool.Option) *lockpool.Pool {
			p, err := lockpool.OpenConnector(store, opts...)
			require.NoError(t, err)
			return p
		},
		Expire: func(t testing.TB, session string) { require.Equal(t, 1, store.Expire(session)) },
	}
}
