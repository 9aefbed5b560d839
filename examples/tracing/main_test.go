package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/lockpool/lockpool/testing/zktest"
)

const programEnv = "LOCKPOOL_TRACING_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(programEnv) != "" { // the program, or the service it started
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// program is the example itself: the test binary. Its temporary directory is one
// of its own.
func program(t *testing.T, args ...string) (cmd *exec.Cmd, stdout, stderr *output, tmp string) {
	exe, err := os.Executable()
	require.NoError(t, err)
	stdout, stderr, tmp = new(output), new(output), t.TempDir()
	// Wait waits until nobody is left who could write there: a process that
	// outlives the program makes the test fail.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	cmd = exec.CommandContext(ctx, exe, args...)
	cmd.WaitDelay = 10 * time.Second
	for _, env := range os.Environ() {
		if !strings.HasPrefix(env, "OTEL_") {
			cmd.Env = append(cmd.Env, env)
		}
	}
	cmd.Env = append(cmd.Env, programEnv+"=1", "TMPDIR="+tmp, "PATH=") // not even programs
	cmd.Stdout, cmd.Stderr = stdout, stderr
	return cmd, stdout, stderr, tmp
}

type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func requireEmpty(t *testing.T, dir string) {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
}

func requireStory(t *testing.T, stdout *output) {
	for _, line := range []string{
		`(?m)^billing    POST /refunds     orders/42   +·*█+·*$`,
		`(?m)^orders     PUT /orders/\{id\}  orders/42   *·*░+█+·*$`,
		` waited \d+ ms for orders/42 behind POST /refunds in process billing \(trace [0-9a-f]{32}\)\n`,
		` and behind PUT /orders/\{id\} in process orders \(trace [0-9a-f]{32}\)\n`,
		` waited \d+ ms for orders/42 in vain \(timeout\) behind POST /refunds in process billing `,
		` waited \d+ ms for accounts/9 behind POST /transfers in process billing `,
		` waited \d+ ms for prices behind GET /prices in process warehouse `,
		` and behind GET /quotes in process orders `,
		` waited \d+ ms for printers behind POST /labels in process warehouse `,
		`13 requests, 7 waits, 1 of them in vain: \d+ ms spent waiting\.\n`,
		`Most of it, \d+ ms, began behind POST /refunds in process billing `,
	} {
		require.Regexp(t, line, stdout)
	}
}

func requirePicture(t *testing.T, text []byte) {
	for d := xml.NewDecoder(bytes.NewReader(text)); ; {
		_, err := d.Token()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
	}
	require.Less(t, len(text), 60_000)
	require.Equal(t, 11, bytes.Count(text, []byte("<circle")), "links")
	for _, part := range []string{">PUT /orders/{id}<", ">accounts/9<", ">timeout<", `fill="#ffffff"/>`, "POST /orders waited behind POST /transfers in billing"} {
		require.Contains(t, string(text), part)
	}
}

func TestTheStoryOnAServerOfItsOwn(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "picture.svg")
	require.NoError(t, os.WriteFile(file, bytes.Repeat([]byte("old"), 50_000), 0o666))
	cmd, stdout, stderr, tmp := program(t, "-svg", file)
	begin := time.Now()
	err := cmd.Run()
	t.Logf("took %s:\n%s", time.Since(begin), stdout)
	require.NoError(t, err, stderr.String())
	require.Empty(t, stderr.String())
	requireEmpty(t, tmp)
	requireStory(t, stdout)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	requirePicture(t, text)
}

func TestThePictureInTheREADMEIsOfThisProgram(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("waterfall.svg")
	require.NoError(t, err)
	requirePicture(t, text)
}

func TestWhatACollectorGets(t *testing.T) {
	t.Parallel()
	server := zktest.Start(t)
	var mu sync.Mutex
	names := map[string]string{} // of requests, and where, by trace
	var waits []*otlp.Span
	collected := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		body, _ := io.ReadAll(r.Body)
		var got collector.ExportTraceServiceRequest
		if r.URL.Path != "/v1/traces" || proto.Unmarshal(body, &got) != nil {
			http.Error(w, "that is no OTLP", http.StatusBadRequest)
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
					if s.GetName() == spanWait {
						waits = append(waits, s)
					}
				}
			}
		}
	}))
	defer collected.Close()

	cmd, stdout, stderr, tmp := program(t, "-zookeeper", server.Addr())
	cmd.Env = append(cmd.Env, "OTEL_EXPORTER_OTLP_ENDPOINT="+collected.URL)
	require.NoError(t, cmd.Run(), stderr)
	require.Empty(t, stderr.String())
	requireEmpty(t, tmp)
	requireStory(t, stdout)
	require.Regexp(t, `The spans, \d+ of them, are at `+collected.URL, stdout)

	mu.Lock()
	defer mu.Unlock()
	require.Len(t, names, 13+3, "requests and starts")
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

func TestSpansThatCanNotBeSentAreAnErrorAfterThePicture(t *testing.T) {
	t.Parallel()
	cmd, stdout, stderr, tmp := program(t)
	cmd.Env = append(cmd.Env, "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1")
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Run(), &exit)
	require.Equal(t, 1, exit.ExitCode())
	requireEmpty(t, tmp)
	requireStory(t, stdout)
	require.NotContains(t, stdout.String(), "The spans,")
	require.Regexp(t, `^tracing: the spans of \w+ could not be sent to http://127\.0\.0\.1:1: .*connection refused`, stderr)
}

func TestNothingIsLeftRunningWhenItIsInterrupted(t *testing.T) {
	t.Parallel()
	cmd, stdout, stderr, tmp := program(t)
	require.NoError(t, cmd.Start())
	require.Eventually(t, func() bool { return strings.Contains(stdout.String(), "Three processes") }, 30*time.Second, time.Millisecond)
	begin := time.Now()
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	require.Less(t, time.Since(begin), 5*time.Second)
	require.Equal(t, 1, exit.ExitCode())
	require.Regexp(t, `^tracing: stopped: .+\n$`, stderr)
	requireEmpty(t, tmp)
}

func TestWhatCanNotWorkIsAClearError(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"an argument", []string{"127.0.0.1:2181"}, 2, `unexpected argument "127.0.0.1:2181"`},
		{"an unknown flag", []string{"-zk", "127.0.0.1:2181"}, 2, "not defined: -zk"},
		{"no address", []string{"-zookeeper", ""}, 2, "the name is empty"},
		{"a path", []string{"-zookeeper", "127.0.0.1:2181/locks"}, 2, "not of the form HOST:PORT"},
		{"no file", []string{"-svg", ""}, 2, "the name of the file is empty"},
		{"no such directory", []string{"-svg", filepath.Join(t.TempDir(), "none", "a.svg")}, 1, "no such file or directory"},
		{"nobody there", []string{"-zookeeper", "127.0.0.1:1"}, 1, "connection refused"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			cmd, stdout, stderr, _ := program(t, test.args...)
			var exit *exec.ExitError
			require.ErrorAs(t, cmd.Run(), &exit)
			require.Equal(t, test.code, exit.ExitCode())
			require.Contains(t, stderr.String(), test.want)
			if test.code == 2 {
				require.Contains(t, stderr.String(), "usage: tracing [-zookeeper HOST:PORT] [-svg FILE]")
			}
			require.Empty(t, stdout)
		})
	}
}
