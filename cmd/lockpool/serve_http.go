package main

// This file has the HTTP side of serve: who is let in, and the pages.

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

//go:embed web
var web embed.FS

var pages = template.Must(template.New("").Option("missingkey=zero").ParseFS(web, "web/*.html"))

// A browser that takes longer to send a request, or to read what is sent, is dropped.
const (
	browserPatience = 10 * time.Second
	maxBrowsers     = 64 // that look at a time
)

// site is the web site of lockpool serve.
type site struct {
	*hub
	listen, cert, key, tokenFile, traceURL string
	hosts                                  []string // that browsers may ask for
	changes, behindProxy                   bool

	secure bool          // browsers speak TLS
	token  string        // empty if every user of this machine is let in
	secret string        // of this process
	seats  chan struct{} // one for each browser that looks
	log    io.Writer     // of changes
}

// routes are the known paths. Those that are open need no token.
var routes = map[string]struct {
	method string
	open   bool
	serve  func(s *site, w http.ResponseWriter, r *http.Request)
}{
	"/":            {http.MethodGet, false, (*site).page},
	"/events":      {http.MethodGet, false, (*site).events},
	"/api/locks":   {http.MethodGet, false, (*site).api},
	"/change":      {http.MethodPost, false, (*site).change},
	"/login":       {http.MethodPost, true, func(s *site, w http.ResponseWriter, r *http.Request) { s.admit(w, r, r.PostFormValue("token")) }},
	"/serve.css":   {http.MethodGet, true, asset},
	"/serve.js":    {http.MethodGet, true, asset},
	"/favicon.ico": {http.MethodGet, true, func(_ *site, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }},
}

// headers forbid browsers everything but the site's own script, style and requests. Trusted
// types forbid scripts to make markup of text.
var headers = map[string]string{
	"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; form-action 'self'; " +
		"base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
	"X-Content-Type-Options":       "nosniff",
	"Referrer-Policy":              "same-origin", // with no-referrer, the form that asks for the token has no Origin
	"Cache-Control":                "no-store",
	"Cross-Origin-Opener-Policy":   "same-origin",
	"Cross-Origin-Resource-Policy": "same-origin",
}

// ServeHTTP implements http.Handler: it lets in known requests of known browsers only.
func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for name, value := range headers {
		w.Header().Set(name, value)
	}
	r.Body = http.MaxBytesReader(w, r.Body, 16<<10)
	route, known := routes[r.URL.Path]
	switch {
	case !slices.Contains(s.hosts, strings.ToLower((&url.URL{Host: r.Host}).Hostname())): // perhaps another site's name for this machine
		http.Error(w, "This is not a name of the page; give it to lockpool serve with --host.", http.StatusMisdirectedRequest)
	case !s.isFromHere(r):
		http.Error(w, "This request comes from another site.", http.StatusForbidden)
	case !known || !s.covers(r.URL.Query().Get("lock")):
		http.NotFound(w, r)
	case r.Method != route.method:
		w.Header().Set("Allow", route.method)
		http.Error(w, "Use "+route.method+".", http.StatusMethodNotAllowed)
	case r.URL.Path == "/" && r.URL.Query().Has("token"):
		s.admit(w, r, r.URL.Query().Get("token"))
	case !route.open && !s.isAdmitted(r):
		s.refuse(w)
	default:
		route.serve(s, w, r)
	}
}

// isFromHere reports whether a request comes from the site's own pages or, except for changes,
// from a program or, to a page, from a link.
func (s *site) isFromHere(r *http.Request) bool {
	ours := "http://" + r.Host
	if s.secure {
		ours = "https://" + r.Host
	}
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	if origin, isSet := r.Header["Origin"]; isSet && !slices.Equal(origin, []string{ours}) || !isSet && !reads {
		return false
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
		return true
	}
	return reads && r.URL.Path == "/" && r.Header.Get("Sec-Fetch-Mode") == "navigate"
}

// derived returns a text for a purpose that only this process can make.
func (s *site) derived(purpose string) string {
	mac := hmac.New(sha256.New, []byte(s.secret))
	_, _ = io.WriteString(mac, purpose) // never fails
	return fmt.Sprintf("%x", mac.Sum(nil))
}

// same compares secrets in a time that tells nothing about them.
func (s *site) same(a, b string) bool { return hmac.Equal([]byte(s.derived(a)), []byte(s.derived(b))) }

func (s *site) isAdmitted(r *http.Request) bool {
	bearer, isBearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	cookie, err := r.Cookie("lockpool")
	return s.token == "" || isBearer && s.same(bearer, s.token) || err == nil && s.same(cookie.Value, s.derived("cookie"))
}

// admit gives a browser that knows the token a cookie, and sends it on to an address without
// the token.
func (s *site) admit(w http.ResponseWriter, r *http.Request, token string) {
	if s.token != "" && !s.same(token, s.token) {
		s.refuse(w)
		return
	}
	http.SetCookie(w, &http.Cookie{
		Name: "lockpool", Value: s.derived("cookie"), Path: "/", HttpOnly: true, Secure: s.secure, SameSite: http.SameSiteStrictMode,
	})
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// refuse asks for the token.
func (s *site) refuse(w http.ResponseWriter) {
	w.Header().Set("WWW-Authenticate", "Bearer")
	w.WriteHeader(http.StatusUnauthorized)
	_ = pages.ExecuteTemplate(w, "login.html", nil) // fails if the browser has gone
}

func asset(_ *site, w http.ResponseWriter, r *http.Request) {
	http.ServeFileFS(w, r, web, "web"+r.URL.Path)
}

// page shows the list or a lock.
func (s *site) page(w http.ResponseWriter, r *http.Request) {
	<-s.look()
	lock, change := r.URL.Query().Get("lock"), ""
	if s.changes {
		change = s.derived("change")
	}
	_ = pages.ExecuteTemplate(w, "page.html", struct { // fails if the browser has gone
		view
		Lock, Events, Change string
		Blank                row
	}{s.view(lock, time.Now()), lock, "/events?lock=" + url.QueryEscape(lock), change, row{}})
}

// events sends the page as JSON, again and again: a lock at most four times a second, the list
// once. Nothing is queued for a browser: each gets the newest state, or is dropped.
func (s *site) events(w http.ResponseWriter, r *http.Request) {
	lock, pause := r.URL.Query().Get("lock"), time.Second/4
	if lock == "" {
		pause = time.Second
	}
	select {
	case s.seats <- struct{}{}:
		defer func() { <-s.seats }()
	default:
		http.Error(w, fmt.Sprintf("%d browsers look already; close one.", maxBrowsers), http.StatusServiceUnavailable)
		return
	}
	if lock != "" {
		s.follow(r.Context(), lock)
	}
	w.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // which would end the request
	var last []byte
	for r.Context().Err() == nil {
		s.look()
		text, changed := s.update(lock, time.Now())
		if !bytes.Equal(text, last) {
			_ = control.SetWriteDeadline(time.Now().Add(browserPatience)) // every server can
			if _, err := fmt.Fprintf(w, "data: %s\n\n", text); err != nil || control.Flush() != nil {
				return
			}
			_ = control.SetWriteDeadline(time.Time{}) // which would end a stream of HTTP/2
			last = text
		}
		sleep(r.Context(), pause)
		select {
		case <-r.Context().Done():
		case <-changed:
		case <-time.After(time.Second - pause): // durations have grown
		}
	}
}

// api shows the locks, and who waits for whom, as ls and waits do.
func (s *site) api(w http.ResponseWriter, _ *http.Request) {
	<-s.look()
	s.mu.Lock()
	latest := s.latest
	s.mu.Unlock()
	if latest.err != nil {
		http.Error(w, oneLine(latest.err), http.StatusBadGateway)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = printJSON(w, struct { // fails if the client has gone
		Seen  time.Time  `json:"seen"`
		Locks []lockJSON `json:"locks"`
		waitsJSON
	}{latest.began.UTC(), locksOf(latest.graph.Queues), waitsOf(latest.graph)})
}

// change revokes or breaks a lock. The token in the header is on the site's pages only.
func (s *site) change(w http.ResponseWriter, r *http.Request) {
	d, known := map[string]demand{"revoke": revoking, "break": breaking}[r.PostFormValue("do")]
	lock, node := r.PostFormValue("lock"), r.PostFormValue("node")
	switch {
	case !s.changes:
		http.Error(w, "Changes are not allowed; start lockpool serve with --allow-changes.", http.StatusForbidden)
	case !s.same(r.Header.Get("Lockpool-Change"), s.derived("change")):
		http.Error(w, "This page is of another lockpool serve; reload it.", http.StatusForbidden)
	case !known || node == "" || !s.covers(lock):
		http.Error(w, "Give a lock, a node, and revoke or break.", http.StatusBadRequest)
	default:
		targets, err := d.targets(s.pool, lock, []string{node})
		if err == nil {
			err = d.carryOut(s.pool, lock, targets[0])
		}
		if err != nil {
			status := map[bool]int{true: http.StatusConflict, false: http.StatusBadGateway}[errors.As(err, new(notThere))]
			http.Error(w, oneLine(classify(err)), status)
			return
		}
		fmt.Fprintf(s.log, "lockpool: %s, as %s asked\n", d.report(lock, targets[0]), r.RemoteAddr)
		w.Header().Set("Content-Type", "text/plain; charset=utf-8") // no guess: names come first
		fmt.Fprintln(w, d.report(lock, targets[0]))
	}
}
