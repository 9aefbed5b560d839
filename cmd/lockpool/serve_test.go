//go:build unix

package main

// This file tests the command serve without a browser.

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// serve starts lockpool serve, and returns the address of the page.
func (s *shell) serve(args ...string) string {
	s.Helper()
	p := s.start(append([]string{"serve", "--listen", "127.0.0.1:0"}, args...)...)
	s.Until(func() bool { return strings.HasSuffix(p.stdout.String(), "\n") }, "an address")
	return strings.TrimSpace(p.stdout.String())
}

// deadlock makes two processes wait for each other.
func (s *shell) deadlock(conn *zk.Conn) {
	one, two := s.contender(conn, "accounts/1", "transfer", 701), s.contender(conn, "accounts/2", "refund", 802)
	s.contender(conn, "accounts/2", "transfer", 701, "accounts/1", one)
	s.contender(conn, "accounts/1", "refund", 802, "accounts/2", two)
}

// visitor sends requests to a page.
type visitor struct {
	s      *shell
	client *http.Client
	page   string // its address
}

func (s *shell) visitor(page string) *visitor {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	s.Cleanup(transport.CloseIdleConnections)
	return &visitor{s, &http.Client{
		Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, strings.TrimSuffix(page, "/")}
}

// send sends a request with headers (names and values), and returns the answer. The request
// ends with the test, or when the body is closed.
func (v *visitor) send(method, path, form string, headers ...string) *http.Response {
	v.s.Helper()
	r, err := http.NewRequestWithContext(v.s.Ctx, method, v.page+path, strings.NewReader(form))
	require.NoError(v.s, err)
	if form != "" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	r.Host = r.Header.Get("Host")
	answer, err := v.client.Do(r)
	require.NoError(v.s, err)
	v.s.Cleanup(func() { answer.Body.Close() })
	return answer
}

// gets returns the body of an answer with a status.
func (v *visitor) gets(status int, method, path, form string, headers ...string) string {
	v.s.Helper()
	answer := v.send(method, path, form, headers...)
	body, err := io.ReadAll(answer.Body)
	require.NoError(v.s, err)
	require.Equal(v.s, status, answer.StatusCode, "%s %s %s: %s", method, path, headers, body)
	return string(body)
}

// changes returns the headers with which the page's script sends a change.
func (v *visitor) changes(headers ...string) []string {
	v.s.Helper()
	token := regexp.MustCompile(`data-change="(\w*)"`).FindStringSubmatch(v.gets(200, "GET", "/", "", headers...))
	require.NotNil(v.s, token)
	return append(headers, "Origin", v.page, "Lockpool-Change", token[1])
}

func form(do, lock, node string) string {
	return url.Values{"do": {do}, "lock": {lock}, "node": {node}}.Encode()
}

// attack is a request that is not let in, with the status of the answer.
type attack struct {
	status             int
	method, path, form string
	headers            []string
}

// attacks returns attacks by those who may know the token, the cookie, or a change and its
// headers, but not send requests as the page does.
func attacks(v *visitor, token, cookie, change string, headers []string) []attack {
	bearer, node := headers[:2:2], "_c_4d7f0f3c1e2a4b5c8d9e0f1a2b3c4d5e-lock-0000000007"
	with := func(more ...string) []string { return append(bearer, more...) }
	return []attack{
		{421, "GET", "/", "", with("Host", "evil.example")},
		{421, "GET", "/api/locks", "", with("Host", "evil.example:7433")},
		{421, "GET", "/api/locks", "", with("Host", "127.0.0.1.evil.example")},
		{403, "GET", "/api/locks", "", with("Origin", "http://evil.example")},
		{403, "GET", "/api/locks", "", with("Origin", "null")},
		{403, "GET", "/events", "", with("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "cors")},
		{403, "GET", "/api/locks", "", with("Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "navigate")},
		{401, "GET", "/", "", nil},
		{401, "GET", "/?lock=orders/42", "", nil},
		{401, "GET", "/events", "", nil},
		{401, "GET", "/api/locks", "", nil},
		{401, "GET", "/?token=", "", nil},
		{401, "GET", "/?token=wrong", "", nil},
		{401, "GET", "/api/locks?token=" + url.QueryEscape(token), "", nil},
		{401, "GET", "/api/locks", "", []string{"Authorization", "Bearer wrong"}},
		{401, "GET", "/api/locks", "", []string{"Authorization", "Bearer "}},
		{401, "GET", "/api/locks", "", []string{"Authorization", token}},
		{401, "GET", "/api/locks", "", []string{"Cookie", "lockpool=" + url.QueryEscape(token)}},
		{401, "GET", "/api/locks", "", []string{"Cookie", cookie + "0"}},
		{401, "POST", "/login", "token=wrong", []string{"Origin", v.page}},
		{401, "POST", "/login?token=" + url.QueryEscape(token), "x=y", []string{"Origin", v.page}},
		{403, "POST", "/login", "token=" + url.QueryEscape(token), []string{"Origin", "http://evil.example"}},
		{404, "GET", "/page.html", "", bearer},
		{404, "GET", "/web/page.html", "", bearer},
		{404, "GET", "/../serve.go", "", bearer},
		{404, "GET", "/serve.css/../page.html", "", bearer},
		{404, "GET", "/%2e%2e/%2e%2e/etc/passwd", "", bearer},
		{404, "GET", "//events", "", bearer},
		{404, "GET", "/?lock=accounts/1", "", bearer}, // not below the prefix
		{404, "GET", "/events?lock=ordersother", "", bearer},
		{405, "HEAD", "/", "", bearer},
		{405, "POST", "/", "x=y", headers},
		{405, "DELETE", "/api/locks", "", headers},
		{405, "GET", "/change?" + change, "", bearer},
		{403, "OPTIONS", "/api/locks", "", bearer},
		{403, "POST", "/change", change, with("Lockpool-Change", headers[5])},
		{403, "POST", "/change", change, with("Lockpool-Change", headers[5], "Origin", "http://evil.example")},
		{403, "POST", "/change", change, with("Lockpool-Change", headers[5], "Origin", strings.Replace(v.page, "http:", "https:", 1))},
		{403, "POST", "/change", change, append(headers[:6:6], "Sec-Fetch-Site", "cross-site")},
		{403, "POST", "/change", change, with("Origin", v.page)},
		{403, "POST", "/change", change, with("Origin", v.page, "Lockpool-Change", "wrong")},
		{401, "POST", "/change", change, headers[2:]},
		{400, "POST", "/change", form("erase", "orders/42", node), headers},
		{400, "POST", "/change", form("break", "orders/42", ""), headers},
		{400, "POST", "/change", form("break", "accounts/1", node), headers},
		{400, "POST", "/change", change + "&x=" + strings.Repeat("x", 20<<10), headers},
	}
}

func TestServeLetsNobodyElseIn(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	node := s.contender(s.Dial(), "orders/42", "billing", 101)
	const token = "correct horse battery"
	s.env = append(s.env, "LOCKPOOL_SERVE_TOKEN="+token)
	v := s.visitor(s.serve("--allow-changes", "orders"))
	locked := s.visitor(s.serve())
	bearer := []string{"Authorization", "Bearer " + token}
	with := func(more ...string) []string { return append(bearer[:2:2], more...) }

	// What is let in: the attacks below differ in one thing.
	require.Contains(t, v.gets(200, "GET", "/", "", bearer...), "orders/42")
	require.Contains(t, v.gets(200, "GET", "/?lock=orders/42", "", bearer...), "billing")
	change := form("break", "orders/42", node)
	headers := v.changes(bearer...)
	require.Contains(t, v.gets(409, "POST", "/change", form("break", "orders/42", "gone"), headers...), "no holder or waiter with the node gone")
	require.Equal(t, 200, v.send("GET", "/events", "", bearer...).StatusCode)
	admitted := v.send("GET", "/?token="+url.QueryEscape(token), "")
	require.Equal(t, "/", admitted.Header.Get("Location"))
	cookie := admitted.Header.Get("Set-Cookie")
	require.Regexp(t, `^lockpool=\w{64}; Path=/; HttpOnly; SameSite=Strict$`, cookie)
	cookie, _, _ = strings.Cut(cookie, ";")
	require.Contains(t, v.gets(200, "GET", "/api/locks", "", "Cookie", cookie), "orders/42")
	require.Equal(t, 303, v.send("POST", "/login", "token="+url.QueryEscape(token), "Origin", v.page).StatusCode)
	require.Contains(t, v.gets(200, "GET", "/", "", with("Host", "localhost:1", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate")...), "orders/42", "a link")

	for _, attack := range attacks(v, token, cookie, change, headers) {
		body := v.gets(attack.status, attack.method, attack.path, attack.form, attack.headers...)
		require.NotContains(t, body, "billing", attack)
		require.NotContains(t, body, token, attack)
	}
	require.Contains(t, locked.gets(403, "POST", "/change", change, locked.changes(bearer...)...), "start lockpool serve with --allow-changes")
	require.Equal(t, []string{node}, s.Children("orders/42"))
	for name, value := range headersOf(v) {
		require.Equal(t, value, v.send("GET", "/events", "").Header.Get(name), "even on errors")
	}
}

// headersOf are what forbids browsers to do anything else.
func headersOf(v *visitor) map[string]string {
	csp := v.send("GET", "/", "").Header.Get("Content-Security-Policy")
	require.Contains(v.s, csp, "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';")
	require.NotContains(v.s, csp, "unsafe")
	return map[string]string{"Content-Security-Policy": csp, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin", "Cache-Control": "no-store"}
}

func TestServeShowsAndChanges(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	conn := s.Dial()
	s.deadlock(conn)
	_, err := conn.Create(s.Chroot+"/curator", nil, 0, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	s.CreateContenders("curator", 1)
	const hostile = `<script>alert("1")</script>&\u202e`
	const html = `<html><script>"'` + "\u202e"
	s.contender(conn, html, hostile, 303)
	node := s.contender(conn, "<html>", hostile, 303)
	pool := s.Pool()
	lock := s.Lock(pool, "ours")
	traced := s.contender(conn, "ours", "cart", 202)
	_, err = conn.Set(s.Chroot+"/ours/"+traced, []byte(`{"owner":"cart","host":"web2","pid":202,"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}`), -1)
	require.NoError(t, err)
	p := s.start("serve", "--listen", "127.0.0.1:0", "--allow-changes", "--trace-url", "http://traces.example/{trace}")
	s.Until(func() bool { return strings.HasSuffix(p.stdout.String(), "\n") }, "an address")
	v := s.visitor(strings.TrimSpace(p.stdout.String()))

	page := v.gets(200, "GET", "/", "")
	for _, text := range []string{"6 locks, 3 waiters, 1 deadlock", `href="/?lock=curator">curator<`, `href="/?lock=ours">ours<`, "cart, process 202 on web2 waits ",
		`class="deadlock">refund, process 802 on web8 waits 0s for accounts/1, behind transfer, process 701 on web7: deadlock`,
	} {
		require.Contains(t, regexp.MustCompile(`waits \d+s`).ReplaceAllString(page, "waits 0s"), text)
	}
	require.Equal(t, 1, strings.Count(page, "<script"))
	require.NotContains(t, page, "\u202e")
	var api struct {
		lsJSON
		waitsJSON
	}
	require.NoError(t, json.Unmarshal([]byte(v.gets(200, "GET", "/api/locks", "")), &api))
	require.Len(t, api.Locks, 6)
	require.Len(t, api.Deadlocks, 1)
	require.NotContains(t, v.gets(200, "GET", "/?lock="+url.QueryEscape(html), ""), "<script>\"")
	require.Contains(t, v.gets(200, "GET", "/?lock=accounts/2", ""), "main.serve (main.go:57)")
	require.Contains(t, v.gets(200, "GET", "/?lock=ours", ""), `href="http://traces.example/4bf92f3577b34da6a3ce929d0e0e4736"`)
	headers := v.changes()
	broken := v.send("POST", "/change", form("break", "<html>", node), headers...)
	require.Equal(t, "text/plain; charset=utf-8", broken.Header.Get("Content-Type"))
	require.Empty(t, s.Children("<html>"))
	node = s.Children("ours")[0]
	require.Contains(t, v.gets(200, "POST", "/change", form("revoke", "ours", node), headers...), "ours is asked back from ")
	s.AwaitRevocation(lock)
	require.Contains(t, v.gets(200, "POST", "/change", form("break", "ours", node), headers...), "ours is taken from ")
	s.AwaitLoss(lock)
	s.Until(func() bool {
		return strings.Contains(v.gets(200, "GET", "/?lock=ours", ""), "ours: 1 holder, 0 waiters")
	}, "the next holder")
	taken := regexp.MustCompile(`(?m)^lockpool: ours is taken from .*, as 127\.0\.0\.1:\d+ asked$`)
	s.Until(func() bool { return taken.MatchString(p.stderr.String()) }, "who asked is told")
	_ = lock.Unlock(context.Background()) // lost
	p.signal(syscall.SIGTERM)
	require.Zero(t, p.code())
}

// lsJSON is the output of lockpool ls --json.
type lsJSON struct {
	Locks []lockJSON `json:"locks"`
}

func TestServeCommandLine(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	short := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(short, []byte("secret\n"), 0o600))
	for line, says := range map[string]string{
		"--listen 127.0.0.1":                           "use an address such as 127.0.0.1:7433",
		"--listen :0":                                  "give that name with --host",
		"--listen 0.0.0.0:0":                           "give that name with --host",
		"--listen 192.0.2.1:0":                         "or --behind-proxy",
		"--listen 192.0.2.1:0 --behind-proxy":          "LOCKPOOL_SERVE_TOKEN",
		"--behind-proxy":                               "LOCKPOOL_SERVE_TOKEN",
		"--listen [::]:0 --host a --tls-listen-cert x": "given together",
		"--token-file " + short:                        "less than 16 characters",
		"--token-file /nonexistent":                    "no such file",
		"--trace-url javascript:{trace}":               "such as http://127.0.0.1:16686/trace/{trace}",
		"--trace-url http://traces.example/":           "such as http://127.0.0.1:16686/trace/{trace}",
		"a b":                                          "lockpool --help",
		"a//b":                                         "invalid lock name",
	} {
		_, stderr := s.run(118, append([]string{"serve"}, strings.Fields(line)...)...)
		require.Contains(t, stderr, says)
		require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
		require.NotContains(t, stderr, "secret")
	}
	site := &site{listen: "Web1:7433", behindProxy: true, tokenFile: short}
	require.NoError(t, os.WriteFile(short, []byte("correct horse battery\n"), 0o600))
	require.NoError(t, site.check())
	require.Contains(t, site.hosts, "web1")
	_, stderr := s.run(119, "serve", "--listen", s.Addr)
	require.Contains(t, stderr, "choose another address with --listen")
}

// Behind TLS, cookies are for TLS only.
func TestServeSpeaksTLS(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	example := httptest.NewUnstartedServer(nil)
	example.StartTLS()
	defer example.Close()
	key, err := x509.MarshalPKCS8PrivateKey(example.TLS.Certificates[0].PrivateKey)
	require.NoError(t, err)
	dir := t.TempDir()
	for name, der := range map[string][]byte{"CERTIFICATE": example.Certificate().Raw, "PRIVATE KEY": key} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: name, Bytes: der}), 0o600))
	}
	const token = "correct horse battery"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "token"), []byte(token+"\n"), 0o600))
	page := s.serve("--token-file", filepath.Join(dir, "token"), "--tls-listen-cert", filepath.Join(dir, "CERTIFICATE"), "--tls-listen-key", filepath.Join(dir, "PRIVATE KEY"))
	v := s.visitor(page)
	roots := x509.NewCertPool()
	roots.AddCert(example.Certificate())
	v.client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: roots}
	login := v.send("POST", "/login", "token="+url.QueryEscape(token), "Origin", v.page)
	require.Regexp(t, "; Secure;", login.Header.Get("Set-Cookie"))
	require.Equal(t, 303, login.StatusCode)
}

// siteInBubble runs a test with the site on a listener without buffers, so that a browser that does
// not read is seen at once.
func siteInBubble(t *testing.T, test func(t *testing.T, s *shell, server *zktest.Server, h *hub, dial func() net.Conn)) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		site := &site{listen: "127.0.0.1:7433"}
		require.NoError(t, site.check())
		site.hub = newHub(new(connection), b.Pool(lockpool.WithMaxSessions(1)), "", "")
		l := &pipes{make(chan net.Conn), make(chan struct{})}
		web := &http.Server{Handler: site, Protocols: new(http.Protocols)}
		web.Protocols.SetHTTP1(true)
		web.Protocols.SetUnencryptedHTTP2(true)
		go web.Serve(l) // ends with the server
		t.Cleanup(func() {
			require.NoError(t, web.Close())
			synctest.Wait()
			require.Empty(t, site.seats)
			site.close()
		})
		test(t, newShellOn(b), server, site.hub, func() net.Conn {
			ours, theirs := net.Pipe()
			l.conns <- theirs
			t.Cleanup(func() { ours.Close() })
			return ours
		})
	})
}

// pipes is a listener whose connections have no buffers.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// look opens a page of the site, and returns what comes.
func look(t *testing.T, conn net.Conn, lock string) *bufio.Reader {
	_, err := fmt.Fprintf(conn, "GET /events?lock=%s HTTP/1.1\r\nHost: localhost\r\n\r\n", lock)
	require.NoError(t, err)
	return bufio.NewReader(conn)
}

// discard reads until the connection ends.
func discard(r io.Reader) { _, _ = io.Copy(io.Discard, r) }

func TestServeLooksLikeTopAndOnlyForBrowsers(t *testing.T) {
	siteInBubble(t, func(t *testing.T, s *shell, server *zktest.Server, h *hub, dial func() net.Conn) {
		s.contend(s.Dial())
		<-h.look() // reads the costs, once a minute
		time.Sleep(time.Second)
		one := len(locktest.Requests(server, func() { <-h.look() }))
		looks := func() float64 {
			return float64(len(locktest.Requests(server, func() { time.Sleep(time.Minute) }))) / float64(one)
		}
		require.Zero(t, looks())
		var conns []net.Conn
		for range 3 {
			conns = append(conns, dial())
			go discard(look(t, conns[len(conns)-1], "")) // ends with the connection
		}
		require.InDelta(t, 60, looks(), 2)
		synctest.Wait() // for a look under way
		h.mu.Lock()
		h.latest.took = time.Minute // slow servers
		h.mu.Unlock()
		require.Zero(t, looks())
		for _, conn := range conns {
			conn.Close()
		}
		time.Sleep(2 * time.Second)
		require.Zero(t, looks())
	})
}

// A lock that a browser has open is seen to change without a look.
func TestServeFollowsByEvents(t *testing.T) {
	siteInBubble(t, func(t *testing.T, s *shell, server *zktest.Server, h *hub, dial func() net.Conn) {
		conn := s.Dial()
		s.contend(conn)
		<-h.look()
		h.mu.Lock()
		h.latest.took = time.Hour
		h.mu.Unlock()
		browser := dial()
		all := &locktest.Log{}
		go io.Copy(all, look(t, browser, "orders/42")) // ends with the connection
		s.Until(func() bool { return strings.Contains(all.String(), `"Title":"orders/42: 1 holder, 2 waiters"`) }, "the queue")
		require.NoError(t, conn.Delete(s.Chroot+"/orders/42/"+s.Children("orders/42")[0], -1))
		before := time.Now()
		s.Until(func() bool { return strings.Contains(all.String(), `"Title":"orders/42: 1 holder, 1 waiter"`) }, "the next holder")
		require.Less(t, time.Since(before), time.Second)

		go discard(look(t, dial(), "orders/none")) // ends with the connection
		synctest.Wait()
		watched, err := server.Command(s.Ctx, "wchp")
		require.NoError(t, err)
		require.Contains(t, watched, "/orders/42")
		require.NotContains(t, watched, "/orders/none")
	})
}

// Over TLS, browsers use HTTP/2.
func TestQuietPagesStayConnected(t *testing.T) {
	siteInBubble(t, func(t *testing.T, s *shell, _ *zktest.Server, _ *hub, dial func() net.Conn) {
		browser := &http.Transport{
			DialContext: func(context.Context, string, string) (net.Conn, error) { return dial(), nil }, Protocols: new(http.Protocols),
		}
		browser.Protocols.SetUnencryptedHTTP2(true)
		r, err := http.NewRequestWithContext(s.Ctx, "GET", "http://localhost/events", nil)
		require.NoError(t, err)
		answer, err := browser.RoundTrip(r)
		require.NoError(t, err)
		require.Equal(t, 2, answer.ProtoMajor)
		ended := make(chan struct{})
		go func() { // ends with the body
			defer close(ended)
			discard(answer.Body)
		}()
		time.Sleep(5 * browserPatience)
		require.False(t, closed(ended))
		answer.Body.Close()
		<-ended
		browser.CloseIdleConnections()
	})
}

func TestServeIsBounded(t *testing.T) {
	siteInBubble(t, func(t *testing.T, s *shell, server *zktest.Server, h *hub, dial func() net.Conn) {
		s.contend(s.Dial())
		slow := dial()
		first, err := look(t, slow, "").ReadString('\n') // and nothing more
		require.NoError(t, err)
		require.Equal(t, "HTTP/1.1 200 OK\r\n", first)
		for range maxBrowsers - 1 {
			conn := dial()
			go discard(look(t, conn, "orders/42")) // ends with the connection
		}
		synctest.Wait()
		refused := dial()
		line, err := look(t, refused, "").ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "HTTP/1.1 503 Service Unavailable\r\n", line)

		time.Sleep(browserPatience + 2*time.Second)
		next := dial()
		line, err = look(t, next, "").ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "HTTP/1.1 200 OK\r\n", line, "in the place of the slow one")
	})
}

// The server keeps the last hour of the locks that were waited for most.
func TestHistoryIsBounded(t *testing.T) {
	h, begun := lastHour{}, time.Unix(6000, 0)
	queue := func(name string, waiters int, at time.Time) lockpool.Queue {
		q := lockpool.Queue{Name: name, Contenders: []lockpool.Contender{{Holds: true, Asked: at}}}
		for range waiters {
			q.Contenders = append(q.Contenders, lockpool.Contender{Asked: at.Add(-10 * time.Second)})
		}
		return q
	}
	first := survey{began: begun}
	for i := range 3 * maxRemembered {
		first.queues = append(first.queues, queue(fmt.Sprint("quiet ", i), 0, begun))
	}
	first.queues[maxRemembered] = queue("busy", 2, begun)
	h.note(first)
	require.Len(t, h, maxRemembered)
	require.Equal(t, []point{{minute: 100, waiters: 2, seconds: 10}}, h["busy"])
	later := begun.Add(2 * time.Minute)
	h.note(survey{began: later, queues: []lockpool.Queue{queue("busy", 4, later)}})
	path, most := pathOf(h["busy"], later, func(p point) uint32 { return p.waiters })
	require.Equal(t, uint32(4), most)
	require.Equal(t, "M57 10h1M59 1h1", path)
	h.note(survey{began: begun.Add(time.Hour)})
	require.Len(t, h, 1, "the others have been seen before")
	h.note(survey{began: begun.Add(2 * time.Hour)})
	require.Empty(t, h)
}

func TestPageIsOrderedByCostAndBounded(t *testing.T) {
	now := time.Unix(10000, 0)
	h := newHub(nil, nil, "", "")
	add := func(name string, waiters int, each time.Duration) {
		q := lockpool.Queue{Name: name, Contenders: []lockpool.Contender{{Lock: name, Holds: true, Asked: now}}}
		for i := range waiters {
			q.Contenders = append(q.Contenders, lockpool.Contender{Lock: name, Node: fmt.Sprint(i), Asked: now.Add(-each)})
		}
		h.latest.queues = append(h.latest.queues, q)
	}
	for i := range maxRows {
		add(strings.Repeat("n", 500)+fmt.Sprint(i), 0, 0)
	}
	add("many", 10, time.Second)
	add("long", 1, time.Minute)
	add("most", 2*maxContenders, time.Second)
	h.latest.began = now
	v := h.view("", now)
	require.Equal(t, []string{"most", "long", "many"}, []string{v.Locks[0]["name"], v.Locks[1]["name"], v.Locks[2]["name"]})
	require.Equal(t, "6m40s", v.Locks[0]["cost"])
	require.Regexp(t, `^\d+ more are not shown`, v.More)
	text, _ := h.update("", now)
	require.Less(t, len(text), 2*maxRowBytes)
	v = h.view("most", now)
	require.Len(t, v.Contenders, maxContenders)
	require.Equal(t, "201 more wait.", v.More)
}

// A cycle is drawn once, and a long queue by the first two waiters.
func TestDrawing(t *testing.T) {
	party := func(name string, waits bool, behind ...int) lockpool.Party {
		c := lockpool.Contender{Lock: "l", Node: name, Session: name, Holds: !waits}
		if waits {
			return lockpool.Party{Wait: &c, For: behind}
		}
		return lockpool.Party{Holds: []lockpool.Contender{c}}
	}
	s := survey{graph: lockpool.WaitGraph{
		Parties:   []lockpool.Party{party("a", true, 1), party("b", true, 0), party("c", false), party("d", true, 2), party("e", true, 3), party("f", true, 4)},
		Deadlocks: [][]int{{0, 1}},
	}}
	q := lockpool.Queue{Name: "l"}
	for _, p := range s.graph.Parties[2:] {
		if p.Wait != nil {
			p.Holds = append(p.Holds, *p.Wait)
		}
		q.Contenders = append(q.Contenders, p.Holds...)
	}
	s.queues, s.graph.Queues = []lockpool.Queue{q}, []lockpool.Queue{q}
	var v view
	v.draw(s, time.Time{})
	var columns []string
	for _, b := range v.Boxes {
		columns = append(columns, b["who"]+" "+b["x"]+" "+b["class"])
	}
	require.Equal(t, []string{"session a 584 deadlock", "session b 304 deadlock", "session c 24 ", "session d 304 ", "session e 584 "}, columns)
	require.Equal(t, "1 more waiter not drawn.", v.Undrawn)
	require.Len(t, v.Arrows, 4)
}
