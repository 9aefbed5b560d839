package goose_test

// This file tests migrations of several processes, and the loss of the lock.

import (
	"context"
	"database/sql"
	"path/filepath"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/lockpool/lockpool"
	lockgoose "github.com/lockpool/lockpool/adapters/goose"
	"github.com/lockpool/lockpool/testing/locktest"
)

func TestMain(m *testing.M) { locktest.Main(m) }

const name = "billing/migrations"

// provider returns a provider of the database in a file, with three migrations, the second
// in Go. Before locking, goose looks whether there is anything to migrate; SQLite refuses
// to look while another process writes, unless told to wait.
func provider(b *locktest.Bench, file string, locker lock.SessionLocker, second func(context.Context, *sql.Tx) error) *goose.Provider {
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(10000)")
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, db.Close()) })
	sqlFiles := fstest.MapFS{
		"1_orders.sql": {Data: []byte("-- +goose Up\nCREATE TABLE orders (id INT);\n-- +goose Down\nDROP TABLE orders;\n")},
		"3_items.sql":  {Data: []byte("-- +goose Up\nCREATE TABLE items (id INT);\n")},
	}
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, sqlFiles,
		goose.WithSessionLocker(locker),
		goose.WithGoMigrations(goose.NewGoMigration(2, &goose.GoFunc{RunTx: second}, nil)))
	require.NoError(b, err)
	return provider
}

func TestOneOfSeveralProcessesMigrates(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	file := filepath.Join(t.TempDir(), "db")
	const processes = 4
	second := func(context.Context, *sql.Tx) error {
		b.AwaitQueue(name, processes) // the others have begun
		return nil
	}
	var providers [processes]*goose.Provider
	for i := range providers {
		providers[i] = provider(b, file, lockgoose.NewSessionLocker(b.Pool(), name), second)
		_, err := providers[i].GetDBVersion(b.Ctx) // creates goose's table, with several tries
		require.NoError(t, err)
	}
	var all sync.WaitGroup
	var results [processes][]*goose.MigrationResult
	var errs [processes]error
	for i, p := range providers {
		all.Go(func() { results[i], errs[i] = p.Up(b.Ctx) })
	}
	all.Wait()
	applied := 0
	for i := range processes {
		require.NoError(t, errs[i])
		applied += len(results[i])
	}
	require.Equal(t, 3, applied)
	require.Empty(t, b.Children(name), "the lock is free")
}

func TestWaitEndsWithTheContext(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	migrations := provider(b, filepath.Join(t.TempDir(), "db"), lockgoose.NewSessionLocker(p, name), nil)
	lock := b.Lock(p, name)
	ctx, cancel := context.WithCancel(b.Ctx)
	go func() { // ends when the migration waits for the lock
		defer cancel()
		b.AwaitWaiting(p, 1)
	}()
	_, err := migrations.Up(ctx)
	require.ErrorIs(t, err, context.Canceled)
	pending, err := migrations.HasPending(b.Ctx)
	require.NoError(t, err)
	require.True(t, pending)
	b.Unlock(lock)
	_, err = migrations.Up(b.Ctx)
	require.NoError(t, err, "the provider can be used again")
}

// connLocker knows the connection of the migrations.
type connLocker struct {
	lock.SessionLocker
	conn *sql.Conn
}

func (l *connLocker) SessionLock(ctx context.Context, conn *sql.Conn) error {
	l.conn = conn
	return l.SessionLocker.SessionLock(ctx, conn)
}

func TestNoMigrationBeginsWithoutTheLock(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	locker := &connLocker{SessionLocker: lockgoose.NewSessionLocker(p, name)}
	migrations := provider(b, filepath.Join(t.TempDir(), "db"), locker, func(ctx context.Context, tx *sql.Tx) error {
		nodes := b.Children(name)
		require.Len(t, nodes, 1)
		require.NoError(t, b.Admin.Delete(b.Chroot+"/"+name+"/"+nodes[0], -1))
		other := b.Lock(b.Pool(), name)
		b.Until(func() bool { return locker.conn.PingContext(b.Ctx) == sql.ErrConnDone }, "the connection is closed")
		b.Unlock(other)
		_, err := tx.ExecContext(ctx, "CREATE TABLE late (id INT)")
		return err
	})
	_, err := migrations.Up(b.Ctx)
	require.ErrorIs(t, err, lockpool.ErrLockLost)
	require.ErrorIs(t, err, sql.ErrConnDone)
	version, err := migrations.GetDBVersion(b.Ctx)
	require.NoError(t, err)
	require.EqualValues(t, 2, version, "the migration that had begun is finished, and the next not begun")

	results, err := migrations.Up(b.Ctx)
	require.NoError(t, err, "the provider can be used again")
	require.Len(t, results, 1)
}

func TestLockerKeepsConnectionsApart(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	locker := lockgoose.NewSessionLocker(p, name, lockpool.Shared())
	db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "db"))
	require.NoError(t, err)
	defer db.Close()
	var conns [2]*sql.Conn
	for i := range conns {
		conns[i], err = db.Conn(b.Ctx)
		require.NoError(t, err)
		defer conns[i].Close()
		require.ErrorIs(t, locker.SessionUnlock(b.Ctx, conns[i]), lockpool.ErrNotHeld)
	}
	require.NoError(t, locker.SessionLock(b.Ctx, conns[0]))
	require.NoError(t, locker.SessionLock(b.Ctx, conns[1]), "the options are passed on")
	require.NoError(t, locker.SessionUnlock(b.Ctx, conns[0]))
	require.ErrorIs(t, locker.SessionUnlock(b.Ctx, conns[0]), lockpool.ErrNotHeld)
	require.NoError(t, conns[0].PingContext(b.Ctx), "unlocking leaves the connection open")
	require.Len(t, b.Children(name), 1)
	require.NoError(t, locker.SessionUnlock(b.Ctx, conns[1]))
}
