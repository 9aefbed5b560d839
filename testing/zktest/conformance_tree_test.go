package zktest_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var treeChecks = []check{
	{17, "sequence numbers count all children ever created", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		cversion := func() int32 { return c.must(exists(s.root, false)).Stat.Cversion }
		require.Zero(t, cversion())
		require.Equal(t, s.path("a-0000000000"), c.must(create(s.path("a-"), nil, sequential)).Path)
		require.EqualValues(t, 1, cversion())
		c.must(create(s.path("plain"), nil, persistent))
		require.EqualValues(t, 2, cversion())
		c.must(remove(s.path("plain"), anyVersion))
		require.EqualValues(t, 3, cversion())
		require.Equal(t, s.path("b-0000000002"), c.must(create(s.path("b-"), nil, sequential)).Path)
		require.EqualValues(t, 4, cversion())
	}},
	{18, "a sequence number whose name exists is not skipped", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		c.must(create(s.path("x-0000000001"), nil, persistent))
		c.fails(errNodeExists, create(s.path("x-"), nil, sequential))
		c.fails(errNodeExists, create(s.path("x-"), nil, sequential))
		c.must(create(s.path("other"), nil, persistent))
		require.Equal(t, s.path("x-0000000002"), c.must(create(s.path("x-"), nil, sequential)).Path)
	}},
	{19, "a sequential name may consist of the number only", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		require.Equal(t, s.path("0000000000"), c.must(create(s.path(""), nil, sequential)).Path)
		require.Equal(t, s.path("0000000001"), c.must(create2(s.path(""), nil, ephemeralSequential)).Path)
		require.ElementsMatch(t, []string{"0000000000", "0000000001"}, c.must(getChildren(s.root, false)).Names)
	}},
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
	{21, "a failed multi uses up no sequence number", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		c.must(create(s.path("n-"), nil, sequential))
		r := c.must(multi(create(s.path("n-"), nil, sequential), checkVersion(s.root, 99)))
		require.Equal(t, []int32{0, errBadVersion}, codes(r))
		require.Equal(t, s.path("n-0000000001"), c.must(create(s.path("n-"), nil, sequential)).Path)
	}},
	{22, "the Stat reflects every change", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		n := s.path("n")
		created := c.must(create2(n, []byte("abc"), persistent))
		want := created.Stat
		look := func() stat { return c.must(exists(n, false)).Stat }
		require.Equal(t, want, look())

		set := c.must(setData(n, []byte("x"), 0))
		require.GreaterOrEqual(t, set.Stat.Mtime, want.Mtime)
		want.Version, want.Mzxid, want.Mtime, want.DataLength = 1, set.Zxid, set.Stat.Mtime, 1
		require.Equal(t, want, set.Stat)
		require.Equal(t, want, look())

		want.Pzxid = c.must(create(n+"/child", nil, persistent)).Zxid
		want.Cversion, want.NumChildren = 1, 1
		require.Equal(t, want, look())

		c.must(setData(n+"/child", []byte("x"), 0))
		require.Equal(t, want, look())

		set = c.must(setACL(n, 0, world...))
		want.Aversion = 1
		require.Equal(t, want, set.Stat)
		require.Equal(t, want, look())

		want.Pzxid = c.must(remove(n+"/child", 1)).Zxid
		want.Cversion, want.NumChildren = 2, 0
		require.Equal(t, want, look())

		poll(t, "the time of a change is later than the creation's", func() bool {
			return c.must(setData(n, nil, anyVersion)).Stat.Mtime > want.Ctime
		})
		require.Equal(t, want.Ctime, look().Ctime)
	}},
	{23, "null and empty data differ", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		n := s.path("n")
		c.must(create(n, nil, persistent))
		for version, data := range [][]byte{nil, {}, nil, []byte("x"), nil} {
			if version > 0 {
				c.must(setData(n, data, anyVersion))
			}
			got := c.must(getData(n, false))
			require.Equal(t, data, got.Data) // which tells nil and empty apart
			require.EqualValues(t, len(data), got.Stat.DataLength)
			require.EqualValues(t, version, got.Stat.Version)
		}
		c.must(create(s.path("empty"), []byte{}, persistent))
		require.Equal(t, []byte{}, c.must(getData(s.path("empty"), false)).Data)
	}},
	{24, "an ephemeral has an owner and no children", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		n := s.path("n")
		c.must(create(n, nil, ephemeral))
		for _, flags := range []int32{persistent, ephemeral, sequential, ephemeralSequential} {
			c.fails(errNoChildrenForEph, create(n+"/child", nil, flags))
		}
		require.Equal(t, c.welcome.Session, c.must(exists(n, false)).Stat.Owner)
		require.Equal(t, c.welcome.Session, c.must(create2(s.path("s"), nil, ephemeralSequential)).Stat.Owner)
		require.Zero(t, c.must(create2(s.path("persistent"), nil, persistent)).Stat.Owner)
		require.Zero(t, c.must(createContainer(s.path("container"), container)).Stat.Owner)
		require.Zero(t, c.must(createTTL(s.path("ttl"), ttl, time.Hour)).Stat.Owner)
		require.Zero(t, c.must(exists(s.path("container"), false)).Stat.Owner)
		require.Zero(t, c.must(exists(s.path("ttl"), false)).Stat.Owner)
	}},
	{25, "invalid paths are refused", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		for _, path := range []string{
			"", "abc", "abc/d", s.path("n/"), s.path("."), s.path(".."), s.path("./n"),
			s.path("\x00"), s.path("\x01"), s.path("\x1f"), s.path("\x7f"), s.path("\u009f"),
			s.path("\ue000"), s.path("\uf8ff"), s.path("\ufff0"), s.path("\uffff"), s.path("\U0001f600"),
		} {
			want := errBadArguments
			switch path {
			case "abc/d", s.path("n/"), s.path("./n"):
				want = errNoNode // of the parent
			}
			require.Equal(t, want, c.do(create(path, nil, persistent)).Err, "%q", path)
		}
		c.fails(errBadArguments, create(s.root+"/", nil, persistent))
		c.fails(errNoNode, create(s.root+"//n", nil, persistent))
		c.fails(errNodeExists, create("/", nil, persistent))
		c.fails(errBadArguments, create(s.path("\x01"), nil, sequential))
		require.Empty(t, c.must(getChildren(s.root, false)).Names)

		names := []string{" ", "~", "...", "\u00a0", "\ud7ff", "\uf900", "\uffef", ".a"}
		for _, name := range names {
			c.must(create(s.path(name), nil, persistent))
		}
		c.must(create(s.path(".-"), nil, sequential))
		require.ElementsMatch(t, append(names, ".-0000000008"), c.must(getChildren(s.root, false)).Names)
	}},
	{26, "the errors of create have an order", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		bad := []acl{{permAll, "nope", "x"}}
		closed := s.path("closed")
		c.must(create(closed, nil, persistent, acl{permRead, "world", "anyone"}))
		c.must(create(s.path("n"), nil, persistent))
		c.must(create(s.path("ephemeral"), nil, ephemeral))
		for _, tc := range []struct {
			want  int32
			path  string
			acls  []acl
			flags int32
		}{
			{errInvalidACL, s.path("missing/n"), nil, persistent},
			{errInvalidACL, s.path("missing/n"), []acl{}, persistent},
			{errInvalidACL, s.path("missing/n"), bad, persistent},
			{errNoNode, s.path("missing/n"), world, persistent},
			{errBadArguments, "nope", []acl{}, persistent},
			{errBadArguments, s.path("missing/n"), bad, 9},
			{errInvalidACL, closed + "/.", bad, persistent},
			{errNoAuth, closed + "/.", world, persistent},
			{errBadArguments, s.path("ephemeral/."), world, persistent},
			{errBadArguments, s.path("."), world, persistent},
			{errInvalidACL, s.path("n"), bad, persistent},
			{errNodeExists, s.path("n"), world, ephemeral},
		} {
			for _, op := range []int32{opCreate, opCreate2, opCreateContainer} {
				r := c.do(createRequest(op, tc.path, nil, tc.acls, tc.flags))
				require.Equal(t, tc.want, r.Err, "operation %d: %+v", op, tc)
			}
		}
	}},
	{27, "invalid flags are refused", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		n := s.path("n")
		for _, flags := range []int32{-1, 7, 9} {
			c.fails(errBadArguments, create(n, nil, flags))
			c.fails(errBadArguments, createTTL(n, flags, time.Second))
		}
		for flags := persistent; flags < ttl; flags++ {
			c.fails(errBadArguments, createTTL(n, flags, time.Second))
		}
		for _, flags := range []int32{ttl, ttlSequential} {
			c.fails(errBadArguments, create(n, nil, flags))
			c.fails(errBadArguments, create2(n, nil, flags))
			c.fails(errBadArguments, createContainer(n, flags))
			c.fails(errBadArguments, createTTL(n, flags, 0))
			c.fails(errBadArguments, createTTL(n, flags, -time.Second))
			c.fails(errBadArguments, createTTL(n, flags, 1<<40*time.Millisecond))
		}
		require.Empty(t, c.must(getChildren(s.root, false)).Names)
		r := c.must(createTTL(s.path("t-"), ttlSequential, (1<<40-1)*time.Millisecond))
		require.Equal(t, s.path("t-0000000000"), r.Path)
		require.Equal(t, r.Zxid, r.Stat.Czxid)
	}},
	{27, "TTL nodes need extended types", strict, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		for _, flags := range []int32{ttl, ttlSequential} {
			c.fails(errUnimplemented, createTTL(s.path("n"), flags, time.Second))
		}
		c.must(createContainer(s.path("container"), container))
		require.Equal(t, []string{"container"}, c.must(getChildren(s.root, false)).Names)
	}},
	{28, "create2 returns the path and the Stat", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		r := c.must(create2(s.path("n-"), []byte("abc"), ephemeralSequential))
		require.Equal(t, s.path("n-0000000000"), r.Path)
		require.WithinDuration(t, time.Now(), time.UnixMilli(r.Stat.Ctime), time.Minute)
		require.Equal(t, stat{
			Czxid: r.Zxid, Mzxid: r.Zxid, Pzxid: r.Zxid,
			Ctime: r.Stat.Ctime, Mtime: r.Stat.Ctime,
			Owner: c.welcome.Session, DataLength: 3,
		}, r.Stat)
		require.Equal(t, r.Stat, c.must(exists(r.Path, false)).Stat)
	}},
	{29, "every write takes one zxid, other requests take none", exclusive, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		n := s.path("n")
		c.must(create(n, nil, persistent))
		c.must(ping())
		for _, r := range []request{
			create(n, nil, persistent),
			create(s.path("missing/n"), nil, persistent),
			create("", nil, persistent),
			create(n, nil, 9),
			create2(n, nil, persistent),
			createContainer(n, container),
			createTTL(n, ttl, time.Second),
			createRequest(opCreate, n, nil, nil, persistent),
			remove(s.path("missing"), anyVersion),
			remove(n, 7),
			setData(n, nil, 7),
			setData(s.path("missing"), nil, anyVersion),
			setACL(n, 7, world...),
			multi(checkVersion(n, 7)),
			multi(create(n, nil, persistent), setData(n, nil, 0)),
			multi(),
			setData(n, nil, anyVersion),
			setACL(n, anyVersion, world...),
			create(s.path("s-"), nil, sequential),
			remove(s.path("s-0000000001"), 0),
			{Op: opReconfig, Body: encoder{}.string(null).string(null).string("").long(-1)},
			{Op: opCreate, Body: encoder{}.string(n)}, // cut off
		} {
			before := c.zxid
			require.Equal(t, before+1, c.do(r).Zxid, "operation %d %q", r.Op, r.Body)
			require.Equal(t, before+1, c.must(ping()).Zxid, "after operation %d %q", r.Op, r.Body)
		}
		before := c.zxid
		for _, r := range []request{
			exists(n, true), exists(s.path("missing"), true), getData(n, true), getChildren(n, true),
			getChildren2(n, true), getACL(n), getData(s.path("missing"), false), syncPath(n),
			multiRead(getData(n, false)), getEphemerals("/"), getAllChildrenNumber("/"), whoAmI(),
			setWatches(before, []string{n}, nil, nil), checkWatches(n, anyWatch), addWatch(n, modePersistent),
			removeWatches(n, anyWatch), ping(),
		} {
			require.Equal(t, before, c.do(r).Zxid, "operation %d", r.Op)
		}
		require.Zero(t, c.must(auth("digest", "u:p")).Zxid)
		require.Zero(t, c.must(request{Op: opSASL, Body: encoder{}.buffer([]byte{})}).Zxid)
		other := s.open(t)
		require.Equal(t, before+1, other.must(ping()).Zxid)
		other.must(closeSession())
		require.Equal(t, before+2, c.must(ping()).Zxid)
	}},
	{30, "a delete checks the version before the children", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		n := s.path("n")
		c.must(create(n, nil, persistent))
		c.must(create(n+"/child", nil, persistent))
		c.fails(errBadVersion, remove(n, 1))
		c.fails(errBadVersion, remove(n, -2))
		c.fails(errNotEmpty, remove(n, 0))
		c.fails(errNotEmpty, remove(n, anyVersion))
		c.must(remove(n+"/child", 0))
		c.must(remove(n, 0))
		c.fails(errNoNode, exists(n, false))
	}},
	{31, "reserved and invalid paths cannot be deleted", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		for _, path := range []string{"/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config", "", "abc", s.path("a\x00")} {
			require.Equal(t, errBadArguments, c.do(remove(path, anyVersion)).Err, "%q", path)
		}
		for _, path := range []string{s.path("missing"), s.path("missing/n"), s.root + "/", s.root + "//n", s.path(".")} {
			require.Equal(t, errNoNode, c.do(remove(path, anyVersion)).Err, "%q", path)
		}
	}},
	{32, "a delete without permission does not reveal whether the node exists", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		c.must(create(s.path("n"), nil, persistent))
		c.must(create(s.path("n/child"), nil, persistent))
		c.must(setACL(s.path("n"), anyVersion, acl{permAll &^ permDelete, "world", "anyone"}))
		c.fails(errNoAuth, remove(s.path("n/missing"), anyVersion))
		c.fails(errNoAuth, remove(s.path("n/child"), 7))
		c.fails(errNoAuth, remove(s.path("n/child"), anyVersion))
		c.must(exists(s.path("n/child"), false))

		// The ACL of the node itself does not matter.
		c.must(create(s.path("closed"), nil, persistent, acl{permRead, "world", "anyone"}))
		c.must(remove(s.path("closed"), anyVersion))
	}},
	{33, "setData needs the current version, or -1", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		n := s.path("n")
		c.must(create(n, nil, persistent))
		require.EqualValues(t, 1, c.must(setData(n, []byte("1"), anyVersion)).Stat.Version)
		require.EqualValues(t, 2, c.must(setData(n, []byte("2"), 1)).Stat.Version)
		for _, version := range []int32{0, 1, 3, -2} {
			c.fails(errBadVersion, setData(n, []byte("x"), version))
		}
		c.fails(errNoNode, setData(s.path("missing"), nil, 7))
		for _, path := range []string{"", "abc", n + "/", s.root + "//n", s.path(".")} {
			require.Equal(t, errBadArguments, c.do(setData(path, nil, anyVersion)).Err, "%q", path)
		}
		got := c.must(getData(n, false))
		require.Equal(t, []byte("2"), got.Data)
		require.EqualValues(t, 2, got.Stat.Version)
	}},
	{34, "reading a missing node sets no watch", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		n := s.path("n")
		for _, op := range []int32{opGetData, opGetChildren, opGetChildren2} {
			c.fails(errNoNode, readRequest(op, n, true))
		}
		for _, r := range []request{
			create(n, nil, persistent), create(n+"/child", nil, persistent), setData(n, nil, 0),
		} {
			require.Empty(t, c.must(r).Events)
		}
		for _, path := range []string{n + "/", s.root + "//n", "abc", s.path("."), s.path("\x01")} {
			for _, op := range []int32{opExists, opGetData, opGetChildren, opGetChildren2} {
				require.Equal(t, errNoNode, c.do(readRequest(op, path, false)).Err, "operation %d %q", op, path)
			}
			require.Equal(t, errNoNode, c.do(getAllChildrenNumber(path)).Err, "%q", path)
			require.Equal(t, errNoNode, c.do(getACL(path)).Err, "%q", path)
		}
		c.fails(errBadArguments, exists(s.path("a\x00"), false))
		require.Empty(t, c.newEvents())
	}},
	{35, "all children are listed", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		var want []string
		var creates []request
		for i := range 20 {
			want = append(want, fmt.Sprintf("n%d", i*i))
			creates = append(creates, create(s.path(want[i]), nil, persistent))
		}
		for _, r := range c.pipeline(creates...) {
			require.Zero(t, r.Err)
		}
		require.ElementsMatch(t, want, c.must(getChildren(s.root, false)).Names)
		listed := c.must(getChildren2(s.root, false))
		require.ElementsMatch(t, want, listed.Names)
		require.Equal(t, c.must(exists(s.root, false)).Stat, listed.Stat)
		require.EqualValues(t, 20, listed.Stat.NumChildren)
		require.Empty(t, c.must(getChildren(s.path("n1"), false)).Names)
	}},
	{36, "sync returns any path", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		for _, path := range []string{"junk", "/", s.path("missing"), "", null} {
			require.Equal(t, path, c.must(syncPath(path)).Path)
		}
	}},
	{37, "the configuration node can be watched but not written", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		r := c.must(getData("/zookeeper/config", true))
		require.Empty(t, r.Data)
		c.fails(errNoAuth, setData("/zookeeper/config", nil, anyVersion))
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
			stat  stat
		}{
			{"/", []string{"zookeeper"}, stat{Cversion: -1, NumChildren: 1}},
			{"/zookeeper", []string{"quota", "config"}, stat{Cversion: -2, NumChildren: 2}},
			{"/zookeeper/quota", nil, stat{}},
			{"/zookeeper/config", nil, stat{Aversion: -1}},
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
		require.Equal(t, stat{NumChildren: 2, Pzxid: 2}, c.must(exists("/", false)).Stat)
		c.must(remove("/n", 0))
		require.Equal(t, stat{Cversion: 1, NumChildren: 1, Pzxid: 3}, c.must(exists("/", false)).Stat)
		set := c.must(setData("/", []byte("x"), 0))
		require.Equal(t, stat{Cversion: 1, NumChildren: 1, Pzxid: 3, Version: 1, Mzxid: 4, Mtime: set.Stat.Mtime, DataLength: 1}, set.Stat)
		c.must(setData("/zookeeper", nil, anyVersion))
	}},
	{108, "all descendants are counted", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		require.Zero(t, c.must(getAllChildrenNumber(s.root)).Count)
		for _, name := range []string{"a", "a/b", "a/b/c", "ab"} {
			c.must(create(s.path(name), nil, persistent))
		}
		require.EqualValues(t, 4, c.must(getAllChildrenNumber(s.root)).Count)
		require.EqualValues(t, 2, c.must(getAllChildrenNumber(s.path("a"))).Count)
		c.fails(errNoNode, getAllChildrenNumber(s.path("missing")))
	}},
	{109, "sequence numbers start again with a new parent, and count only successful creates", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		n := s.path("n")
		next := func() string { return c.must(create(n+"/-", nil, ephemeralSequential)).Path }
		for range 2 {
			c.must(create(n, nil, persistent))
			require.Equal(t, n+"/-0000000000", next())
			c.fails(errNodeExists, create(n+"/-0000000000", nil, persistent))
			c.fails(errInvalidACL, createRequest(opCreate, n+"/-", nil, nil, sequential))
			require.Equal(t, n+"/-0000000001", next())
			c.must(remove(n+"/-0000000001", anyVersion))
			c.must(createContainer(n+"/container", container))
			c.must(createTTL(n+"/ttl", ttl, time.Hour))
			require.Equal(t, n+"/-0000000004", next())
			for _, name := range c.must(getChildren(n, false)).Names {
				c.must(remove(n+"/"+name, anyVersion))
			}
			c.must(remove(n, anyVersion))
		}
	}},
	{110, "the ACL has a version of its own", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		n := s.path("n")
		created := c.must(create2(n, nil, persistent))
		c.must(setData(n, nil, 0))
		entry := acl{permRead | permAdmin, "world", "anyone"}
		r := c.must(setACL(n, 0, entry, entry, acl{permWrite, "ip", "10.0.0.0/8"}, entry))
		require.EqualValues(t, 1, r.Stat.Aversion)
		require.EqualValues(t, 1, r.Stat.Version)
		require.Equal(t, created.Stat.Pzxid, r.Stat.Pzxid)
		require.Greater(t, r.Zxid, r.Stat.Mzxid)
		got := c.must(getACL(n))
		require.Equal(t, []acl{entry, {permWrite, "ip", "10.0.0.0/8"}}, got.ACL, "each entry once")
		require.Equal(t, r.Stat, got.Stat)

		for _, version := range []int32{0, 2, -2} {
			c.fails(errBadVersion, setACL(n, version, entry))
		}
		c.fails(errNoNode, setACL(s.path("missing"), 0, entry))
		c.fails(errInvalidACL, setACL(s.path("missing"), 0))
		c.fails(errBadArguments, setACL(s.path("missing/"), 0))
		c.must(setACL(n, 1, acl{permRead, "world", "anyone"}))
		c.fails(errInvalidACL, setACL(n, 7))
		c.fails(errNoAuth, setACL(n, 7, entry))
		require.EqualValues(t, 2, c.must(getACL(n)).Stat.Aversion)
	}},
	{111, "a listing may be larger than a request", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		long := make([]byte, 1000)
		for i := range long {
			long[i] = 'x'
		}
		var creates []request
		for range 1100 {
			creates = append(creates, create(s.path(string(long)), nil, sequential))
		}
		for _, r := range c.pipeline(creates...) {
			require.Zero(t, r.Err)
		}
		require.Len(t, c.must(getChildren(s.root, false)).Names, len(creates))
	}},
	{132, "a null path is refused", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		for _, r := range []request{
			create(null, nil, persistent), create2(null, nil, sequential), createContainer(null, persistent),
			remove(null, anyVersion), exists(null, true), getData(null, false), getChildren(null, false),
			getChildren2(null, false), getACL(null), checkWatches(null, dataWatch),
		} {
			c.fails(errMarshalling, r)
		}
		c.fails(errBadArguments, setData(null, nil, anyVersion))
		c.fails(errBadArguments, setACL(null, anyVersion, world...))
		c.fails(errNoWatcher, removeWatches(null, dataWatch))
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
					require.True(t, part.Op == opGetData || slices.Equal(order, part.Names))
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
		c.fails(errNoNode, checkVersion(s.path("none"), anyVersion))
		c.fails(errBadVersion, checkVersion(s.root, 1))
		c.send(checkVersion(s.root, 0))
		require.Equal(t, opPing, c.do(ping()).Op)
		require.Len(t, c.pending, 1)
		c.must(exists(s.root, false))
	}},
}
