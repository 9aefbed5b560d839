//go:build unix

package main

// This file tests the spans of the command.

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/lockpool/lockpool/testing/locktest"
)

func TestWaitAndRunAreSpans(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	var mu sync.Mutex
	spans := map[string]*tracepb.Span{}
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var got coltrace.ExportTraceServiceRequest
		body, err := io.ReadAll(r.Body)
		if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(body, &got) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		for _, resource := range got.ResourceSpans {
			for _, scope := range resource.ScopeSpans {
				for _, span := range scope.Spans {
					spans[span.Name] = span
				}
			}
		}
	}))
	t.Cleanup(collector.Close)

	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	s.env = append(s.env, "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL, "TRACEPARENT="+parent)
	stdout, stderr := s.run(3, "run", "job", "--", "sh", "-c", "echo $TRACEPARENT; exit 3")
	require.Empty(t, stderr)

	mu.Lock()
	defer mu.Unlock()
	whole, run, wait := spans["lockpool run"], spans["run sh"], spans["lockpool.lock.acquire"]
	require.NotNil(t, whole)
	require.NotNil(t, run)
	require.NotNil(t, wait)
	require.Equal(t, "b7ad6b7169203331", hex.EncodeToString(whole.ParentSpanId))
	require.Equal(t, whole.SpanId, run.ParentSpanId)
	require.Equal(t, whole.SpanId, wait.ParentSpanId)
	require.Equal(t, "00-0af7651916cd43dd8448eb211c80319c-"+hex.EncodeToString(run.SpanId)+"-01", strings.TrimSpace(stdout))
}

// Without a configured collector nothing is exported, and a silent collector neither prints
// anything nor delays the command for long.
func TestTracingIsQuiet(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	s.env = append(s.env, "TRACEPARENT="+parent)
	require.Equal(t, parent+"\n", s.prints("run", "job", "--", "sh", "-c", "echo $TRACEPARENT"))

	silent := make(chan struct{})
	collector := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-silent }))
	t.Cleanup(collector.Close)
	t.Cleanup(func() { close(silent) })
	s.env = append(s.env, "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL)
	clock := locktest.StartClock()
	s.prints("run", "job", "--", "true")
	clock.Took(t, 0, 8*time.Second, "the run") // the exporter by itself would wait for 10 s
}
