package main

// This file tests the example, its picture in the README, and the export to a collector.

import (
	"bytes"
	"encoding/xml"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	semconv "go.opentelemetry.io/otel/semconv/v1.39.0"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/examples/internal/exampletest"
	"github.com/lockpool/lockpool/examples/internal/spans"
	"github.com/lockpool/lockpool/testing/zktest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

func requireStory(t *testing.T, p *exampletest.Program) {
	for _, line := range []string{
		`(?m)^billing    POST /refunds     orders/42   +·*█+·*$`,
		`(?m)^orders     PUT /orders/\{id\}  orders/42   *·*░+█+·*$`,
		` waited \d+ ms for orders/42 behind POST /refunds in process billing \(trace [0-9a-f]{32}\)\n`,
		` and behind PUT /orders/\{id\} in process orders \(trace [0-9a-f]{32}\)\n`,
		` waited \d+ ms for orders/42 in vain \(timeout\) behind PUT /orders/\{id\} in process orders `,
		` waited \d+ ms for accounts/9 behind POST /transfers in process billing `,
		` waited \d+ ms for prices behind GET /prices in process warehouse `,
		` and behind GET /quotes in process orders `,
		` waited \d+ ms for prices behind PUT /prices in process billing `,
		` waited \d+ ms for printers behind POST /labels in process warehouse `,
		`13 requests, 7 waits, 1 of them in vain: \d+ ms spent waiting\.\n`,
		`Most of it, \d+ ms, began behind POST /refunds in process billing `,
	} {
		require.Regexp(t, line, p.Stdout)
	}
}

// differing is what differs from run to run in a picture: IDs and times.
var differing = regexp.MustCompile(`trace [0-9a-f]+|\b[0-9.]+ ?m?s\b`)

// requirePicture requires a picture of the story, and returns the texts.
func requirePicture(t *testing.T, file string) []string {
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	for d := xml.NewDecoder(bytes.NewReader(text)); ; {
		_, err := d.Token()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
	}
	require.Less(t, len(text), 60_000)
	require.Equal(t, 9, bytes.Count(text, []byte("<circle")), "links")
	for _, part := range []string{">PUT /orders/{id}<", ">accounts/9<", ">timeout<", `fill="#ffffff"/>`, "POST /orders waited behind POST /transfers in billing"} {
		require.Contains(t, string(text), part)
	}
	return regexp.MustCompile(`>[^<\n]+<`).FindAllString(differing.ReplaceAllString(string(text), ""), -1)
}

func TestStoryOnEmbeddedServer(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "picture.svg")
	require.NoError(t, os.WriteFile(file, bytes.Repeat([]byte("old"), 50_000), 0o666))
	p := exampletest.New(t, "-svg", file)
	p.RequireSuccess(t)
	requireStory(t, p)
	require.ElementsMatch(t, requirePicture(t, file), requirePicture(t, "waterfall.svg"), "the README's picture is current")
}

func TestCollectorReceivesLinkedWaits(t *testing.T) {
	t.Parallel()
	server := zktest.Start(t)
	var mu sync.Mutex
	names := map[string]string{} // "REQUEST in SERVICE", by trace
	var waits []*otlp.Span
	collected := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		body, _ := io.ReadAll(r.Body)
		var got collector.ExportTraceServiceRequest
		if r.URL.Path != "/v1/traces" || proto.Unmarshal(body, &got) != nil {
			http.Error(w, "not OTLP", http.StatusBadRequest)
			return
		}
		for _, of := range got.GetResourceSpans() {
			var service string
			for _, attr := range of.GetResource().GetAttributes() {
				if attr.GetKey() == "service.name" {
					service = attr.GetValue().GetStringValue()
				}
			}
			for _, scope := range of.GetScopeSpans() {
				for _, s := range scope.GetSpans() {
					if len(s.GetParentSpanId()) == 0 {
						names[string(s.GetTraceId())] = s.GetName() + " in " + service
					}
					if s.GetName() == spans.Wait {
						waits = append(waits, s)
					}
				}
			}
		}
	}))
	defer collected.Close()

	p := exampletest.New(t, "-zookeeper", server.Addr())
	p.Env = append(p.Env, "OTEL_EXPORTER_OTLP_ENDPOINT="+collected.URL)
	p.RequireSuccess(t)
	requireStory(t, p)
	require.Regexp(t, `\d+ spans were sent to `+collected.URL, p.Stdout)

	mu.Lock()
	defer mu.Unlock()
	require.Len(t, names, 13+3, "requests and connects")
	require.Len(t, waits, 7)
	seen := map[string]bool{}
	for _, wait := range waits {
		for _, l := range wait.GetLinks() {
			seen[names[string(wait.GetTraceId())]+" behind "+names[string(l.GetTraceId())]] = true
		}
	}
	require.Contains(t, seen, "POST /shipments in warehouse behind POST /refunds in billing")
	require.Contains(t, seen, "POST /shipments in warehouse behind PUT /orders/{id} in orders")
	require.Contains(t, seen, "POST /orders in orders behind POST /transfers in billing")
}

func TestFailedRequestIsNoSuccess(t *testing.T) {
	t.Parallel()
	ended := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(ended)).Tracer("")
	pool, err := lockpool.Open("zookeeper", "127.0.0.1:1")
	require.NoError(t, err)
	require.NoError(t, pool.Close())
	s := &service{pool: pool, tracer: tracer}
	require.ErrorIs(t, s.handle(t.Context(), job{Request: "POST /refunds"}), lockpool.ErrPoolClosed)
	require.Len(t, ended.Ended(), 1)
	require.Contains(t, ended.Ended()[0].Attributes(), semconv.HTTPResponseStatusCode(http.StatusInternalServerError))
	require.Equal(t, codes.Error, ended.Ended()[0].Status().Code)
}

func TestFailedExportIsReportedAfterThePicture(t *testing.T) {
	t.Parallel()
	p := exampletest.New(t)
	p.Env = append(p.Env, "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1")
	require.NoError(t, p.Start())
	p.RequireExit(t, 1)
	p.RequireClean(t)
	requireStory(t, p)
	require.NotContains(t, p.Stdout.String(), "were sent")
	require.Regexp(t, `^tracing: the spans of \w+ could not be sent to http://127\.0\.0\.1:1: .*connection refused`, p.Stderr)
}

func TestInterruptedProgramLeavesNothing(t *testing.T) {
	t.Parallel()
	p := exampletest.New(t)
	p.StartUntil(t, "Three processes")
	p.RequireInterrupted(t, `^tracing: stopped: .+\n$`)
}

func TestMisuseIsAClearError(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "none", "a.svg")
	exampletest.RequireErrors(t, "usage: tracing [-zookeeper HOST:PORT] [-svg FILE]", []exampletest.Misuse{
		{Name: "an argument", Args: []string{"127.0.0.1:2181"}, Code: 2, Error: `unexpected argument "127.0.0.1:2181"`},
		{Name: "an unknown flag", Args: []string{"-zk", "127.0.0.1:2181"}, Code: 2, Error: "not defined: -zk"},
		{Name: "no address", Args: []string{"-zookeeper", ""}, Code: 2, Error: "the name is empty"},
		{Name: "a path", Args: []string{"-zookeeper", "127.0.0.1:2181/locks"}, Code: 2, Error: "not of the form HOST:PORT"},
		{Name: "no file", Args: []string{"-svg", ""}, Code: 2, Error: "the name of the file is empty"},
		{Name: "no such directory", Args: []string{"-svg", missing}, Code: 1, Error: "no such file or directory"},
		{Name: "no server", Args: []string{"-zookeeper", "127.0.0.1:1"}, Code: 1, Error: "connection refused"},
	})
}
