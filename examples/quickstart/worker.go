package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockpool/lockpool"
	_ "github.com/lockpool/lockpool/driver/zookeeper"
)

// order is the name of the lock. Every order has its own, so nobody waits for
// work on another order.
const order = "orders/42"

// service is one of the processes that work on orders.
type service struct {
	pool   *lockpool.Pool
	tracer trace.Tracer
	parent *parent
}

// jobs are what a service can be told to do.
var jobs = map[string]func(*service, context.Context) error{
	"charge": (*service).charge,
	"ship":   (*service).ship,
	"look":   (*service).look,
	"refund": (*service).refund,
	"update": (*service).update,
}

// ship is the usual case: wait for the lock, work, let it go.
func (s *service) ship(ctx context.Context) error {
	s.parent.say("asks for %s", order)
	return s.pool.Do(ctx, order, func(ctx context.Context) error {
		return s.hold(ctx, "ships the order", 800*time.Millisecond)
	})
}

// charge calls a function that locks the order once more.
func (s *service) charge(ctx context.Context) error {
	s.parent.say("asks for %s", order)
	return s.pool.Do(ctx, order, func(ctx context.Context) error {
		if err := s.hold(ctx, "charges the card", 900*time.Millisecond); err != nil {
			return err
		}
		return s.writeInvoice(ctx)
	})
}

// writeInvoice locks the order, because it can not know whether its caller
// has. The holder is in the context, so it enters again and does not wait for
// itself. That asks nothing of ZooKeeper and makes no span.
func (s *service) writeInvoice(ctx context.Context) error {
	begin := time.Now()
	return s.pool.Do(ctx, order, func(ctx context.Context) error {
		s.parent.say("enters %s again, without waiting (%s): depth 2", order, time.Since(begin))
		return s.hold(ctx, "writes the invoice", 400*time.Millisecond)
	})
}

// look does not wait for other holders at all.
func (s *service) look(ctx context.Context) error {
	lock, err := s.pool.TryLock(ctx, order)
	if errors.Is(err, lockpool.ErrLocked) {
		s.parent.say("tries %s: busy", order)
		return nil
	}
	if err != nil {
		return err
	}
	s.parent.say("tries %s: free", order)
	return lock.Unlock(ctx)
}

// refund waits, but not for long. WaitAtMost bounds the wait and not the work;
// a deadline of ctx would bound both.
func (s *service) refund(ctx context.Context) error {
	const patience = 500 * time.Millisecond
	s.parent.say("asks for %s and waits at most %s", order, patience)
	err := s.pool.Do(ctx, order, func(ctx context.Context) error {
		return s.hold(ctx, "refunds the order", 200*time.Millisecond)
	}, lockpool.WaitAtMost(patience))
	if errors.Is(err, context.DeadlineExceeded) {
		s.parent.say("gives up: %v", err)
		return nil
	}
	return err
}

// update is a short change that every service makes now and then.
func (s *service) update(ctx context.Context) error {
	return s.pool.Do(ctx, order, func(ctx context.Context) error {
		return s.hold(ctx, "updates the order", 200*time.Millisecond+rand.N(250*time.Millisecond))
	})
}

// hold is the work under the lock, with a span of its own. If the lock is lost
// it stops, because then somebody else may be let in: that ends ctx.
func (s *service) hold(ctx context.Context, what string, duration time.Duration) error {
	_, span := s.tracer.Start(ctx, spanHold, trace.WithAttributes(attribute.String(keyLock, order)))
	defer span.End()
	s.parent.say("holds %s and %s", order, what)
	s.parent.send(report{State: inside})
	select {
	case <-time.After(duration):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// work is the life of a service.
func work(name, address string) {
	parent := &parent{service: name, lines: json.NewEncoder(os.Stdout)}
	if err := serve(parent, address); err != nil {
		parent.send(report{Failure: err.Error()})
	}
}

// serve does the jobs that it reads, until there will be no more of them, also
// because the parent is gone.
func serve(parent *parent, address string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	told := make(chan string, 10) // room for all, so that the end is noticed during a job
	go func() {                   // ends with the standard input, or with the process
		defer cancel()
		defer close(told)
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			told <- lines.Text()
		}
	}()

	// Other programs export to a collector here, in batches.
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSyncer(parent))
	defer tracers.Shutdown(context.Background())

	// Each run of the quickstart has locks of its own, below a path with the
	// id of the process that started us.
	pool, err := lockpool.Open("zookeeper",
		fmt.Sprintf("%s/quickstart-%d?session_timeout=10s", address, os.Getppid()),
		lockpool.WithTracerProvider(tracers))
	if err != nil {
		return err
	}
	defer pool.Close()

	// Opening a pool does not connect. Ping does, to find out early.
	soon, stop := context.WithTimeout(ctx, 3*time.Second)
	err = pool.Ping(soon)
	stop()
	if err != nil {
		return err
	}
	parent.say("is connected")
	parent.send(report{State: ready})

	s := &service{pool, tracers.Tracer("quickstart"), parent}
	for job := range told {
		// What lockpool traces during the job becomes part of its trace.
		jobCtx, span := s.tracer.Start(ctx, job)
		err := jobs[job](s, jobCtx)
		span.End()
		if ctx.Err() != nil { // told to stop
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", job, err)
		}
		parent.send(report{State: done})
	}
	return nil
}

// report is a line that a service writes for its parent.
type report struct {
	Service string
	Say     string `json:",omitempty"`
	Span    *span  `json:",omitempty"`
	State   string `json:",omitempty"`
	Failure string `json:",omitempty"`
}

// The states of a service.
const (
	ready  = "ready"
	inside = "inside" // it holds the lock
	done   = "done"   // with a job
)

// parent is the process that started this one. It is also where spans go when
// they have ended: it implements sdktrace.SpanExporter.
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

func (p *parent) say(format string, args ...any) { p.send(report{Say: fmt.Sprintf(format, args...)}) }

func (p *parent) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	for _, s := range spans {
		p.send(report{Span: newSpan(p.service, s)})
	}
	return nil
}

func (p *parent) Shutdown(context.Context) error { return nil }
