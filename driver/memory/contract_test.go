package memory_test

// This file runs the laws of drivers on a Store.

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/driver/drivertest"
	"github.com/lockpool/lockpool/driver/memory"
)

// The driver keeps the laws of package driver.
func TestLaws(t *testing.T) {
	drivertest.RunInBubbles(t, func(t *testing.T) (driver.Connector, drivertest.Options) {
		store := memory.New()
		return store, drivertest.Options{
			Expire: func(s driver.Session) { require.Equal(t, 1, store.Expire(s.Info().ID)) },
			Pause:  func(driver.Session) (resume func()) { return store.Pause() },
			Remove: func(queue string, node driver.Node) { require.True(t, store.Remove(queue, node.Name)) },
		}
	})
}
