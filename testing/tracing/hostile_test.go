package tracing

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/lockpool/lockpool"
)

const (
	evil = "3v1l" // what must not be seen

	kazooNode   = "9f3a0f7e1b2c4d5e8f90a1b2c3d4e5f6__lock__"
	curatorNode = "_c_8d2c8a2e-4e57-4a0b-9d39-7d0c6ee3d8a1-lock-"
)

// Other clients store what they like in their nodes. Nothing of it can harm who
// waits behind them, and only what can stand in a log is repeated.
func TestWhatOthersStoreIsShownOnlyIfItIsHarmless(t *testing.T) {
	t.Parallel()
	record := func(fields string) string { return `{"host":"h","pid":7` + fields + `}` }
	const trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	for name, c := range map[string]struct {
		data  string
		owner string // as shown; nothing if it is not
		links int
	}{
		"Curator":                      {"10.0.0.1", "10.0.0.1", 0},
		"kazoo":                        {"worker-3 on db2", "worker-3 on db2", 0},
		"nothing":                      {"", "", 0},
		"our own":                      {record(`,"owner":"o","traceparent":"00-` + trace + `-` + span + `-01"`), "o, process 7 on h", 1},
		"a trace not sampled":          {record(`,"traceparent":"00-` + trace + `-` + span + `-00"`), "process 7 on h", 1},
		"as much garbage as fits":      {strings.Repeat(evil, 1<<18-64), "", 0},
		"a text that is too long":      {strings.Repeat(evil, 2000), "", 0},
		"invalid UTF-8":                {evil + "\xff\xfe", "", 0},
		"invalid UTF-8 in JSON":        {record(`,"owner":"`+evil+`\ud800`+"\xff\"") + evil, "", 0},
		"control characters":           {evil + "\x1b[31m\n", "", 0},
		"control characters in JSON":   {record(`,"owner":"` + evil + `\u001b[31m"`), "process 7 on h", 0},
		"another direction":            {evil + "\u202e", "", 0},
		"deep JSON":                    {strings.Repeat("[", 2000), strings.Repeat("[", 200), 0},
		"deep and long JSON":           {strings.Repeat(`{"a":`, 10_000) + evil, "", 0},
		"other JSON":                   {`{"host":7}`, `{"host":7}`, 0},
		"a number for a trace":         {record(`,"traceparent":7`), `{"host":"h","pid":7,"traceparent":7}`, 0},
		"a trace of no trace":          {record(`,"traceparent":"00-` + strings.Repeat("0", 32) + `-` + span + `-01"`), "process 7 on h", 0},
		"a trace of no span":           {record(`,"traceparent":"00-` + trace + `-` + strings.Repeat("0", 16) + `-01"`), "process 7 on h", 0},
		"a trace of another version":   {record(`,"traceparent":"ff-` + trace + `-` + span + `-01"`), "process 7 on h", 0},
		"a trace with more behind it":  {record(`,"traceparent":"00-` + trace + `-` + span + `-01-` + evil + `"`), "process 7 on h", 0},
		"a trace that is too long":     {record(`,"traceparent":"00-` + strings.Repeat(evil, 300) + `"`), "process 7 on h", 0},
		"a trace in capitals":          {record(`,"traceparent":"00-` + strings.ToUpper(trace) + `-` + span + `-01"`), "process 7 on h", 0},
		"a host that is a novel":       {`{"pid":7,"host":"` + strings.Repeat("h", 3000) + `"}`, "process 7 on " + strings.Repeat("h", 200), 0},
		"a process of minus something": {`{"pid":-7}`, "process -7 on ", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			log := new(logged)
			p := b.pool(log.option(), lockpool.WithLongWait(time.Nanosecond))
			b.unlock(b.lock(b.ctx, p, "a")) // makes the queue
			path, err := b.admin.Create(b.chroot+"/a/"+curatorNode, nil, zk.FlagSequence, zk.WorldACL(zk.PermAll))
			require.NoError(t, err)
			_, err = b.admin.Set(path, []byte(c.data), -1)
			require.NoError(t, err)
			node := path[strings.LastIndexByte(path, '/')+1:]

			ctx, cancel := context.WithTimeout(b.ctx, 300*time.Millisecond)
			defer cancel()
			_, err = p.Lock(ctx, "a")
			require.ErrorIs(t, err, context.DeadlineExceeded)
			text := "waiting behind " + node + ": context deadline exceeded"
			if c.owner != "" {
				text += " (it is that of " + c.owner + ")"
			}
			require.EqualError(t, err, `lockpool: lock "a": `+text)

			w := b.start(b.ctx, p, "a")
			b.queued("a", 2)
			b.waitingBehind(node, 2)
			q, err := p.Queue(b.ctx, "a")
			require.NoError(t, err)
			require.Len(t, q.Contenders, 2)
			require.NotContains(t, q.Contenders[0].Owner+q.Contenders[0].Host, evil)
			b.until(func() bool { return len(log.lines(t, "waited")) == 2 }, "both are logged")
			require.NoError(t, b.admin.Delete(path, -1))
			b.unlock(b.granted(w))

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
					"level": "WARN", "msg": "lockpool: a lock is waited for long", "lock": "a", "kind": "mutex", "behind": node, "whose": c.owner,
					"holder": node, "holder_whose": c.owner,
				}, line)
			}
			spans, err := json.Marshal(tracetest.SpanStubsFromReadOnlySpans(b.recorder.Ended()))
			require.NoError(t, err)
			require.NotContains(t, string(spans), evil)
			require.NotContains(t, log.buf.String(), evil)
			require.Len(t, b.named(connectName), 1, "it broke no connection")
		})
	}
}

func TestNodesOfOtherClientsAreShownByWhatTheyCarry(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ node, data string }{
		"Curator": {curatorNode, "10.0.0.1"},
		"kazoo":   {kazooNode, "worker-3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			p := b.pool()
			b.unlock(b.lock(b.ctx, p, "a")) // makes the queue
			path, err := b.admin.Create(b.chroot+"/a/"+c.node, []byte(c.data), zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll))
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(b.ctx, 100*time.Millisecond)
			defer cancel()
			_, err = p.Lock(ctx, "a")
			require.ErrorContains(t, err, fmt.Sprintf("(it is that of %s)", c.data))
			require.Equal(t, c.data, attributesOf(b.named(waitName)[0])["lockpool.lock.waiting_for.owner"])
			require.NoError(t, b.admin.Delete(path, -1))
		})
	}
}

// A node's name is shown as it is, if that is harmless.
func TestNamesOfNodesAreShownInPrint(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ node, shown string }{
		"another direction": {"\u202eevil-lock-", `"\u202eevil-lock-0000000001"`},
		"long":              {strings.Repeat("x", 5000) + "-lock-", `"` + strings.Repeat("x", 200) + `"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			p := b.pool()
			b.unlock(b.lock(b.ctx, p, "a")) // makes the queue
			path, err := b.admin.Create(b.chroot+"/a/"+c.node, nil, zk.FlagSequence, zk.WorldACL(zk.PermAll))
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(b.ctx, 100*time.Millisecond)
			defer cancel()
			_, err = p.Lock(ctx, "a")
			require.EqualError(t, err, `lockpool: lock "a": waiting behind `+c.shown+": context deadline exceeded")
			require.Equal(t, c.shown, attributesOf(b.named(waitName)[0])["lockpool.lock.waiting_for"])
			_, err = p.TryLock(b.ctx, "a")
			require.EqualError(t, err, `lockpool: try lock "a": held by another: `+c.shown)
			require.NoError(t, b.admin.Delete(path, -1))
		})
	}
}

// A node that is larger than the client accepts is in the way like any other.
func TestNodeLargerThanTheLargestReplyIsWaitedFor(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.open("&max_packet=4096", lockpool.WithTracerProvider(noticing{b.provider, b}))
	require.NoError(t, p.Ping(b.ctx))
	for _, size := range []int{4000, 4008, 4009, 5000, 100_000} { // 88 bytes of a reply are not data
		b.unlock(b.lock(b.ctx, p, "a")) // makes the queue
		path, err := b.admin.Create(b.chroot+"/a/"+curatorNode, make([]byte, size), zk.FlagSequence, zk.WorldACL(zk.PermAll))
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(b.ctx, 200*time.Millisecond)
		defer cancel()
		_, err = p.Lock(ctx, "a")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		w := b.start(b.ctx, p, "a")
		b.queued("a", 2)
		b.until(func() bool { return p.Stats().Waiting == 1 }, "a waiter")
		q, err := p.Queue(b.ctx, "a")
		require.NoError(t, err)
		require.Len(t, q.Contenders, 2)
		require.NoError(t, b.admin.Delete(path, -1))
		b.unlock(b.granted(w))
	}
	for _, s := range b.named(waitName) {
		require.Equal(t, attributesOf(s)["lockpool.lock.wakeups"] == int64(1), attributesOf(s)["lockpool.lock.outcome"] == "acquired")
	}
}
