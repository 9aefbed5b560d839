package process

// This file has the worker's side of a group.

import (
	"encoding/json"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

const workerEnv = "LOCKPOOL_EXAMPLE_WORKER" // the name of the worker

// Worker is this process, if started by a [Group].
type Worker struct {
	Name   string
	input  *json.Decoder
	mu     sync.Mutex
	output *json.Encoder
}

// Self returns this process as a worker, or nil if this process is no worker.
func Self() *Worker {
	name := os.Getenv(workerEnv)
	if name == "" {
		return nil
	}
	// Ctrl-C reaches every process of the terminal. Workers leave Ctrl-C to the starting
	// process, and end when that process closes their input.
	signal.Ignore(os.Interrupt, syscall.SIGTERM)
	return &Worker{Name: name, input: json.NewDecoder(os.Stdin), output: json.NewEncoder(os.Stdout)}
}

// Receive stores the next message. It returns an error when there are none left, in
// particular after the end of the starting process.
func (w *Worker) Receive(message any) error { return w.input.Decode(message) }

// Send sends a message, and may be called concurrently.
func (w *Worker) Send(message any) {
	text, err := json.Marshal(message)
	if err != nil {
		panic(err) // messages are structs of strings and the like
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	// If no process reads the message any more, the input has ended as well, and so the
	// worker ends.
	_ = w.output.Encode(envelope{w.Name, text})
}
