package zookeeper

// This file has tests of connect strings and configurations.

import (
	"cmp"
	"crypto/tls"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"
)

func TestConnectStringIsParsed(t *testing.T) {
	t.Parallel()
	for dsn, want := range map[string]Config{
		"localhost":                   {Servers: []string{"localhost:2181"}},
		"zk-1.example:2182,zk_2/a/b":  {Servers: []string{"zk-1.example:2182", "zk_2:2181"}, Chroot: "/a/b"},
		"10.0.0.1:1/":                 {Servers: []string{"10.0.0.1:1"}},
		"[::1]:2181,[fe80::1]/x":      {Servers: []string{"[::1]:2181", "[fe80::1]:2181"}, Chroot: "/x"},
		"h/c?session_timeout=10s":     {Servers: []string{"h:2181"}, Chroot: "/c", SessionTimeout: 10 * time.Second},
		"h?max_packet=4096&":          {Servers: []string{"h:2181"}, MaxPacket: 4096},
		"h?digest=me:p%26w:d%3D+%25x": {Servers: []string{"h:2181"}, Digest: Digest{"me", "p&w:d=+%x"}},
	} {
		got, err := ParseDSN(dsn)
		require.NoError(t, err, dsn)
		require.Equal(t, want.Servers, got.Servers, dsn)
		require.Equal(t, want.Chroot, got.Chroot, dsn)
		require.Equal(t, want.Digest, got.Digest, dsn)
		require.Equal(t, cmp.Or(want.SessionTimeout, DefaultSessionTimeout), got.SessionTimeout, dsn)
		require.Equal(t, cmp.Or(want.MaxPacket, DefaultMaxPacket), got.MaxPacket, dsn)
		wantACL := zk.WorldACL(zk.PermAll)
		if want.Digest != (Digest{}) {
			wantACL = zk.AuthACL(zk.PermAll)
		}
		require.Equal(t, wantACL, got.ACL, dsn)
	}
}

func TestErrorOfAMalformedConnectStringNamesThePart(t *testing.T) {
	t.Parallel()
	for dsn, complaint := range map[string]string{
		"":                         `malformed host ""`,
		"/chroot":                  `malformed host ""`,
		"a,,b":                     `malformed host ""`,
		"a,":                       `malformed host ""`,
		"a:":                       `malformed host "a:"`,
		":2181":                    `malformed host ":2181"`,
		"a:0":                      `malformed host "a:0"`,
		"a:65536":                  `malformed host "a:65536"`,
		"a:b":                      `malformed host "a:b"`,
		"a b:1":                    `malformed host "a b:1"`,
		"a, b":                     `malformed host " b"`,
		"[::1:2181":                `malformed host "[::1:2181"`,
		"[a]:1":                    `malformed host "[a]:1"`,
		"[1.2.3.4]:1":              `malformed host "[1.2.3.4]:1"`,
		"fe80::1::2:2181":          `malformed host`,
		"zk://a":                   `"zk://"`,
		"a//b":                     `chroot "//b"`,
		"a/b//c":                   `chroot "/b//c"`,
		"a/../b":                   `chroot "/../b"`,
		"a/locks,b/locks":          `the chroot is given once`,
		"a:1/b,c:1":                `the chroot is given once`,
		"a/b\x01":                  `control character`,
		"a?sesion_timeout=1s":      `unknown parameter "sesion_timeout"`,
		"a?session_timeout=10":     `session_timeout "10"`,
		"a?session_timeout=-1s":    `session_timeout "-1s"`,
		"a?session_timeout=1us":    `session timeout`,
		"a?session_timeout":        `session_timeout ""`,
		"a?session_timeout=99999h": `session timeout`,
		"a?session_timeout=1s&session_timeout=2s": `"session_timeout" is given twice`,
		"a?max_packet=x":        `max_packet "x"`,
		"a?max_packet=1":        `max packet of 1 bytes`,
		"a?digest=s3cret":       "user:password",
		"a?digest=:s3cret":      "both a user",
		"a?digest=me:":          "both a user",
		"::1":                   "[address]",
		"::1:2181":              "[address]",
		"a:1 ,b":                "white space",
		"a?digest=me:s3cret%zz": `"digest" is not properly percent-encoded`,
		"me:s3cret@a":           "?digest=user:password",
		"a?dijest=me:s3cret":    `unknown parameter "dijest"`,

		"a?digest=me:p&s3cret":                 "write & as %26",
		"a?digest=me:p&s3cret=1":               "write & as %26",
		"a?digest=me:p&layout=s3cret":          "write & as %26",
		"a?layout=x?digest=me:s3cret":          `unknown layout "x..."`,
		"a?session_timeout=1?digest=me:s3cret": `session_timeout "1..."`,
		"a?x?digest=me:s3cret":                 `unknown parameter "x..."`,
		"a&digest=me:s3cret":                   `without a "?"`,
		"a/b&digest=me:s3cret":                 `without a "?"`,
		"me:x?s3cret@a":                        "?digest=user:password",
		"a?s3cret":                             "name=value",
	} {
		_, err := ParseDSN(dsn)
		require.ErrorContains(t, err, complaint, dsn)
		require.NotContains(t, err.Error(), "s3cret", dsn)
	}
}

// No error repeats three characters of a password, whatever its characters and its
// place in the connect string.
func TestErrorsRepeatNoPartOfAPassword(t *testing.T) {
	t.Parallel()
	const alphabet = `QXZJ79&&&???===:/@,;+#%%%\"' .`
	forms := []string{
		"h?digest=u:%", "h/c?digest=u:%&layout=kazoo", "h?layout=kazoo&digest=u:%&session_timeout=1s", "h?digest=%", "h?digest=:%",
		"h?layout=kazoo?digest=u:%", "h?session_timeout=1s?digest=u:%", "h?max_packet=4096?digest=u:%", "h?x?digest=u:%",
		"h&digest=u:%", "h/c&digest=u:%", "h:2181digest=u:%", "u:%@h", "u:%@h/c?layout=kazoo", "zk://u:%@h", "h?u:%@h", "h?u:%", "h?u=u:%", "h?dijest=u:%",
		"h?digest=u:%&layout=%", "h?digest=u:p&layout=%", "h?digest=u:p&session_timeout=%", "h?digest=u:p&max_packet=%", "h?digest=u:p&digest=%",
	}
	for range 20_000 {
		password := make([]byte, 4+rand.N(8))
		for i := range password {
			password[i] = alphabet[rand.N(len(alphabet))]
		}
		form := forms[rand.N(len(forms))]
		dsn := strings.ReplaceAll(form, "%", string(password))
		if _, err := ParseDSN(dsn); err != nil {
			for i := range len(password) - 2 {
				if part := string(password[i : i+3]); strings.ContainsAny(part, "QXZJ79") {
					require.NotContains(t, err.Error(), part, dsn)
				}
			}
		}
	}
}

func TestConfigIsCheckedAndCopied(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{
		{},
		{Servers: []string{"me:s3cret@host"}},
		{Servers: []string{"a"}, Chroot: "x"},
		{Servers: []string{"a"}, SessionTimeout: -1},
		{Servers: []string{"a"}, MaxPacket: -1},
		{Servers: []string{"a"}, Digest: Digest{Password: "s3cret"}},
		{Servers: []string{"a"}, Digest: Digest{User: "me"}},
		{Servers: []string{"a"}, Digest: Digest{User: "a:b", Password: "s3cret"}},
	} {
		_, err := NewConnector(cfg)
		require.Error(t, err)
		require.NotContains(t, err.Error(), "s3cret")
	}
	cfg := Config{Servers: []string{"a"}, TLS: &tls.Config{ServerName: "x"}}
	c, err := NewConnector(cfg)
	require.NoError(t, err)
	require.Equal(t, "a", cfg.Servers[0])
	cfg.TLS.ServerName = "y"
	require.Equal(t, "x", c.tls().ServerName)
}
