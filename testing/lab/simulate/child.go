package main

// This file runs bubbles in child processes.

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// childEnv makes a process run the bubbles read from its input. One thread is enough for a
// bubble, because goroutines take turns, and with one thread a schedule brings the same
// violation back more often. So each of several bubbles side by side is in a separate
// process.
const childEnv = "LOCKPOOL_SIMULATE_CHILD"

// order is a bubble to run.
type order struct {
	Schedule schedule
	Timeline string // the files to write if something is found, without their extension; "" writes none
	Always   bool   // writes them even if nothing is found
}

// runChild runs bubbles until the end of the standard input, and ends the process.
func runChild() {
	out := json.NewEncoder(os.Stdout)
	os.Stdout = os.Stderr // for package testing
	// synctest.Test needs a *testing.T. Main is kept for programs simulating go test.
	testing.Main(func(string, string) (bool, error) { return true, nil }, []testing.InternalTest{{
		Name: "simulate",
		F: func(t *testing.T) {
			in := json.NewDecoder(bufio.NewReader(os.Stdin))
			for {
				var o order
				if err := in.Decode(&o); err != nil {
					return
				}
				if err := out.Encode(runBubble(t, o)); err != nil {
					return // the parent has ended
				}
			}
		},
	}}, nil, nil)
}

// child is a process for bubbles, one after the other.
type child struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *json.Decoder
	stderr *bytes.Buffer
}

func startChild() (*child, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.Command(exe), stderr: new(bytes.Buffer)}
	c.cmd.Env = append(os.Environ(), childEnv+"=1", "GOMAXPROCS=1", "GOGC=400")
	c.cmd.Stderr = c.stderr
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.stdout = json.NewDecoder(stdout)
	return c, c.cmd.Start()
}

// close ends the process. It fails if the process fails, as after a data race.
func (c *child) close() error {
	_ = c.stdin.Close()
	if err := c.cmd.Wait(); err != nil {
		return fmt.Errorf("a process that ran bubbles: %w\n%s", err, c.stderr)
	}
	return nil
}

// run runs a bubble within a limit of real time. A bubble ending the process, or not
// ending, is a violation; then the child must not be used again.
func (c *child) run(ctx context.Context, o order, limit time.Duration) (found result, alive bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		_ = c.cmd.Process.Signal(syscall.SIGQUIT) // ends the child, and prints where the goroutines are
	})
	defer stop()
	began := time.Now()
	if err = json.NewEncoder(c.stdin).Encode(o); err == nil {
		err = c.stdout.Decode(&found)
	}
	if err == nil {
		return found, true, nil
	}
	_ = c.cmd.Wait()
	if parent := context.Cause(ctx); parent != nil && parent != context.DeadlineExceeded {
		return found, false, parent
	}
	found.Bubble, found.Real = o.Schedule.Bubble, time.Since(began)
	if ctx.Err() != nil {
		found.Report.Stuck = []string{fmt.Sprintf("stuck: bubble %d did not end within %s of real time; goroutines for which time stood still: %s",
			o.Schedule.Bubble, limit, cmp.Or(notDurable(c.stderr.String()), "none, so the machine was too slow"))}
	} else {
		text := c.stderr.Bytes()
		found.Report.Violations = []string{fmt.Sprintf("crash: bubble %d ended its process (%s): %s",
			o.Schedule.Bubble, c.cmd.ProcessState, text[:min(len(text), 20_000)])}
	}
	return found, false, nil
}

// notDurable returns the goroutines whose waiting keeps a bubble's time from passing.
func notDurable(stacks string) (found string) {
	for g := range strings.SplitSeq(stacks, "\n\n") {
		if header, _, _ := strings.Cut(g, "\n"); strings.Contains(header, "synctest bubble") && !strings.Contains(header, "(durable)") {
			found += "\n" + g
		}
	}
	return found
}
