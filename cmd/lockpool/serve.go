package main

// This file has the command serve: where it listens, and for whom.

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/net/netutil"
)

// serving is the flags of lockpool serve.
type serving struct {
	listen, tokenFile, cert, key, trace string
	hosts                               []string
	behindProxy, changes                bool
}

func serveCommand(c *connection) *cobra.Command {
	var f serving
	cmd := &cobra.Command{
		Use:   "serve [PREFIX]",
		Short: "Show contention live on a web page",
		Long: `Serve shows on a web page the locks that have a holder or a waiter, all or those below
PREFIX, by the sum of the waits, who waits for whom, and the last hour of each lock, as
far as a browser was looking. It looks as often as lockpool top, while a browser does.

Without a token, every user of this machine can open the page. On an address of others
than this machine, serve demands a token, in a file or in LOCKPOOL_SERVE_TOKEN, and TLS.`,
		Example:           "  lockpool serve\n  lockpool serve --listen 10.0.0.5:7433 --token-file token --tls-listen-cert cert.pem --tls-listen-key key.pem",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: c.complete,
		RunE:              classified(func(cmd *cobra.Command, args []string) error { return f.run(c, cmd, strings.Join(args, "")) }),
	}
	flags := cmd.Flags()
	flags.StringVar(&f.listen, "listen", "127.0.0.1:7433", "`address` to listen on")
	flags.StringArrayVar(&f.hosts, "host", nil, "another `name` by which browsers may ask for the page")
	flags.BoolVar(&f.changes, "allow-changes", false, "let browsers revoke and break locks")
	flags.StringVar(&f.trace, "trace-url", "", "`URL` of a trace, such as http://127.0.0.1:16686/trace/{trace}")
	flags.StringVar(&f.cert, "tls-listen-cert", "", "PEM `file` of the page's certificate")
	flags.StringVar(&f.key, "tls-listen-key", "", "PEM `file` of its private key")
	flags.BoolVar(&f.behindProxy, "behind-proxy", false, "TLS ends in a proxy in front, which passes the Host header on")
	flags.StringVar(&f.tokenFile, "token-file", "", "`file` with the token that browsers must know (default $LOCKPOOL_SERVE_TOKEN)")
	return cmd
}

// run serves until a signal.
func (f *serving) run(c *connection, cmd *cobra.Command, prefix string) error {
	s, err := f.site()
	if err != nil {
		return &failure{misuse, err}
	}
	pool, err := c.visit()
	if err != nil {
		return err
	}
	s.hub, s.log = newHub(pool, prefix, f.trace), cmd.ErrOrStderr()
	defer s.hub.close()
	if <-s.look(); s.latest.err != nil {
		return s.latest.err
	}
	listener, err := net.Listen("tcp", f.listen)
	if err != nil {
		return fmt.Errorf("%w; choose another address with --listen", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	server := &http.Server{
		Handler: s, ErrorLog: log.New(io.Discard, "", 0), // of clients' mistakes
		BaseContext: func(net.Listener) context.Context { return ctx },
		ReadTimeout: browserPatience, WriteTimeout: 3 * browserPatience, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}
	scheme, serve, ended := "http", server.Serve, make(chan error, 1)
	if f.cert != "" {
		scheme, serve = "https", func(l net.Listener) error { return server.ServeTLS(l, f.cert, f.key) }
	}
	go func() { ended <- serve(netutil.LimitListener(listener, 4*maxBrowsers)) }() // ends with the server
	if _, err = fmt.Fprintf(cmd.OutOrStdout(), "%s://%s/\n", scheme, listener.Addr()); err == nil {
		select {
		case err = <-ended:
		case <-ctx.Done():
			grace, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_ = server.Shutdown(grace) // what is left is closed
		}
	}
	return errors.Join(err, server.Close())
}

// site returns the site for the flags, without a hub. Errors do not repeat the token.
func (f *serving) site() (*site, error) {
	host, _, err := net.SplitHostPort(f.listen)
	if err != nil {
		return nil, fmt.Errorf("--listen: %w; use an address such as 127.0.0.1:7433", err)
	}
	addr, _ := netip.ParseAddr(host)
	private := (host == "localhost" || addr.IsLoopback()) && !f.behindProxy
	s := &site{changes: f.changes, secure: f.behindProxy || f.cert != "", secret: rand.Text(), seats: make(chan struct{}, maxBrowsers)}
	s.hosts = append([]string{"localhost", "127.0.0.1", "::1"}, strings.Fields(strings.ToLower(strings.Join(f.hosts, " ")))...)
	if host != "" && !addr.IsUnspecified() {
		s.hosts = append(s.hosts, host)
	}
	s.token = os.Getenv("LOCKPOOL_SERVE_TOKEN")
	if f.tokenFile != "" {
		text, err := os.ReadFile(f.tokenFile)
		if err != nil {
			return nil, fmt.Errorf("--token-file: %w", err)
		}
		s.token = strings.TrimSpace(string(text))
	}
	u, err := url.Parse(f.trace)
	switch {
	case (f.cert == "") != (f.key == ""):
		return nil, errors.New("--tls-listen-cert and --tls-listen-key are given together, or not at all")
	case len(s.hosts) == 3 && !private:
		return nil, fmt.Errorf("--listen %s does not say how browsers call this machine; give that name with --host", f.listen)
	case !private && !s.secure:
		return nil, fmt.Errorf("--listen %s is not only for this machine; give --tls-listen-cert and --tls-listen-key, or --behind-proxy", f.listen)
	case (s.token != "" || f.tokenFile != "") && len(s.token) < 16:
		return nil, errors.New("the token has less than 16 characters; make one with openssl rand -hex 16")
	case !private && s.token == "":
		return nil, errors.New("others than this machine can open the page; give --token-file or LOCKPOOL_SERVE_TOKEN")
	case f.trace != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || !strings.Contains(f.trace, "{trace}")):
		return nil, fmt.Errorf("--trace-url %s cannot be used; give one such as http://127.0.0.1:16686/trace/{trace}", quoted(f.trace))
	}
	return s, nil
}
