package tracing

// This file tests the spans of locks passed on in memory.

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
)

// Every turn has a span of its own, and a span of the wait if the wait was long. A waiter in
// memory is linked to the very requests in the way, and a waiter of another process to the
// request that queued for all of them. (On a busy machine, the time for local turns would be
// over first.)
func TestSpansOfLocalTurns(t *testing.T) { locktest.Bubble(t, spansOfLocalTurns) }

func spansOfLocalTurns(t *testing.T) {
	b := newBench(t)
	p, m := b.metered(lockpool.WithLocalTurns(1000), lockpool.WithHoldSpans())
	others := b.peer()
	first := b.lock(b.Ctx, p, "a")
	second := b.start(b.Ctx, p, "a")
	b.AwaitWaiting(p, 1)
	b.Unlock(first)
	l := second.Granted()
	third := b.start(b.Ctx, p, "a")
	b.AwaitWaiting(p, 1)
	fourth := b.start(b.Ctx, p, "a")
	b.AwaitWaiting(p, 2)
	time.Sleep(20 * time.Millisecond)
	elsewhere := b.enqueue(b.Ctx, others.Pool, 2)
	b.AwaitWaiting(others.Pool, 1)
	b.Unlock(l)
	b.Unlock(third.Granted())
	b.Unlock(fourth.Granted())
	b.Unlock(elsewhere.Granted())

	const local = "lockpool.lock.local"
	acquired, waited, released := b.named(acquireName), b.named(waitName), b.named(releaseName)
	require.Len(t, acquired, 4)
	require.Len(t, waited, 2)
	require.Len(t, released, 1, "three stay in memory")
	require.Len(t, b.named(holdName), 4)
	for i := range 4 {
		require.Equal(t, i > 0, attributesOf(acquired[i])[local] == true, "acquisition %d", i)
	}
	links := func(s sdktrace.ReadOnlySpan) (to []link) { // links in memory are not remote
		for _, l := range s.Links() {
			to = append(to, linkTo(l.Attributes[0].Value.AsString(), l.SpanContext))
		}
		return to
	}
	require.Equal(t, []link{linkTo("holder", acquired[0].SpanContext())}, links(acquired[1]), "a short wait")
	holder, predecessor := linkTo("holder", acquired[1].SpanContext()), linkTo("predecessor", acquired[2].SpanContext())
	require.Equal(t, []link{holder}, links(waited[0]))
	require.Equal(t, []link{holder, predecessor}, links(waited[1]))
	for i, wait := range waited {
		require.Equal(t, acquired[2+i].StartTime(), wait.StartTime())
		require.Empty(t, links(acquired[2+i]))
	}

	theirs := named(others.recorder, waitName)
	require.Len(t, theirs, 1)
	require.Equal(t, []link{linkTo("holder", acquired[0].SpanContext())}, links(theirs[0]))
	require.Contains(t, theirs[0].Links()[0].Attributes, attribute.Bool("lockpool.link.tenancy", true))
	require.EqualValues(t, 3, m.points()[waitTime][awaited])
	require.Zero(t, m.points()[waiters][mutex])
}

// The call that gives up says that another one has taken the place in the queue.
func TestSpanOfACallThatPassesItsPlaceOn(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, _ := b.metered(lockpool.WithLocalTurns(1000))
	holder := b.lock(b.Ctx, b.silentPool(), "a")
	ctx, giveUp := context.WithCancel(b.Ctx)
	first := b.enqueue(ctx, p, 2)
	b.AwaitWaiting(p, 1)
	second := b.start(b.Ctx, p, "a")
	b.AwaitWaiting(p, 2)
	giveUp()
	err := first.failed()
	require.ErrorIs(t, err, context.Canceled)
	b.Unlock(holder)
	b.Unlock(second.Granted())
	events := map[any][]string{} // by outcome
	nodes := map[any]bool{}
	for _, s := range b.named(acquireName) {
		attrs := attributesOf(s)
		nodes[attrs[nodeKey]] = true
		for _, e := range s.Events() {
			events[attrs["lockpool.lock.outcome"]] = append(events[attrs["lockpool.lock.outcome"]], e.Name)
		}
	}
	require.Equal(t, []string{"lockpool.enqueued", "lockpool.place.passed_on"}, events["canceled"])
	require.Equal(t, []string{"lockpool.enqueued"}, events["acquired"])
	require.Len(t, nodes, 1, "both have had the same node")
}

// noExporter is the exporter of a program whose spans go nowhere.
type noExporter struct{}

func (noExporter) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return nil }
func (noExporter) Shutdown(context.Context) error                             { return nil }

// 64 goroutines of one process take one lock, without a provider, and with every span recorded.
func BenchmarkTracing(b *testing.B) {
	for _, c := range []struct {
		name string
		opts []lockpool.Option
	}{{"off", nil}, {"on", []lockpool.Option{lockpool.WithTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithBatcher(noExporter{})))}}} {
		b.Run(c.name, func(b *testing.B) {
			h := locktest.New(b)
			p := h.Pool(c.opts...)
			b.SetParallelism(32)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					l, err := p.Lock(h.Ctx, "a")
					require.NoError(b, err)
					require.NoError(b, l.Unlock(h.Ctx))
				}
			})
		})
	}
}
