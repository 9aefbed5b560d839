//go:build unix

package main

// This file tests the example, its dashboard and its alerts.

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.yaml.in/yaml/v3"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/examples/internal/exampletest"
	"github.com/lockpool/lockpool/testing/zktest"
)

func TestMain(m *testing.M) {
	exampletest.Main(m, main, goleak.IgnoreTopFunction("net/http.(*persistConn).readLoop"),
		goleak.IgnoreTopFunction("net/http.(*persistConn).writeLoop"))
}

var served = regexp.MustCompile(`The metrics are at http://(\S+)/metrics, until Ctrl-C\.\n`)

// start starts the example and returns the address of its metrics. The example is
// interrupted at the end of the test, and must exit without an error and leave
// nothing behind.
func start(t *testing.T, args ...string) (addr string) {
	p := exampletest.New(t, args...)
	require.NoError(t, p.Start())
	t.Cleanup(func() {
		_ = p.Process.Signal(os.Interrupt)
		err := p.Wait()
		if t.Failed() {
			t.Logf("the example printed:\n%s", p.Stdout)
		}
		require.NoError(t, err, p.Stderr)
		require.Empty(t, p.Stderr.String())
		p.RequireClean(t)
	})
	require.Eventually(t, func() bool { return served.MatchString(p.Stdout.String()) }, 30*time.Second, 5*time.Millisecond)
	return served.FindStringSubmatch(p.Stdout.String())[1]
}

// tool returns the path of one of Prometheus's programs.
func tool(t *testing.T, name string) string {
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("no %s on the PATH: run apt-get install prometheus (Debian, Ubuntu): %v", name, err)
	}
	return path
}

// scraper is a Prometheus server.
type scraper struct{ addr string }

// startPrometheus starts a Prometheus server to scrape target. The server ends with the
// test, or with the test's process, because the process's end is the end of the shell's
// input.
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

	p := &scraper{freeAddr()}
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
			t.Logf("Prometheus logged:\n%s", text)
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

// freeAddr returns a loopback address of no other program, so the port is free, and stays so.
func freeAddr() string {
	return fmt.Sprintf("127.%d.%d.%d:9464", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
}

// ask returns the data of Prometheus's API for the path.
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

// hasNumbers reports whether the query returns a number other than NaN.
func (p *scraper) hasNumbers(t *testing.T, query string) bool {
	for _, s := range p.query(t, query) {
		if s.Value[1] != "NaN" {
			return true
		}
	}
	return false
}

// panel is the tested part of a panel in a Grafana dashboard.
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

// A misspelled or changed metric name would leave a panel empty and an alert silent.
func TestDashboardAndAlertsQueryExistingMetrics(t *testing.T) {
	t.Parallel()
	p := startPrometheus(t, start(t))
	queries := map[string]string{"lockpool_lock_reentries_total": "of any kind"}
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
		p.query(t, rule.Expr) // must be valid
		// Few alerts fire during a test. The selected series must exist, except for errors
		// missing in the example.
		selectors := selector.FindAllString(by.ReplaceAllString(rule.Expr, ""), -1)
		require.NotEmpty(t, selectors)
		for _, s := range selectors {
			queries[strings.ReplaceAll(s, `error_type!~"|timeout|canceled|queue_full"`, `error_type!=""`)] = rule.Alert
		}
	}
	for deadline := time.Now().Add(time.Minute); len(queries) > 0; time.Sleep(100 * time.Millisecond) {
		for query := range queries {
			if p.hasNumbers(t, query) {
				delete(queries, query)
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("no numbers for: %v", queries)
		}
	}

	var states map[string]string
	require.Eventually(t, func() bool {
		states = p.states(t)
		return states["LockpoolLockLost"] == "firing"
	}, 30*time.Second, 50*time.Millisecond, "locks are broken in the example")
	require.Len(t, states, len(alerts(t)))
	for name, state := range states {
		require.Contains(t, []string{"inactive", "pending", "firing"}, state, name)
	}
	require.Equal(t, "inactive", states["LockpoolLockStuck"], "it is only busy")

	for _, s := range p.query(t, "group by (lockpool_lock_name) (lockpool_lock_held)") {
		require.Contains(t, []string{"orders", "accounts", "prices", "printers"}, s.Metric["lockpool_lock_name"])
	}
	require.Empty(t, p.query(t, `lockpool_lock_reentries_total{lockpool_lock_kind="read"}`), "read locks are not entered again here")
}

// states returns the state of each alert.
func (p *scraper) states(t *testing.T) map[string]string {
	type loaded struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError, State string }
		}
	}
	states := map[string]string{}
	for _, rule := range ask[loaded](t, p, "/api/v1/rules", nil).Groups[0].Rules {
		states[rule.Name] = rule.State
		if rule.Health == "err" {
			states[rule.Name] = rule.LastError
		}
	}
	return states
}

// A holder that hangs is told within two minutes, though no wait has ended, and other locks
// with the same metric name are granted.
func TestHungHolderIsTold(t *testing.T) {
	t.Parallel()
	server := zktest.Start(t)
	p := startPrometheus(t, start(t, "-zookeeper", server.Addr()))
	pool, err := lockpool.Open("zookeeper", server.Addr())
	require.NoError(t, err)
	defer pool.Close()
	var name string
	require.Eventually(t, func() bool {
		names, err := pool.List(t.Context(), "")
		require.NoError(t, err)
		i := slices.IndexFunc(names, func(name string) bool { return strings.HasSuffix(name, "/prices") })
		if i >= 0 {
			name = names[i]
		}
		return i >= 0
	}, 30*time.Second, 50*time.Millisecond, "the example locks")
	lock, err := pool.Lock(t.Context(), name)
	require.NoError(t, err)
	isFiring := func() bool { return p.states(t)["LockpoolLockStuck"] == "firing" }
	require.Eventually(t, isFiring, 2*time.Minute, 250*time.Millisecond)
	require.NoError(t, lock.Unlock(t.Context()))
	require.Eventually(t, func() bool { return !isFiring() }, time.Minute, 250*time.Millisecond)
}

func TestEveryAlertHasATest(t *testing.T) {
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

func TestServesOnlyMetrics(t *testing.T) {
	t.Parallel()
	at := freeAddr()
	require.Equal(t, at, start(t, "-addr", at))
	response, err := http.Get("http://" + at)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusNotFound, response.StatusCode)

	p := exampletest.New(t, "-addr", at)
	require.NoError(t, p.Start())
	p.RequireExit(t, 1)
	require.Regexp(t, `^metrics: listen tcp .+: address already in use\n$`, p.Stderr)
}

func TestMisuseIsAClearError(t *testing.T) {
	t.Parallel()
	exampletest.RequireErrors(t, "usage: metrics [-addr HOST:PORT] [-zookeeper HOST:PORT]", []exampletest.Misuse{
		{Name: "an argument", Args: []string{"127.0.0.1:9464"}, Code: 2, Error: `unexpected argument "127.0.0.1:9464"`},
		{Name: "an unknown flag", Args: []string{"-port", "9464"}, Code: 2, Error: "not defined: -port"},
		{Name: "no port", Args: []string{"-addr", "127.0.0.1"}, Code: 2, Error: "not an ip:port"},
		{Name: "not a loopback address", Args: []string{"-addr", "0.0.0.0:9464"}, Code: 2, Error: "not a loopback address"},
		{Name: "a path", Args: []string{"-zookeeper", "127.0.0.1:2181/locks"}, Code: 2, Error: "not of the form HOST:PORT"},
		{Name: "no server", Args: []string{"-zookeeper", "127.0.0.1:1"}, Code: 1, Error: "connection refused", Logs: true},
	})
}
