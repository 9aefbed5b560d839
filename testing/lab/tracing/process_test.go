package tracing

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/lockpool/lockpool"
)

// holderEnv makes the test binary a holder. Its value is a connect string.
const holderEnv = "LOCKPOOL_TRACING_HOLDER"

// runHolder holds the lock "a" in another process. It prints the span of its
// acquisition, and unlocks when its input ends.
func runHolder(dsn string) (code int) {
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	p, err := lockpool.Open("zookeeper", dsn, lockpool.WithTracerProvider(provider), lockpool.WithOwner("billing"))
	if err != nil {
		panic(err)
	}
	err = p.Do(context.Background(), "a", func(context.Context) error {
		for _, s := range recorder.Ended() {
			if s.Name() == acquireName {
				fmt.Println(s.SpanContext().TraceID(), s.SpanContext().SpanID(), os.Getpid())
			}
		}
		_, err := io.ReadAll(os.Stdin)
		return err
	})
	if err == nil {
		err = p.Close()
	}
	if err != nil {
		panic(err)
	}
	return 0
}

// startHolder starts a process that holds the lock "a". It returns the span of the
// acquisition, the owner, and a function that makes the process unlock.
func (b *bench) startHolder() (span trace.SpanContext, owner string, unlock func()) {
	exe, err := os.Executable()
	require.NoError(b, err)
	cmd := exec.CommandContext(b.ctx, exe, "-test.run=^$")
	cmd.Env = append(os.Environ(), holderEnv+"="+b.server.Addr()+b.chroot+"?session_timeout=8s")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(b, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, cmd.Start())
	ended := sync.OnceValue(cmd.Wait)
	b.Cleanup(func() { _ = stdin.Close(); _ = ended() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(b, err)
	fields := strings.Fields(line)
	require.Len(b, fields, 3)
	traceID, err := trace.TraceIDFromHex(fields[0])
	require.NoError(b, err)
	spanID, err := trace.SpanIDFromHex(fields[1])
	require.NoError(b, err)
	host, err := os.Hostname()
	require.NoError(b, err)
	span = trace.NewSpanContext(trace.SpanContextConfig{TraceID: traceID, SpanID: spanID})
	return span, "billing, process " + fields[2] + " on " + host, func() {
		require.NoError(b, stdin.Close())
		require.NoError(b, ended())
	}
}

func TestWaiterIsLinkedToHolderInAnotherProcess(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	exporter := tracetest.NewInMemoryExporter()
	p := b.open("", lockpool.WithTracerProvider(b.newProvider(sdktrace.WithSyncer(exporter))))
	theirs, owner, unlock := b.startHolder()
	w := b.start(b.ctx, p, "a")
	b.awaitWaiting(p, 1)
	unlock()
	b.unlock(b.granted(w))
	var waits []sdktrace.ReadOnlySpan
	for _, s := range exporter.GetSpans().Snapshots() {
		if s.Name() == waitName {
			waits = append(waits, s)
		}
	}
	require.Len(t, waits, 1)
	require.Equal(t, []link{linkTo("holder", theirs)}, b.span(waits[0], nil).Links)
	require.NotEqual(t, theirs.TraceID(), waits[0].SpanContext().TraceID(), "each process has a trace of its own")
	require.Equal(t, owner, attributesOf(waits[0])["lockpool.lock.waiting_for.owner"])
}

// exported are the spans that a collector has received.
type exported struct {
	mu    sync.Mutex
	spans []*otlp.Span
	err   error
}

func (r *exported) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	var export collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(body, &export)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.err = err
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	for _, resource := range export.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			r.spans = append(r.spans, scope.Spans...)
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

func TestLinksAreExportedToACollector(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	all := new(exported)
	collector := httptest.NewServer(all)
	t.Cleanup(collector.Close)
	exporter, err := otlptracehttp.New(b.ctx, otlptracehttp.WithEndpointURL(collector.URL+"/v1/traces"))
	require.NoError(t, err)
	provider := b.newProvider(sdktrace.WithBatcher(exporter))
	p := b.open("", lockpool.WithTracerProvider(provider))
	theirs, owner, unlock := b.startHolder()
	w := b.start(b.ctx, p, "a")
	node := b.awaitQueue("a", 2)[0]
	b.awaitWaiting(p, 1)
	unlock()
	b.unlock(b.granted(w))
	require.NoError(t, p.Close())
	require.NoError(t, provider.Shutdown(b.ctx))
	all.mu.Lock()
	defer all.mu.Unlock()
	require.NoError(t, all.err)
	spans := map[string]*otlp.Span{}
	for _, s := range all.spans {
		spans[s.Name] = s
	}
	delete(spans, handleName) // only if it waited
	require.Len(t, spans, 4)
	for _, name := range []string{connectName, acquireName, releaseName} {
		require.Contains(t, spans, name)
	}
	wait := spans[waitName]
	require.Equal(t, spans[acquireName].SpanId, wait.ParentSpanId)
	require.Len(t, wait.Links, 1)
	traceID, spanID := theirs.TraceID(), theirs.SpanID()
	require.Equal(t, traceID[:], wait.Links[0].TraceId)
	require.Equal(t, spanID[:], wait.Links[0].SpanId)
	require.Equal(t, "lockpool.link", wait.Links[0].Attributes[0].Key)
	require.Equal(t, "holder", wait.Links[0].Attributes[0].Value.GetStringValue())
	attrs := map[string]string{}
	for _, kv := range wait.Attributes {
		attrs[kv.Key] = kv.Value.GetStringValue()
	}
	require.Equal(t, node, attrs["lockpool.lock.waiting_for"])
	require.Equal(t, owner, attrs["lockpool.lock.waiting_for.owner"])
}
