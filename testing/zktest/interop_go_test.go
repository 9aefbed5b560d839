//go:build unix

package zktest_test

// This file has the test of github.com/go-zookeeper/zk. The tests of the faults and of
// zkserve use this client, too.

import (
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/zktest"
)

type silentLogger struct{}

func (silentLogger) Printf(string, ...any) {}

// dialZK returns a client with a session.
func dialZK(t *testing.T, connect string) *zk.Conn {
	t.Helper()
	conn, _, err := zk.Connect([]string{connect}, interopTimeout, zk.WithLogger(silentLogger{}))
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
	select {
	case event := <-events:
		require.NoError(t, event.Err)
		require.Equal(t, kind, event.Type)
		require.Equal(t, path, event.Path)
	case <-time.After(interopTimeout):
		require.FailNow(t, "no event")
	}
}

// runGoZookeeper breaks a client's connection and changes what the client watches.
func runGoZookeeper(t *testing.T, connect string) {
	const p = "/go-zookeeper"
	b := dialZK(t, connect)
	createZK(t, b, p, "")
	for _, name := range []string{"/changed", "/deleted", "/parent", "/untouched"} {
		createZK(t, b, p+name, "")
	}
	proxy := zktest.StartProxy(t, connect)
	a := dialZK(t, proxy.Addr())
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

	proxy.Partition(zktest.Selector{}, zktest.Both) // of the next connection
	proxy.Cut(zktest.Selector{})
	awaitSession(t, a, false)
	_, err = b.Set(p+"/changed", []byte("x"), -1)
	require.NoError(t, err)
	require.NoError(t, b.Delete(p+"/deleted", -1))
	createZK(t, b, p+"/created", "")
	createZK(t, b, p+"/parent/child", "")
	proxy.Heal()
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
	_, err = b.Set(p+"/untouched", []byte("x"), -1)
	require.NoError(t, err)
	requireEvent(t, untouched, zk.EventNodeDataChanged, p+"/untouched")

	a.Close()
	found, _, err := b.Exists(p + "/ephemeral")
	require.NoError(t, err)
	require.False(t, found)
}
