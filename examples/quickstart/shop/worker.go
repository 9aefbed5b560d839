package shop

// This file has the services, and all that they do with lockpool.

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/examples/internal/process"
	"github.com/lockpool/lockpool/examples/internal/spans"
)

// order is the name of the lock. Every order has a separate lock, so that work on one order
// never waits for work on another.
const order = "orders/42"

// service is one of the processes working on orders.
type service struct {
	reporter
	pool     *lockpool.Pool
	tracer   trace.Tracer
	received <-chan string // what the service is told
}

// jobs are what a service can be told to do.
var jobs = map[string]func(*service, context.Context) error{
	"charge": (*service).charge,
	"ship":   (*service).ship,
	"look":   (*service).look,
	"refund": (*service).refund,
	"update": (*service).update,
}

// ship is the usual case: wait for the lock, work, unlock.
func (s *service) ship(ctx context.Context) error {
	s.printf("asks for %s", order)
	return s.pool.Do(ctx, order, func(ctx context.Context) error {
		return s.work(ctx, "ships the order", 800*time.Millisecond)
	})
}

// charge calls a function locking the order once more.
func (s *service) charge(ctx context.Context) error {
	s.printf("asks for %s", order)
	return s.pool.Do(ctx, order, func(ctx context.Context) error {
		if err := s.work(ctx, "charges the card", 900*time.Millisecond); err != nil {
			return err
		}
		<-s.received // once refunds has given up, however slow the machine is
		return s.writeInvoice(ctx)
	})
}

// writeInvoice locks the order, because the caller may not have done so. The context
// carries the holder, so writeInvoice enters the lock again and does not wait for itself.
// Entering sends no request to the servers and records no span.
func (s *service) writeInvoice(ctx context.Context) error {
	begin := time.Now()
	return s.pool.Do(ctx, order, func(ctx context.Context) error {
		s.printf("enters %s again, without waiting (%s): depth 2", order, time.Since(begin))
		return s.work(ctx, "writes the invoice", 400*time.Millisecond)
	})
}

// look does not wait for other holders at all.
func (s *service) look(ctx context.Context) error {
	lock, err := s.pool.TryLock(ctx, order)
	if errors.Is(err, lockpool.ErrLocked) {
		s.printf("tries %s: busy", order)
		return nil
	}
	if err != nil {
		return err
	}
	s.printf("tries %s: free", order)
	return lock.Unlock(ctx)
}

// refund waits, but not for long. WaitAtMost bounds the wait but not the work; a
// deadline of ctx would bound both.
func (s *service) refund(ctx context.Context) error {
	const patience = time.Second
	s.printf("asks for %s and waits at most %s", order, patience)
	err := s.pool.Do(ctx, order, func(ctx context.Context) error {
		return s.work(ctx, "refunds the order", 200*time.Millisecond)
	}, lockpool.WaitAtMost(patience))
	if errors.Is(err, lockpool.ErrLocked) {
		s.printf("gives up: %v", err)
		return nil
	}
	return err
}

// update is a short change, made by every service now and then.
func (s *service) update(ctx context.Context) error {
	return s.pool.Do(ctx, order, func(ctx context.Context) error {
		return s.work(ctx, "updates the order", 200*time.Millisecond+rand.N(250*time.Millisecond))
	})
}

// work is done under the lock, in a separate span. If the lock is lost, ctx ends and the
// work stops, because another process may be granted the lock.
func (s *service) work(ctx context.Context, what string, duration time.Duration) error {
	_, span := s.tracer.Start(ctx, spanWork, trace.WithAttributes(attribute.String(spans.KeyLock, order)))
	defer span.End()
	s.printf("holds %s and %s", order, what)
	s.Send(report{State: holding})
	select {
	case <-time.After(duration):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// runWorker is the service of this process.
func runWorker(worker *process.Worker, driver, dsn string) {
	if err := serve(reporter{worker}, driver, dsn); err != nil {
		worker.Send(report{Failure: err.Error()})
	}
}

// serve does the jobs of the service, until there are no more.
func serve(reporter reporter, driver, dsn string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	received := make(chan string, 10) // room for all jobs: the end of input is noticed during a job
	go func() {                       // ends with the input, or with the process
		defer cancel()
		defer close(received)
		for job := ""; reporter.Receive(&job) == nil; {
			received <- job
		}
	}()

	// Other programs export to a collector here, in batches.
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSyncer(reporter))
	defer tracers.Shutdown(context.Background())

	// The connect string says where the servers are, and gives each run of the quickstart
	// separate locks. On ZooKeeper the string is
	// HOST:PORT/quickstart-PID?session_timeout=10s.
	pool, err := lockpool.Open(driver, dsn, lockpool.WithTracerProvider(tracers))
	if err != nil {
		return err
	}
	defer pool.Close()

	// Open does not connect. Ping does, to find a wrong address early.
	pingCtx, stop := context.WithTimeout(ctx, 3*time.Second)
	err = pool.Ping(pingCtx)
	stop()
	if err != nil {
		return err
	}
	reporter.printf("is connected")
	reporter.Send(report{State: ready})

	s := &service{reporter, pool, tracers.Tracer("quickstart"), received}
	for job := range received {
		// The spans of lockpool during the job become part of the job's trace.
		jobCtx, span := s.tracer.Start(ctx, job)
		err := jobs[job](s, jobCtx)
		span.End()
		if ctx.Err() != nil { // stopped
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", job, err)
		}
		s.Send(report{State: done})
	}
	return nil
}

// report is a message of a service.
type report struct {
	Text    string      `json:",omitempty"`
	Span    *spans.Span `json:",omitempty"`
	State   string      `json:",omitempty"`
	Failure string      `json:",omitempty"`
}

// The states of a service.
const (
	ready   = "ready"
	holding = "holding" // the lock
	done    = "done"    // with a job
)

// reporter sends reports. It implements sdktrace.SpanExporter, so that spans are
// reported when they have ended.
type reporter struct{ *process.Worker }

func (r reporter) printf(format string, args ...any) {
	r.Send(report{Text: fmt.Sprintf(format, args...)})
}

func (r reporter) ExportSpans(_ context.Context, finished []sdktrace.ReadOnlySpan) error {
	for _, s := range finished {
		r.Send(report{Span: spans.Record(r.Name, s)})
	}
	return nil
}

func (reporter) Shutdown(context.Context) error { return nil }
