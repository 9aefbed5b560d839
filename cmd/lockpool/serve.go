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

func serveCommand(c *connection) *cobra.Command {
	s := new(site)
	cmd := &cobra.Command{
		Use:   "serve [PREFIX]",
		Short: "Show contention live on a web page",
		Long: `Serve shows on a web page the locks with a holder or a waiter, all or below PREFIX, the
largest sum of waits first; the graph of waits; and the last hour of each lock, as far as
a browser was looking. Serve looks as often as lockpool top, while a browser does.

Without a token, every user of this machine can open the page. On an address other
than this machine's, serve demands a token, in a file or in LOCKPOOL_SERVE_TOKEN, and TLS.`,
		Example:           "  lockpool serve\n  lockpool serve --listen 10.0.0.5:7433 --token-file token --tls-listen-cert cert.pem --tls-listen-key key.pem",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: c.complete,
		RunE:              classified(func(cmd *cobra.Command, args []string) error { return s.run(c, cmd, strings.Join(args, "")) }),
	}
	flags := cmd.Flags()
	flags.StringVar(&s.listen, "listen", "127.0.0.1:7433", "`address` to listen on")
	flags.StringArrayVar(&s.hosts, "host", nil, "another `name` by which browsers may ask for the page")
	flags.BoolVar(&s.changes, "allow-changes", false, "let browsers revoke and break locks")
	flags.StringVar(&s.traceURL, "trace-url", "", "`URL` of a trace, such as http://127.0.0.1:16686/trace/{trace}")
	flags.StringVar(&s.cert, "tls-listen-cert", "", "PEM `file` of the page's certificate")
	flags.StringVar(&s.key, "tls-listen-key", "", "PEM `file` of its private key")
	flags.BoolVar(&s.behindProxy, "behind-proxy", false, "TLS ends in a proxy in front, which passes the Host header on")
	flags.StringVar(&s.tokenFile, "token-file", "", "`file` with the token that browsers must know (default $LOCKPOOL_SERVE_TOKEN)")
	return cmd
}

// run serves until a signal.
func (s *site) run(c *connection, cmd *cobra.Command, prefix string) error {
	if err := s.check(); err != nil {
		return &failure{misuse, err}
	}
	pool, err := c.visit()
	if err != nil {
		return err
	}
	s.hub, s.log = newHub(c, pool, prefix, s.traceURL), cmd.ErrOrStderr()
	defer s.hub.close()
	if <-s.look(); s.latest.err != nil {
		return s.latest.err
	}
	listener, err := net.Listen("tcp", s.listen)
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
	if s.cert != "" {
		scheme, serve = "https", func(l net.Listener) error { return server.ServeTLS(l, s.cert, s.key) }
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

// check checks the flags and completes the site, without a hub. Errors do not repeat the token.
func (s *site) check() error {
	host, _, err := net.SplitHostPort(s.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w; use an address such as 127.0.0.1:7433", err)
	}
	addr, _ := netip.ParseAddr(host)
	private := (host == "localhost" || addr.IsLoopback()) && !s.behindProxy
	s.secure, s.secret, s.seats = s.behindProxy || s.cert != "", rand.Text(), make(chan struct{}, maxBrowsers)
	s.hosts = append([]string{"localhost", "127.0.0.1", "::1"}, strings.Fields(strings.ToLower(strings.Join(s.hosts, " ")))...)
	if addr.IsValid() {
		host = addr.String() // as browsers write the address
	}
	if host != "" && !addr.IsUnspecified() {
		s.hosts = append(s.hosts, strings.ToLower(host))
	}
	s.token = os.Getenv("LOCKPOOL_SERVE_TOKEN")
	if s.tokenFile != "" {
		text, err := os.ReadFile(s.tokenFile)
		if err != nil {
			return fmt.Errorf("--token-file: %w", err)
		}
		s.token = strings.TrimSpace(string(text))
	}
	u, err := url.Parse(s.traceURL)
	switch {
	case (s.cert == "") != (s.key == ""):
		return errors.New("--tls-listen-cert and --tls-listen-key are given together, or not at all")
	case len(s.hosts) == 3 && !private:
		return fmt.Errorf("--listen %s does not say how browsers call this machine; give that name with --host", s.listen)
	case !private && !s.secure:
		return fmt.Errorf("--listen %s is not only for this machine; give --tls-listen-cert and --tls-listen-key, or --behind-proxy", s.listen)
	case (s.token != "" || s.tokenFile != "") && len(s.token) < 16:
		return errors.New("the token has less than 16 characters; make one with openssl rand -hex 16")
	case !private && s.token == "":
		return errors.New("others than this machine can open the page; give --token-file or LOCKPOOL_SERVE_TOKEN")
	case s.traceURL != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || !strings.Contains(s.traceURL, "{trace}")):
		return fmt.Errorf("--trace-url %s cannot be used; give one such as http://127.0.0.1:16686/trace/{trace}", quoted(s.traceURL))
	}
	return nil
}
