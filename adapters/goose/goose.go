// Package goose lets goose v3 migrate under a lock of lockpool, with any database: goose's
// own lockers are for PostgreSQL.
//
//	import (
//		lockgoose "github.com/lockpool/lockpool/adapters/goose"
//		"github.com/pressly/goose/v3"
//	)
//
//	provider, err := goose.NewProvider(goose.DialectSQLite3, db, migrations,
//		goose.WithSessionLocker(lockgoose.NewSessionLocker(pool, "billing/migrations")))
//
// # A lost lock
//
// goose has no way to tell a migration that the lock was lost. The locker closes the
// connection of the migration, so that no further statement runs there outside of the
// present transaction, and Up and the other methods return an error wrapping
// [lockpool.ErrLockLost]. The present transaction is finished, and a Go migration without a
// transaction is not stopped, because such a migration uses the database and not the
// connection. A program calling goose itself can do without a locker, and have the context
// of every migration end with the lock:
//
//	err := pool.Do(ctx, "billing/migrations", func(ctx context.Context) error {
//		_, err := provider.Up(ctx)
//		return err
//	})
//
// goose's reading methods, such as HasPending, take no lock.
package goose

import (
	"context"
	"database/sql"
	"sync"

	"github.com/pressly/goose/v3/lock"

	"github.com/lockpool/lockpool"
)

// NewSessionLocker returns a locker, holding the lock name while a provider migrates.
// Providers of the same database must be given the same name; one locker may be given to
// several providers.
//
// The wait for the lock ends with the context of Up, Down and so on, or earlier with
// [lockpool.WaitAtMost].
func NewSessionLocker(pool *lockpool.Pool, name string, opts ...lockpool.LockOption) lock.SessionLocker {
	return &locker{pool: pool, name: name, opts: opts}
}

type locker struct {
	pool *lockpool.Pool
	name string
	opts []lockpool.LockOption
	held sync.Map // session by *sql.Conn: a provider may lock again before unlocking
}

// session is the lock of one connection.
type session struct {
	lock *lockpool.Lock
	stop func() bool // stops waiting for the loss
}

// SessionLock implements [lock.SessionLocker].
func (l *locker) SessionLock(ctx context.Context, conn *sql.Conn) error {
	held, err := l.pool.Lock(ctx, l.name, l.opts...)
	if err != nil {
		return err
	}
	// The context also ends with Unlock, but stop is called before.
	lost := held.Context(context.Background())
	l.held.Store(conn, session{held, context.AfterFunc(lost, func() { _ = conn.Close() })})
	return nil
}

// SessionUnlock implements [lock.SessionLocker].
func (l *locker) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	s, ok := l.held.LoadAndDelete(conn)
	if !ok {
		return &lockpool.LockError{Op: "unlock", Name: l.name, Err: lockpool.ErrNotHeld}
	}
	held := s.(session)
	held.stop()
	return held.lock.Unlock(ctx)
}
