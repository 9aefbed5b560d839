package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.39.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockpool/lockpool"
	_ "github.com/lockpool/lockpool/driver/zookeeper"
)

// service is one of the processes of the shop.
type service struct {
	pool   *lockpool.Pool
	tracer trace.Tracer
	parent *parent

	mu    sync.Mutex
	gates map[string]chan struct{} // of requests: closed when they may go on
}

// gate returns what a request waits for before it has worked enough.
func (s *service) gate(id string) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gates[id] == nil {
		s.gates[id] = make(chan struct{})
	}
	return s.gates[id]
}

// requests are what a service can be asked for. What they do under a lock takes
// long, to be seen.
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
	// Who asked does not wait for long, so neither does this.
	"GET /orders/{id}": func(s *service, ctx context.Context) error {
		return s.pool.Do(ctx, "orders/42", s.work("read order", 10*time.Millisecond),
			lockpool.WaitAtMost(150*time.Millisecond))
	},
	"POST /transfers": func(s *service, ctx context.Context) error {
		locks, err := s.pool.LockAll(ctx, []string{"accounts/7", "accounts/9"})
		if err != nil {
			return err
		}
		defer locks.Unlock(ctx)
		return s.work("move money", 300*time.Millisecond)(locks.Context(ctx))
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

// work is what is done under a lock. If the lock is lost it stops, because then
// somebody else may be let in: that ends ctx.
func (s *service) work(what string, duration time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, span := s.tracer.Start(ctx, what)
		defer span.End()
		s.parent.send(report{State: inside, ID: requestOf(ctx)})
		select {
		case <-s.gate(requestOf(ctx)): // somebody waits for us, as the story has it
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

func (s *service) connect(ctx context.Context) error {
	ctx, span := s.tracer.Start(ctx, "start")
	defer span.End()
	ctx, stop := context.WithTimeout(ctx, 3*time.Second)
	defer stop()
	return s.pool.Ping(ctx)
}

// handle serves a request, as the middleware of an HTTP server would: its span
// is in the context that lockpool is called with, and so its waits are part of
// the request's trace.
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
	if errors.Is(err, context.DeadlineExceeded) { // too long a wait is an answer
		status, err = http.StatusServiceUnavailable, nil
		span.SetStatus(codes.Error, "")
	}
	span.SetAttributes(semconv.HTTPResponseStatusCode(status))
	return err
}

// serve is the life of a service.
func serve(name, address string) {
	parent := &parent{service: name, lines: json.NewEncoder(os.Stdout)}
	if err := parent.serve(address); err != nil {
		parent.send(report{Failure: err.Error()})
	}
}

// serve handles the requests that it reads, until there will be no more of them,
// also because the parent is gone. Then what is not done is stopped.
func (p *parent) serve(address string) (err error) {
	tracers, err := newTracers(p)
	if err != nil {
		return err
	}
	defer func() {
		if failed := tracers.shutdown(); failed != nil {
			p.send(report{Unsent: failed.Error()})
		}
		if err == nil {
			p.send(report{State: closed, ID: p.service})
		}
	}()
	pool, err := openPool(p.service, address, tracers)
	if err != nil {
		return err
	}
	defer pool.Close()

	ctx, cancel := context.WithCancel(context.Background())
	// Opening a pool does not connect. Ping does, to find out early.
	s := &service{pool: pool, tracer: tracers.Tracer("tracing"), parent: p, gates: map[string]chan struct{}{}}
	err = s.connect(ctx)
	if err != nil {
		cancel()
		return err
	}
	p.send(report{State: ready, ID: p.service})

	var handlers sync.WaitGroup
	defer handlers.Wait()
	defer cancel()
	for jobs := json.NewDecoder(os.Stdin); ; {
		var j job
		if jobs.Decode(&j) != nil {
			return nil
		}
		if j.Release != "" {
			close(s.gate(j.Release))
			continue
		}
		handlers.Go(func() { // ends with the request, at the latest when ctx does
			if err := s.handle(ctx, j); err != nil && ctx.Err() == nil {
				p.send(report{Failure: fmt.Sprintf("%s: %v", j.Request, err)})
			}
			p.send(report{State: done, ID: j.ID})
		})
	}
}

// job is a line that the parent writes for a service.
type job struct {
	ID, Request string
	Release     string `json:",omitempty"` // not a request, but the ID of one that need not hold its lock any longer
}

// The number of a request is in its context, for reports.
type requestKey struct{}

func withRequest(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestKey{}, id)
}

func requestOf(ctx context.Context) string {
	id, _ := ctx.Value(requestKey{}).(string)
	return id
}

// report is a line that a service writes for its parent.
type report struct {
	Service string
	State   string `json:",omitempty"`
	ID      string `json:",omitempty"` // of the request, or the service's name
	Span    *span  `json:",omitempty"`
	Failure string `json:",omitempty"`
	Unsent  string `json:",omitempty"` // why spans were not exported
}

// The states of services and requests.
const (
	ready   = "ready"   // a service can be sent requests
	waiting = "waiting" // a request waits for a lock
	inside  = "inside"  // it has the lock
	done    = "done"
	closed  = "closed" // a service has sent all it has
)

// parent is the process that started this one.
type parent struct {
	service string
	mu      sync.Mutex
	lines   *json.Encoder
}

func (p *parent) send(r report) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.Service = p.service
	_ = p.lines.Encode(r) // if the parent is gone, our input ends, and that ends us
}
