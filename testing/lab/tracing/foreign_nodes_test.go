package tracing

// This file tests the telemetry beside nodes of other clients.

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/lockpool/lockpool"
)

const (
	evil = "3v1l" // data not to be shown

	kazooNode   = "9f3a0f7e1b2c4d5e8f90a1b2c3d4e5f6__lock__"
	curatorNode = "_c_8d2c8a2e-4e57-4a0b-9d39-7d0c6ee3d8a1-lock-"
)

// createForeign creates a node of another client in the queue of "a". It returns the node's
// name and a function to remove the node.
func (b *bench) createForeign(p *lockpool.Pool, prefix string, data []byte, flags int32) (node string, remove func()) {
	b.Helper()
	b.Unlock(b.lock(b.Ctx, p, "a")) // creates the queue
	queue := b.Chroot + "/a/"
	path, err := b.Admin.Create(queue+prefix, nil, flags|zk.FlagSequence, zk.WorldACL(zk.PermAll))
	require.NoError(b, err)
	_, err = b.Admin.Set(path, data, -1)
	require.NoError(b, err)
	return strings.TrimPrefix(path, queue), func() { require.NoError(b, b.Admin.Delete(path, -1)) }
}

// giveUp locks "a", waits until the wait span names node, cancels, and returns the
// error of Lock.
func (b *bench) giveUp(p *lockpool.Pool, node string) error {
	b.Helper()
	nth := len(b.named(waitName)) + 1
	w := b.start(b.Ctx, p, "a")
	b.awaitBehind(node, nth)
	w.Cancel()
	err := w.failed()
	return err
}

// Other clients store arbitrary data in their nodes. Such data must not disturb the waiters
// behind them, and only printable text is shown.
func TestDataOfForeignNodesIsShownOnlyIfHarmless(t *testing.T) {
	t.Parallel()
	record := func(fields string) string { return `{"host":"h","pid":7` + fields + `}` }
	const trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	for name, c := range map[string]struct {
		data  string
		owner string // as shown; empty if not shown
		links int
	}{
		"Curator":                    {"10.0.0.1", "10.0.0.1", 0},
		"kazoo":                      {"worker-3 on db2", "worker-3 on db2", 0},
		"nothing":                    {"", "", 0},
		"lockpool":                   {record(`,"owner":"o","traceparent":"00-` + trace + `-` + span + `-01"`), "o, process 7 on h", 1},
		"an unsampled trace":         {record(`,"traceparent":"00-` + trace + `-` + span + `-00"`), "process 7 on h", 1},
		"the largest node":           {strings.Repeat(evil, 1<<18-64), "", 0},
		"too long a text":            {strings.Repeat(evil, 4000), "", 0},
		"invalid UTF-8":              {evil + "\xff\xfe", "", 0},
		"invalid UTF-8 in JSON":      {record(`,"owner":"`+evil+`\ud800`+"\xff\"") + evil, "", 0},
		"control characters":         {evil + "\x1b[31m\n", "", 0},
		"control characters in JSON": {record(`,"owner":"` + evil + `\u001b[31m"`), "process 7 on h", 0},
		"right-to-left override":     {evil + "\u202e", "", 0},
		"deep JSON":                  {strings.Repeat("[", 2000), strings.Repeat("[", 200), 0},
		"deep, long JSON":            {strings.Repeat(`{"a":`, 10_000) + evil, "", 0},
		"other JSON":                 {`{"host":7}`, `{"host":7}`, 0},
		"a number as a trace":        {record(`,"traceparent":7`), `{"host":"h","pid":7,"traceparent":7}`, 0},
		"a trace without trace ID":   {record(`,"traceparent":"00-` + strings.Repeat("0", 32) + `-` + span + `-01"`), "process 7 on h", 0},
		"a trace without span ID":    {record(`,"traceparent":"00-` + trace + `-` + strings.Repeat("0", 16) + `-01"`), "process 7 on h", 0},
		"a trace of another version": {record(`,"traceparent":"ff-` + trace + `-` + span + `-01"`), "process 7 on h", 0},
		"a trace with a suffix":      {record(`,"traceparent":"00-` + trace + `-` + span + `-01-` + evil + `"`), "process 7 on h", 0},
		"too long a trace":           {record(`,"traceparent":"00-` + strings.Repeat(evil, 300) + `"`), "process 7 on h", 0},
		"an upper-case trace":        {record(`,"traceparent":"00-` + strings.ToUpper(trace) + `-` + span + `-01"`), "process 7 on h", 0},
		"too long a host name":       {`{"pid":7,"host":"` + strings.Repeat("h", 3000) + `"}`, "process 7 on " + strings.Repeat("h", 200), 0},
		"a negative process ID":      {`{"pid":-7}`, "process -7 on ", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			log := new(logBuffer)
			p := b.pool(log.option(), lockpool.WithLongWait(time.Nanosecond))
			prefix := curatorNode
			if name == "kazoo" {
				prefix = kazooNode
			}
			node, remove := b.createForeign(p, prefix, []byte(c.data), 0)
			logged := func(n int) {
				b.Until(func() bool { return len(log.lines(t, "waited")) == n }, "%d waits are logged, with their holders", n)
			}
			w := b.start(b.Ctx, p, "a")
			b.awaitBehind(node, 1)
			logged(1)
			w.Cancel()
			err := w.failed()
			require.ErrorIs(t, err, context.Canceled)
			require.EqualError(t, err, `lockpool: lock "a": `+waitingBehind(node, "context canceled", c.owner))

			w = b.start(b.Ctx, p, "a")
			b.awaitQueue("a", 2)
			b.awaitBehind(node, 2)
			q, err := p.Queue(b.Ctx, "a")
			require.NoError(t, err)
			require.Len(t, q.Contenders, 2)
			require.NotContains(t, q.Contenders[0].Owner+q.Contenders[0].Host, evil)
			logged(2)
			remove()
			b.Unlock(w.Granted())

			for _, s := range b.named(waitName) {
				a := attributesOf(s)
				require.Equal(t, node, a["lockpool.lock.waiting_for"])
				owner, shown := a["lockpool.lock.waiting_for.owner"]
				require.Equal(t, c.owner != "", shown)
				if shown {
					require.Equal(t, c.owner, owner)
				}
				require.Len(t, s.Links(), c.links)
			}
			for _, line := range log.lines(t, "waited") {
				require.Equal(t, map[string]any{
					"level": "WARN", "msg": longWaitMessage, "lock": "a", "kind": "mutex", "behind": node, "behind_owner": c.owner,
					"holder": node, "holder_owner": c.owner,
				}, line)
			}
			spans, err := json.Marshal(tracetest.SpanStubsFromReadOnlySpans(b.recorder.Ended()))
			require.NoError(t, err)
			require.NotContains(t, string(spans), evil)
			require.NotContains(t, log.String(), evil)
			require.Len(t, b.named(connectName), 1, "no connection was broken")
		})
	}
}

func TestUnprintableNodeNamesAreQuoted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ node, shown string }{
		"right-to-left override": {"\u202eevil-lock-", `"\u202eevil-lock-0000000001"`},
		"long":                   {strings.Repeat("x", 5000) + "-lock-", `"` + strings.Repeat("x", 200) + `"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			p := b.pool()
			_, remove := b.createForeign(p, c.node, nil, 0)
			err := b.giveUp(p, c.shown)
			require.EqualError(t, err, `lockpool: lock "a": `+waitingBehind(c.shown, "context canceled", ""))
			require.Equal(t, c.shown, attributesOf(b.named(waitName)[0])["lockpool.lock.waiting_for"])
			_, err = p.TryLock(b.Ctx, "a")
			require.EqualError(t, err, `lockpool: try lock "a": held by another: `+c.shown)
			remove()
		})
	}
}

func TestNodeLargerThanTheMaximumReplyIsWaitedFor(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.openWith("&max_packet=4096", lockpool.WithTracerProvider(observer{b.provider, b}))
	require.NoError(t, p.Ping(b.Ctx))
	for _, size := range []int{4000, 4008, 4009, 5000, 100_000} { // a reply has 88 bytes beside the data
		node, remove := b.createForeign(p, curatorNode, make([]byte, size), 0)
		require.ErrorIs(t, b.giveUp(p, node), context.Canceled)
		w := b.start(b.Ctx, p, "a")
		b.awaitQueue("a", 2)
		b.AwaitWaiting(p, 1)
		q, err := p.Queue(b.Ctx, "a")
		require.NoError(t, err)
		require.Len(t, q.Contenders, 2)
		remove()
		b.Unlock(w.Granted())
	}
	for _, s := range b.named(waitName) {
		require.Equal(t, attributesOf(s)["lockpool.lock.wakeups"] == int64(1), attributesOf(s)["lockpool.lock.outcome"] == "acquired")
	}
}
