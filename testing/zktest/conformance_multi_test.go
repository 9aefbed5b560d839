package zktest_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// codes returns the error codes of the operations of a multi.
func codes(r result) []int32 {
	var all []int32
	for _, op := range r.Ops {
		all = append(all, op.Err)
	}
	return all
}

// types returns the types in the reply to a multi.
func types(r result) []int32 {
	var all []int32
	for _, op := range r.Ops {
		all = append(all, op.Op)
	}
	return all
}

var multiChecks = []check{
	{38, "a multi sees its own changes and takes one zxid", exclusive, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		n, other := s.path("n"), s.path("other")
		c.must(create(other, nil, persistent))
		r := c.must(multi(
			create(n, nil, persistent),
			create(n+"/s-", nil, ephemeralSequential),
			checkVersion(n, 0),
			setData(n, []byte("x"), 0),
			checkVersion(n, 1),
			remove(other, 0),
			create(s.path("container"), nil, container),
		))
		require.Equal(t, []int32{opCreate, opCreate, opCheck, opSetData, opCheck, opDelete, opCreate2}, types(r))
		require.Equal(t, make([]int32, 7), codes(r))
		require.Equal(t, n, r.Ops[0].Path)
		require.Equal(t, n+"/s-0000000000", r.Ops[1].Path)
		require.Equal(t, s.path("container"), r.Ops[6].Path)

		node := c.must(getData(n, false))
		require.Equal(t, []byte("x"), node.Data)
		require.Equal(t, r.Zxid, node.Zxid, "the latest zxid")
		want := node.Stat
		require.EqualValues(t, 1, want.Version)
		for _, zxid := range []int64{want.Czxid, want.Mzxid, want.Pzxid} {
			require.Equal(t, r.Zxid, zxid)
		}
		require.Equal(t, want, r.Ops[3].Stat)
		require.Equal(t, c.must(exists(s.path("container"), false)).Stat, r.Ops[6].Stat)
		require.Equal(t, r.Zxid, r.Ops[6].Stat.Czxid)
		require.Equal(t, c.welcome.Session, c.must(exists(n+"/s-0000000000", false)).Stat.Owner)
		c.fails(errNoNode, exists(other, false))
	}},
	{39, "a failed multi leaves nothing but a zxid", exclusive, func(t *testing.T, s checkEnv) {
		a, b := s.open(t), s.open(t)
		n, e := s.path("n"), s.path("e")
		a.must(create(n, []byte("old"), persistent))
		a.must(create(e, nil, ephemeral))
		for _, c := range []*client{a, b} {
			c.must(getChildren(s.root, true))
			c.must(getData(n, true))
			c.must(exists(e, true))
			c.fails(errNoNode, exists(s.path("x"), true))
			c.fails(errNoNode, exists(s.path("y"), true))
		}
		before := a.pipeline(exists(s.root, false), getData(n, false), getData(e, false), getEphemerals(s.root))

		r := a.must(multi(
			create(s.path("x"), nil, persistent),
			remove(s.path("missing"), anyVersion),
			create(s.path("y"), nil, persistent),
		))
		require.Equal(t, []int32{opError, opError, opError}, types(r))
		require.Equal(t, []int32{0, errNoNode, errRuntimeInconsistency}, codes(r))
		require.Equal(t, before[0].Zxid+1, r.Zxid)
		require.Empty(t, r.Events)

		r = a.must(multi(
			setData(n, []byte("1"), 0), create(n+"/child", nil, ephemeral), remove(n+"/child", 0), setData(n, []byte("2"), 1),
			remove(n, 2), create(n, []byte("3"), ephemeral), setData(n, []byte("4"), 0),
			remove(e, 0), create(e, []byte("5"), persistent), create(e+"/child", nil, persistent),
			checkVersion(n, 7),
		))
		require.Equal(t, append(make([]int32, 10), errBadVersion), codes(r))
		require.Equal(t, before[0].Zxid+2, r.Zxid)
		require.Empty(t, r.Events)

		after := a.pipeline(exists(s.root, false), getData(n, false), getData(e, false), getEphemerals(s.root))
		for i, r := range after {
			require.Equal(t, before[i].Stat, r.Stat)
			require.Equal(t, before[i].Data, r.Data)
			require.Equal(t, before[i].Names, r.Names)
		}
		require.ElementsMatch(t, []string{"n", "e"}, b.must(getChildren(s.root, false)).Names)
		require.Empty(t, b.must(getChildren(n, false)).Names)
		require.Empty(t, a.events)
		require.Empty(t, b.events)

		// It also uses up neither sequence numbers nor watches.
		require.Equal(t, n+"/-0000000000", a.must(create(n+"/-", nil, sequential)).Path)
		require.Equal(t, []event{{nodeDataChanged, n}}, a.must(setData(n, nil, 0)).Events)
		a.must(closeSession())
		require.Equal(t, []event{{nodeDataChanged, n}, {nodeDeleted, e}, {nodeChildrenChanged, s.root}}, b.newEvents())
	}},
	{40, "a multi may be empty, and allows only certain operations", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		require.Empty(t, c.must(multi()).Ops)
		require.Empty(t, c.must(multiRead()).Ops)
		for _, r := range []request{
			multi(getACL(s.root)),
			multi(create(s.path("n"), nil, persistent), getACL(s.root)),
			multi(create(s.path("n"), nil, persistent), getData(s.root, false)),
			multi(getData(s.root, false), create(s.path("n"), nil, persistent)),
			multi(create(s.path("n"), nil, persistent), getChildren(s.root, false)),
			multi(exists(s.root, false)),
			multiRead(getData(s.root, false), remove(s.root, anyVersion)),
			multiRead(exists(s.root, false)),
			multiRead(getChildren2(s.root, false)),
		} {
			require.Equal(t, errMarshalling, c.do(r).Err, "%q", r.Body)
		}
		require.Empty(t, c.must(getChildren(s.root, false)).Names)
	}},
	{41, "a multiRead answers each operation", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		n, closed := s.path("n"), s.path("closed")
		c.must(create(n, []byte("x"), persistent))
		c.must(create(closed, nil, persistent, acl{permAll &^ permRead, "world", "anyone"}))
		r := c.must(multiRead(
			getChildren(s.root, true), getData(n, true), getData(s.path("missing"), true), getData(closed, true), getData(n, true),
		))
		require.Equal(t, []int32{opGetChildren, opGetData, opError, opError, opGetData}, types(r))
		require.Equal(t, []int32{0, 0, errNoNode, errNoAuth, 0}, codes(r))
		require.ElementsMatch(t, []string{"n", "closed"}, r.Ops[0].Names)
		require.Equal(t, []byte("x"), r.Ops[1].Data)
		require.Equal(t, c.must(exists(n, false)).Stat, r.Ops[1].Stat)
		require.Equal(t, r.Ops[1], r.Ops[4])

		c.must(remove(n, anyVersion))
		require.Empty(t, c.newEvents(), "no watch is set")
	}},
	{112, "the reply to a failed multi has the error of the failed operation", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		n, closed := s.path("n"), s.path("closed")
		c.must(create(n, nil, persistent))
		c.must(create(closed, nil, persistent, acl{permAdmin, "world", "anyone"}))
		for _, tc := range []struct {
			want int32
			op   request
		}{
			{errBadArguments, checkVersion("abc", 0)},
			{errBadArguments, checkVersion(n+"/", 0)},
			{errNoNode, checkVersion(s.path("missing"), 0)},
			{errNoAuth, checkVersion(closed, 7)},
			{errBadVersion, checkVersion(n, 7)},
			{errNodeExists, create(n, nil, persistent)},
			{errNoNode, create(s.path("missing/n"), nil, persistent)},
			{errInvalidACL, createRequest(opCreate, s.path("x"), nil, nil, persistent)},
			{errBadArguments, create(s.path("x"), nil, 9)},
			{errNoAuth, create(closed+"/n", nil, persistent)},
			{errBadVersion, remove(n, 7)},
			{errNotEmpty, remove(s.root, anyVersion)},
			{errNoAuth, setData(closed, nil, 7)},
			{errBadVersion, setData(n, nil, 7)},
		} {
			r := c.must(multi(checkVersion(n, anyVersion), setData(n, nil, 0), tc.op, checkVersion(n, 1)))
			require.Equal(t, []int32{0, 0, tc.want, errRuntimeInconsistency}, codes(r), "operation %d %q", tc.op.Op, tc.op.Body)
		}
		require.Zero(t, c.must(exists(n, false)).Stat.Version)
	}},
	{113, "in a multi the flags determine the kind of node", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		withTTL := createTTL(s.path("ttl-"), ttlSequential, time.Hour)
		r := c.must(multi(
			create2(s.path("plain"), nil, persistent),
			createContainer(s.path("plain-"), sequential),
			withTTL,
			createContainer(s.path("container"), container),
			create(s.path("e"), nil, ephemeral),
		))
		require.Equal(t, []int32{opCreate, opCreate, opCreate2, opCreate2, opCreate}, types(r))
		require.Equal(t, s.path("plain"), r.Ops[0].Path)
		require.Equal(t, s.path("plain-0000000001"), r.Ops[1].Path)
		require.Equal(t, s.path("ttl-0000000002"), r.Ops[2].Path)
		require.Equal(t, r.Zxid, r.Ops[2].Stat.Czxid)
		require.Equal(t, s.path("container"), r.Ops[3].Path)
		require.Equal(t, c.welcome.Session, c.must(exists(s.path("e"), false)).Stat.Owner)
	}},
	{114, "the events of a multi arrive in the order of its operations, before its reply", shared, func(t *testing.T, s checkEnv) {
		a, b := s.open(t), s.open(t)
		x, y, z := s.path("x"), s.path("y"), s.path("z")
		a.must(create(x, nil, persistent))
		a.must(create(y, nil, persistent))
		for _, c := range []*client{a, b} {
			c.must(getData(x, true))
			c.must(getData(y, true))
			c.fails(errNoNode, exists(z, true))
			c.must(getChildren(s.root, true))
		}
		want := []event{{nodeDataChanged, y}, {nodeCreated, z}, {nodeChildrenChanged, s.root}, {nodeDeleted, x}}
		r := a.must(multi(setData(y, nil, 0), create(z, nil, persistent), remove(x, 0), create(x, nil, persistent), remove(z, 0)))
		require.Equal(t, want, r.Events)
		require.Equal(t, want, b.newEvents())
	}},
}
