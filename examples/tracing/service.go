package main

// This file has the services, and the requests they serve.

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.39.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockpool/lockpool"
	_ "github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/examples/internal/process"
	"github.com/lockpool/lockpool/examples/internal/spans"
)

// service is one of the processes of the shop.
type service struct {
	pool   *lockpool.Pool
	tracer trace.Tracer
	worker *process.Worker

	mu    sync.Mutex
	gates map[string]chan struct{} // by request
}

// gate returns a channel, closed when the request may unlock.
func (s *service) gate(id string) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gates[id] == nil {
		s.gates[id] = make(chan struct{})
	}
	return s.gates[id]
}

// requests are the requests of a service. They hold their locks for long enough to be seen
// in a picture.
var requests = map[string]func(*service, context.Context) error{
	"POST /refunds": func(s *service, ctx context.Context) error {
		return s.pool.Do(ctx, "orders/42", s.work("pay back", 400*time.Millisecond))
	},
	"PUT /orders/{id}": func(s *service, ctx context.Context) error {
		return s.pool.Do(ctx, "orders/42", s.work("update order", 180*time.Millisecond))
	},
	"POST /shipments": func(s *service, ctx context.Context) error {
		return s.pool.Do(ctx, "orders/42", s.work("book parcel", 150*time.Millisecond))
	},
	// A customer waits for the response, so this request does not wait for long.
	"GET /orders/{id}": func(s *service, ctx context.Context) error {
		return s.pool.Do(ctx, "orders/42", s.work("read order", 10*time.Millisecond),
			lockpool.WaitAtMost(150*time.Millisecond))
	},
	"POST /transfers": func(s *service, ctx context.Context) error {
		locks, err := s.pool.LockAll(ctx, []string{"accounts/7", "accounts/9"})
		if err != nil {
			return err
		}
		return locks.Do(ctx, s.work("move money", 300*time.Millisecond))
	},
	"POST /orders": func(s *service, ctx context.Context) error {
		return s.pool.Do(ctx, "accounts/9", s.work("reserve credit", 150*time.Millisecond))
	},
	"GET /prices": func(s *service, ctx context.Context) error {
		return s.pool.Do(ctx, "prices", s.work("read prices", 150*time.Millisecond), lockpool.Shared())
	},
	"GET /quotes": func(s *service, ctx context.Context) error {
		return s.pool.Do(ctx, "prices", s.work("calculate", 200*time.Millisecond), lockpool.Shared())
	},
	"PUT /prices": func(s *service, ctx context.Context) error {
		return s.pool.Do(ctx, "prices", s.work("write prices", 150*time.Millisecond))
	},
	"POST /labels": func(s *service, ctx context.Context) error {
		return s.pool.Semaphore("printers", 2).Do(ctx, 1, s.work("print label", 200*time.Millisecond))
	},
}

// work returns the work of a request under a lock. If the lock is lost, ctx ends and the
// work stops, because another request may be granted the lock.
func (s *service) work(what string, duration time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, span := s.tracer.Start(ctx, what)
		defer span.End()
		s.worker.Send(report{State: holding, ID: requestOf(ctx)})
		select {
		case <-s.gate(requestOf(ctx)): // other requests wait, as the story has it
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		select {
		case <-time.After(duration):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// connect finds a wrong address early: opening a pool does not connect.
func (s *service) connect(ctx context.Context) error {
	ctx, span := s.tracer.Start(ctx, "start")
	defer span.End()
	ctx, stop := context.WithTimeout(ctx, 3*time.Second)
	defer stop()
	return s.pool.Ping(ctx)
}

// handle serves a request, as the middleware of an HTTP server would: the span is in the
// context for lockpool, and so the waits become part of the request's trace.
func (s *service) handle(ctx context.Context, j job) error {
	method, route, _ := strings.Cut(j.Request, " ")
	ctx, span := s.tracer.Start(withRequest(ctx, j.ID), j.Request, trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(
			semconv.HTTPRequestMethodKey.String(method),
			semconv.HTTPRoute(route),
			semconv.URLPath(strings.ReplaceAll(route, "{id}", "42")),
			semconv.URLScheme("http")))
	defer span.End()
	err := requests[j.Request](s, ctx)
	status := http.StatusOK
	if err != nil {
		status = http.StatusInternalServerError
		span.SetStatus(codes.Error, "")
	}
	if errors.Is(err, lockpool.ErrLocked) { // a response, too
		status, err = http.StatusServiceUnavailable, nil
	}
	span.SetAttributes(semconv.HTTPResponseStatusCode(status))
	return err
}

// runWorker is the service of this process.
func runWorker(worker *process.Worker, address string) {
	if err := serve(worker, address); err != nil {
		worker.Send(report{Failure: err.Error()})
	}
}

// serve handles the requests of the service, until there are no more. Then serve cancels
// the unfinished ones.
func serve(worker *process.Worker, address string) (err error) {
	tracers, err := newTracers(worker)
	if err != nil {
		return err
	}
	defer func() {
		if failed := tracers.shutdown(); failed != nil {
			worker.Send(report{Unsent: failed.Error()})
		}
		if err == nil {
			worker.Send(report{State: closed, ID: worker.Name})
		}
	}()
	pool, err := openPool(worker.Name, address, tracers)
	if err != nil {
		return err
	}
	defer pool.Close()

	ctx, cancel := context.WithCancel(context.Background())
	s := &service{pool: pool, tracer: tracers.Tracer("tracing"), worker: worker, gates: map[string]chan struct{}{}}
	err = s.connect(ctx)
	if err != nil {
		cancel()
		return err
	}
	worker.Send(report{State: ready, ID: worker.Name})

	var handlers sync.WaitGroup
	defer handlers.Wait()
	defer cancel()
	for {
		var j job
		if worker.Receive(&j) != nil {
			return nil
		}
		if j.Release != "" {
			close(s.gate(j.Release))
			continue
		}
		handlers.Go(func() { // ends with the request, at the latest when ctx does
			if err := s.handle(ctx, j); err != nil && ctx.Err() == nil {
				worker.Send(report{Failure: fmt.Sprintf("%s: %v", j.Request, err)})
			}
			worker.Send(report{State: done, ID: j.ID})
		})
	}
}

// job is a message to a service: a request, or the ID of a request now allowed to unlock.
type job struct {
	ID, Request string
	Release     string `json:",omitempty"`
}

// requestKey is the key of the request's ID in the context.
type requestKey struct{}

func withRequest(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestKey{}, id)
}

func requestOf(ctx context.Context) string {
	id, _ := ctx.Value(requestKey{}).(string)
	return id
}

// report is a message of a service.
type report struct {
	State   string      `json:",omitempty"`
	ID      string      `json:",omitempty"` // of the request, or the service's name
	Span    *spans.Span `json:",omitempty"`
	Failure string      `json:",omitempty"`
	Unsent  string      `json:",omitempty"` // why spans were not exported
}

// The states of services and requests.
const (
	ready   = "ready"   // the service can serve requests
	waiting = "waiting" // the request waits for a lock
	holding = "holding" // the request holds all locks
	done    = "done"    // the request is served
	closed  = "closed"  // the service has reported all spans
)
