package tracing

// This file records the spans of a test, and brings them into a comparable form.

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockpool/lockpool"
)

// observer is the bench's provider for pools. It calls the bench's function before a span
// begins, and observes changes of wait spans before they end. (The attributes of the SDK's spans cannot be read earlier.)
type observer struct {
	trace.TracerProvider
	b *bench
}

func (o observer) Tracer(name string, opts ...trace.TracerOption) trace.Tracer {
	return observingTracer{o.TracerProvider.Tracer(name, opts...), o.b}
}

type observingTracer struct {
	trace.Tracer
	b *bench
}

func (o observingTracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	if o.b.before != nil {
		o.b.before(name)
	}
	ctx, s := o.Tracer.Start(ctx, name, opts...)
	if name == waitName {
		w := &waitSpan{Span: s, b: o.b}
		o.b.mu.Lock()
		o.b.waits = append(o.b.waits, w)
		o.b.mu.Unlock()
		s = w
	}
	return ctx, s
}

// waitSpan is the span of a wait. The bench's mutex guards the fields.
type waitSpan struct {
	trace.Span
	b      *bench
	behind string
	kept   any // the attribute, or nil
	links  int
	events int
}

func (w *waitSpan) SetAttributes(attrs ...attribute.KeyValue) {
	w.Span.SetAttributes(attrs...)
	w.b.mu.Lock()
	defer w.b.mu.Unlock()
	for _, kv := range attrs {
		switch kv.Key {
		case "lockpool.lock.waiting_for":
			w.behind = kv.Value.AsString()
		case "lockpool.lock.waiting_for.kept":
			w.kept = kv.Value.AsBool()
		}
	}
}

func (w *waitSpan) AddLink(l trace.Link) {
	w.Span.AddLink(l)
	w.b.mu.Lock()
	defer w.b.mu.Unlock()
	w.links++
}

func (w *waitSpan) AddEvent(name string, opts ...trace.EventOption) {
	w.Span.AddEvent(name, opts...)
	w.b.mu.Lock()
	defer w.b.mu.Unlock()
	w.events++
}

// awaitEvents waits until the nth wait span has the given number of events.
func (b *bench) awaitEvents(nth, events int) {
	b.Helper()
	b.awaitWait(nth, func(w *waitSpan) bool { return w.events == events }, "wait %d has %d events", nth, events)
}

// awaitBehind waits until the nth wait span names node as the one waited for.
func (b *bench) awaitBehind(node string, nth int) {
	b.Helper()
	b.awaitWait(nth, func(w *waitSpan) bool { return w.behind == node }, "wait %d is behind %s", nth, node)
}

// awaitLinks waits until the nth wait span has the given number of links.
func (b *bench) awaitLinks(nth, links int) {
	b.Helper()
	b.awaitWait(nth, func(w *waitSpan) bool { return w.links == links }, "wait %d has %d links", nth, links)
}

// awaitKept waits until the nth wait span says whether the one waited for keeps the lock.
func (b *bench) awaitKept(kept bool, nth int) {
	b.Helper()
	b.awaitWait(nth, func(w *waitSpan) bool { return w.kept == kept }, "wait %d is for a kept lock: %v", nth, kept)
}

func (b *bench) awaitWait(nth int, condition func(*waitSpan) bool, what string, args ...any) {
	b.Helper()
	b.Until(func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.waits) >= nth && condition(b.waits[nth-1])
	}, what, args...)
}

// trace calls fn with a context of a span, and returns the spans below. It fails if others
// were recorded meanwhile, or some have not ended.
func (b *bench) trace(fn func(ctx context.Context)) []span {
	b.Helper()
	started, ended := len(b.recorder.Started()), len(b.recorder.Ended())
	ctx, caller := b.provider.Tracer("caller").Start(b.Ctx, "caller")
	fn(ctx)
	caller.End()
	all := b.recorder.Started()[started:]
	require.Len(b, b.recorder.Ended()[ended:], len(all), "some spans have not ended, or ended after their caller")
	require.Equal(b, caller.SpanContext(), all[0].SpanContext())
	all = b.withoutStalls(all)
	spans, n := b.below(all[0], all)
	require.Equal(b, len(all), 1+n, "some spans are outside of the caller's trace")
	return spans
}

// traceWait calls fn with a waiter, the nth contender for "a", and returns the waiter and
// the spans.
func (b *bench) traceWait(p *lockpool.Pool, n int, fn func(ctx context.Context, w *waiter)) (w *waiter, spans []span) {
	b.Helper()
	spans = b.trace(func(ctx context.Context) {
		w = b.enqueue(ctx, p, n)
		fn(ctx, w)
	})
	return w, spans
}

// withoutStalls removes the spans of waits for a free handle, on a connected session. There
// is one only if the machine stalled just there for as long, so only the duration is
// checked. A call has to wait while a session is being connected, or if handles are scarce.
func (b *bench) withoutStalls(all []sdktrace.ReadWriteSpan) []sdktrace.ReadWriteSpan {
	b.Helper()
	return slices.DeleteFunc(slices.Clone(all), func(s sdktrace.ReadWriteSpan) bool {
		if s.Name() != handleName || b.scarceHandles || slices.ContainsFunc(all, func(c sdktrace.ReadWriteSpan) bool {
			return c.Name() == connectName && c.StartTime().Before(s.EndTime()) && s.StartTime().Before(c.EndTime())
		}) {
			return false
		}
		require.GreaterOrEqual(b, s.EndTime().Sub(s.StartTime()), minHandleSpan)
		return true
	})
}

// minHandleSpan is the duration from which a wait for a handle and a session has a
// span.
const minHandleSpan = time.Millisecond

// since returns the ended spans after the first n.
func (b *bench) since(n int) (ended []sdktrace.ReadOnlySpan) {
	for _, s := range b.recorder.Ended()[n:] {
		if s.Name() != handleName {
			ended = append(ended, s)
		}
	}
	return ended
}

// named returns the ended spans of the name.
func (b *bench) named(name string) []sdktrace.ReadOnlySpan { return named(b.recorder, name) }

func named(recorder *tracetest.SpanRecorder, name string) (found []sdktrace.ReadOnlySpan) {
	for _, s := range recorder.Ended() {
		if s.Name() == name {
			found = append(found, s)
		}
	}
	return found
}

// waitLinks returns the links of the first ended wait span.
func (b *bench) waitLinks() []link {
	b.Helper()
	return b.span(b.named(waitName)[0], nil).Links
}

// below returns the spans below parent, and their number at all depths.
func (b *bench) below(parent sdktrace.ReadWriteSpan, all []sdktrace.ReadWriteSpan) (spans []span, n int) {
	b.Helper()
	for _, s := range all {
		if s.Parent().SpanID() != parent.SpanContext().SpanID() {
			continue
		}
		require.Equal(b, parent.SpanContext().TraceID(), s.SpanContext().TraceID())
		require.False(b, s.StartTime().Before(parent.StartTime()), "%s begins before its parent", s.Name())
		require.False(b, s.EndTime().After(parent.EndTime()), "%s ends after its parent", s.Name())
		children, below := b.below(s, all)
		spans = append(spans, b.span(s, children))
		n += 1 + below
	}
	return spans, n
}

// span returns a recorded span in a comparable form.
func (b *bench) span(s sdktrace.ReadOnlySpan, children []span) span {
	b.Helper()
	if strings.HasPrefix(s.Name(), "lockpool.") {
		scope := s.InstrumentationScope()
		require.Equal(b, "github.com/lockpool/lockpool", scope.Name)
		require.Equal(b, "0.1.0", scope.Version)
		require.Equal(b, "https://opentelemetry.io/schemas/1.39.0", scope.SchemaURL)
	}
	require.Zero(b, s.DroppedAttributes()+s.DroppedEvents()+s.DroppedLinks())
	var links []link
	for _, l := range s.Links() {
		require.Equal(b, attribute.Key("lockpool.link"), l.Attributes[0].Key)
		for _, more := range l.Attributes[1:] { // of a pool with local handoff
			require.Equal(b, attribute.Bool("lockpool.link.tenancy", true), more)
		}
		require.True(b, l.SpanContext.IsRemote())
		links = append(links, linkTo(l.Attributes[0].Value.AsString(), l.SpanContext))
	}
	var events []string
	for _, e := range s.Events() {
		if e.Name == seenEvent {
			require.Len(b, e.Attributes, 2)
			events = append(events, fmt.Sprintf("%s %d of %d", seenEvent, e.Attributes[0].Value.AsInt64(), e.Attributes[1].Value.AsInt64()))
			continue
		}
		if e.Name == deadlockEvent {
			require.Len(b, e.Attributes, 1)
			require.Equal(b, attribute.Key("lockpool.deadlock.length"), e.Attributes[0].Key)
			events = append(events, deadlocked(int(e.Attributes[0].Value.AsInt64())))
			continue
		}
		require.Empty(b, e.Attributes)
		events = append(events, e.Name)
	}
	attrs := attributesOf(s)
	if node, ok := attrs[nodeKey]; ok { // different every time, so only the format is checked
		require.Regexp(b, `^_c_[0-9a-f-]{36}(-(lock|rlock|(of\d+-)?lease)-\d{10})?$`, node)
		delete(attrs, nodeKey)
	}
	if token, ok := attrs[tokenKey]; ok { // there if asked for, or after a while
		require.Positive(b, token)
		delete(attrs, tokenKey)
	}
	return span{s.Name(), s.SpanKind(), s.Status(), attrs, events, links, children}
}

func attributesOf(s sdktrace.ReadOnlySpan) attributes {
	a := attributes{}
	for _, kv := range s.Attributes() {
		a[kv.Key] = kv.Value.AsInterface()
	}
	return a
}
