package zookeeper

// This file compares packets of the session's own protocol with those of go-zookeeper.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/zktest"
)

// recorder keeps the last request that the client has written.
type recorder struct {
	net.Conn
	mu   sync.Mutex
	last []byte
}

func (r *recorder) request() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

func (r *recorder) Write(p []byte) (int, error) {
	const opPing = 11
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(p) > 12 && binary.BigEndian.Uint32(p[8:]) != opPing {
		r.last = append([]byte{}, p...)
	}
	return r.Conn.Write(p)
}

// Every request has the bytes, and every answer the meaning, that they have in the
// client's own calls.
func TestRequestsAndAnswersAreTheClients(t *testing.T) { synctest.Test(t, comparePackets) }

func comparePackets(t *testing.T) {
	server := zktest.StartBubble(t)
	var recorded *recorder
	client, events, err := zk.Connect(server.Members(), 30*time.Second, zk.WithLogInfo(false),
		zk.WithDialer(func(_, address string, _ time.Duration) (net.Conn, error) {
			conn, err := server.Dial(t.Context(), address)
			recorded = &recorder{Conn: conn}
			return recorded, err
		}))
	require.NoError(t, err)
	defer client.Close()
	for e := range events {
		if e.State == zk.StateHasSession {
			break
		}
	}
	synctest.Wait() // the client, which has just connected, looks at its watches without a lock
	session := open(t, server, Config{})

	// answer is what remains of an answer when it is compared.
	type answer struct {
		err      error
		paths    []string
		data     []byte
		stat     zk.Stat
		children []string
	}
	of := func(stat *zk.Stat, err error) answer {
		a := answer{err: err}
		if stat != nil {
			a.stat = *stat
		}
		return a
	}
	world, two := zk.WorldACL(zk.PermAll), append(zk.WorldACL(zk.PermRead), zk.DigestACL(zk.PermAll, "a", "b")...)
	multi := func(ops ...any) (*request, func() answer) {
		return multiRequest(ops...), func() answer {
			results, err := client.Multi(ops...)
			a := answer{err: err}
			for _, r := range results {
				if r.String != "" {
					a.paths = append(a.paths, r.String)
				}
			}
			return a
		}
	}
	create := func(path string, data []byte, flags int32, acl []zk.ACL) (*request, func() answer) {
		return createRequest(path, data, flags, acl), func() answer {
			var got string
			var err error
			if flags == zk.FlagContainer {
				got, err = client.CreateContainer(path, data, flags, acl)
			} else {
				got, err = client.Create(path, data, flags, acl)
			}
			if err != nil {
				return answer{err: err}
			}
			return answer{paths: []string{got}}
		}
	}
	remove := func(path string, version int32) (*request, func() answer) {
		return deleteRequest(path, version), func() answer { return answer{err: client.Delete(path, version)} }
	}
	read := func(data []byte, stat *zk.Stat, err error) answer {
		a := of(stat, err)
		a.data = data
		return a
	}
	get := func(path string) (*request, func() answer) {
		return getRequest(path), func() answer { return read(client.Get(path)) }
	}
	existing := func(found bool, stat *zk.Stat, err error) answer {
		if err == nil && !found {
			err = zk.ErrNoNode
		}
		return of(stat, err)
	}
	exists := func(path string) (*request, func() answer) {
		return existsRequest(path), func() answer { return existing(client.Exists(path)) }
	}
	set := func(path string, data []byte, version int32) (*request, func() answer) {
		return setRequest(path, data, version), func() answer {
			stat, err := client.Set(path, data, version)
			return of(stat, err)
		}
	}
	listed := func(children []string, stat *zk.Stat, err error) answer {
		a := of(stat, err)
		a.children = children
		return a
	}
	children := func(path string) (*request, func() answer) {
		return childrenRequest(path, minAnswer), func() answer { return listed(client.Children(path)) }
	}
	watched := func(q *request, ask func() answer) (*request, func() answer) {
		q.watch()
		return q, ask
	}
	getAndWatch := func(path string) (*request, func() answer) {
		return watched(getRequest(path), func() answer {
			data, stat, _, err := client.GetW(path)
			return read(data, stat, err)
		})
	}
	childrenAndWatch := func(path string) (*request, func() answer) {
		return watched(childrenRequest(path, minAnswer), func() answer {
			children, stat, _, err := client.ChildrenW(path)
			return listed(children, stat, err)
		})
	}
	existsAndWatch := func(path string) (*request, func() answer) {
		return watched(existsRequest(path), func() answer {
			found, stat, _, err := client.ExistsW(path)
			return existing(found, stat, err)
		})
	}
	sync := func(path string) (*request, func() answer) {
		return syncRequest(path), func() answer {
			_, err := client.Sync(path)
			return answer{err: err}
		}
	}
	// check also deletes nodes that the client has created, so that the same request can
	// succeed again.
	check := func(q *request, ask func() answer) {
		t.Helper()
		want := ask()
		require.Equal(t, recorded.request()[8:], q.packet[8:])
		for _, path := range want.paths {
			require.NoError(t, client.Delete(path, -1))
		}
		_ = session.requests.do(q)
		got := answer{q.err, q.paths, q.data, q.stat, q.children}
		if want.err != nil {
			if code := codeError(0); errors.As(got.err, &code) { // the client has no name for the code
				require.EqualError(t, want.err, fmt.Sprintf("unknown error: %d", int32(code)))
			} else {
				require.EqualError(t, got.err, want.err.Error())
			}
			return
		}
		require.NoError(t, got.err)
		require.Equal(t, want, got)
	}
	check(create("/a", []byte("data"), 0, world))
	check(create("/e", nil, zk.FlagEphemeral, two))
	check(create("/c", nil, zk.FlagContainer, world))
	check(create("/a", nil, 0, world))
	check(create("/a/b", []byte{}, 0, world))
	check(create("/missing/b", nil, zk.FlagEphemeral|zk.FlagSequence, world))
	check(get("/a"))
	check(getAndWatch("/a"))
	check(get("/a/b"))
	check(getAndWatch("/missing"))
	check(exists("/a"))
	check(exists("/missing"))
	check(set("/missing", []byte("x"), -1))
	check(set("/a", []byte("x"), 7))
	check(children("/"))
	check(children("/a"))
	check(children("/a/b"))
	check(children("/missing"))
	check(childrenAndWatch("/a"))
	check(childrenAndWatch("/missing"))
	check(existsAndWatch("/a"))
	check(existsAndWatch("/missing"))
	check(sync("/"))
	check(remove("/missing", -1))
	check(remove("/a", -1))
	check(remove("/a/b", 3))
	check(multi(&zk.CreateRequest{Path: "/m", Data: []byte("m"), Acl: world, Flags: zk.FlagEphemeral},
		&zk.CreateRequest{Path: "/n", Acl: two}, &zk.CheckVersionRequest{Path: "/a", Version: -1}))
	check(multi(&zk.CheckVersionRequest{Path: "/", Version: -1}))
	check(multi(&zk.SetDataRequest{Path: "/a", Data: []byte("y"), Version: -1}, &zk.CheckVersionRequest{Path: "/a/b", Version: 0}))
	check(multi(&zk.CreateRequest{Path: "/o", Acl: world}, &zk.DeleteRequest{Path: "/missing", Version: -1},
		&zk.SetDataRequest{Path: "/a", Version: -1}))
	q := setRequest("/a", []byte("z"), -1)
	require.NoError(t, session.requests.do(q))
	data, stat, err := client.Get("/a")
	require.NoError(t, err)
	require.Equal(t, "z", string(data))
	require.Equal(t, *stat, q.stat)

	for code := int32(-130); code < 0; code++ {
		fail := server.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpGetData}}, Times: 2, Do: zktest.FailWith(zktest.Code(code))})
		check(get("/a"))
		fail.Remove()
	}
}

// An answer that is cut short, or does not fit together, is an error and not a panic.
func TestGarbledAnswersAreErrors(t *testing.T) {
	for _, q := range []*request{
		createRequest("/a", nil, 0, nil), getRequest("/a"), existsRequest("/a"), setRequest("/a", nil, 0),
		childrenRequest("/a", 0), multiRequest(&zk.CreateRequest{Path: "/a"}),
	} {
		for _, body := range [][]byte{nil, {0}, {0, 0, 0, 9, 'a'}, {0x7f, 0xff, 0xff, 0xff}, {0xff, 0xff, 0xff, 0xff, 0}} {
			require.ErrorIs(t, q.decode(body), errGarbled, "operation %d, %x", q.op, body)
		}
	}
}

// A request that the server would not accept because of its length does not break the
// connection.
func TestRequestThatIsTooLargeIsRefused(t *testing.T) {
	q := setRequest("/a", make([]byte, maxSend), -1)
	r := &requests{room: maxAnswers, use: func() {}}
	require.True(t, isRefused(r.do(q)))
}
