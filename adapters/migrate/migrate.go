// Package migrate lets golang-migrate v4 migrate under a lock of lockpool, with any
// database: some drivers of golang-migrate lock nothing beyond their process, such as the
// driver for SQLite, and some leave a lock behind when a process crashes.
//
//	import (
//		"github.com/golang-migrate/migrate/v4"
//		lockmigrate "github.com/lockpool/lockpool/adapters/migrate"
//	)
//
//	driver = lockmigrate.New(driver, pool, "billing/migrations")
//	m, err := migrate.NewWithInstance("file", source, "sqlite", driver)
//
// The database's own lock is not taken anymore: all programs migrating the database must
// lock the same name. (migrate's drivers may create the table of versions when opened,
// before the lock is taken.)
//
// # Waits
//
// migrate's drivers lock without a context. [migrate.Migrate.LockTimeout] ends the wait of
// Up and the other methods, but not the driver's: a lock granted to the driver later is
// never unlocked. So the driver itself waits for at most 10 s, less than migrate's default
// of 15 s; the error then wraps [migrate.ErrLockTimeout]. With another LockTimeout, change
// the driver's wait, too: give [New] the option [lockpool.WaitAtMost]. Close ends a wait,
// and releases the lock.
//
// # A lost lock
//
// migrate has no way to tell a migration that the lock was lost. The driver asks the
// service before each migration, and begins none without the lock; a migration already
// begun is finished. During a migration the database is marked as dirty, so the next holder
// of the lock gets a [migrate.ErrDirty] instead of repeating the migration. Up and the
// other methods return an error wrapping [lockpool.ErrLockLost]. From then on migrate takes
// its lock for held, and returns [migrate.ErrLocked]: go on with a new [migrate.Migrate].
package migrate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"

	"github.com/lockpool/lockpool"
)

// New returns a driver with the behavior of d, under the lock name: Lock and Unlock lock
// this lock, and not the database. Only New's driver may be used from then on.
func New(d database.Driver, pool *lockpool.Pool, name string, opts ...lockpool.LockOption) database.Driver {
	opts = append([]lockpool.LockOption{lockpool.WaitAtMost(10 * time.Second)}, opts...)
	open, end := context.WithCancel(context.Background())
	return &driver{Driver: d, pool: pool, name: name, opts: opts, open: open, close: end}
}

type driver struct {
	database.Driver
	pool  *lockpool.Pool
	name  string
	opts  []lockpool.LockOption
	open  context.Context // ends with Close
	close context.CancelFunc

	mu   sync.Mutex // held by Lock and Unlock
	held *lockpool.Lock
}

// Open implements [database.Driver].
func (d *driver) Open(url string) (database.Driver, error) {
	opened, err := d.Driver.Open(url)
	if err != nil {
		return nil, err
	}
	return New(opened, d.pool, d.name, d.opts...), nil
}

// Lock implements [database.Driver].
func (d *driver) Lock() error {
	if !d.mu.TryLock() {
		return database.ErrLocked
	}
	defer d.mu.Unlock()
	if d.held != nil {
		return database.ErrLocked
	}
	held, err := d.pool.Lock(d.open, d.name, d.opts...)
	switch {
	case errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, lockpool.ErrUnavailable):
		return fmt.Errorf("%w: %w", migrate.ErrLockTimeout, err)
	case errors.Is(err, lockpool.ErrLocked):
		return fmt.Errorf("%w: %w", database.ErrLocked, err)
	case err != nil:
		return err
	}
	d.held = held
	return nil
}

// Unlock implements [database.Driver].
func (d *driver) Unlock() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.held == nil {
		return database.ErrNotLocked
	}
	held := d.held
	d.held = nil
	return held.Unlock(context.Background())
}

// Close implements [database.Driver].
func (d *driver) Close() error {
	d.close() // ends a wait
	err := d.Unlock()
	if err == database.ErrNotLocked {
		err = nil
	}
	return errors.Join(err, d.Driver.Close())
}

// SetVersion implements [database.Driver]. migrate calls SetVersion at the beginning of
// each migration, to mark the database as dirty.
func (d *driver) SetVersion(version int, dirty bool) error {
	if dirty {
		if err := d.verify(); err != nil {
			return err
		}
	}
	return d.Driver.SetVersion(version, dirty)
}

// Drop implements [database.Driver].
func (d *driver) Drop() error {
	if err := d.verify(); err != nil {
		return err
	}
	return d.Driver.Drop()
}

// verify returns an error if the lock was lost. It takes no longer than the life of a
// session without an answer.
func (d *driver) verify() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.held == nil {
		return nil // migrate's tests of drivers do not lock
	}
	return d.held.Verify(context.Background())
}
