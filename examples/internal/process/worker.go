package process

import (
	"encoding/json"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

const workerEnv = "LOCKPOOL_EXAMPLE_WORKER" // the name of the worker

// Worker is this process, if a [Group] started it.
type Worker struct {
	Name   string
	input  *json.Decoder
	mu     sync.Mutex
	output *json.Encoder
}

// Self returns this process as a worker, or nil if it is not a worker.
func Self() *Worker {
	name := os.Getenv(workerEnv)
	if name == "" {
		return nil
	}
	// Ctrl-C reaches every process of the terminal. Workers leave it to the
	// process that started them, which ends them by closing their input.
	signal.Ignore(os.Interrupt, syscall.SIGTERM)
	return &Worker{Name: name, input: json.NewDecoder(os.Stdin), output: json.NewEncoder(os.Stdout)}
}

// Receive stores the next message. It returns an error when there are none left, in
// particular because the process that started this one has ended.
func (w *Worker) Receive(message any) error { return w.input.Decode(message) }

// Send sends a message. It may be called concurrently.
func (w *Worker) Send(message any) {
	text, err := json.Marshal(message)
	if err != nil {
		panic(err) // messages are structs of strings and the like
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	// If no process reads the message any more, the input has ended as well, and
	// that ends the worker.
	_ = w.output.Encode(envelope{w.Name, text})
}
