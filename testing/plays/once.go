package plays

// This file has what tests of Once share.

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
)

// LockOfRun returns the name of the lock of a run, as documented for Once.
func LockOfRun(name, key string) string { return name + "/" + lockpool.Escape("run:"+key) }

// Count returns a function that counts its calls.
func Count(n *int) func(context.Context) error {
	return func(context.Context) error { *n++; return nil }
}

// Never returns a function that must not be called.
func Never(t testing.TB) func(context.Context) error {
	return func(context.Context) error {
		t.Error("it ran")
		return nil
	}
}

// IsDone requires an error to say that a run for the key has finished.
func IsDone(t testing.TB, err error, name, key string) *lockpool.DoneError {
	t.Helper()
	require.ErrorIs(t, err, lockpool.ErrDone)
	var done *lockpool.DoneError
	require.ErrorAs(t, err, &done)
	require.Equal(t, []string{name, key}, []string{done.Name, done.Key})
	return done
}
