package zktest_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// digestUP is the identity of user u with password p, as a server stores it.
const digestUP = "u:Jq7wMyA/w2Vd5WIDAKdu4OIIFEQ=" // base64(sha1("u:p"))

var accessChecks = []check{
	{56, "an auth entry becomes the identities of its creator", shared, func(t *testing.T, s checkEnv) {
		a, b := s.open(t), s.open(t)
		a.must(auth("digest", "u:p"))
		n, m := s.path("n"), s.path("m")
		a.must(create(n, []byte("x"), persistent, acl{permAll, "auth", ""}))
		a.must(create(m, nil, persistent, acl{permRead, "auth", null}))
		require.Equal(t, []acl{{permAll, "digest", digestUP}}, a.must(getACL(n)).ACL)
		require.Equal(t, []acl{{permRead, "digest", "u:x"}}, a.must(getACL(m)).ACL, "the digest requires ADMIN")
		require.Equal(t, []byte("x"), a.must(getData(n, false)).Data)
		for _, r := range []request{
			getData(n, false), getChildren(n, false), getACL(n), setData(n, nil, 0), setACL(n, 0, world...),
			create(n+"/child", nil, persistent), remove(n+"/child", 0),
		} {
			b.fails(errNoAuth, r)
		}
		b.must(auth("digest", "u:wrong"))
		b.fails(errNoAuth, getData(n, false))
		b.must(auth("digest", "u:p"))
		b.must(getData(n, false))

		// All identities except the address.
		b.must(create(s.path("both"), nil, persistent, acl{permAll, "auth", "ignored"}))
		entries := b.must(getACL(s.path("both"))).ACL
		require.Len(t, entries, 2)
		require.Contains(t, entries, acl{permAll, "digest", digestUP})
	}},
	{57, "a digest is hidden from clients without ADMIN", shared, func(t *testing.T, s checkEnv) {
		a, b := s.open(t), s.open(t)
		a.must(auth("digest", "u:p"))
		n := s.path("n")
		entries := []acl{{permRead, "world", "anyone"}, {permAll, "digest", digestUP}}
		a.must(create(n, nil, persistent, entries...))
		require.Equal(t, entries, a.must(getACL(n)).ACL)
		require.Equal(t, []acl{entries[0], {permAll, "digest", "u:x"}}, b.must(getACL(n)).ACL)
		b.fails(errNoAuth, setData(n, nil, 0))
		b.must(getData(n, false))
		a.must(setData(n, nil, 0))
	}},
	{58, "auth fails for an unknown scheme, and its reply has the xid of the request", shared, func(t *testing.T, s checkEnv) {
		for _, scheme := range []string{"nope", "world"} {
			c := s.open(t)
			c.fails(errAuthFailed, auth(scheme, "anyone").withXid(xidAuth))
			c.waitEnd()
			c.reattach().must(ping()) // the session is alive
		}
		c := s.open(t)
		c.fails(errInvalidACL, create(s.path("n"), nil, persistent, acl{permAll, "auth", ""}))
		for _, xid := range []int32{12, xidAuth} {
			r := c.must(auth("digest", "u:p").withXid(xid))
			require.Equal(t, xid, r.Xid)
			require.Zero(t, r.Zxid)
		}
		c.must(auth("ip", ""))
		c.must(create(s.path("n"), nil, persistent, acl{permAll, "auth", ""}))
		require.Equal(t, []acl{{permAll, "digest", digestUP}}, c.must(getACL(s.path("n"))).ACL)
	}},
	{120, "an ACL with an invalid entry is refused", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		n := s.path("n")
		c.must(create(n, nil, persistent))
		for _, bad := range []acl{
			{permAll, "world", "me"}, {permAll, "world", ""}, {permAll, "digest", "u"}, {permAll, "digest", "a:b:c"},
			{permAll, "ip", "127.0.0"}, {permAll, "ip", "host"}, {permAll, "ip", "1.2.3.4/33"}, {permAll, "ip", "1.2.3.256"},
			{permAll, "sasl", "u"}, {permAll, "x509", "u"}, {permAll, "nope", ""}, {permAll, "", ""}, {permAll, "auth", ""},
		} {
			r := c.do(setACL(n, anyVersion, world[0], bad))
			require.Equal(t, errInvalidACL, r.Err, "%+v", bad)
			r = c.do(create(s.path("x"), nil, persistent, bad))
			require.Equal(t, errInvalidACL, r.Err, "%+v", bad)
		}
		c.fails(errInvalidACL, create(s.path("x"), nil, persistent, acl{permAll, null, null}))
		c.fails(errInvalidACL, create(s.path("x"), nil, persistent, acl{permAll, "auth", null}))
		for _, scheme := range []string{"world", "digest", "ip"} {
			c.fails(errMarshalling, create(s.path("x"), nil, persistent, acl{permAll, scheme, null}))
		}
		for _, good := range []acl{
			{0, "world", "anyone"}, {permAll, "digest", "a:b"}, {permAll, "ip", "127.0.0.1"}, {permAll, "ip", "10.0.0.0/8"},
		} {
			want := []acl{{permAdmin | permRead, "world", "anyone"}, good}
			c.must(setACL(n, anyVersion, want...))
			require.Equal(t, want, c.must(getACL(n)).ACL)
		}
	}},
	{121, "a client has the permissions of all entries that match it", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		for _, tc := range []struct {
			entries []acl
			read    int32
		}{
			{[]acl{{permRead, "ip", "127.0.0.1"}}, 0},
			{[]acl{{permRead, "ip", "127.0.0.0/8"}}, 0},
			{[]acl{{permRead, "ip", "127.255.255.255/8"}}, 0},
			{[]acl{{permRead, "ip", "127.0.0.2"}}, errNoAuth},
			{[]acl{{permRead, "ip", "10.0.0.0/8"}}, errNoAuth},
			{[]acl{{permWrite, "ip", "127.0.0.1"}}, errNoAuth},
			{[]acl{{permRead, "digest", "a:b"}, {permRead, "ip", "127.0.0.1"}}, 0},
			{[]acl{{permWrite, "world", "anyone"}, {permRead, "world", "anyone"}}, 0},
			{[]acl{{permAll &^ permRead, "world", "anyone"}}, errNoAuth},
		} {
			n := c.must(create(s.path("n-"), nil, sequential, tc.entries...)).Path
			require.Equal(t, tc.read, c.do(getData(n, false)).Err, "%+v", tc.entries)
		}
	}},
	{131, "each operation requires its permission", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		for perm := permRead; perm <= permAdmin; perm *= 2 {
			n := s.path(fmt.Sprint(perm))
			only := acl{perm, "world", "anyone"}
			c.must(create(n, nil, persistent))
			c.must(create(n+"/child", nil, persistent))
			c.must(setACL(n, 0, only))
			for _, tc := range []struct {
				need int32 // any of them
				op   request
			}{
				{permAll, exists(n, false)},
				{permRead, getData(n, false)},
				{permRead, getChildren(n, false)},
				{permRead, getChildren2(n, false)},
				{permRead, getAllChildrenNumber(n)},
				{permRead | permAdmin, getACL(n)},
				{permWrite, setData(n, nil, anyVersion)},
				{permCreate, create(n+"/a", nil, persistent)},
				{permCreate, create2(n+"/b", nil, ephemeralSequential)},
				{permCreate, createContainer(n+"/c", container)},
				{permCreate, createTTL(n+"/d", ttl, time.Hour)},
				{permDelete, remove(n+"/child", anyVersion)},
				{permAdmin, setACL(n, anyVersion, only)},
			} {
				var want int32
				if tc.need&perm == 0 {
					want = errNoAuth
				}
				require.Equal(t, want, c.do(tc.op).Err, "operation %d with permission %d", tc.op.Op, perm)
			}
		}
	}},
	{122, "identities belong to the connection", shared, func(t *testing.T, s checkEnv) {
		address := acl{0, "ip", "127.0.0.1"}
		a := s.open(t)
		require.Equal(t, []acl{address}, a.must(whoAmI()).ACL)
		a.must(auth("digest", "u:p"))
		a.must(auth("digest", "u:p"))
		require.ElementsMatch(t, []acl{address, {0, "digest", "u"}}, a.must(whoAmI()).ACL)
		a.must(create(s.path("n"), nil, persistent, acl{permAll, "digest", digestUP}))
		b := a.reattach()
		require.Equal(t, []acl{address}, b.must(whoAmI()).ACL)
		b.fails(errNoAuth, getData(s.path("n"), false))
		b.must(auth("digest", "u:p"))
		b.must(getData(s.path("n"), false))
	}},
	{123, "there is no SASL and no reconfiguration", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		r := c.must(request{Op: opSASL, Body: encoder{}.buffer([]byte{})})
		require.Nil(t, r.Data)
		require.Zero(t, r.Zxid)
		c.fails(errReconfigDisabled, request{Op: opReconfig, Body: encoder{}.string("").string("").string("").long(-1)})
		c.must(ping())
	}},
}
