package etcd

// This file has the tests of configurations.

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver"
)

func TestParseDSN(t *testing.T) {
	for dsn, want := range map[string]Config{
		"host1:2379": {Endpoints: []string{"host1:2379"}, Prefix: "lockpool", TTL: 15 * time.Second},
		"host1:2379,host2:2380/locks/app?ttl=30s": {Endpoints: []string{"host1:2379", "host2:2380"}, Prefix: "locks/app", TTL: 30 * time.Second},
		"[::1]:2379/a?ttl=2s":                     {Endpoints: []string{"[::1]:2379"}, Prefix: "a", TTL: 2 * time.Second},
		"host1,10.0.0.1:2380,[::1]/locks":         {Endpoints: []string{"host1:2379", "10.0.0.1:2380", "[::1]:2379"}, Prefix: "locks", TTL: 15 * time.Second},
	} {
		got, err := ParseDSN(dsn)
		require.NoError(t, err, dsn)
		require.Equal(t, want, got, dsn)
	}
	for dsn, want := range map[string]string{
		"":                              `the endpoint "" is not host or host:port`,
		"/locks":                        `the endpoint "" is not host or host:port`,
		"host:":                         `the endpoint "host:" is not host or host:port`,
		":2379":                         "is not host or host:port",
		"host:0":                        "is not host or host:port",
		"host:99999":                    "is not host or host:port",
		"host:port":                     "is not host or host:port",
		"::1":                           `the endpoint "::1" is not host or host:port`,
		"a:1,":                          `the endpoint "" is not host or host:port`,
		"a:1, b:2":                      `the endpoint " b:2" is not host or host:port`,
		"http://a:2379":                 "without a scheme",
		"user:secret@a:2379":            "no place for credentials",
		"a:2379/":                       "the prefix after the slash is empty",
		"a:2379/b//c":                   "empty part",
		"a:2379/.":                      "cannot be used",
		"a:2379?ttl=1s":                 "from 2s to 5m0s",
		"a:2379?ttl=0s":                 "from 2s to 5m0s",
		"a:2379?ttl=2500ms":             "whole number of seconds",
		"a:2379?ttl=1h":                 "from 2s to 5m0s",
		"a:2379?ttl=soon":               "no duration",
		"a:2379?ttl=2s&ttl=3s":          "more than once",
		"a:2379?ttl=":                   "no duration",
		"a:2379?ttl=15":                 "no duration such as 15s",
		"a:2379?ttl=-5s":                "from 2s to 5m0s",
		"a:2379?timeout=2s":             `unknown parameter "timeout"; there is only ttl`,
		"a:2379?TTL=5s":                 `unknown parameter "TTL"`,
		"a:2379?ttl=5s&x=1":             `unknown parameter "x"`,
		"a:2379?password=secret&user=u": "needs a Config",
		"a:2379?%zz":                    "cannot be parsed",
	} {
		_, err := ParseDSN(dsn)
		require.ErrorContains(t, err, want, dsn)
		require.NotContains(t, err.Error(), "secret")
		_, err = lockpool.Open("etcd", dsn)
		require.ErrorContains(t, err, want, dsn)
	}
}

func TestPasswordIsNotShown(t *testing.T) {
	cfg := Config{Endpoints: []string{"a:2379"}, Username: "user", Password: "secret"}
	c, err := NewConnector(cfg)
	require.NoError(t, err)
	for _, v := range []any{cfg, &cfg, c, *c} {
		for _, format := range []string{"%v", "%+v", "%#v", "%s", "%d", "%x"} {
			require.NotRegexp(t, "secret|736563726574", fmt.Sprintf(format, v), format) // the second in hexadecimal
		}
		data, err := json.Marshal(v)
		require.NoError(t, err)
		require.NotContains(t, string(data), "secret")
	}
	_, err = NewConnector(Config{Endpoints: []string{"a:2379"}, Password: "secret"})
	require.ErrorContains(t, err, "both a name and a password")
	require.NotContains(t, err.Error(), "secret")
}

func TestCheckName(t *testing.T) {
	c, err := NewConnector(Config{Endpoints: []string{"a:2379"}})
	require.NoError(t, err)
	for _, name := range []string{"a", "a/b", "limit", "locks/a", "plain", "plain-1", "a/plain-17", "a/plain", "a/plain/b",
		"0123456789abcdef", "a/202611231200/b", "0123456789abcdef-c86b1f4e-6f3c-4b5c-9d5e-1f2a3b4c5d6e-s", "ä ö", strings.Repeat("a", 512)} {
		require.NoError(t, c.CheckName(name), name)
	}
	for _, name := range []string{
		"", "/a", "a/", "a//b", ".", "a/../b", "a\x00", "a\xff", strings.Repeat("a", 513), "a/locks", "a/leases", "a/limit",
		driver.Waits + "/a", driver.Records, sessions + "/a",
	} {
		require.Error(t, c.CheckName(name), name)
	}
}

// What a name says of a node is what was asked for.
func TestNamesOfNodes(t *testing.T) {
	s := &session{id: 0x1234567890abcdef}
	for _, r := range []driver.Request{{Kind: driver.Exclusive}, {Kind: driver.Shared}, {Kind: driver.Permit, Permits: 3, Limit: 7}, {Kind: driver.Permit, Permits: 1}} {
		name := s.keyName("a", r)
		c := Connector{}
		require.True(t, c.IsContender(name+"@5"), name)
		node, ok := nodeOf(name, &mvccpb.KeyValue{CreateRevision: 5})
		require.True(t, ok)
		require.Equal(t, driver.Node{Name: name + "@5", Kind: r.Kind, Seq: 5, Permits: r.Permits, Limit: r.Limit}, node)
	}
	node, ok := nodeOf("1234567890abcdef", &mvccpb.KeyValue{CreateRevision: 5, Lease: 7}) // of a Mutex
	require.True(t, ok)
	require.Equal(t, driver.Exclusive, node.Kind)
	_, ok = nodeOf("settings", &mvccpb.KeyValue{CreateRevision: 5, Lease: 7})
	require.False(t, ok, "listings of keys alone do not tell the lease")
}
