package txnlog_test

// This file tests the reading of files that real servers wrote.

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/cmd/lockpool/txnlog"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// state is what the files tell: by path, the creating transaction, the version and the session.
type state struct {
	nodes     map[string][3]int64
	first     int64 // transaction applied
	snapshots int
	newest    int64 // creating transaction of a node in a snapshot
}

func (s *state) apply(t txnlog.Txn) bool {
	if t.Zxid == 0 {
		s.nodes = map[string][3]int64{}
		s.snapshots++
		for _, op := range t.Ops {
			s.newest = max(s.newest, op.Zxid)
		}
	} else if s.first == 0 {
		s.first = t.Zxid
	}
	for _, op := range t.Ops {
		n := s.nodes[op.Path]
		switch op.Kind {
		case txnlog.Create:
			n = [3]int64{op.Zxid, int64(op.Version), 0}
			if op.Ephemeral {
				n[2] = op.Session
			}
		case txnlog.SetData:
			n[1] = int64(op.Version)
		case txnlog.Delete:
			delete(s.nodes, op.Path)
			continue
		}
		s.nodes[op.Path] = n
	}
	if t.Ends {
		maps.DeleteFunc(s.nodes, func(_ string, n [3]int64) bool { return n[2] == t.Session })
	}
	return true
}

// walk returns what the files in a directory tell of the nodes below /work, and the notes.
func walk(t *testing.T, dir string, from time.Time) (*state, []string) {
	files, err := txnlog.Find(dir, "")
	require.NoError(t, err)
	s := &state{nodes: map[string][3]int64{}}
	notes, err := files.Walk(from, s.apply)
	require.NoError(t, err)
	maps.DeleteFunc(s.nodes, func(path string, _ [3]int64) bool { return !strings.HasPrefix(path, "/work") })
	return s, notes
}

// onServer returns the nodes below a path.
func onServer(t *testing.T, conn *zk.Conn, path string) map[string][3]int64 {
	children, stat, err := conn.Children(path)
	require.NoError(t, err)
	all := map[string][3]int64{path: {stat.Czxid, int64(stat.Version), stat.EphemeralOwner}}
	for _, child := range children {
		maps.Copy(all, onServer(t, conn, path+"/"+child))
	}
	return all
}

// work makes transactions of all types.
func work(t *testing.T, conn, mortal *zk.Conn, rounds int) {
	acl := zk.WorldACL(zk.PermAll)
	_, err := conn.Create("/work", nil, 0, acl)
	require.NoError(t, err)
	for i := range rounds {
		path := fmt.Sprintf("/work/%d", i)
		_, err := conn.Create(path, []byte("data"), 0, acl)
		require.NoError(t, err)
		_, err = conn.CreateContainer(path+"/container", nil, zk.FlagContainer, acl)
		require.NoError(t, err)
		_, err = conn.CreateTTL(path+"/ttl", nil, zk.FlagTTL, acl, time.Hour)
		require.NoError(t, err)
		_, err = conn.CreateProtectedEphemeralSequential(path+"/lock-", nil, acl)
		require.NoError(t, err)
		_, err = mortal.Create(path+"/mortal", make([]byte, 10000), zk.FlagEphemeral, acl)
		require.NoError(t, err)
		_, err = conn.Set(path, []byte("more"), 0)
		require.NoError(t, err)
		_, err = conn.SetACL(path, acl, -1)
		require.NoError(t, err)
		_, err = conn.Multi(&zk.CreateRequest{Path: path + "/a", Acl: acl}, &zk.SetDataRequest{Path: path + "/a", Version: 0},
			&zk.CheckVersionRequest{Path: path, Version: 1}, &zk.CreateRequest{Path: path + "/b", Acl: acl, Flags: zk.FlagEphemeral}, &zk.DeleteRequest{Path: path + "/a", Version: 1})
		require.NoError(t, err)
		_, err = conn.Multi(&zk.CreateRequest{Path: path + "/c", Acl: acl}, &zk.DeleteRequest{Path: path + "/missing", Version: -1})
		require.ErrorIs(t, err, zk.ErrNoNode)
		if i%3 == 0 {
			require.NoError(t, conn.Delete(path+"/ttl", -1))
		}
	}
	mortal.Close()
}

// requireSame requires that the files tell what the server has told.
func requireSame(t *testing.T, want map[string][3]int64, dir string, from time.Time) (*state, []string) {
	t.Helper()
	got, notes := walk(t, dir, from)
	require.Equal(t, want, got.nodes)
	if got.snapshots == 1 {
		require.Less(t, got.newest, got.first, "what was created during the snapshot is created later")
	}
	return got, notes
}

func TestFilesTellTheState(t *testing.T) {
	t.Parallel()
	server := zktest.StartReal(t, zktest.ExtendedTypes(), zktest.JVMFlags("-Dzookeeper.snapCount=100", "-Dzookeeper.preAllocSize=1000"))
	conf, err := server.Command(context.Background(), "conf")
	require.NoError(t, err)
	_, dir, _ := strings.Cut(conf, "dataDir=")
	dir, _, _ = strings.Cut(dir, "\n")
	conn := locktest.Dial(t, server.Addr())
	work(t, conn, locktest.Dial(t, server.Addr()), 100)
	var files txnlog.Files
	require.Eventually(t, func() bool { // a busy server leaves snapshots out
		_, err := conn.Set("/work", nil, -1)
		require.NoError(t, err)
		files, err = txnlog.Find(dir, "")
		require.NoError(t, err)
		n := len(files.Snapshots)
		return n > 6 && len(files.Logs) > 6 && files.Snapshots[n-3].Zxid > files.Logs[5].Zxid
	}, time.Minute, time.Millisecond)
	want := onServer(t, conn, "/work")
	all, notes := requireSame(t, want, filepath.Dir(dir), time.Time{}) // the server still writes
	require.Empty(t, notes)
	require.Equal(t, int64(1), all.first)
	late, notes := requireSame(t, want, dir, time.Now())
	require.Empty(t, notes)
	require.Greater(t, late.first, files.Logs[1].Zxid, "a snapshot replaces the beginning")

	t.Run("purged", func(t *testing.T) {
		dir := copied(t, files, 3, 4)
		s, notes := requireSame(t, want, dir, time.Time{})
		require.Equal(t, files.Logs[3].Zxid, s.first)
		require.Len(t, notes, 1)
		require.Regexp(t, `^contenders that joined before 2\d\S+ \S+ and left before snapshot\.\w+ are missing`, notes[0])
		_, notes = requireSame(t, want, dir, time.Now())
		require.Empty(t, notes)
	})
	t.Run("no snapshots", func(t *testing.T) {
		_, notes := requireSame(t, want, copied(t, files, 0, 99), time.Time{})
		require.Empty(t, notes, "the first log begins with the first transaction")
		s, notes := walk(t, copied(t, files, 3, 99), time.Now())
		require.Len(t, notes, 1)
		require.False(t, maps.Equal(want, s.nodes))
	})
	t.Run("a killed server", func(t *testing.T) {
		dir := copied(t, files, 0, 0)
		log := filepath.Join(dir, filepath.Base(files.Logs[len(files.Logs)-1].Path))
		data, err := os.ReadFile(log)
		require.NoError(t, err)
		end := len(strings.TrimRight(string(data), "\x00"))
		clear(data[end-5:])
		require.NoError(t, os.WriteFile(log, data, 0o600))
		cut, notes := walk(t, dir, time.Time{})
		require.Empty(t, notes)
		require.False(t, maps.Equal(want, cut.nodes))
		require.NoError(t, os.WriteFile(log, data[:end-5], 0o600))
		_, notes = walk(t, dir, time.Time{})
		require.Len(t, notes, 1)
	})
	t.Run("a damaged log", func(t *testing.T) {
		next := slices.IndexFunc(files.Snapshots, func(s txnlog.File) bool { return s.Zxid >= files.Logs[4].Zxid-1 })
		for i, damage := range []func(data []byte){func(data []byte) { data[5000]++ }, func(data []byte) { copy(data[40:], "garbage") }, func(data []byte) { data[24] = 0xf0 }} {
			dir := copied(t, files, 0, 0)
			switch first := filepath.Join(dir, filepath.Base(files.Snapshots[next].Path)); i {
			case 1: // a busy server leaves snapshots out
				require.NoError(t, os.Remove(first))
			case 2:
				require.NoError(t, os.Truncate(first, 5000))
			}
			log := filepath.Join(dir, filepath.Base(files.Logs[3].Path))
			data, err := os.ReadFile(log)
			require.NoError(t, err)
			damage(data)
			require.NoError(t, os.WriteFile(log, data, 0o600))
			s, notes := requireSame(t, want, dir, time.Time{})
			require.Len(t, notes, 2+i/2)
			require.Contains(t, notes[0], filepath.Base(log)+" is damaged after transaction 0x")
			require.Regexp(t, `^the transactions between 0x\w+ and 0x\w+ \(2.*\) are missing$`, notes[1])
			require.Equal(t, 2, s.snapshots, "a later snapshot is read")
		}
	})
	t.Run("damaged snapshots", func(t *testing.T) {
		dir := copied(t, files, 0, 0)
		for i, s := range files.Snapshots {
			path := filepath.Join(dir, filepath.Base(s.Path))
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			if data[len(data)/2]++; i%2 == 0 {
				data = data[:len(data)/2]
			}
			require.NoError(t, os.WriteFile(path, data, 0o600))
		}
		_, notes := requireSame(t, want, dir, time.Now())
		require.Greater(t, len(notes), 3)
		require.NotContains(t, slices.Compact(strings.Fields(strings.Join(notes, " "))), "contenders", "the first log begins with the first transaction")
	})
	t.Run("snappy", func(t *testing.T) {
		dir := copied(t, files, 0, 0)
		for _, s := range files.Snapshots {
			path := filepath.Join(dir, filepath.Base(s.Path))
			require.NoError(t, os.Rename(path, path+".snappy"))
		}
		found, err := txnlog.Find(dir, "")
		require.NoError(t, err)
		_, err = found.Walk(time.Now(), nil)
		require.ErrorContains(t, err, "is compressed with snappy, which cannot be read here: give")
	})
	t.Run("another file", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "log.1")
		require.NoError(t, os.WriteFile(path, []byte("Something else entirely"), 0o600))
		require.EqualError(t, txnlog.ReadLog(path, nil), "log.1 is no file of ZooKeeper 3.4 to 3.9")
	})
}

// copied returns a directory with copies of the files, without the oldest logs and snapshots.
func copied(t *testing.T, files txnlog.Files, logs, snapshots int) (dir string) {
	dir = t.TempDir()
	for _, f := range slices.Concat(files.Logs[logs:], files.Snapshots[min(snapshots, len(files.Snapshots)):]) {
		data, err := os.ReadFile(f.Path)
		require.NoError(t, err)
		if strings.HasPrefix(filepath.Base(f.Path), "log.") {
			data = append([]byte(strings.TrimRight(string(data), "\x00")), make([]byte, 4096)...)
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, filepath.Base(f.Path)), data, 0o600))
	}
	return dir
}

// An election leaves no gap in the numbers, on no server.
func TestElectionsAreNoGaps(t *testing.T) {
	t.Parallel()
	ensemble := zktest.StartRealEnsemble(t, 3, zktest.JVMFlags("-Dzookeeper.snapCount=20", "-Dzookeeper.preAllocSize=1000"))
	ctx := t.Context() // servers start three times
	for i := range 3 {
		leader, err := ensemble.Leader(ctx)
		require.NoError(t, err)
		conn := locktest.Dial(t, leader.Addr())
		_, err = conn.Create("/work", nil, 0, zk.WorldACL(zk.PermAll))
		require.True(t, err == nil || i > 0 && err == zk.ErrNodeExists, "%v", err)
		for j := range 30 {
			_, err := conn.Create(fmt.Sprintf("/work/%d-%d", i, j), nil, 0, zk.WorldACL(zk.PermAll))
			require.NoError(t, err)
		}
		conn.Close()
		require.NoError(t, leader.Stop(ctx))
		require.NoError(t, leader.Start(ctx))
	}
	leader, err := ensemble.Leader(ctx)
	require.NoError(t, err)
	conn := locktest.Dial(t, leader.Addr())
	want := onServer(t, conn, "/work")
	for i := range ensemble.Len() {
		server := ensemble.Member(i)
		client := locktest.Dial(t, server.Addr())
		_, err := client.Sync("/work") // the server then has everything
		require.NoError(t, err)
		conf, err := server.Command(ctx, "conf")
		require.NoError(t, err)
		_, dir, _ := strings.Cut(conf, "dataDir=")
		dir, _, _ = strings.Cut(dir, "\n")
		for _, from := range []time.Time{{}, time.Now()} {
			_, notes := requireSame(t, want, dir, from)
			require.Empty(t, notes)
		}
	}
}
