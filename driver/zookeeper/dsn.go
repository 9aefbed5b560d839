package zookeeper

// This file parses connect strings.

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ParseDSN parses ZooKeeper's connect string with parameters:
//
//	host1:2181,host2:2181,[::1]:2181/chroot?session_timeout=10s
//
// Ports default to 2181. A chroot with a comma can only be given in a [Config]. The
// parameters, percent-encoded, are:
//
//	session_timeout  requested from the server; a duration such as 10s (default 15s)
//	layout           curator (default), curator-rw, kazoo or kazoo-rw; see [Layout]
//	max_packet       size of the largest reply accepted, in bytes (default 1048576)
//	digest           user:password for digest authentication
//
// An error names the wrong part, and contains no password.
func ParseDSN(dsn string) (Config, error) {
	address, query, _ := strings.Cut(dsn, "?")
	hosts, chroot, rooted := strings.Cut(address, "/")
	if rooted {
		chroot = "/" + chroot
	}
	// Errors repeat no possible part of a password, even in the wrong place or not
	// percent-encoded.
	if at := strings.Index(dsn, "@"); at >= 0 && (at < len(address) || !strings.Contains(dsn[:at], "digest")) {
		return Config{}, errors.New(`zookeeper: "@" in the connect string: pass credentials as ?digest=user:password`)
	}
	if strings.ContainsAny(hosts, "=&") || strings.Contains(chroot, "digest=") {
		return Config{}, errors.New(`zookeeper: parameters without a "?" before them: host1,host2/chroot?digest=user:password`)
	}
	if scheme, _, ok := strings.Cut(address, "://"); ok {
		return Config{}, fmt.Errorf("zookeeper: the connect string starts with the hosts, without %q", scheme+"://")
	}
	if strings.Contains(chroot, ",") { // another order of the hosts would be another chroot
		return Config{}, errors.New(`zookeeper: the chroot is given once, after the last host: host1:2181,host2:2181/chroot`)
	}
	cfg := Config{Servers: strings.Split(hosts, ","), Chroot: chroot}
	seen := map[string]bool{}
	for parameter := range strings.SplitSeq(query, "&") {
		if parameter == "" {
			continue
		}
		key, err := cfg.parseParameter(parameter, seen)
		if err != nil {
			return Config{}, fmt.Errorf("zookeeper: %w", err)
		}
		seen[key] = true
	}
	return cfg.normalized()
}

// parameters are the names of the parameters of a connect string.
var parameters = []string{"digest", "layout", "max_packet", "session_timeout"}

// parseParameter sets the parameter and returns its name. seen contains the names of the
// earlier parameters.
func (c *Config) parseParameter(parameter string, seen map[string]bool) (key string, err error) {
	key, raw, assigned := strings.Cut(parameter, "=")
	switch known := slices.Contains(parameters, key); {
	case known:
	case seen["digest"]:
		return "", errors.New(`the text after digest is not a parameter: in a password write & as %26 and % as %25`)
	case !assigned:
		return "", errors.New(`a parameter without "=": parameters are of the form name=value&name=value`)
	default:
		return "", fmt.Errorf("unknown parameter %q; known are %s", safeToShow(key), strings.Join(parameters, ", "))
	}
	// PathUnescape, not QueryUnescape: a plus in a password is a plus.
	value, err := url.PathUnescape(raw)
	switch {
	case err != nil:
		return "", fmt.Errorf("parameter %q is not properly percent-encoded", key)
	case seen[key]:
		return "", fmt.Errorf("parameter %q is given twice", key)
	}
	if err := c.set(key, value); err != nil {
		if seen["digest"] { // the value may be the end of a password
			err = fmt.Errorf("the value of %s is not valid; if it belongs to a password, write & as %%26", key)
		}
		return "", err
	}
	return key, nil
}

func (c *Config) set(key, value string) error {
	switch key {
	case "session_timeout":
		d, err := time.ParseDuration(value)
		if err != nil || d <= 0 {
			return fmt.Errorf("session_timeout %q is not a positive duration such as 10s", safeToShow(value))
		}
		c.SessionTimeout = d
	case "layout":
		c.Layout = Layout(value)
		if _, ok := layouts[c.Layout]; !ok && value != "" {
			return unknownLayout(c.Layout)
		}
	case "max_packet":
		n, err := strconv.Atoi(value)
		if err != nil || n <= 0 {
			return fmt.Errorf("max_packet %q is not a positive number of bytes", safeToShow(value))
		}
		c.MaxPacket = n
	case "digest":
		user, password, ok := strings.Cut(value, ":")
		if !ok {
			return errors.New("digest is not of the form user:password")
		}
		c.Digest = Digest{user, password}
		if user == "" || password == "" {
			return errors.New("digest needs both a user and a password, user:password")
		}
	}
	return nil
}

func unknownLayout(l Layout) error {
	return fmt.Errorf("unknown layout %q; known are curator, curator-rw, kazoo and kazoo-rw", safeToShow(string(l)))
}

// safeToShow returns the beginning of s, as far as it looks like a name or a number. The
// rest may be another parameter, with a secret, not separated properly.
func safeToShow(s string) string {
	end := strings.IndexFunc(s, isNotNameRune)
	if end < 0 {
		return s
	}
	return s[:end] + "..."
}

// isNotNameRune reports whether r cannot be part of a host's name or a parameter.
func isNotNameRune(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '.' || r == '_')
}

const defaultPort = "2181"

// parseServer returns server as host:port, with an IPv6 address in brackets.
func parseServer(server string) (string, error) {
	malformed := func(why string) (string, error) {
		return "", fmt.Errorf("zookeeper: malformed host %q: %s", server, why)
	}
	if strings.Contains(server, "@") {
		// The text before the @ may be a password: do not repeat it.
		return "", errors.New(`zookeeper: malformed host: "@" in it`)
	}
	if strings.ContainsAny(server, " \t\r\n") {
		return malformed("white space in it")
	}
	host, port := server, defaultPort
	if i := strings.LastIndexByte(server, ':'); i > strings.LastIndexByte(server, ']') {
		host, port = server[:i], server[i+1:]
	}
	if strings.Contains(host, ":") && !strings.HasPrefix(host, "[") {
		return malformed("an IPv6 address is written [address] or [address]:port")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return malformed("the port is not a number from 1 to 65535")
	}
	bracketed := strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]")
	if bracketed {
		host = host[1 : len(host)-1]
	}
	if host == "" {
		return malformed("the name is empty")
	}
	switch ip := net.ParseIP(host); {
	case ip != nil && (ip.To4() == nil || !bracketed):
	case bracketed:
		return malformed("the text in brackets is not an IPv6 address")
	case strings.ContainsFunc(host, isNotNameRune):
		return malformed("a name has only letters, digits, dots, hyphens and underscores")
	}
	return net.JoinHostPort(host, port), nil
}
