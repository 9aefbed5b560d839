package zktest_test

// This file has the checks of bounds, concurrent clients and ZooKeeper's own nodes.

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/zktest"
)

var treeChecks = []check{
	{20, "concurrent sequential creates get distinct numbers", shared, func(t *testing.T, s checkEnv) {
		const each = 10
		var clients []*client
		for range 5 {
			clients = append(clients, s.open(t))
		}
		for _, c := range clients {
			c.send(slices.Repeat([]request{create(s.path("n-"), nil, ephemeralSequential)}, each)...)
		}
		var got, want []string
		for i, c := range clients {
			var own []string
			for range each {
				r := c.reply()
				require.Zero(t, r.Err)
				own = append(own, r.Path)
				want = append(want, s.path(fmt.Sprintf("n-%010d", len(want))))
			}
			require.IsIncreasing(t, own, "client %d", i)
			got = append(got, own...)
		}
		require.ElementsMatch(t, want, got)
	}},
	{27, "TTL nodes need extended types", strict, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		for _, flags := range []int32{ttl, ttlSequential} {
			c.fails(zktest.ErrUnimplemented, createTTL(s.path("n"), flags, time.Second))
		}
		c.must(createContainer(s.path("container"), container))
		require.Equal(t, []string{"container"}, c.must(getChildren(s.root, false)).Names)
	}},
	{37, "the configuration node can be watched but not written", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		r := c.must(getData("/zookeeper/config", true))
		require.Empty(t, r.Data)
		c.fails(zktest.ErrNoAuth, setData("/zookeeper/config", nil, anyVersion))
		c.must(checkWatches("/zookeeper/config", dataWatch))
		require.Equal(t, []acl{{permRead, "world", "anyone"}}, c.must(getACL("/zookeeper/config")).ACL)
	}},
	{107, "a new server has four nodes", exclusive, func(t *testing.T, s checkEnv) {
		addr := s.start(t, quietOptions...).Addr()
		c := open(t, addr, longTimeout)
		require.EqualValues(t, 1, c.must(ping()).Zxid, "for the session")
		require.Contains(t, fourLetter(t, addr, "srvr"), "\nZxid: 0x1\nMode: standalone\nNode count: 5\n", "/ counts twice")
		require.EqualValues(t, 3, c.must(getAllChildrenNumber("/")).Count)
		for _, tc := range []struct {
			path  string
			names []string
			stat  zktest.Stat
		}{
			{"/", []string{"zookeeper"}, zktest.Stat{Cversion: -1, NumChildren: 1}},
			{"/zookeeper", []string{"quota", "config"}, zktest.Stat{Cversion: -2, NumChildren: 2}},
			{"/zookeeper/quota", nil, zktest.Stat{}},
			{"/zookeeper/config", nil, zktest.Stat{Aversion: -1}},
		} {
			listed := c.must(getChildren2(tc.path, false))
			require.ElementsMatch(t, tc.names, listed.Names, tc.path)
			require.Equal(t, tc.stat, listed.Stat, tc.path)
			require.Empty(t, c.must(getData(tc.path, false)).Data, tc.path)
			want := world
			if tc.path == "/zookeeper/config" {
				want = []acl{{permRead, "world", "anyone"}}
			}
			require.Equal(t, want, c.must(getACL(tc.path)).ACL, tc.path)
		}
		c.must(create("/n", nil, persistent))
		require.Equal(t, zktest.Stat{NumChildren: 2, Pzxid: 2}, c.must(exists("/", false)).Stat)
		c.must(remove("/n", 0))
		require.Equal(t, zktest.Stat{Cversion: 1, NumChildren: 1, Pzxid: 3}, c.must(exists("/", false)).Stat)
		set := c.must(setData("/", []byte("x"), 0))
		require.Equal(t, zktest.Stat{Cversion: 1, NumChildren: 1, Pzxid: 3, Version: 1, Mzxid: 4, Mtime: set.Stat.Mtime, DataLength: 1}, set.Stat)
		c.must(setData("/zookeeper", nil, anyVersion))
	}},
	{117, "the root can be watched, and has sequential children", exclusive, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		n := s.root + "-sibling"
		c.must(getChildren("/", true))
		require.Equal(t, []event{{zktest.NodeChildrenChanged, "/"}}, c.must(create(n, nil, persistent)).Events)
		c.must(getChildren2("/", true))
		require.Equal(t, []event{{zktest.NodeChildrenChanged, "/"}}, c.must(remove(n, 0)).Events)
		c.must(exists("/", true))
		require.Equal(t, []event{{zktest.NodeDataChanged, "/"}}, c.must(setData("/", nil, anyVersion)).Events)
		a, b := c.must(create("/-", nil, ephemeralSequential)), c.must(create("/-", nil, ephemeralSequential))
		number := func(r result) int {
			require.Regexp(t, `^/-\d{10}$`, r.Path)
			n, err := strconv.Atoi(r.Path[2:])
			require.NoError(t, err)
			return n
		}
		require.Equal(t, number(a)+1, number(b))
		c.must(closeSession())
	}},
	{132, "a null path is refused", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		for _, r := range []request{
			create(null, nil, persistent), create2(null, nil, sequential), createContainer(null, persistent),
			remove(null, anyVersion), exists(null, true), getData(null, false), getChildren(null, false),
			getChildren2(null, false), getACL(null), checkWatches(null, dataWatch),
		} {
			c.fails(zktest.ErrMarshalling, r)
		}
		c.fails(zktest.ErrBadArguments, setData(null, nil, anyVersion))
		c.fails(zktest.ErrBadArguments, setACL(null, anyVersion, world...))
		c.fails(zktest.ErrNoWatcher, removeWatches(null, dataWatch))
	}},
	{133, "the order of children is stable while none is created or deleted", shared, func(t *testing.T, s checkEnv) {
		a, b := s.open(t), s.open(t)
		var ops []request
		for i := range 50 {
			ops = append(ops, create(fmt.Sprintf("%s/%02d", s.root, i), nil, persistent))
		}
		a.must(multi(ops...))
		order := a.must(getChildren(s.root, false)).Names
		require.Len(t, order, 50)
		require.False(t, slices.IsSorted(order), "clients must not rely on an order")
		same := func() {
			t.Helper()
			for _, c := range []*client{a, b} {
				require.Equal(t, order, c.must(getChildren(s.root, true)).Names)
				require.Equal(t, order, c.must(getChildren2(s.root, false)).Names)
				for _, part := range c.must(multiRead(getChildren(s.root, false), getData(s.root, false), getChildren(s.root, false))).Ops {
					require.True(t, part.Op == zktest.OpGetData || slices.Equal(order, part.Names))
				}
			}
		}
		same()
		b.must(setData(s.path("07"), []byte("x"), anyVersion))
		b.must(create(s.path("07/child"), nil, persistent))
		same()
		b.must(create(s.path("other"), nil, persistent))
		require.ElementsMatch(t, append([]string{"other"}, order...), a.must(getChildren(s.root, false)).Names)
		b.must(remove(s.path("other"), anyVersion))
		same()

		for i := range 20 {
			a.must(create(s.path(fmt.Sprint("e", i)), nil, ephemeral))
		}
		mine := a.must(getEphemerals("")).Names
		require.Len(t, mine, 20)
		for range 3 {
			require.Equal(t, mine, a.must(getEphemerals("")).Names)
		}
	}},
	{134, "a check outside a multi is answered only if it fails", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		c.fails(zktest.ErrNoNode, checkVersion(s.path("none"), anyVersion))
		c.fails(zktest.ErrBadVersion, checkVersion(s.root, 1))
		c.send(checkVersion(s.root, 0))
		require.Equal(t, zktest.OpPing, c.do(ping()).Op)
		require.Len(t, c.pending, 1)
		c.must(exists(s.root, false))
	}},
}
