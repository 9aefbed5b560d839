package tracing

// This file tests the spans, metrics and logs of deadlocks.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/telemetry"
	"github.com/lockpool/lockpool/testing/plays"
)

const (
	deadlocks       = "lockpool.lock.deadlocks"
	deadlockMessage = "lockpool: deadlock"
	ofDeadlock      = "error.type=deadlock,lockpool.lock.contended=true,lockpool.lock.kind=mutex,lockpool.lock.outcome=deadlock"
)

var (
	soon    = lockpool.WithDeadlockCheck(20 * time.Millisecond)
	quietly = lockpool.WithLogger(slog.New(slog.DiscardHandler))
)

// closing is a cycle without the last wait: the first of the others holds "a" and waits for
// "b", held by the next one, and so on; the victim holds the lock awaited by the last of
// them.
type closing struct {
	*bench
	victim *lockpool.Handle
	others []*lockpool.Handle
	done   []chan error // of the others' waits
}

// closing lets all but the victim wait. "a" is held, and to be asked for, with hold.
func (b *bench) closing(hold plays.Ask, victim *lockpool.Pool, others ...*lockpool.Pool) *closing {
	b.Helper()
	c := &closing{bench: b}
	name := func(i int) string { return string(rune('a' + i)) }
	var pools []*lockpool.Pool
	for i, p := range append(others, victim) {
		h, err := p.Handle(b.Ctx)
		require.NoError(b, err)
		if i == 0 {
			require.NoError(b, hold(b.Ctx, h, "a"))
		} else {
			require.NoError(b, plays.Exclusively(b.Ctx, h, name(i)))
		}
		c.others, pools = append(c.others, h), append(pools, p)
	}
	c.victim, c.others = c.others[len(others)], c.others[:len(others)]
	for i, h := range c.others {
		waits := pools[i].Stats().Waiting
		done := make(chan error, 1)
		go func() { done <- plays.Exclusively(b.Ctx, h, name(i+1)) }() // ends with b.Ctx at the latest
		b.AwaitWaiting(pools[i], waits+1)
		c.done = append(c.done, done)
	}
	return c
}

// dissolve lets the victim go, and then each of the others when granted its lock.
func (c *closing) dissolve() {
	c.Helper()
	require.NoError(c, c.victim.Close(c.Ctx))
	for i := len(c.others) - 1; i >= 0; i-- {
		require.NoError(c, <-c.done[i])
		require.NoError(c, c.others[i].Close(c.Ctx))
	}
	for i := range len(c.others) + 1 {
		c.awaitNoNodes(string(rune('a' + i)))
	}
}

// awaitNoNodes waits until a queue is empty, or does not exist.
func (b *bench) awaitNoNodes(queue string) {
	b.Helper()
	b.Until(func() bool {
		children, _, err := b.Admin.Children(b.Chroot + "/" + queue)
		require.True(b, err == nil || errors.Is(err, zk.ErrNoNode), "%v", err)
		return !slices.ContainsFunc(children, func(child string) bool { return strings.HasPrefix(child, "_c_") }) // others are queues
	}, "nobody is in the queue %s", queue)
}

func requireDeadlock(t testing.TB, err error, length int) *lockpool.DeadlockError {
	t.Helper()
	require.ErrorIs(t, err, lockpool.ErrDeadlock)
	var deadlock *lockpool.DeadlockError
	require.ErrorAs(t, err, &deadlock)
	require.Len(t, deadlock.Cycle, length)
	return deadlock
}

// deadlocked is the event of a deadlock.
func deadlocked(length int) string { return fmt.Sprintf("%s of %d", deadlockEvent, length) }

func TestVictimOfADeadlockIsLinkedToTheOthersAndCountedOnce(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			log, theirLog := new(logBuffer), new(logBuffer)
			p, m := b.metered(soon, log.option())
			theirs := b.newMeter()
			var peers []*peer
			var pools []*lockpool.Pool
			for range n - 1 {
				other := b.peer(soon, theirLog.option(), lockpool.WithMeterProvider(theirs), lockpool.WithOwner("billing"))
				peers, pools = append(peers, other), append(pools, other.Pool)
			}
			c := b.closing(plays.Exclusively, p, pools...)
			head := b.Children("a")[0]
			var deadlock *lockpool.DeadlockError
			spans := b.trace(func(ctx context.Context) {
				deadlock = requireDeadlock(t, plays.Exclusively(ctx, c.victim, "a"), n)
			})
			links := []link{linkTo("holder", peers[0].acquisitions()[0])}
			for _, other := range peers {
				links = append(links, linkTo("deadlock", other.acquisitions()[1]))
			}
			its := b.Children(string(rune('a' + n - 1)))
			require.Equal(t, []span{acquireWaiting(b.session(string(rune('a'+n-1)), its[0]), waiting{
				position: 1, behind: head, owner: "billing, " + thisProcess, wakeups: int64(0),
				events: []string{deadlocked(n)}, links: links, outcome: "deadlock", status: failed(deadlock.Error()),
			})}, spans)
			require.Equal(t, map[string]int64{mutex: 1}, m.points()[deadlocks])
			require.Equal(t, map[string]int64{free: 1, ofDeadlock: 1}, m.points()[waitTime])
			require.Equal(t, map[string]int64{mutex: 0}, m.points()[waiters])
			require.Equal(t, map[string]int64{mutex: 1}, m.points()[held], "it keeps what it holds")
			c.dissolve()
			require.Equal(t, []map[string]any{{
				"level": "WARN", "msg": deadlockMessage, "lock": "a", "kind": "mutex", "error": deadlock.Error(),
			}}, log.lines(t))
			require.Empty(t, theirLog.lines(t))
			require.NotContains(t, theirs.points(), deadlocks)
			require.Equal(t, map[string]int64{mutex: 1}, m.points()[deadlocks])
		})
	}
}

// The cycle is found in memory.
func TestVictimOfADeadlockInOnePoolIsLinked(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, m := b.metered(quietly, lockpool.WithDeadlockCheck(time.Hour))
	c := b.closing(plays.Exclusively, p, p, p)
	theirs := make([]trace.SpanContext, 0, 2)
	for _, s := range b.recorder.Started() {
		if s.Name() == acquireName && s.EndTime().IsZero() {
			theirs = append(theirs, s.SpanContext())
		}
	}
	require.Len(t, theirs, 2)
	requireDeadlock(t, plays.Exclusively(b.Ctx, c.victim, "a"), 3)
	wait := b.span(b.named(waitName)[0], nil)
	require.Equal(t, "deadlock", wait.Attributes["error.type"])
	require.Contains(t, wait.Events, deadlocked(3))
	require.Subset(t, wait.Links, []link{linkTo("deadlock", theirs[0]), linkTo("deadlock", theirs[1])})
	require.Equal(t, map[string]int64{mutex: 1}, m.points()[deadlocks])
	c.dissolve()
	require.Equal(t, map[string]int64{mutex: 1}, m.points()[deadlocks])
}

func TestDeadlocksAreCountedByKind(t *testing.T) {
	t.Parallel()
	permit := func(ctx context.Context, h *lockpool.Handle, name string) error {
		_, err := h.Semaphore(name, 1).Acquire(ctx, 1)
		return err
	}
	for kind, asks := range map[string][2]plays.Ask{
		"read": {plays.Exclusively, plays.ToRead}, "semaphore": {permit, permit},
		"plain": {plays.Plainly, plays.Plainly},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			p, m := b.metered(soon, quietly, lockpool.WithOwner("billing"), lockpool.WithMetricName(func(name string) string { return "the " + name }))
			other := b.peer(soon)
			c := b.closing(asks[0], p, other.Pool)
			requireDeadlock(t, asks[1](b.Ctx, c.victim, "a"), 2)
			wait := b.span(b.named(waitName)[0], nil)
			require.Contains(t, wait.Events, deadlocked(2))
			require.Contains(t, wait.Links, linkTo("deadlock", other.acquisitions()[1]))
			require.Equal(t, map[string]int64{
				"lockpool.lock.kind=" + kind + ",lockpool.lock.name=the a,lockpool.pool.name=billing": 1,
			}, m.points()[deadlocks])
			c.dissolve()
			b.awaitNoNodes("a/" + driver.Guards)
			b.awaitNoNodes("a/" + driver.Leases)
			b.awaitNoNodes(driver.Waits + "/a")
		})
	}
}

// The links are to spans of pools with trace links, sampled or not. Calls without a span
// count nevertheless.
func TestDeadlockIsLinkedToTheSpansThatThereAre(t *testing.T) {
	t.Parallel()
	unsampled := func(b *bench) lockpool.Option {
		return lockpool.WithTracerProvider(b.newProvider(sdktrace.WithSampler(sdktrace.NeverSample())))
	}
	silent := func(*bench) lockpool.Option { return lockpool.WithTracerProvider(nil) } // the global one: none
	unlinked := func(*bench) lockpool.Option { return lockpool.WithTraceLinks(false) }
	for _, c := range []struct {
		name           string
		victim, other  func(*bench) lockpool.Option
		span, linked   bool
		flags          string // of the other's trace; empty without
		tracedByLogger bool
	}{
		{"the other is not sampled", nil, unsampled, true, true, "00", true},
		{"the other has no provider", nil, silent, true, false, "", true},
		{"the other has no links", nil, unlinked, true, false, "", true},
		{"the victim has no links", unlinked, nil, true, false, "01", true},
		{"the victim is not sampled", unsampled, nil, false, false, "01", true},
		{"the victim has no provider", silent, nil, false, false, "01", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			log := new(logBuffer)
			opts, theirs := []lockpool.Option{soon, log.tracing()}, []lockpool.Option{soon}
			if c.victim != nil {
				opts = append(opts, c.victim(b))
			}
			if c.other != nil {
				theirs = append(theirs, c.other(b))
			}
			m := b.newMeter()
			opts = append(opts, lockpool.WithMeterProvider(m))
			var p *lockpool.Pool
			switch c.name {
			case "the victim has no provider":
				p = b.open(opts...)
			default:
				p = b.pool(opts...)
			}
			other := b.peer(theirs...)
			if c.name == "the other has no provider" {
				other.Pool = b.open(theirs...)
			}
			closing := b.closing(plays.Exclusively, p, other.Pool)
			deadlock := requireDeadlock(t, plays.Exclusively(b.Ctx, closing.victim, "a"), 2)
			closing.dissolve()
			require.Equal(t, map[string]int64{mutex: 1}, m.points()[deadlocks])
			lines := log.lines(t)
			require.Len(t, lines, 1)
			require.Equal(t, c.tracedByLogger, lines[0]["trace"] != nil, "%v", lines[0])

			theirTrace := deadlock.Cycle[1].Trace
			if c.flags == "" {
				require.Empty(t, theirTrace)
			} else {
				require.Regexp(t, "^00-[0-9a-f]{32}-[0-9a-f]{16}-"+c.flags+"$", theirTrace)
			}
			waits := b.named(waitName)
			if !c.span {
				require.Empty(t, waits)
				return
			}
			wait := b.span(waits[0], nil)
			require.Contains(t, wait.Events, deadlocked(2))
			var links []string
			for _, l := range wait.Links {
				if l.Role == "deadlock" {
					links = append(links, fmt.Sprintf("00-%s-%s-%s", l.TraceID, l.SpanID, c.flags))
				}
			}
			if !c.linked {
				require.Empty(t, wait.Links)
				return
			}
			require.Equal(t, []string{theirTrace}, links)
		})
	}
}

// tracing is option with the span of each record's context.
func (l *logBuffer) tracing() lockpool.Option {
	return lockpool.WithLogger(slog.New(tracingHandler{slog.NewJSONHandler(l, nil)}))
}

type tracingHandler struct{ slog.Handler }

func (h tracingHandler) Handle(ctx context.Context, r slog.Record) error {
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() {
		r.AddAttrs(slog.String("trace", sc.TraceID().String()), slog.String("span", sc.SpanID().String()))
	}
	return h.Handler.Handle(ctx, r)
}

// The line tells the cycle in whole, in the trace of the call, and nothing else.
func TestDeadlockIsLoggedWithTheCycleInItsTrace(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	log := new(logBuffer)
	const secret = "&digest=shop:sesame"
	require.NoError(t, b.Admin.AddAuth("digest", []byte("shop:sesame")))
	p := b.openWith(secret, soon, log.tracing(), lockpool.WithOwner("orders"), lockpool.WithTracerProvider(b.provider))
	c := b.closing(plays.Exclusively, p, b.openWith(secret, soon, lockpool.WithOwner("billing")))
	requireDeadlock(t, plays.Exclusively(b.Ctx, c.victim, "a"), 2)
	line := log.lines(t)[0]
	acquisitions := b.named(acquireName)
	sc := acquisitions[len(acquisitions)-1].SpanContext()
	require.Equal(t, sc.TraceID().String(), line["trace"])
	require.Equal(t, sc.SpanID().String(), line["span"])
	host, _ := os.Hostname()
	who := fmt.Sprintf("process %d on %s", os.Getpid(), regexp.QuoteMeta(host))
	const place = ` in \S+ \(deadlock(_test)?.go:\d+\) from [^;]+`
	require.Regexp(t, `^deadlock: this call \(orders, `+who+`\) holds "b" and waits for "a"`+place+
		`; billing, `+who+` holds "a" and waits for "b"`+place+`$`, line["error"])
	for key, value := range line {
		require.Contains(t, []string{"level", "msg", "lock", "kind", "error", "trace", "span"}, key)
		require.NotContains(t, value, "sesame")
		require.NotContains(t, value, "traceparent")
	}
	c.dissolve()
}

// The cycle may be found before the wait has seen the awaited contender.
func TestDeadlockOfAWaitThatHasNotSeenItsQueue(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	m := b.newMeter()
	tele := telemetry.New(telemetry.Config{
		Tracers: b.provider, Meters: m, Logger: slog.New(slog.DiscardHandler), ErrorType: func(error) string { return "deadlock" },
	})
	var a telemetry.Acquisition
	a.Begin(b.Ctx, tele, telemetry.Lock{Name: "a", Kind: driver.Exclusive}, 0)
	a.Deadlocked(lockpool.ErrDeadlock, make([]trace.SpanContext, 1))
	a.End(lockpool.ErrDeadlock)
	require.Equal(t, []string{deadlocked(2)}, b.span(b.named(waitName)[0], nil).Events)
	require.Equal(t, map[string]int64{ofDeadlock: 1}, m.points()[waitTime])
	require.Equal(t, map[string]int64{mutex: 0}, m.points()[waiters])
}
