package process

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// In the tests a worker echoes messages, and exits when it is told to.
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

func TestWorkersAnswerUntilFinished(t *testing.T) {
	err := Run(t.Context(), time.Minute, func(g *Group) error {
		if err := g.Start(nil, "a", "b"); err != nil {
			return err
		}
		got := map[string]string{}
		for _, name := range []string{"a", "b"} {
			g.Send(name, "to "+name)
			var message string
			from, err := g.Receive(&message)
			if err != nil {
				return err
			}
			got[from] = message
		}
		require.Equal(t, map[string]string{"a": "to a", "b": "to b"}, got)
		g.Finish()
		return nil
	})
	require.NoError(t, err)
}

// Workers in the process of the group are the same for its story.
func TestWorkersHereAnswerUntilFinished(t *testing.T) {
	echo := func(w *Worker) {
		for message := ""; w.Receive(&message) == nil && message != "exit"; {
			w.Send(message)
		}
	}
	err := Run(t.Context(), time.Minute, func(g *Group) error {
		if err := g.StartHere(echo, "a", "b"); err != nil {
			return err
		}
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
	})
	require.NoError(t, err)

	err = Run(t.Context(), time.Minute, func(g *Group) error {
		if err := g.StartHere(echo, "a", "b"); err != nil {
			return err
		}
		g.Send("a", "exit")
		_, err := g.Receive(new(string))
		return err
	})
	require.EqualError(t, err, "a has ended")

	err = Run(t.Context(), 100*time.Millisecond, func(g *Group) error {
		if err := g.StartHere(echo, "a"); err != nil {
			return err
		}
		_, err := g.Receive(new(string))
		return err
	})
	require.EqualError(t, err, "stopped: not done after 100ms")
}

func TestEarlyExitOfAWorkerEndsTheGroup(t *testing.T) {
	err := Run(t.Context(), time.Minute, func(g *Group) error {
		if err := g.Start(nil, "a", "b"); err != nil {
			return err
		}
		g.Send("a", "exit")
		_, err := g.Receive(new(string))
		return err
	})
	require.EqualError(t, err, "a has ended: exit status 0")
}

func TestTimeoutEndsTheGroup(t *testing.T) {
	err := Run(t.Context(), 100*time.Millisecond, func(g *Group) error {
		if err := g.Start(nil, "a"); err != nil {
			return err
		}
		_, err := g.Receive(new(string))
		return err
	})
	require.EqualError(t, err, "stopped: not done after 100ms")
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
