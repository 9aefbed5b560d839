// Package process runs the parts of an example as separate processes: copies of the running
// program, exchanging messages with it.
package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"
)

// Group is a set of worker processes, as seen by the starting process. The methods must not
// be called concurrently.
type Group struct {
	ctx      context.Context
	end      context.CancelCauseFunc // called when a worker has ended too early
	messages *json.Decoder           // from all workers, in the order of sending
	pipe     *os.File                // the end for the workers' messages
	inputs   map[string]io.WriteCloser
	finished atomic.Bool // no worker will receive another message
	running  sync.WaitGroup
}

// Run calls story with a group, and returns story's error. All workers have ended when Run
// returns. If ctx ends first, or the timeout expires, the error says so.
func Run(ctx context.Context, timeout time.Duration, story func(*Group) error) error {
	ctx, stop := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not done after %s", timeout))
	defer stop()
	err := run(ctx, story)
	if err != nil && ctx.Err() != nil { // any err is then a consequence
		return fmt.Errorf("stopped: %w", context.Cause(ctx))
	}
	return err
}

func run(ctx context.Context, story func(*Group) error) error {
	out, in, err := os.Pipe()
	if err != nil {
		return err
	}
	defer out.Close()
	defer in.Close()
	ctx, end := context.WithCancelCause(ctx)
	g := &Group{ctx: ctx, end: end, messages: json.NewDecoder(out), pipe: in, inputs: map[string]io.WriteCloser{}}
	err = story(g)
	if err != io.EOF {
		end(nil)
	}
	g.running.Wait()
	if err != io.EOF {
		return err
	}
	// All workers have ended, and the first of them reported the reason.
	defer end(nil)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return errors.New("all processes have ended")
}

// Start starts the workers. It must be called once. When the context of the group ends,
// their input is closed, and a worker still running then is killed.
func (g *Group) Start(args []string, names ...string) error {
	defer g.pipe.Close() // Receive returns io.EOF when the workers have closed the pipe, too
	for _, name := range names {
		if err := g.start(name, args); err != nil {
			return fmt.Errorf("starting %s: %w", name, err)
		}
	}
	return nil
}

// StartHere starts workers as goroutines of this process, each calling work. It must be
// called once, instead of Start. When the context of the group ends, their input is closed.
func (g *Group) StartHere(work func(*Worker), names ...string) error {
	var all sync.WaitGroup
	for _, name := range names {
		in, out, err := os.Pipe()
		if err != nil {
			return fmt.Errorf("starting %s: %w", name, err)
		}
		g.inputs[name] = out
		stop := context.AfterFunc(g.ctx, func() { _ = out.Close() })
		w := &Worker{Name: name, input: json.NewDecoder(in), output: json.NewEncoder(g.pipe)}
		all.Add(1)
		g.running.Go(func() { // ends with the input
			defer all.Done()
			defer in.Close()
			defer out.Close()
			defer stop()
			work(w)
			if !g.finished.Load() {
				g.end(fmt.Errorf("%s has ended", name))
			}
		})
	}
	g.running.Go(func() { // ends with the workers
		all.Wait()
		_ = g.pipe.Close() // Receive returns io.EOF
	})
	return nil
}

func (g *Group) start(name string, args []string) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(g.ctx, exe, args...)
	cmd.Env = append(os.Environ(), workerEnv+"="+name)
	cmd.Stdout, cmd.Stderr = g.pipe, os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	cmd.Cancel = stdin.Close
	cmd.WaitDelay = 2 * time.Second
	if err := cmd.Start(); err != nil {
		return err
	}
	g.inputs[name] = stdin
	g.running.Go(func() { // ends with the process
		_ = cmd.Wait() // the state has what matters of the error
		if !g.finished.Load() || !cmd.ProcessState.Success() {
			g.end(fmt.Errorf("%s has ended: %s", name, cmd.ProcessState))
		}
	})
	return nil
}

// Send sends a message to a worker. Messages are received in order.
func (g *Group) Send(name string, message any) {
	_ = json.NewEncoder(g.inputs[name]).Encode(message) // if the worker has ended, Receive says so
}

// Finish tells the workers that there are no more messages. They may then end.
func (g *Group) Finish() {
	g.finished.Store(true)
	for _, input := range g.inputs {
		_ = input.Close()
	}
}

// Receive stores the next message of any worker and returns the worker's name. If
// all workers have ended, the error is io.EOF.
func (g *Group) Receive(message any) (name string, err error) {
	var e envelope
	if err := g.messages.Decode(&e); err != nil {
		return "", err
	}
	return e.From, json.Unmarshal(e.Message, message)
}

type envelope struct {
	From    string
	Message json.RawMessage
}
