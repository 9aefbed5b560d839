//go:build unix

package zktest_test

import (
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"
)

// runGoZookeeper uses github.com/go-zookeeper/zk as its users do.
func runGoZookeeper(t *testing.T, connect string) {
	c := goClients{connect, dialZK(t, connect, net.DialTimeout), dialZK(t, connect, net.DialTimeout)}
	createZK(t, c.a, goRoot, "")
	for _, check := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"nodes", c.nodes},
		{"sequences", c.sequences},
		{"extended types", c.extendedTypes},
		{"multi", c.multi},
		{"watches", c.watches},
		{"permissions", c.permissions},
		{"lock", c.lock},
		{"lock of a closed session", c.lockOfAClosedSession},
		{"reconnect", c.reconnect},
	} {
		t.Run(check.name, check.run)
	}
}

const goRoot = "/go-zookeeper"

// goClients are two clients of one server.
type goClients struct {
	connect string
	a, b    *zk.Conn
}

type silentLogger struct{}

func (silentLogger) Printf(string, ...any) {}

// dialZK returns a client with a session.
func dialZK(t *testing.T, connect string, dial zk.Dialer) *zk.Conn {
	t.Helper()
	conn, _, err := zk.Connect([]string{connect}, interopTimeout, zk.WithDialer(dial), zk.WithLogger(silentLogger{}))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	// Then pending calls return an error.
	giveUp := time.AfterFunc(programTimeout, conn.Close)
	t.Cleanup(func() { giveUp.Stop() })
	awaitSession(t, conn, true)
	return conn
}

func awaitSession(t *testing.T, conn *zk.Conn, want bool) {
	t.Helper()
	require.Eventually(t, func() bool { return (conn.State() == zk.StateHasSession) == want }, interopTimeout, interopPoll)
}

func createZK(t *testing.T, conn *zk.Conn, path, data string) {
	t.Helper()
	got, err := conn.Create(path, []byte(data), zk.FlagPersistent, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	require.Equal(t, path, got)
}

func requireEvent(t *testing.T, events <-chan zk.Event, kind zk.EventType, path string) {
	t.Helper()
	event := receive(t, events)
	require.NoError(t, event.Err)
	require.Equal(t, kind, event.Type)
	require.Equal(t, path, event.Path)
}

func (c goClients) nodes(t *testing.T) {
	p := goRoot + "/nodes"
	require.Equal(t, []bool{true}, zk.FLWRuok([]string{c.connect}, interopTimeout))
	found, _, err := c.a.Exists(p)
	require.NoError(t, err)
	require.False(t, found)
	createZK(t, c.a, p, "1")
	_, err = c.b.Create(p, nil, zk.FlagPersistent, zk.WorldACL(zk.PermAll))
	require.ErrorIs(t, err, zk.ErrNodeExists)
	_, err = c.a.Create(p+"/deep/node", nil, zk.FlagPersistent, zk.WorldACL(zk.PermAll))
	require.ErrorIs(t, err, zk.ErrNoNode)

	stat, err := c.a.Set(p, []byte("22"), 0)
	require.NoError(t, err)
	require.EqualValues(t, 1, stat.Version)
	_, err = c.b.Set(p, nil, 0)
	require.ErrorIs(t, err, zk.ErrBadVersion)
	synced, err := c.b.Sync(p)
	require.NoError(t, err)
	require.Equal(t, p, synced)
	data, got, err := c.b.Get(p)
	require.NoError(t, err)
	require.Equal(t, "22", string(data))
	require.Equal(t, stat, got)

	createZK(t, c.a, p+"/x", "")
	createZK(t, c.a, p+"/y", "")
	children, stat, err := c.b.Children(p)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"x", "y"}, children)
	require.EqualValues(t, 2, stat.NumChildren)
	require.ErrorIs(t, c.b.Delete(p, -1), zk.ErrNotEmpty)
	require.ErrorIs(t, c.b.Delete(p+"/x", 7), zk.ErrBadVersion)
	require.NoError(t, c.b.Delete(p+"/x", 0))
	require.ErrorIs(t, c.b.Delete(p+"/x", -1), zk.ErrNoNode)
}

func (c goClients) sequences(t *testing.T) {
	p := goRoot + "/sequences"
	createZK(t, c.a, p, "")
	first, err := c.a.Create(p+"/n-", nil, zk.FlagEphemeralSequential, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	require.Equal(t, p+"/n-0000000000", first)
	second, err := c.b.Create(p+"/n-", nil, zk.FlagSequence, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	require.Equal(t, p+"/n-0000000001", second)
	protected, err := c.b.CreateProtectedEphemeralSequential(p+"/n-", []byte("x"), zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	require.Regexp(t, "^"+p+"/_c_[0-9a-f]{32}-n-0000000002$", protected)
	for path, owner := range map[string]int64{first: c.a.SessionID(), second: 0, protected: c.b.SessionID()} {
		_, stat, err := c.a.Get(path)
		require.NoError(t, err)
		require.Equal(t, owner, stat.EphemeralOwner)
	}
	_, err = c.a.Create(first+"/child", nil, zk.FlagPersistent, zk.WorldACL(zk.PermAll))
	require.ErrorIs(t, err, zk.ErrNoChildrenForEphemerals)
}

func (c goClients) extendedTypes(t *testing.T) {
	p := goRoot + "/extended"
	got, err := c.a.CreateContainer(p, []byte("x"), zk.FlagContainer, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	require.Equal(t, p, got)
	got, err = c.a.CreateTTL(p+"/ttl", []byte("x"), zk.FlagTTL, zk.WorldACL(zk.PermAll), time.Hour)
	require.NoError(t, err)
	require.Equal(t, p+"/ttl", got)
	got, err = c.a.CreateTTL(p+"/ttl-", nil, zk.FlagPersistentSequentialWithTTL, zk.WorldACL(zk.PermAll), time.Hour)
	require.NoError(t, err)
	require.Equal(t, p+"/ttl-0000000001", got)
	for _, path := range []string{p, p + "/ttl"} {
		data, stat, err := c.b.Get(path)
		require.NoError(t, err)
		require.Equal(t, "x", string(data))
		require.Zero(t, stat.EphemeralOwner)
	}
}

func (c goClients) multi(t *testing.T) {
	p := goRoot + "/multi"
	results, err := c.a.Multi(
		&zk.CreateRequest{Path: p, Data: []byte("1"), Acl: zk.WorldACL(zk.PermAll)},
		&zk.CreateRequest{Path: p + "/n-", Acl: zk.WorldACL(zk.PermAll), Flags: zk.FlagEphemeralSequential},
		&zk.SetDataRequest{Path: p, Data: []byte("22"), Version: 0},
		&zk.CheckVersionRequest{Path: p, Version: 1},
		&zk.DeleteRequest{Path: p + "/n-0000000000", Version: -1},
	)
	require.NoError(t, err)
	require.Len(t, results, 5)
	require.Equal(t, p, results[0].String)
	require.Equal(t, p+"/n-0000000000", results[1].String)
	require.EqualValues(t, 1, results[2].Stat.Version)

	results, err = c.a.Multi(
		&zk.CreateRequest{Path: p + "/a", Acl: zk.WorldACL(zk.PermAll)},
		&zk.DeleteRequest{Path: p + "/missing", Version: -1},
		&zk.CreateRequest{Path: p + "/b", Acl: zk.WorldACL(zk.PermAll)},
	)
	require.ErrorIs(t, err, zk.ErrNoNode)
	require.Len(t, results, 3)
	require.NoError(t, results[0].Error)
	require.ErrorIs(t, results[1].Error, zk.ErrNoNode)
	require.Error(t, results[2].Error)
	children, _, err := c.b.Children(p)
	require.NoError(t, err)
	require.Empty(t, children)
}

func (c goClients) watches(t *testing.T) {
	p := goRoot + "/watches"
	found, _, created, err := c.a.ExistsW(p)
	require.NoError(t, err)
	require.False(t, found)
	createZK(t, c.b, p, "")
	requireEvent(t, created, zk.EventNodeCreated, p)

	_, _, changed, err := c.a.GetW(p)
	require.NoError(t, err)
	_, _, children, err := c.a.ChildrenW(p)
	require.NoError(t, err)
	_, err = c.b.Set(p, []byte("x"), -1)
	require.NoError(t, err)
	requireEvent(t, changed, zk.EventNodeDataChanged, p)
	createZK(t, c.b, p+"/child", "")
	requireEvent(t, children, zk.EventNodeChildrenChanged, p)

	_, _, deleted, err := c.a.GetW(p + "/child")
	require.NoError(t, err)
	_, _, childless, err := c.a.ChildrenW(p + "/child")
	require.NoError(t, err)
	require.NoError(t, c.b.Delete(p+"/child", -1))
	requireEvent(t, deleted, zk.EventNodeDeleted, p+"/child")
	requireEvent(t, childless, zk.EventNodeDeleted, p+"/child")
}

func (c goClients) permissions(t *testing.T) {
	p := goRoot + "/permissions"
	owner := dialZK(t, c.connect, net.DialTimeout)
	_, err := owner.Create(p, nil, zk.FlagPersistent, zk.AuthACL(zk.PermAll))
	require.ErrorIs(t, err, zk.ErrInvalidACL, "not authenticated yet")
	require.NoError(t, owner.AddAuth("digest", []byte("gopher:secret")))
	_, err = owner.Create(p, []byte("private"), zk.FlagPersistent, zk.AuthACL(zk.PermAll))
	require.NoError(t, err)

	data, _, err := owner.Get(p)
	require.NoError(t, err)
	require.Equal(t, "private", string(data))
	_, _, err = c.a.Get(p)
	require.ErrorIs(t, err, zk.ErrNoAuth)
	_, err = c.a.Create(p+"/child", nil, zk.FlagPersistent, zk.WorldACL(zk.PermAll))
	require.ErrorIs(t, err, zk.ErrNoAuth)
	acl, stat, err := owner.GetACL(p)
	require.NoError(t, err)
	require.Equal(t, zk.DigestACL(zk.PermAll, "gopher", "secret"), acl)
	require.Zero(t, stat.Aversion)

	stat, err = owner.SetACL(p, append(acl, zk.WorldACL(zk.PermRead)...), 0)
	require.NoError(t, err)
	require.EqualValues(t, 1, stat.Aversion)
	_, err = owner.SetACL(p, acl, 0)
	require.ErrorIs(t, err, zk.ErrBadVersion)
	_, _, err = c.a.Get(p)
	require.NoError(t, err)
	_, err = c.a.Set(p, nil, -1)
	require.ErrorIs(t, err, zk.ErrNoAuth)
}

func (c goClients) lock(t *testing.T) {
	p := goRoot + "/lock"
	contendGo(t, p+"/deep", 20, []*zk.Conn{c.a, c.b}, filepath.Join(t.TempDir(), "guard"))
	left, _, err := c.a.Children(p + "/deep")
	require.NoError(t, err)
	require.Empty(t, left)
}

func (c goClients) lockOfAClosedSession(t *testing.T) {
	p := goRoot + "/leaver"
	leaver := dialZK(t, c.connect, net.DialTimeout)
	require.NoError(t, zk.NewLock(leaver, p, zk.WorldACL(zk.PermAll)).Lock())
	next := zk.NewLock(c.a, p, zk.WorldACL(zk.PermAll))
	locked := make(chan error, 1)
	go func() { locked <- next.Lock() }()
	require.Eventually(t, func() bool {
		children, _, err := c.b.Children(p)
		return err == nil && len(children) == 2
	}, interopTimeout, interopPoll)
	leaver.Close()
	require.NoError(t, receive(t, locked))
	require.NoError(t, next.Unlock())
}

// reconnect breaks a client's connection and changes what the client watches.
func (c goClients) reconnect(t *testing.T) {
	p := goRoot + "/reconnect"
	createZK(t, c.b, p, "")
	for _, name := range []string{"/changed", "/deleted", "/parent", "/untouched"} {
		createZK(t, c.b, p+name, "")
	}
	var dialer breakableDialer
	a := dialZK(t, c.connect, dialer.dial)
	session := a.SessionID()
	_, err := a.Create(p+"/ephemeral", nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	require.NoError(t, a.AddAuth("digest", []byte("gopher:secret")))
	_, err = a.Create(p+"/private", nil, zk.FlagPersistent, zk.AuthACL(zk.PermAll))
	require.NoError(t, err)
	get := func(name string) <-chan zk.Event {
		_, _, events, err := a.GetW(p + name)
		require.NoError(t, err)
		return events
	}
	changed, deleted, untouched := get("/changed"), get("/deleted"), get("/untouched")
	_, _, created, err := a.ExistsW(p + "/created")
	require.NoError(t, err)
	_, _, children, err := a.ChildrenW(p + "/parent")
	require.NoError(t, err)

	restore := dialer.cut()
	defer restore()
	awaitSession(t, a, false)
	_, err = c.b.Set(p+"/changed", []byte("x"), -1)
	require.NoError(t, err)
	require.NoError(t, c.b.Delete(p+"/deleted", -1))
	createZK(t, c.b, p+"/created", "")
	createZK(t, c.b, p+"/parent/child", "")
	restore()
	awaitSession(t, a, true)

	requireEvent(t, changed, zk.EventNodeDataChanged, p+"/changed")
	requireEvent(t, deleted, zk.EventNodeDeleted, p+"/deleted")
	requireEvent(t, created, zk.EventNodeCreated, p+"/created")
	requireEvent(t, children, zk.EventNodeChildrenChanged, p+"/parent")
	require.Equal(t, session, a.SessionID())
	_, stat, err := a.Get(p + "/ephemeral")
	require.NoError(t, err)
	require.Equal(t, session, stat.EphemeralOwner)
	_, _, err = a.Get(p + "/private")
	require.NoError(t, err)

	// The watch on the unchanged node is set again.
	select {
	case event := <-untouched:
		require.Fail(t, "an unexpected event", "%v", event)
	default:
	}
	_, err = c.b.Set(p+"/untouched", []byte("x"), -1)
	require.NoError(t, err)
	requireEvent(t, untouched, zk.EventNodeDataChanged, p+"/untouched")

	a.Close()
	found, _, err := c.b.Exists(p + "/ephemeral")
	require.NoError(t, err)
	require.False(t, found)
}

// breakableDialer dials for a client whose connection a test breaks.
type breakableDialer struct {
	mu   sync.Mutex // held while the connection is cut
	conn net.Conn
}

// dial waits while the connection is cut.
func (d *breakableDialer) dial(network, address string, timeout time.Duration) (net.Conn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	conn, err := net.DialTimeout(network, address, timeout)
	d.conn = conn
	return conn, err
}

// cut breaks the connection. The client cannot reconnect until restore.
func (d *breakableDialer) cut() (restore func()) {
	d.mu.Lock()
	_ = d.conn.Close()
	return sync.OnceFunc(d.mu.Unlock)
}
