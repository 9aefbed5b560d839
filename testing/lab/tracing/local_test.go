package tracing

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/lockpool/lockpool"
)

// Every turn has its own spans. A waiter in memory is linked to the very requests in the
// way, and a waiter of another process to the request that queued for all of them.
func TestSpansOfLocalTurns(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, m := b.metered(lockpool.WithLocalTurns(1000), lockpool.WithHoldSpans())
	others := b.peer()
	first := b.lock(b.ctx, p, "a")
	second := b.start(b.ctx, p, "a")
	b.awaitWaiting(p, 1)
	third := b.start(b.ctx, p, "a")
	b.awaitWaiting(p, 2)
	elsewhere := b.enqueue(b.ctx, others.Pool, 2)
	b.awaitWaiting(others.Pool, 1)
	b.unlock(first)
	b.unlock(b.granted(second))
	b.unlock(b.granted(third))
	b.unlock(b.granted(elsewhere))

	spans := func(all []sdktrace.ReadOnlySpan, name string) (found []sdktrace.ReadOnlySpan) {
		for _, s := range all {
			if s.Name() == name {
				found = append(found, s)
			}
		}
		return found
	}
	has := func(attrs []attribute.KeyValue, want attribute.KeyValue) bool {
		for _, a := range attrs {
			if a == want {
				return true
			}
		}
		return false
	}
	local := attribute.Bool("lockpool.lock.local", true)
	acquired := spans(b.recorder.Ended(), acquireName)
	waited, released := spans(b.recorder.Ended(), "lockpool.lock.wait"), spans(b.recorder.Ended(), "lockpool.lock.release")
	require.Len(t, acquired, 3)
	require.Len(t, waited, 2)
	require.Len(t, released, 3)
	require.Len(t, spans(b.recorder.Ended(), "lockpool.lock.hold"), 3)
	for i := range 3 {
		require.Equal(t, i > 0, has(acquired[i].Attributes(), local), "acquisition %d", i)
		require.Equal(t, i < 2, has(released[i].Attributes(), local), "release %d", i)
	}
	links := func(s sdktrace.ReadOnlySpan) (to []link) {
		for _, l := range s.Links() {
			to = append(to, linkTo(l.Attributes[0].Value.AsString(), l.SpanContext))
		}
		return to
	}
	require.Equal(t, []link{linkTo("holder", acquired[0].SpanContext())}, links(waited[0]))
	require.Equal(t, []link{linkTo("holder", acquired[0].SpanContext()), linkTo("predecessor", acquired[1].SpanContext())}, links(waited[1]))

	theirs := spans(others.recorder.Ended(), "lockpool.lock.wait")
	require.Len(t, theirs, 1)
	require.Equal(t, []link{linkTo("holder", acquired[0].SpanContext())}, links(theirs[0]))
	require.True(t, has(theirs[0].Links()[0].Attributes, attribute.Bool("lockpool.link.tenancy", true)))
	require.EqualValues(t, 2, m.points()[waitTime][awaited])
	require.Zero(t, m.points()[waiters][mutex])
}

// The call that gives up says that another one has taken its place in the queue.
func TestSpanOfACallThatPassesItsPlaceOn(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, _ := b.metered(lockpool.WithLocalTurns(1000))
	holder := b.lock(b.ctx, b.silentPool(), "a")
	ctx, giveUp := context.WithCancel(b.ctx)
	first := b.enqueue(ctx, p, 2)
	b.awaitWaiting(p, 1)
	second := b.start(b.ctx, p, "a")
	b.awaitWaiting(p, 2)
	giveUp()
	_, err := b.result(first)
	require.ErrorIs(t, err, context.Canceled)
	b.unlock(holder)
	b.unlock(b.granted(second))
	events := map[string][]string{} // by outcome
	nodes := map[attribute.Value]bool{}
	for _, s := range b.recorder.Ended() {
		if s.Name() != acquireName {
			continue
		}
		attrs := attribute.NewSet(s.Attributes()...)
		outcome, _ := attrs.Value("lockpool.lock.outcome")
		node, _ := attrs.Value("lockpool.lock.node")
		nodes[node] = true
		for _, e := range s.Events() {
			events[outcome.AsString()] = append(events[outcome.AsString()], e.Name)
		}
	}
	require.Equal(t, []string{"lockpool.enqueued", "lockpool.place.passed_on"}, events["canceled"])
	require.Equal(t, []string{"lockpool.enqueued"}, events["acquired"])
	require.Len(t, nodes, 1, "both have had the same node")
}
