package process

// This file tests groups of workers.

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// In the tests a worker echoes messages, and exits when told to.
func TestMain(m *testing.M) {
	worker := Self()
	if worker == nil {
		goleak.VerifyTestMain(m)
		return
	}
	for message := ""; worker.Receive(&message) == nil; {
		if message == "exit" {
			os.Exit(0)
		}
		worker.Send(message)
	}
}

// Workers are processes, or goroutines of the process of the group, which is the same for the
// story of the group.
func TestGroup(t *testing.T) {
	echo := func(w *Worker) {
		for message := ""; w.Receive(&message) == nil && message != "exit"; {
			w.Send(message)
		}
	}
	for name, c := range map[string]struct {
		start func(g *Group, names ...string) error
		ended string
	}{
		"processes":  {func(g *Group, names ...string) error { return g.Start(nil, names...) }, "a has ended: exit status 0"},
		"goroutines": {func(g *Group, names ...string) error { return g.StartHere(echo, names...) }, "a has ended"},
	} {
		t.Run(name+" answer until they are finished", func(t *testing.T) {
			require.NoError(t, Run(t.Context(), time.Minute, func(g *Group) error {
				require.NoError(t, c.start(g, "a", "b"))
				for _, name := range []string{"a", "b"} {
					g.Send(name, "to "+name)
					var message string
					from, err := g.Receive(&message)
					require.NoError(t, err)
					require.Equal(t, name, from)
					require.Equal(t, "to "+name, message)
				}
				g.Finish()
				return nil
			}))
		})
		t.Run("early exit ends "+name, func(t *testing.T) {
			require.EqualError(t, Run(t.Context(), time.Minute, func(g *Group) error {
				require.NoError(t, c.start(g, "a", "b"))
				g.Send("a", "exit")
				_, err := g.Receive(new(string))
				return err
			}), c.ended)
		})
		t.Run("timeout ends "+name, func(t *testing.T) {
			require.EqualError(t, Run(t.Context(), time.Second, func(g *Group) error {
				require.NoError(t, c.start(g, "a"))
				_, err := g.Receive(new(string))
				return err
			}), "stopped: not done after 1s")
		})
	}
}

func TestErrorOfTheStoryIsReturned(t *testing.T) {
	failure := errors.New("failure")
	require.Equal(t, failure, Run(t.Context(), time.Minute, func(g *Group) error {
		if err := g.Start(nil, "a"); err != nil {
			return err
		}
		return failure
	}))
}
