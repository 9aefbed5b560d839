package main

// This file has the HTTP server and the parameters of requests.

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"mime"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lockpool/lockpool/testing/zktest"
)

// control is the HTTP control interface of a server.
type control struct {
	server *zktest.Server
	url    string
	log    *slog.Logger

	mu     sync.Mutex
	faults []*fault
}

func newControl(s *zktest.Server, url string, log *slog.Logger) *control {
	return &control{server: s, url: url, log: log}
}

// httpServer returns an HTTP server whose requests end with ctx.
func (c *control) httpServer(ctx context.Context) *http.Server {
	return &http.Server{
		Handler:           c,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: 10 * time.Second,
	}
}

// status is an error with an HTTP status code.
type status struct {
	code int
	error
}

func failure(code int, format string, args ...any) error {
	return status{code, fmt.Errorf(format, args...)}
}

// ServeHTTP carries out a command. First all parameters are checked, so that a request with
// an error changes nothing.
func (c *control) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	result, err := c.serve(w, r)
	c.log.Info("control", "method", r.Method, "command", r.URL.Path, "parameters", r.Form.Encode(), "error", err)
	switch {
	case err != nil:
		code := http.StatusConflict // the server refuses: not in its present state
		if s := (status{}); errors.As(err, &s) {
			code = s.code
		}
		http.Error(w, err.Error(), code)
	case result == nil:
		w.WriteHeader(http.StatusNoContent)
	default:
		if text, ok := result.(string); ok {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			_, _ = w.Write([]byte(text)) // an error ends the connection
			return
		}
		w.Header().Set("Content-Type", "application/json")
		e := json.NewEncoder(w)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		_ = e.Encode(result) // as above
	}
}

func (c *control) serve(w http.ResponseWriter, r *http.Request) (any, error) {
	if err := parseForm(w, r); err != nil {
		return nil, err
	}
	all := commands()
	i := slices.IndexFunc(all, func(cmd command) bool { return cmd.path == r.URL.Path })
	if i < 0 {
		return nil, failure(http.StatusNotFound, "there is no command %s: GET / lists the commands", r.URL.Path)
	}
	cmd := all[i]
	if r.Method != cmd.method {
		w.Header().Set("Allow", cmd.method)
		return nil, failure(http.StatusMethodNotAllowed, "%s needs the method %s", cmd.path, cmd.method)
	}
	args := &arguments{control: c, values: r.Form, known: map[string]bool{}}
	act := cmd.prepare(c, args)
	for _, name := range slices.Sorted(maps.Keys(r.Form)) {
		if !args.known[name] {
			return nil, failure(http.StatusBadRequest, "%s has no parameter %q: its parameters are: %s", cmd.path, name, cmp.Or(cmd.params, "none"))
		}
	}
	if args.err != nil {
		return nil, args.err
	}
	return act(r.Context())
}

// parseForm reads the parameters of a request. It refuses a body other than a form, because
// parameters there would be ignored.
func parseForm(w http.ResponseWriter, r *http.Request) error {
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); r.ContentLength != 0 && kind != "application/x-www-form-urlencoded" {
		return failure(http.StatusUnsupportedMediaType, "the body is not a form: put the parameters into the URL, or send them as application/x-www-form-urlencoded (curl -d)")
	}
	r.Body = http.MaxBytesReader(w, r.Body, 64<<10)
	if err := r.ParseForm(); err != nil {
		return failure(http.StatusBadRequest, "the parameters cannot be read: %w", err)
	}
	return nil
}

// arguments are the parameters of one request. Reading a wrong parameter sets err, unless
// an earlier one was wrong already.
type arguments struct {
	control *control
	values  url.Values
	known   map[string]bool // the parameters read by the command
	err     error
}

func (a *arguments) fail(code int, format string, args ...any) {
	if a.err == nil {
		a.err = failure(code, format, args...)
	}
}

// list returns the values of a parameter, repeated or with commas.
func (a *arguments) list(name string) (values []string) {
	a.known[name] = true
	for _, value := range a.values[name] {
		values = append(values, strings.Split(value, ",")...)
	}
	return values
}

// has reports whether there is such a parameter.
func (a *arguments) has(name string) bool { return a.values.Has(name) }

// require makes the absence of a parameter an error.
func (a *arguments) require(name string) {
	a.known[name] = true
	if !a.has(name) {
		a.fail(http.StatusBadRequest, "the parameter %q is missing", name)
	}
}

// text returns the value of a parameter, given once.
func (a *arguments) text(name string) string {
	a.known[name] = true
	if len(a.values[name]) > 1 {
		a.fail(http.StatusBadRequest, "the parameter %q is given %d times", name, len(a.values[name]))
	}
	return a.values.Get(name)
}

// path returns the path of a node, or "" if there is no such parameter.
func (a *arguments) path(name string) string {
	path := a.text(name)
	if a.has(name) && !strings.HasPrefix(path, "/") {
		a.fail(http.StatusBadRequest, "%s=%s: a path begins with /", name, path)
	}
	return path
}

// duration returns a duration of zero or more, or absent if there is no such parameter.
func (a *arguments) duration(name string, absent time.Duration) time.Duration {
	text := a.text(name)
	if !a.has(name) {
		return absent
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		a.fail(http.StatusBadRequest, "%s=%s: a duration is written like 500ms, 2s or 1m30s", name, text)
	}
	return d
}

// integer returns a number between least and most, or absent if there is no such
// parameter.
func (a *arguments) integer(name string, absent, least, most int) int {
	text := a.text(name)
	if !a.has(name) {
		return absent
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		a.fail(http.StatusBadRequest, "%s=%s: a number from %d to %d is expected", name, text, least, most)
	}
	return n
}

// session returns the id of an existing session, or 0 if there is no such
// parameter. Clients print ids as hexadecimal numbers, with 0x or without, or as
// signed decimal ones.
func (a *arguments) session(name string) int64 {
	text := a.text(name)
	if !a.has(name) {
		return 0
	}
	var candidates []int64
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		candidates = append(candidates, n)
	}
	if n, err := strconv.ParseUint(strings.TrimPrefix(text, "0x"), 16, 64); err == nil {
		candidates = append(candidates, int64(n))
	}
	if len(candidates) == 0 {
		a.fail(http.StatusBadRequest, "%s=%s: the id of a session is a number, such as 0x100012ab", name, text)
		return 0
	}
	for _, ss := range a.control.server.State().Sessions {
		if slices.Contains(candidates, ss.ID) {
			return ss.ID
		}
	}
	a.fail(http.StatusNotFound, "there is no session %s: GET /sessions lists the sessions", text)
	return 0
}

// member returns the number of an existing member, or 0 if there is no such
// parameter.
func (a *arguments) member(name string) int {
	n := a.integer(name, 0, 1, 1<<31)
	a.memberExists(n)
	return n
}

// members returns the numbers of existing members.
func (a *arguments) members(name string) (numbers []int) {
	for _, text := range a.list(name) {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			a.fail(http.StatusBadRequest, "%s=%s: members are numbered from 1", name, text)
		}
		a.memberExists(n)
		numbers = append(numbers, n)
	}
	return numbers
}

func (a *arguments) memberExists(n int) {
	if count := len(a.control.server.Members()); n > count {
		a.fail(http.StatusNotFound, "there is no member %d: the number of members is %d", n, count)
	}
}

// selectorParams describes the parameters of selector.
const selectorParams = "[conn=NUMBER] [member=NUMBER] [session=ID]"

// selector returns the selection of connections: without parameters, all.
func (a *arguments) selector() zktest.Selector {
	sel := zktest.Selector{Conn: a.integer("conn", 0, 1, 1<<31), Member: a.member("member"), Session: a.session("session")}
	if sel.Conn != 0 && !slices.ContainsFunc(a.control.server.State().Conns, func(c zktest.Conn) bool { return c.Number == sel.Conn }) {
		a.fail(http.StatusNotFound, "there is no connection %d: GET /connections lists the connections", sel.Conn)
	}
	return sel
}

// connected returns a selection of at least one connection.
func (a *arguments) connected() zktest.Selector {
	sel := a.selector()
	if a.err == nil && !slices.ContainsFunc(a.control.server.State().Conns, func(c zktest.Conn) bool {
		return (sel.Conn == 0 || sel.Conn == c.Number) && (sel.Member == 0 || sel.Member == c.Member) && (sel.Session == 0 || sel.Session == c.Session)
	}) {
		a.fail(http.StatusNotFound, "there is no such connection: GET /connections lists the connections")
	}
	return sel
}

// fault returns the injected fault with the number in the parameter "fault".
func (a *arguments) fault() *fault {
	a.require("fault")
	n := a.integer("fault", 0, 1, 1<<31)
	a.control.mu.Lock()
	defer a.control.mu.Unlock()
	if n > len(a.control.faults) {
		a.fail(http.StatusNotFound, "there is no fault %d: GET /faults lists the faults", n)
	}
	if a.err != nil {
		return nil
	}
	return a.control.faults[n-1]
}
