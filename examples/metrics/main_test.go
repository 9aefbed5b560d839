//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.yaml.in/yaml/v3"

	"github.com/lockpool/lockpool/testing/zktest"
)

const programEnv = "LOCKPOOL_METRICS_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(programEnv) != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("net/http.(*persistConn).readLoop"),
		goleak.IgnoreTopFunction("net/http.(*persistConn).writeLoop"))
}

// program is the example itself: the test binary. Its temporary directory is one
// of its own.
func program(t *testing.T, args ...string) (cmd *exec.Cmd, stdout, stderr *output, tmp string) {
	exe, err := os.Executable()
	require.NoError(t, err)
	stdout, stderr, tmp = new(output), new(output), t.TempDir()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	cmd = exec.CommandContext(ctx, exe, args...)
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = append(os.Environ(), programEnv+"=1", "TMPDIR="+tmp, "PATH=") // not even programs
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

var served = regexp.MustCompile(`The metrics are at http://(\S+)/metrics, until Ctrl-C\.\n`)

// start starts the example and returns where its metrics are. At the end of the
// test it is interrupted, and must end well and leave nothing.
func start(t *testing.T, args ...string) (addr string) {
	cmd, stdout, stderr, tmp := program(t, args...)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		err := cmd.Wait()
		if t.Failed() {
			t.Logf("the example said:\n%s", stdout)
		}
		require.NoError(t, err, stderr)
		require.Empty(t, stderr.String())
		entries, err := os.ReadDir(tmp)
		require.NoError(t, err)
		require.Empty(t, entries)
	})
	require.Eventually(t, func() bool { return served.MatchString(stdout.String()) }, 30*time.Second, 5*time.Millisecond)
	return served.FindStringSubmatch(stdout.String())[1]
}

// tool returns the path of a program of Prometheus.
func tool(t *testing.T, name string) string {
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("no %s on the PATH: run apt-get install prometheus (Debian, Ubuntu): %v", name, err)
	}
	return path
}

// scraper is a Prometheus of the test's own.
type scraper struct{ addr string }

// startPrometheus starts one that scrapes target. It ends with the test, or when
// the test's process is gone, because then its shell has no input any more.
func startPrometheus(t *testing.T, target string) *scraper {
	binary := tool(t, "prometheus")
	dir := t.TempDir()
	rules, err := filepath.Abs("alerts.yml")
	require.NoError(t, err)
	config := filepath.Join(dir, "prometheus.yml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `
global: {scrape_interval: 250ms, scrape_timeout: 250ms, evaluation_interval: 250ms}
rule_files: [%q]
scrape_configs: [{job_name: shop, static_configs: [{targets: [%q]}]}]
`, rules, target), 0o600))
	log, err := os.Create(filepath.Join(dir, "log"))
	require.NoError(t, err)
	defer log.Close()

	p := &scraper{freeAddr(t)}
	cmd := exec.Command("sh", "-c", `
		exec 3<&0
		"$@" 3<&- & prometheus=$!
		{ read -r _ <&3; kill -9 $prometheus; } 2>/dev/null &
		wait $prometheus`, "sh",
		binary, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+p.addr)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
		if text, _ := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("Prometheus said:\n%s", text)
		}
	})
	require.Eventually(t, func() bool {
		response, err := http.Get("http://" + p.addr + "/-/ready")
		if err != nil {
			return false
		}
		_ = response.Body.Close()
		return response.StatusCode == http.StatusOK
	}, 60*time.Second, 20*time.Millisecond, "Prometheus does not start")
	return p
}

// freeAddr returns a loopback address that nobody listens on.
func freeAddr(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// ask returns what the API answers under the path.
func ask[T any](t *testing.T, p *scraper, path string, params url.Values) (data T) {
	response, err := http.Get("http://" + p.addr + path + "?" + params.Encode())
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	var answer struct {
		Status, Error string
		Data          T
	}
	require.NoError(t, json.Unmarshal(text, &answer), "%s", text)
	require.Equal(t, "success", answer.Status, "%s: %s", params, answer.Error)
	return answer.Data
}

type sample struct {
	Metric map[string]string
	Value  [2]any // time, and the value as text
}

func (p *scraper) query(t *testing.T, query string) []sample {
	return ask[struct{ Result []sample }](t, p, "/api/v1/query", url.Values{"query": {query}}).Result
}

// hasNumbers says whether the query gives any but NaN.
func (p *scraper) hasNumbers(t *testing.T, query string) bool {
	for _, s := range p.query(t, query) {
		if s.Value[1] != "NaN" {
			return true
		}
	}
	return false
}

// panel is what the test needs to know of Grafana's dashboards.
type panel struct {
	Title   string
	Targets []struct{ Expr string }
}

func dashboard(t *testing.T) (panels []panel) {
	text, err := os.ReadFile("dashboard.json")
	require.NoError(t, err)
	var d struct {
		Panels     []panel
		Templating struct{ List []struct{ Definition string } }
	}
	require.NoError(t, json.Unmarshal(text, &d))
	require.Equal(t, "label_values(lockpool_handle_max, lockpool_pool_name)", d.Templating.List[1].Definition)
	return d.Panels
}

type rule struct{ Alert, Expr string }

func alerts(t *testing.T) []rule {
	text, err := os.ReadFile("alerts.yml")
	require.NoError(t, err)
	var file struct{ Groups []struct{ Rules []rule } }
	require.NoError(t, yaml.Unmarshal(text, &file))
	return file.Groups[0].Rules
}

var (
	selector = regexp.MustCompile(`lockpool_\w+(?:\{[^}]*\})?`)
	by       = regexp.MustCompile(`by \([^)]*\)`)
)

// The dashboard and the alerts ask for what there is. A name that is misspelt
// or has changed would show as an empty panel and an alert that never comes.
func TestPrometheusHasWhatTheDashboardAndTheAlertsAskFor(t *testing.T) {
	t.Parallel()
	p := startPrometheus(t, start(t))
	queries := map[string]string{}
	for _, panel := range dashboard(t) {
		require.NotEmpty(t, panel.Targets, panel.Title)
		for _, target := range panel.Targets {
			query := strings.NewReplacer("$__rate_interval", "5s", "$__range", "1h", "$pool", ".*").Replace(target.Expr)
			require.NotContains(t, query, "$")
			queries[query] = panel.Title
		}
	}
	require.Greater(t, len(queries), 15)
	for _, rule := range alerts(t) {
		p.query(t, rule.Expr) // can be read as it is
		// Few alerts come in the time of a test. What they look at must be there,
		// but for errors that the example has not.
		selectors := selector.FindAllString(by.ReplaceAllString(rule.Expr, ""), -1)
		require.NotEmpty(t, selectors)
		for _, s := range selectors {
			queries[strings.ReplaceAll(s, `error_type!~"|timeout|canceled"`, `error_type!=""`)] = rule.Alert
		}
	}
	for deadline := time.Now().Add(time.Minute); len(queries) > 0; time.Sleep(100 * time.Millisecond) {
		for query := range queries {
			if p.hasNumbers(t, query) {
				delete(queries, query)
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("nothing there for: %v", queries)
		}
	}

	type loaded struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError, State string }
		}
	}
	states := map[string]string{}
	require.Eventually(t, func() bool {
		for _, rule := range ask[loaded](t, p, "/api/v1/rules", nil).Groups[0].Rules {
			require.Equal(t, "ok", rule.Health, rule.LastError)
			states[rule.Name] = rule.State
		}
		return states["LockpoolLockLost"] == "firing"
	}, 30*time.Second, 50*time.Millisecond, "locks are broken in the example")
	require.Len(t, states, len(alerts(t)))
	require.NotEqual(t, "firing", states["LockpoolLockStuck"]) // it may be pending as long as there is no rate

	for _, s := range p.query(t, "group by (lockpool_lock_name) (lockpool_lock_held)") {
		require.Contains(t, []string{"orders", "accounts", "prices", "printers"}, s.Metric["lockpool_lock_name"])
	}
	require.Empty(t, p.query(t, `lockpool_lock_reentries_total{lockpool_lock_kind="read"}`), "read locks are not entered again here")
}

func TestRulesOfAlerts(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"check", "rules", "alerts.yml"}, {"test", "rules", "alerts_test.yml"}} {
		out, err := exec.CommandContext(t.Context(), tool(t, "promtool"), args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	tests, err := os.ReadFile("alerts_test.yml")
	require.NoError(t, err)
	for _, rule := range alerts(t) {
		require.Contains(t, string(tests), "alertname: "+rule.Alert+"\n        exp_alerts:", "an alert without a test")
	}
}

func TestItServesOnlyMetricsAtTheAddressGiven(t *testing.T) {
	t.Parallel()
	server := zktest.Start(t)
	at := freeAddr(t)
	require.Equal(t, at, start(t, "-addr", at, "-zookeeper", server.Addr()))
	get := func(path string) (int, string) {
		response, err := http.Get("http://" + at + path)
		require.NoError(t, err)
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response.StatusCode, string(text)
	}
	require.Eventually(t, func() bool {
		status, text := get("/metrics")
		return status == http.StatusOK && strings.Contains(text, `lockpool_lock_held{lockpool_lock_kind="mutex",lockpool_lock_name="orders",lockpool_pool_name="orders"}`)
	}, 30*time.Second, 20*time.Millisecond)
	status, _ := get("/")
	require.Equal(t, http.StatusNotFound, status)

	cmd, _, stderr, _ := program(t, "-addr", at, "-zookeeper", server.Addr())
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Run(), &exit)
	require.Equal(t, 1, exit.ExitCode())
	require.Regexp(t, `^metrics: listen tcp .+: address already in use\n$`, stderr)
}

func TestWhatCanNotWorkIsAClearError(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"an argument", []string{"127.0.0.1:9464"}, 2, `unexpected argument "127.0.0.1:9464"`},
		{"an unknown flag", []string{"-port", "9464"}, 2, "not defined: -port"},
		{"no port", []string{"-addr", "127.0.0.1"}, 2, "not an ip:port"},
		{"everybody's address", []string{"-addr", "0.0.0.0:9464"}, 2, "not a loopback address"},
		{"a path", []string{"-zookeeper", "127.0.0.1:2181/locks"}, 2, "not of the form HOST:PORT"},
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
				require.Contains(t, stderr.String(), "usage: metrics [-addr HOST:PORT] [-zookeeper HOST:PORT]")
				require.Empty(t, stdout) // where the log goes
			}
		})
	}
}

func TestMetricName(t *testing.T) {
	t.Parallel()
	for lock, want := range map[string]string{"orders/42": "orders", "prices": "prices", "a/b/c": "a"} {
		require.Equal(t, want, metricName(lock))
	}
}
