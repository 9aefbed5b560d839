package migrate_test

// This file tests migrations of several processes, and the loss of the lock.

import (
	"database/sql"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	"github.com/golang-migrate/migrate/v4/database/sqlite"
	databasetest "github.com/golang-migrate/migrate/v4/database/testing"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	lockmigrate "github.com/lockpool/lockpool/adapters/migrate"
	"github.com/lockpool/lockpool/testing/locktest"
)

func TestMain(m *testing.M) { locktest.Main(m) }

const name = "billing/migrations"

// hooked is a driver with a call of a function before each migration.
type hooked struct {
	database.Driver
	before func(migration string)
}

func (h hooked) Run(migration io.Reader) error {
	text, err := io.ReadAll(migration)
	if err != nil {
		return err
	}
	h.before(string(text))
	return h.Driver.Run(strings.NewReader(string(text)))
}

// open returns the driver of the database in a file.
func open(b *locktest.Bench, file string) database.Driver {
	db, err := sql.Open("sqlite", file)
	require.NoError(b, err)
	d, err := sqlite.WithInstance(db, &sqlite.Config{})
	require.NoError(b, err)
	return d
}

// migrations returns two migrations with a driver. The second has nothing to run, because
// migrate leaves a goroutine behind, waiting until the migration is read.
func migrations(b *locktest.Bench, d database.Driver) *migrate.Migrate {
	source, err := iofs.New(fstest.MapFS{
		"1_orders.up.sql":    {Data: []byte("CREATE TABLE orders (id INT)")},
		"2_nothing.down.sql": {},
	}, ".")
	require.NoError(b, err)
	m, err := migrate.NewWithInstance("iofs", source, "sqlite", d)
	require.NoError(b, err)
	b.Cleanup(func() {
		sourceErr, err := m.Close()
		require.NoError(b, errors.Join(sourceErr, err))
	})
	return m
}

// remove removes the only node of the lock.
func remove(b *locktest.Bench) {
	nodes := b.Children(name)
	require.Len(b, nodes, 1)
	require.NoError(b, b.Admin.Delete(b.Chroot+"/"+name+"/"+nodes[0], -1))
}

func TestDriverPassesTheTestsOfMigrate(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	d := lockmigrate.New(open(b, filepath.Join(t.TempDir(), "db")), b.Pool(), name)
	databasetest.Test(t, d, []byte("CREATE TABLE orders (id INT)"))
	require.NoError(t, d.Close())
}

func TestOneOfSeveralProcessesMigrates(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	file := filepath.Join(t.TempDir(), "db")
	const processes = 4
	var opened [processes]*migrate.Migrate
	for i := range processes {
		slow := hooked{open(b, file), func(string) { b.AwaitQueue(name, processes) }}
		opened[i] = migrations(b, lockmigrate.New(slow, b.Pool(), name))
	}
	var errs [processes]error
	var all sync.WaitGroup
	for i, m := range opened {
		all.Go(func() { errs[i] = m.Up() })
	}
	all.Wait()
	migrated := 0
	for _, err := range errs {
		if err == nil {
			migrated++
		} else {
			require.ErrorIs(t, err, migrate.ErrNoChange)
		}
	}
	require.Equal(t, 1, migrated)
	require.Empty(t, b.Children(name), "the lock is free")
}

func TestDriverIsLockedOnce(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	d := lockmigrate.New(open(b, filepath.Join(t.TempDir(), "db")), p, name)
	require.Equal(t, database.ErrNotLocked, d.Unlock())
	require.NoError(t, d.Lock())
	require.Equal(t, database.ErrLocked, d.Lock())
	_, err := p.TryLock(b.Ctx, name)
	require.ErrorIs(t, err, lockpool.ErrLocked)
	require.NoError(t, d.Unlock())
	require.Equal(t, database.ErrNotLocked, d.Unlock())

	require.NoError(t, d.Lock())
	remove(b)
	require.ErrorIs(t, d.Unlock(), lockpool.ErrLockLost)
	require.NoError(t, d.Lock(), "a lost lock can be taken again")
	require.NoError(t, d.Close())
	require.Empty(t, b.Children(name), "Close releases the lock")
}

func TestWaitsEnd(t *testing.T) {
	locktest.Timed(t, func(t *testing.T) {
		b := locktest.New(t)
		p := b.Pool()
		lock := b.Lock(p, name)
		file := filepath.Join(t.TempDir(), "db")
		wrap := func(opts ...lockpool.LockOption) database.Driver {
			return lockmigrate.New(open(b, file), p, name, opts...)
		}

		began := time.Now()
		require.ErrorIs(t, migrations(b, wrap(lockpool.WaitAtMost(time.Second))).Up(), migrate.ErrLockTimeout)
		require.Less(t, time.Since(began), locktest.Patience/2)
		require.ErrorIs(t, migrations(b, wrap(lockpool.WaitAtMost(0))).Up(), database.ErrLocked)

		// Without an option, the driver gives up before migrate does: nothing waits then.
		if locktest.Embedded() {
			m := migrations(b, wrap())
			err := m.Up()
			require.ErrorIs(t, err, migrate.ErrLockTimeout)
			require.NotEqual(t, migrate.ErrLockTimeout, err, "the driver says who has the lock")
		}
		require.Len(t, b.Children(name), 1)

		// If migrate gives up first, Close ends the wait.
		impatient := migrations(b, wrap())
		impatient.LockTimeout = 50 * time.Millisecond
		require.Equal(t, migrate.ErrLockTimeout, impatient.Up())
		require.Equal(t, database.ErrLocked, impatient.Up(), "the driver still waits")
		require.Len(t, b.Children(name), 2)
		_, err := impatient.Close()
		require.NoError(t, err)
		b.AwaitQueue(name, 1)

		// Close releases a lock granted meanwhile.
		late := migrations(b, wrap())
		late.LockTimeout = 50 * time.Millisecond
		require.Equal(t, migrate.ErrLockTimeout, late.Up())
		b.Unlock(lock)
		b.Until(func() bool {
			queue, err := p.Queue(b.Ctx, name)
			require.NoError(t, err)
			return len(queue.Contenders) == 1 && queue.Contenders[0].Holds
		}, "the lock is granted")
		_, err = late.Close()
		require.NoError(t, err)
		b.AwaitQueue(name, 0)
	})
}

func TestNoMigrationBeginsWithoutTheLock(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	file := filepath.Join(t.TempDir(), "db")
	d := lockmigrate.New(hooked{open(b, file), func(migration string) {
		remove(b)
		other := migrations(b, lockmigrate.New(open(b, file), b.Pool(), name)) // the next holder
		require.ErrorAs(t, other.Up(), new(migrate.ErrDirty), "it does not run the same migration")
	}}, b.Pool(), name)
	m := migrations(b, d)
	require.ErrorIs(t, m.Up(), lockpool.ErrLockLost)
	version, dirty, err := m.Version()
	require.NoError(t, err)
	require.EqualValues(t, 1, version, "the migration that had begun is finished, and the next not begun")
	require.False(t, dirty)
	require.Equal(t, migrate.ErrLocked, m.Up())
	require.NoError(t, migrations(b, lockmigrate.New(open(b, file), b.Pool(), name)).Up())
}

func TestDropNeedsTheLock(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	d := lockmigrate.New(open(b, filepath.Join(t.TempDir(), "db")), b.Pool(), name)
	require.NoError(t, d.Run(strings.NewReader("CREATE TABLE orders (id INT)")))
	require.NoError(t, d.Lock())
	remove(b)
	require.ErrorIs(t, d.Drop(), lockpool.ErrLockLost)
	require.NoError(t, d.Run(strings.NewReader("INSERT INTO orders VALUES (1)")), "the table is still there")
	require.ErrorIs(t, d.Unlock(), lockpool.ErrLockLost)
	require.NoError(t, d.Close())
}

func TestOpenedDriverLocksToo(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	d, err := lockmigrate.New(new(sqlite.Sqlite), p, name).Open("sqlite://" + filepath.Join(t.TempDir(), "db"))
	require.NoError(t, err)
	require.NoError(t, d.Lock())
	_, err = p.TryLock(b.Ctx, name)
	require.ErrorIs(t, err, lockpool.ErrLocked)
	require.NoError(t, d.Close())
	_, err = lockmigrate.New(new(sqlite.Sqlite), p, name).Open("sqlite://%")
	require.Error(t, err)
}
