package lockpool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	rtrace "runtime/trace"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.39.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/recipe"
)

// scope is the name of the instrumentation, version its version.
const (
	scope   = "github.com/lockpool/lockpool"
	version = "0.1.0"
)

// The spans. OpenTelemetry has no convention for locks, so the names are in a
// namespace of our own.
const (
	spanAcquire = "lockpool.lock.acquire"    // a request for a lock that goes to the service
	spanWait    = "lockpool.lock.wait"       // the part of it spent behind others
	spanRelease = "lockpool.lock.release"    // giving it back
	spanHold    = "lockpool.lock.hold"       // from the one to the other; see WithHoldSpans
	spanSlot    = "lockpool.session.acquire" // the wait for a handle and a session, if there is one
	spanConnect = "lockpool.session.connect" // opening a session
)

const (
	keyDriver   = attribute.Key("lockpool.driver.name")
	keyPool     = attribute.Key("lockpool.pool.name") // see WithOwner
	keyName     = attribute.Key("lockpool.lock.name")
	keyKind     = attribute.Key("lockpool.lock.kind")
	keyPermits  = attribute.Key("lockpool.lock.permits")        // of a semaphore: how many it asks for
	keyOutcome  = attribute.Key("lockpool.lock.outcome")        // acquired, busy, timeout, canceled, ...
	keyContend  = attribute.Key("lockpool.lock.contended")      // somebody was in the way
	keyPosition = attribute.Key("lockpool.lock.queue.position") // when joining, or looking again; 0 is the head
	keyLength   = attribute.Key("lockpool.lock.queue.length")   // oneself included
	keyWakeups  = attribute.Key("lockpool.lock.wakeups")
	keyRequeues = attribute.Key("lockpool.lock.requeues")          // how often it had to join again; only if it had
	keyRequeued = attribute.Key("lockpool.lock.requeued_after")    // the last time: session_lost or node_removed
	keyNode     = attribute.Key("lockpool.lock.node")              // our own, as others see it in waiting_for
	keyToken    = attribute.Key("lockpool.lock.token")             // see Lock.Token; once it is known
	keyBehind   = attribute.Key("lockpool.lock.waiting_for")       // the node that was in the way
	keyWhose    = attribute.Key("lockpool.lock.waiting_for.owner") // whose it is, as far as it says
	keyLink     = attribute.Key("lockpool.link")                   // on a link: holder or predecessor
	keySession  = attribute.Key("lockpool.session.id")
	keyReason   = attribute.Key("lockpool.lost.reason") // session_lost, node_removed or no_permission
)

// telemetry is what a pool tells about itself.
type telemetry struct {
	tracer     trace.Tracer
	start      []trace.SpanStartOption
	driverName string
	links      bool
	holdSpans  bool
	profiles   bool
	longWait   time.Duration
	logger     *slog.Logger
	warned     warned
	meters
}

func newTelemetry(cfg config, connector driver.Connector) *telemetry {
	t := &telemetry{
		tracer: cfg.tracers.Tracer(scope,
			trace.WithInstrumentationVersion(version), trace.WithSchemaURL(semconv.SchemaURL)),
		start:      []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindClient)},
		driverName: connector.DriverName(),
		links:      !cfg.noLinks,
		holdSpans:  cfg.holdSpans,
		profiles:   cfg.profiles,
		longWait:   cfg.longWait,
		logger:     cfg.logger,
	}
	t.meters.make(cfg)
	if t.profiles {
		profiles() // to be found before the first lock
	}
	return t
}

// trail follows one acquisition. It is its recipe.Observer.
type acquisition struct {
	pool     *Pool
	caller   context.Context
	ctx      context.Context // with the acquire span
	name     string
	req      request
	span     trace.Span
	waiting  bool       // it has had to
	wait     trace.Span // from then on
	began    time.Time
	region   *rtrace.Region
	session  *session
	self     string // our node, while it queues
	place    int    // in the queue when joining; -1 if there is none
	wakeups  int
	requeues int
	linked   []trace.SpanID
	slow     *time.Timer
	counted  bool // among those who wait

	mu     sync.Mutex
	behind recipe.Wait
	where  *session
}

// follow begins the span of an acquisition. It is called with s.mu held.
func (s *Handle) startAcquisition(ctx context.Context, name string, req request) (context.Context, *acquisition) {
	p, t := s.pool, &s.acquisition
	if p.telemetry.longWait > 0 {
		t = new(acquisition) // its timer may still look at it when s has another
	}
	*t = acquisition{pool: p, caller: ctx, name: name, req: req, place: -1, began: time.Now()}
	t.ctx, t.span = p.telemetry.tracer.Start(ctx, spanAcquire, p.telemetry.start...)
	if t.span.IsRecording() {
		t.span.SetAttributes(keyName.String(name), t.kind(), keyDriver.String(p.telemetry.driverName))
		if p.cfg.owner != "" {
			t.span.SetAttributes(keyPool.String(p.cfg.owner))
		}
		if req.permits > 0 {
			t.span.SetAttributes(keyPermits.Int(req.permits))
		}
	}
	return t.ctx, t
}

func (t *acquisition) kind() attribute.KeyValue { return keyKind.String(t.req.kind().String()) }

// on tells which session the acquisition uses.
func (t *acquisition) onSession(m *session) {
	t.session = m
	if t.span.IsRecording() {
		info := m.Info()
		t.span.SetAttributes(keySession.String(info.ID))
		t.span.SetAttributes(serverOf(info)...)
	}
}

// serverOf names the server as the connect string does. What a name there was
// resolved to, which would be network.peer.address, is not known.
func serverOf(info driver.Info) []attribute.KeyValue {
	host, digits, err := net.SplitHostPort(info.Peer)
	if err != nil {
		return []attribute.KeyValue{semconv.ServerAddress(info.Peer)}
	}
	attrs := []attribute.KeyValue{semconv.ServerAddress(host)}
	if port, err := strconv.Atoi(digits); err == nil {
		attrs = append(attrs, semconv.ServerPort(port))
	}
	return attrs
}

// Queued implements recipe.Observer.
func (t *acquisition) Queued(self driver.Node, place, length int) {
	joined := t.self != self.Name
	t.self = self.Name
	switch {
	case self.Kind == driver.Permit: // it has queued already, for the guard
		return
	case joined:
		t.place = place
		t.pool.telemetry.queued(t.ctx, t, length)
		if t.span.IsRecording() {
			t.span.AddEvent("lockpool.enqueued")
			t.span.SetAttributes(keyNode.String(self.Name), keyPosition.Int(place), keyLength.Int(length))
		}
	case t.wait != nil && t.wait.IsRecording():
		t.wait.AddEvent("lockpool.queue.seen", trace.WithAttributes(keyPosition.Int(place), keyLength.Int(length)))
	}
}

// Waiting implements recipe.Observer.
func (t *acquisition) Waiting(w recipe.Wait) (wantHolder bool) {
	t.mu.Lock()
	if w.Data == nil && w.Behind == t.behind.Behind {
		w.Data = t.behind.Data // as it was before
	}
	t.behind, t.where = w, t.session
	t.mu.Unlock()
	if t.wait == nil {
		t.beginWait()
	}
	if !t.wait.IsRecording() {
		return false
	}
	t.wait.SetAttributes(keyBehind.String(w.Behind.String()))
	if whose := readOwner(w.Data).String(); whose != "" {
		t.wait.SetAttributes(keyWhose.String(whose))
	}
	if !t.pool.telemetry.links {
		return false
	}
	if w.Holder == w.Behind {
		t.linkTo(w.Data, "holder")
	} else {
		t.linkTo(w.Data, "predecessor")
	}
	return true
}

// Holder implements recipe.Observer.
func (t *acquisition) Holder(_ driver.Node, data []byte) { t.linkTo(data, "holder") }

func (t *acquisition) beginWait() {
	p := t.pool
	t.waiting = true
	p.waiting.Add(1)
	if rtrace.IsEnabled() {
		t.region = rtrace.StartRegion(t.ctx, spanWait)
	}
	if p.telemetry.profiles {
		profiles().waiting.Add(t, 1)
	}
	p.telemetry.countWaiter(t.ctx, t, 1)
	_, t.wait = p.telemetry.tracer.Start(t.ctx, spanWait)
	if t.wait.IsRecording() {
		t.wait.SetAttributes(keyName.String(t.name), t.kind())
		if t.place >= 0 {
			t.wait.SetAttributes(keyPosition.Int(t.place))
		}
	}
	p.warnSelfDeadlock(t.caller, t.name)
	if d := p.telemetry.longWait; d > 0 {
		t.slow = time.AfterFunc(max(d-time.Since(t.began), 0), t.warnLongWait)
	}
}

// linkTo links the wait to the span that a node carries.
func (t *acquisition) linkTo(data []byte, role string) {
	const most = 32 // links of one wait
	sc := readOwner(data).span()
	if !sc.IsValid() || len(t.linked) >= most || slices.Contains(t.linked, sc.SpanID()) {
		return
	}
	t.linked = append(t.linked, sc.SpanID())
	t.wait.AddLink(trace.Link{SpanContext: sc, Attributes: []attribute.KeyValue{keyLink.String(role)}})
}

// Woken implements recipe.Observer.
func (t *acquisition) Woken(e driver.Event) {
	t.wakeups++
	if e == driver.Deleted || e == driver.Missing || e == driver.Unnoticed {
		t.mu.Lock()
		t.behind = recipe.Wait{} // whoever it was is in nobody's way
		t.mu.Unlock()
	}
	if e == driver.Unnoticed {
		t.pool.telemetry.rescued(t.ctx, t.req.kind(), t.name)
	}
	if (e == driver.Deleted || e == driver.Missing) && t.wait.IsRecording() {
		t.wait.AddEvent("lockpool.predecessor.gone")
	}
}

// granted tells which node holds the lock.
func (t *acquisition) granted(node driver.Node) {
	if t.span.IsRecording() {
		t.span.SetAttributes(keyNode.String(node.Name))
	}
}

// requeued tells why the claim joins again: its session is over, or somebody
// has removed its node.
func (t *acquisition) requeued(why error) {
	t.requeues++
	if t.span.IsRecording() {
		t.span.AddEvent("lockpool.requeued")
		t.span.SetAttributes(keyRequeued.String(errorType(why)))
	}
}

// end ends the spans.
func (t *acquisition) end(err error) {
	p := t.pool
	contended := t.waiting || errors.Is(err, ErrLocked)
	if t.waiting { // users' code, which may panic, comes last
		p.waiting.Add(-1)
		if t.region != nil {
			t.region.End()
		}
		if p.telemetry.profiles {
			profiles().waiting.Remove(t)
		}
		if t.slow != nil {
			t.slow.Stop()
		}
		p.telemetry.countWaiter(t.ctx, t, -1)
	}
	if t.wait != nil {
		t.finish(t.wait, err)
	}
	p.telemetry.acquired(t.ctx, t, contended, err)
	if t.span.IsRecording() {
		t.span.SetAttributes(keyContend.Bool(contended))
	}
	t.finish(t.span, err)
}

func (t *acquisition) finish(span trace.Span, err error) {
	if span.IsRecording() {
		outcome, failed := outcome(err)
		span.SetAttributes(keyOutcome.String(outcome), keyWakeups.Int(t.wakeups))
		if t.requeues > 0 {
			span.SetAttributes(keyRequeues.Int(t.requeues))
		}
		if failed != "" {
			fail(span, err)
		}
	}
	span.End()
}

// outcome returns that of an acquisition, and the type of the error if it is one:
// somebody else being there first is an answer of a TryLock.
func outcome(err error) (outcome, failed string) {
	switch {
	case err == nil:
		return "acquired", ""
	case errors.Is(err, ErrLocked):
		return errorType(err), ""
	}
	return errorType(err), errorType(err)
}

// fail says on a span that it failed.
func fail(span trace.Span, err error) {
	span.SetAttributes(semconv.ErrorTypeKey.String(errorType(err)))
	span.SetStatus(codes.Error, err.Error())
}

// end ends a span, which has failed if there is an error.
func end(span trace.Span, err error) {
	if err != nil && span.IsRecording() {
		fail(span, err)
	}
	span.End()
}

func errorType(err error) string { return (&LockError{Err: err}).ErrorType() }

// blame adds to the error of a wait that its context has ended which node was in
// the way, and whose it is, as far as that is known.
func (t *acquisition) describeBlocker(ctx context.Context, err error) error {
	t.mu.Lock()
	behind := t.behind
	t.mu.Unlock()
	switch node := behind.Behind.String(); {
	case node == "" && err == ctx.Err():
		err = fmt.Errorf("no place in the queue yet: %w", err)
	case node != "" && !strings.Contains(err.Error(), node):
		err = fmt.Errorf("waiting behind %s: %w", node, err)
	}
	if whose := readOwner(behind.Data).String(); whose != "" {
		err = fmt.Errorf("%w (it is that of %s)", err, whose)
	}
	return err
}

// about returns what is said of a hold on its spans.
func (t *telemetry) holdAttributes(h *hold) []attribute.KeyValue {
	attrs := []attribute.KeyValue{keyName.String(h.name), keyKind.String(h.kind.String()), keyDriver.String(t.driverName)}
	if token := h.token.Load(); token != 0 {
		attrs = append(attrs, keyToken.Int64(token))
	}
	return attrs
}

// released records the span of a release.
func (t *telemetry) released(ctx context.Context, r release) {
	_, span := t.tracer.Start(ctx, spanRelease, t.start[0], trace.WithTimestamp(r.began))
	defer span.End()
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(t.holdAttributes(r.hold)...)
	if r.err != nil {
		fail(span, r.err)
	}
}

// granted tells of the beginning of a hold.
func (t *telemetry) granted(ctx context.Context, h *hold) {
	if t.profiles {
		profiles().held.Add(h, 1)
	}
	t.countHeld(h, 1)
	if t.holdSpans {
		_, h.span = t.tracer.Start(ctx, spanHold)
	}
}

// withdrawn tells that the hold did not come to be: its session is over, or the
// pool closed.
func (t *telemetry) withdrawn(h *hold) {
	if t.profiles {
		profiles().held.Remove(h)
	}
	t.countHeld(h, -1)
	if h.span != nil {
		h.span.End()
	}
}

// seated tells of a wait for a handle and a session, if there was one.
func (t *telemetry) slotAcquired(ctx context.Context, began time.Time, err error) {
	const atOnce = time.Millisecond
	t.recordDuration(t.slotTime, began, err)
	if time.Since(began) < atOnce {
		return
	}
	_, span := t.tracer.Start(ctx, spanSlot, trace.WithTimestamp(began))
	end(span, err)
}

// connecting begins the span of a new session, and returns what ends it.
func (t *telemetry) connecting(ctx context.Context) (context.Context, func(driver.Session, error)) {
	began := time.Now()
	ctx, span := t.tracer.Start(ctx, spanConnect, t.start...)
	return ctx, func(s driver.Session, err error) {
		t.recordDuration(t.connectTime, began, err)
		if span.IsRecording() {
			span.SetAttributes(keyDriver.String(t.driverName))
			if err != nil {
				fail(span, err)
			} else {
				info := s.Info()
				span.SetAttributes(keySession.String(info.ID))
				span.SetAttributes(serverOf(info)...)
			}
		}
		span.End()
	}
}

// tell tells of the end of a hold, which may take as long as whoever listens does.
func (h *hold) reportEnd(cause error) {
	t := h.handle.pool.telemetry
	t.holdEnded(h)
	if t.profiles {
		profiles().held.Remove(h)
	}
	lost := errors.Is(cause, ErrLockLost)
	if lost {
		t.lockLost(h, cause)
		t.logger.Warn("lockpool: a lock was lost", "lock", h.name, "kind", h.kind.String(),
			"held", h.ended.Sub(h.began).Round(time.Millisecond), "cause", cause)
	}
	if h.span == nil {
		return
	}
	if h.span.IsRecording() {
		h.span.SetAttributes(t.holdAttributes(h)...)
		if lost {
			h.span.AddEvent("lockpool.lost")
			fail(h.span, cause)
		}
	}
	h.span.End(trace.WithTimestamp(h.ended))
}
