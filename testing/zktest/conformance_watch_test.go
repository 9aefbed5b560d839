package zktest_test

import (
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

var watchChecks = []check{
	{42, "a watch fires once, before the reply to the change", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		c.must(create(s.path("n"), nil, persistent))
		c.must(getData(s.path("n"), true))
		require.Equal(t, []event{{nodeDataChanged, s.path("n")}}, c.must(setData(s.path("n"), nil, anyVersion)).Events)
		require.Empty(t, c.must(setData(s.path("n"), nil, anyVersion)).Events)
		require.Empty(t, c.newEvents())
	}},
	{43, "events arrive in the order of the changes, before the new data can be read", shared, func(t *testing.T, s checkEnv) {
		a, b := s.open(t), s.open(t)
		n, m := s.path("n"), s.path("m")
		a.must(create(n, nil, persistent))
		a.must(create(m, nil, persistent))
		b.must(getData(m, true))
		b.must(getData(n, true))
		a.must(setData(n, []byte("new"), 0))
		a.must(setData(m, nil, 0))
		read := b.must(getData(n, false))
		require.Equal(t, []byte("new"), read.Data)
		require.Equal(t, []event{{nodeDataChanged, n}, {nodeDataChanged, m}}, read.Events)
		require.Empty(t, b.newEvents())
	}},
	{44, "a create fires for the node, then for its parent", shared, func(t *testing.T, s checkEnv) {
		a, b := s.open(t), s.open(t)
		n := s.path("n")
		for _, c := range []*client{a, b} {
			c.fails(errNoNode, exists(n, true))
			c.must(getChildren(s.root, true))
		}
		want := []event{{nodeCreated, n}, {nodeChildrenChanged, s.root}}
		require.Equal(t, want, a.must(create(n, nil, persistent)).Events)
		require.Equal(t, want, b.newEvents())
		require.Empty(t, a.must(remove(n, 0)).Events)
		require.Empty(t, b.newEvents())
	}},
	{45, "a delete fires once for the node, then for its parent", shared, func(t *testing.T, s checkEnv) {
		a, b := s.open(t), s.open(t)
		n := s.path("n")
		a.must(create(n, nil, persistent))
		b.must(getChildren2(s.root, true))
		b.must(getChildren(n, true))
		b.must(getData(n, true))
		a.must(getChildren2(n, true)) // the only watch of a
		require.Equal(t, []event{{nodeDeleted, n}}, a.must(remove(n, 0)).Events)
		require.Equal(t, []event{{nodeDeleted, n}, {nodeChildrenChanged, s.root}}, b.newEvents())

		// Both watches on the node are used up.
		a.must(create(n, nil, persistent))
		a.must(setData(n, nil, 0))
		a.must(create(n+"/child", nil, persistent))
		require.Empty(t, b.newEvents())
	}},
	{46, "exists and getData share a watch", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		c.must(create(s.path("n"), nil, persistent))
		c.must(exists(s.path("n"), true))
		c.must(getData(s.path("n"), true))
		c.must(getData(s.path("n"), true))
		require.Equal(t, []event{{nodeDataChanged, s.path("n")}}, c.must(setData(s.path("n"), nil, 0)).Events)
		require.Empty(t, c.must(setData(s.path("n"), nil, 1)).Events)

		c.must(getChildren(s.path("n"), true))
		c.must(getChildren2(s.path("n"), true))
		require.Equal(t, []event{{nodeChildrenChanged, s.path("n")}}, c.must(create(s.path("n/a"), nil, persistent)).Events)
		require.Empty(t, c.must(create(s.path("n/b"), nil, persistent)).Events)
	}},
	{47, "data watches and child watches are independent, and setACL fires none", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		x, y := s.path("x"), s.path("y")
		c.must(create(x, nil, persistent))
		c.must(create(y, nil, persistent))
		c.must(getChildren(x, true))
		c.must(getData(y, true))
		for _, r := range []request{
			setData(x, nil, 0), setACL(x, 0, world...), setACL(y, 0, world...), create(y+"/child", nil, persistent),
			setData(y+"/child", nil, 0), remove(y+"/child", 1),
		} {
			require.Empty(t, c.must(r).Events, "operation %d", r.Op)
		}
		c.fails(errBadVersion, setData(y, nil, 7))
		c.fails(errBadVersion, remove(y, 7))
		c.fails(errNodeExists, create(y, nil, persistent))
		require.Empty(t, c.newEvents())
		// The watches were not used up.
		require.Len(t, c.must(create(x+"/child", nil, persistent)).Events, 1)
		require.Len(t, c.must(setData(y, nil, 0)).Events, 1)
	}},
	{48, "watches end with their connection", shared, func(t *testing.T, s checkEnv) {
		a, other := s.open(t), s.open(t)
		n := s.path("n")
		a.must(create(n, nil, persistent))
		a.must(getData(n, true))
		a.must(addWatch(n, modePersistent))
		other.must(checkWatches(n, dataWatch))
		a.cut()
		other.must(setData(n, nil, 0))
		b := a.reattach()
		other.must(setData(n, nil, 1))
		other.must(remove(n, 2))
		require.Empty(t, b.newEvents())
		other.fails(errNoWatcher, checkWatches(n, anyWatch))
	}},
	{49, "setWatches sends the missed events, and sets the other watches again", shared, func(t *testing.T, s checkEnv) {
		a, other := s.open(t), s.open(t)
		same, changed, gone := s.path("same"), s.path("changed"), s.path("gone")
		missing, made := s.path("missing"), s.path("made")
		calm, busy, lost := s.path("calm"), s.path("busy"), s.path("lost")
		data, exist, child := []string{changed, gone, same}, []string{made, missing}, []string{busy, lost, calm}
		var creates []request
		for _, n := range slices.Concat(data, child) {
			creates = append(creates, create(n, nil, persistent))
		}
		before := a.must(multi(creates...)).Zxid // the zxid of all these nodes
		a.cut()
		other.must(create(busy+"/child", nil, persistent))
		other.must(remove(gone, 0))
		other.must(create(made, nil, persistent))
		other.must(setData(changed, nil, 0))
		other.must(remove(lost, 0))
		// These changes fire none of the watches.
		other.must(create(same+"/child", nil, persistent))
		other.must(setACL(same, 0, world...))
		other.must(setData(calm, nil, 0))

		b := a.reattach()
		require.Equal(t, []event{
			{nodeDataChanged, changed}, {nodeDeleted, gone},
			{nodeCreated, made},
			{nodeChildrenChanged, busy}, {nodeDeleted, lost},
		}, b.must(setWatches(before, data, exist, child)).Events)

		for round := range 2 {
			other.must(setData(changed, nil, anyVersion)) // a watch that fired is not set again
			other.must(setData(made, nil, anyVersion))
			other.must(create(busy+"/-", nil, sequential))
			other.must(setData(same, nil, anyVersion))
			other.must(create(missing, nil, persistent))
			other.must(create(calm+"/-", nil, sequential))
			want := []event{{nodeDataChanged, same}, {nodeCreated, missing}, {nodeChildrenChanged, calm}}
			if round > 0 {
				want = nil
			}
			require.Equal(t, want, b.newEvents())
			other.must(remove(missing, 0))
		}
	}},
	{50, "the reply to setWatches has the xid of the request", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		for _, xid := range []int32{xidSetWatches, 7} {
			require.Equal(t, xid, c.must(setWatches(0, nil, nil, nil).withXid(xid)).Xid)
			require.Equal(t, xid, c.must(setWatches2(0, nil, nil, nil, nil, nil).withXid(xid)).Xid)
		}
	}},
	{51, "removeWatches and checkWatches distinguish kinds of watches", shared, func(t *testing.T, s checkEnv) {
		a, b := s.open(t), s.open(t)
		n := s.path("n")
		a.must(create(n, nil, persistent))
		for _, kind := range []int32{childWatch, dataWatch, anyWatch} {
			a.fails(errNoWatcher, checkWatches(n, kind))
			a.fails(errNoWatcher, removeWatches(n, kind))
		}
		a.must(getData(n, true))
		a.fails(errNoWatcher, removeWatches(n, childWatch))
		a.fails(errNoWatcher, checkWatches(n, childWatch))
		b.must(checkWatches(n, dataWatch)) // of any connection
		b.must(checkWatches(n, anyWatch))
		b.fails(errNoWatcher, removeWatches(n, dataWatch))
		a.must(checkWatches(n, dataWatch))
		a.must(removeWatches(n, dataWatch))
		a.fails(errNoWatcher, removeWatches(n, dataWatch))
		b.fails(errNoWatcher, checkWatches(n, anyWatch))
		require.Empty(t, a.must(setData(n, nil, 0)).Events)

		a.must(getChildren(n, true))
		a.fails(errNoWatcher, checkWatches(n, dataWatch))
		b.must(checkWatches(n, childWatch))
		a.must(removeWatches(n, childWatch))
		require.Empty(t, a.must(create(n+"/child", nil, persistent)).Events)

		a.must(getChildren(n, true))
		a.must(getData(n, true))
		b.must(getData(n, true))
		a.must(removeWatches(n, anyWatch))
		require.Empty(t, a.must(setData(n, nil, 1)).Events)
		require.Empty(t, a.must(remove(n+"/child", 0)).Events)
		require.Equal(t, []event{{nodeDataChanged, n}}, b.newEvents(), "the other client's watches stay")
		for _, kind := range []int32{0, 4} {
			a.fails(errMarshalling, removeWatches(n, kind))
			a.fails(errMarshalling, checkWatches(n, kind))
		}
	}},
	{52, "persistent watches fire repeatedly", shared, func(t *testing.T, s checkEnv) {
		exact, recursive, other := s.open(t), s.open(t), s.open(t)
		n := s.path("n")
		other.must(create(n, nil, persistent))
		exact.must(addWatch(n, modePersistent))
		recursive.must(addWatch(n, modeRecursive))
		exact.fails(errMarshalling, addWatch(n, 2))
		exact.must(addWatch(n, modePersistent)) // has no effect
		for _, r := range []request{
			setData(n, nil, 0), setData(n, nil, 1),
			create(n+"/child", nil, persistent),
			create(n+"/child/deep", nil, persistent),
			setData(n+"/child", nil, 0),
			setData(n+"/child/deep", nil, 0),
			remove(n+"/child/deep", 1),
			remove(n+"/child", 1),
			remove(n, 2),
			create(s.path("nn"), nil, persistent), // no descendant
			create(n, nil, persistent),
			setData(n, nil, 0),
		} {
			other.must(r)
		}
		require.Equal(t, []event{
			{nodeDataChanged, n}, {nodeDataChanged, n},
			{nodeChildrenChanged, n}, {nodeChildrenChanged, n},
			{nodeDeleted, n}, {nodeCreated, n}, {nodeDataChanged, n},
		}, exact.newEvents())
		require.Equal(t, []event{
			{nodeDataChanged, n}, {nodeDataChanged, n},
			{nodeCreated, n + "/child"}, {nodeCreated, n + "/child/deep"},
			{nodeDataChanged, n + "/child"}, {nodeDataChanged, n + "/child/deep"},
			{nodeDeleted, n + "/child/deep"}, {nodeDeleted, n + "/child"},
			{nodeDeleted, n}, {nodeCreated, n}, {nodeDataChanged, n},
		}, recursive.newEvents())

		exact.must(checkWatches(n, anyWatch))
		exact.must(removeWatches(n, anyWatch))
		recursive.must(removeWatches(n, anyWatch))
		other.must(setData(n, nil, 1))
		other.must(create(n+"/child", nil, persistent))
		require.Empty(t, exact.newEvents())
		require.Empty(t, recursive.newEvents())
	}},
	{53, "a client without READ gets no events of a node", shared, func(t *testing.T, s checkEnv) {
		stranger, owner := s.open(t), s.open(t)
		owner.must(auth("digest", "u:p"))
		mine := acl{permAll, "auth", ""}
		secret, fresh, parent := s.path("secret"), s.path("fresh"), s.path("parent")
		owner.must(create(secret, nil, persistent, mine))
		owner.must(create(parent, nil, persistent))

		stranger.must(exists(secret, true))
		stranger.fails(errNoNode, exists(fresh, true))
		stranger.must(getChildren(parent, true))
		owner.must(setACL(parent, 0, mine))
		owner.must(setData(secret, nil, 0))
		owner.must(create(fresh, nil, persistent, mine))
		owner.must(create(parent+"/child", nil, persistent))
		require.Empty(t, stranger.newEvents())

		// The watches are used up.
		for _, n := range []string{secret, fresh, parent} {
			owner.must(setACL(n, anyVersion, world...))
			owner.must(setData(n, nil, anyVersion))
		}
		owner.must(remove(parent+"/child", 0))
		require.Empty(t, stranger.newEvents())

		// A client with READ gets the event.
		owner.must(exists(secret, true))
		owner.must(setACL(secret, anyVersion, mine))
		require.Equal(t, []event{{nodeDeleted, secret}}, owner.must(remove(secret, anyVersion)).Events)
	}},
	{54, "the end of a session fires a child watch once", shared, func(t *testing.T, s checkEnv) {
		a, b := s.open(t), s.open(t)
		a.must(create(s.path("x"), nil, ephemeral))
		a.must(create(s.path("y"), nil, ephemeral))
		b.must(exists(s.path("x"), true))
		b.must(getData(s.path("y"), true))
		b.must(getChildren(s.root, true))
		a.must(closeSession())
		require.ElementsMatch(t, []event{
			{nodeDeleted, s.path("x")}, {nodeDeleted, s.path("y")}, {nodeChildrenChanged, s.root},
		}, b.newEvents())
	}},
	{55, "pipelined requests are answered in order, with the events among the replies", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		n := s.path("n")
		r := c.pipeline(
			create(n, []byte("old"), persistent), getData(n, true), setData(n, []byte("new"), 0), getData(n, false),
			ping(), remove(n, 1), exists(n, false),
		)
		for i, res := range r {
			var code int32
			var events []event
			switch i {
			case 2:
				events = []event{{nodeDataChanged, n}}
			case 6:
				code = errNoNode
			}
			require.Equal(t, code, res.Err, "reply %d", i)
			require.Equal(t, events, res.Events, "reply %d", i)
		}
		require.Equal(t, []byte("old"), r[1].Data)
		require.Equal(t, []byte("new"), r[3].Data)
		require.Equal(t, r[2].Stat, r[3].Stat)
		require.Equal(t, r[0].Zxid, r[1].Stat.Czxid)
	}},
	{115, "setWatches compares the present state only", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		anew, brief, gone := s.path("anew"), s.path("brief"), s.path("gone")
		c.must(create(anew, nil, persistent))
		c.must(create(gone, nil, persistent))
		before := c.zxid
		c.must(remove(anew, 0))
		c.must(create(anew, nil, persistent))
		c.must(create(brief, nil, persistent))
		c.must(remove(brief, 0))
		c.must(remove(gone, 0))
		require.Equal(t, []event{{nodeDataChanged, anew}, {nodeDeleted, gone}, {nodeDeleted, gone}},
			c.must(setWatches(before, []string{anew, gone}, []string{brief}, []string{gone})).Events)
		require.Equal(t, []event{{nodeCreated, brief}}, c.must(create(brief, nil, persistent)).Events)
		require.Empty(t, c.must(setData(anew, nil, 0)).Events)
		require.Empty(t, c.must(create(gone, nil, persistent)).Events)
	}},
	{116, "setWatches2 sets persistent watches without events", shared, func(t *testing.T, s checkEnv) {
		a, other := s.open(t), s.open(t)
		exact, recursive, data := s.path("exact"), s.path("recursive"), s.path("data")
		for _, n := range []string{exact, recursive, data} {
			other.must(create(n, nil, persistent))
			other.must(setData(n, nil, 0))
		}
		lists := [][]string{{data}, nil, nil, {exact}, {recursive}}
		require.Equal(t, []event{{nodeDataChanged, data}}, a.must(setWatches2(0, lists...)).Events)
		for range 2 {
			other.must(setData(exact, nil, anyVersion))
			other.must(setData(recursive, nil, anyVersion))
			other.must(create(exact+"/-", nil, sequential))
			child := other.must(create(recursive+"/-", nil, sequential)).Path
			require.Equal(t, []event{
				{nodeDataChanged, exact}, {nodeDataChanged, recursive},
				{nodeChildrenChanged, exact}, {nodeCreated, child},
			}, a.newEvents())
		}
	}},
	{117, "the root can be watched, and has sequential children", exclusive, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		n := s.root + "-sibling"
		c.must(getChildren("/", true))
		require.Equal(t, []event{{nodeChildrenChanged, "/"}}, c.must(create(n, nil, persistent)).Events)
		c.must(getChildren2("/", true))
		require.Equal(t, []event{{nodeChildrenChanged, "/"}}, c.must(remove(n, 0)).Events)
		c.must(exists("/", true))
		require.Equal(t, []event{{nodeDataChanged, "/"}}, c.must(setData("/", nil, anyVersion)).Events)
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
	{118, "reads without READ set no watch; exists and getACL do not need READ", shared, func(t *testing.T, s checkEnv) {
		stranger, owner := s.open(t), s.open(t)
		n := s.path("n")
		owner.must(create(n, []byte("x"), persistent, acl{permAll &^ permRead, "world", "anyone"}))
		for _, op := range []int32{opGetData, opGetChildren, opGetChildren2} {
			stranger.fails(errNoAuth, readRequest(op, n, true))
		}
		stranger.fails(errNoAuth, getAllChildrenNumber(n))
		require.EqualValues(t, 1, stranger.must(exists(n, false)).Stat.DataLength)
		stranger.must(getACL(n)) // ADMIN is sufficient
		owner.must(setACL(n, 0, acl{permAll &^ permRead &^ permAdmin, "world", "anyone"}))
		stranger.fails(errNoAuth, getACL(n))
		stranger.fails(errNoWatcher, checkWatches(n, anyWatch))
	}},
	{119, "a watch set by exists fires on any next change", shared, func(t *testing.T, s checkEnv) {
		c := s.open(t)
		n := s.path("n")
		look := func() {
			c.send(exists(n, true))
			c.reply()
		}
		look()
		require.Equal(t, []event{{nodeCreated, n}}, c.must(create(n, nil, ephemeral)).Events)
		look()
		require.Equal(t, []event{{nodeDataChanged, n}}, c.must(setData(n, nil, 0)).Events)
		look()
		require.Equal(t, []event{{nodeDeleted, n}}, c.must(remove(n, 1)).Events)
		require.Empty(t, c.must(create(n, nil, ephemeral)).Events)
	}},
}
