package lockpool_test

// This file has the examples of the documentation.

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"
	"time"

	metricnoop "go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/lockpool/lockpool"
	_ "github.com/lockpool/lockpool/driver/memory"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/locktest"
)

// openPool opens a pool on the server of the examples.
func openPool(opts ...lockpool.Option) *lockpool.Pool {
	pool, err := lockpool.Open("zookeeper", locktest.Shared().Addr()+"/example", opts...)
	if err != nil {
		log.Fatal(err)
	}
	return pool
}

func ExampleOpen() {
	// import _ "github.com/lockpool/lockpool/driver/zookeeper"
	pool, err := lockpool.Open("zookeeper", "zk1:2181,zk2:2181,zk3:2181/locks?session_timeout=10s")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	fmt.Println(pool) // connects when it is first used
	// Output: lockpool.Pool(zookeeper)
}

func ExampleOpenConnector() {
	connector, err := zookeeper.NewConnector(zookeeper.Config{
		Servers: []string{"zk1:2181", "zk2:2181", "zk3:2181"},
		Chroot:  "/locks",
		Digest:  zookeeper.Digest{User: "shop", Password: "secret"},
	})
	if err != nil {
		log.Fatal(err)
	}
	pool, err := lockpool.OpenConnector(connector, lockpool.WithMaxSessions(2))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	fmt.Println(pool.Stats().MaxSessions)
	// Output: 2
}

func ExamplePool_Do() {
	pool := openPool()
	defer pool.Close()

	err := pool.Do(context.Background(), "orders/42", func(ctx context.Context) error {
		fmt.Println("charging the order") // stop when ctx ends: the lock may be lost
		return ctx.Err()
	}, lockpool.WaitAtMost(5*time.Second))
	fmt.Println(err)
	// Output:
	// charging the order
	// <nil>
}

// A context carries the holder, so code deep in the call stack can lock what its
// caller holds.
func ExamplePool_Do_reentrant() {
	pool := openPool()
	defer pool.Close()

	charge := func(ctx context.Context) error {
		return pool.Do(ctx, "orders/42", func(ctx context.Context) error {
			fmt.Println("charging the order")
			return nil
		})
	}
	err := pool.Do(context.Background(), "orders/42", func(ctx context.Context) error {
		return charge(ctx) // enters the lock again, without waiting
	})
	fmt.Println(err)
	// Output:
	// charging the order
	// <nil>
}

func ExamplePool_Lock() {
	pool := openPool()
	defer pool.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	lock, err := pool.Lock(ctx, "reports/daily") // waits until ctx ends
	if errors.Is(err, context.DeadlineExceeded) {
		fmt.Println("another process writes the report")
		return
	}
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Unlock(ctx) // unlocks even if ctx has ended

	fmt.Println("writing", lock.Name())
	// Output: writing reports/daily
}

func ExamplePool_TryLock() {
	pool := openPool()
	defer pool.Close()
	ctx := context.Background()

	lock, err := pool.TryLock(ctx, "orders/42")
	if err != nil {
		log.Fatal(err)
	}
	_, err = pool.TryLock(ctx, "orders/42") // by another holder
	fmt.Println("locked:", errors.Is(err, lockpool.ErrLocked))
	fmt.Println(lock.Unlock(ctx))
	// Output:
	// locked: true
	// <nil>
}

func ExampleWaitAtMost() {
	pool := openPool()
	defer pool.Close()
	ctx := context.Background()

	lock, err := pool.Lock(ctx, "orders/42")
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Unlock(ctx)

	work := func(context.Context) error { return nil }
	err = pool.Do(ctx, "orders/42", work, lockpool.WaitAtMost(50*time.Millisecond))
	fmt.Println("timed out:", errors.Is(err, context.DeadlineExceeded))
	err = pool.Do(ctx, "orders/42", work, lockpool.WaitAtMost(0)) // now or not at all
	fmt.Println("locked:", errors.Is(err, lockpool.ErrLocked))
	// Output:
	// timed out: true
	// locked: true
}

// A job that several machines start, and that one is to do.
func ExamplePool_Once() {
	pool := openPool(lockpool.WithOwner("machine-1"))
	defer pool.Close()
	ctx := context.Background()

	cleanUp := func(context.Context) error {
		fmt.Println("cleaning up")
		return nil
	}
	for range 3 { // each on its machine
		err := pool.Once(ctx, "cron/cleanup", "2026-11-22", cleanUp)
		var done *lockpool.DoneError
		if errors.As(err, &done) {
			fmt.Println("done for", done.Key, "by", done.Owner)
		} else if err != nil {
			log.Fatal(err) // the job has not finished: the next caller runs it again
		}
	}
	runs, err := pool.Finished(ctx, "cron/cleanup")
	fmt.Println(len(runs), err)
	// Output:
	// cleaning up
	// done for 2026-11-22 by machine-1
	// done for 2026-11-22 by machine-1
	// 1 <nil>
}

// A handle is one holder, and can enter its own locks again.
func ExampleHandle() {
	pool := openPool()
	defer pool.Close()
	ctx := context.Background()

	handle, err := pool.Handle(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer handle.Close(ctx) // unlocks what it still holds

	outer, err := handle.Lock(ctx, "accounts/7")
	if err != nil {
		log.Fatal(err)
	}
	inner, err := handle.Lock(ctx, "accounts/7")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("depth", inner.Depth())
	fmt.Println(inner.Unlock(ctx), "depth", outer.Depth())
	fmt.Println(outer.Unlock(ctx), "depth", outer.Depth())
	// Output:
	// depth 2
	// <nil> depth 1
	// <nil> depth 0
}

func ExampleShared() {
	pool := openPool()
	defer pool.Close()
	ctx := context.Background()

	first, err := pool.Lock(ctx, "catalog", lockpool.Shared())
	if err != nil {
		log.Fatal(err)
	}
	defer first.Unlock(ctx)
	second, err := pool.Lock(ctx, "catalog", lockpool.Shared()) // readers share the lock
	if err != nil {
		log.Fatal(err)
	}
	defer second.Unlock(ctx)

	_, err = pool.TryLock(ctx, "catalog")
	fmt.Println("writer waits:", errors.Is(err, lockpool.ErrLocked))
	// Output: writer waits: true
}

// A writer downgrades its lock: it is a reader from then on, and holds the lock at
// every moment.
func ExampleShared_downgrade() {
	pool := openPool()
	defer pool.Close()
	ctx := context.Background()

	handle, err := pool.Handle(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer handle.Close(ctx)

	write, err := handle.Lock(ctx, "catalog")
	if err != nil {
		log.Fatal(err)
	}
	read, err := handle.Lock(ctx, "catalog", lockpool.Shared())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("downgrade:", write.Unlock(ctx))
	other, err := pool.Lock(ctx, "catalog", lockpool.Shared())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(other.Unlock(ctx), read.Unlock(ctx))
	// Output:
	// downgrade: <nil>
	// <nil> <nil>
}

func ExamplePool_LockAll() {
	pool := openPool()
	defer pool.Close()
	ctx := context.Background()

	// All callers lock in the same order, so transfers in both directions are safe.
	accounts, err := pool.LockAll(ctx, []string{"accounts/7", "accounts/3"}, lockpool.WaitAtMost(5*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer accounts.Unlock(ctx)

	fmt.Println(accounts["accounts/3"])
	// Output: lockpool.Lock(accounts/3)
}

func ExampleMultiLock_Do() {
	pool := openPool()
	defer pool.Close()
	ctx := context.Background()

	accounts, err := pool.LockAll(ctx, []string{"accounts/7", "accounts/3"})
	if err != nil {
		log.Fatal(err)
	}
	err = accounts.Do(ctx, func(ctx context.Context) error { // unlocks them all
		fmt.Println("transferring")
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// transferring
	// <nil>
}

// A store that refuses tokens smaller than the largest that it has seen is safe from a
// holder that was paused for so long that another one has the lock.
func ExampleLock_Token() {
	pool := openPool()
	defer pool.Close()
	ctx := context.Background()

	var highest int64 // kept by the store, next to the data
	write := func(token int64, value string) {
		if token < highest {
			fmt.Println(value, "is refused")
			return
		}
		highest = token
		fmt.Println(value, "is written")
	}

	var tokens []int64
	for range 2 { // two holders, one after the other
		lock, err := pool.Lock(ctx, "inventory")
		if err != nil {
			log.Fatal(err)
		}
		token, err := lock.Token(ctx)
		if err != nil {
			log.Fatal(err)
		}
		tokens = append(tokens, token)
		if err := lock.Unlock(ctx); err != nil {
			log.Fatal(err)
		}
	}
	write(tokens[1], "new")
	write(tokens[0], "old") // the first holder wakes up too late
	// Output:
	// new is written
	// old is refused
}

// The context of a lock ends when the lock is lost.
func ExampleLock_Context() {
	pool := openPool()
	defer pool.Close()
	ctx := context.Background()

	lock, err := pool.Lock(ctx, "reports/daily")
	if err != nil {
		log.Fatal(err)
	}
	work := lock.Context(ctx)

	queue, err := pool.Queue(ctx, "reports/daily")
	if err != nil {
		log.Fatal(err)
	}
	if err := pool.Break(ctx, "reports/daily", queue.Contenders[0].Node); err != nil { // by an operator
		log.Fatal(err)
	}

	<-work.Done()
	fmt.Println("lost:", errors.Is(context.Cause(work), lockpool.ErrLockLost))
	fmt.Println("not held:", errors.Is(lock.Unlock(ctx), lockpool.ErrLockLost))
	// Output:
	// lost: true
	// not held: true
}

func ExampleLockFromContext() {
	pool := openPool()
	defer pool.Close()

	save := func(ctx context.Context) error {
		lock, ok := lockpool.LockFromContext(ctx)
		if !ok {
			return errors.New("the caller must hold a lock")
		}
		token, err := lock.Token(ctx)
		if err != nil {
			return err
		}
		fmt.Println("saved under", lock.Name(), "with a token:", token > 0)
		return nil
	}
	fmt.Println(save(context.Background()))
	fmt.Println(pool.Do(context.Background(), "orders/42", save))
	// Output:
	// the caller must hold a lock
	// saved under orders/42 with a token: true
	// <nil>
}

func ExampleEscape() {
	pool := openPool()
	defer pool.Close()

	name := "pages/" + lockpool.Escape("https://example.com/a?b=c")
	err := pool.Do(context.Background(), name, func(context.Context) error {
		fmt.Println(name)
		return nil
	})
	fmt.Println(err)
	fmt.Println(lockpool.Unescape(strings.TrimPrefix(name, "pages/")))
	// Output:
	// pages/https:%2F%2Fexample.com%2Fa%3Fb=c
	// <nil>
	// https://example.com/a?b=c <nil>
}

// Shutdown lets holders finish, as an HTTP server lets requests.
func ExamplePool_Shutdown() {
	pool := openPool()
	ctx := context.Background()

	started, finished := make(chan struct{}), make(chan error)
	go func() {
		finished <- pool.Do(ctx, "jobs/7", func(ctx context.Context) error {
			close(started)
			time.Sleep(10 * time.Millisecond) // the work
			return ctx.Err()
		})
	}()
	<-started

	grace, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	fmt.Println("shutdown:", pool.Shutdown(grace))
	fmt.Println("job:", <-finished)
	_, err := pool.Lock(ctx, "jobs/8")
	fmt.Println("closed:", errors.Is(err, lockpool.ErrPoolClosed))
	// Output:
	// shutdown: <nil>
	// job: <nil>
	// closed: true
}

func ExamplePool_Queue() {
	pool := openPool(lockpool.WithOwner("billing"))
	defer pool.Close()
	ctx := context.Background()

	lock, err := pool.Lock(ctx, "orders/42")
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Unlock(ctx)

	queue, err := pool.Queue(ctx, "orders/42")
	if err != nil {
		log.Fatal(err)
	}
	for _, c := range queue.Contenders {
		fmt.Println(c.Owner, c.Kind, "holds:", c.Holds)
	}
	// Output: billing mutex holds: true
}

func ExamplePool_List() {
	pool := openPool()
	defer pool.Close()
	ctx := context.Background()

	lock, err := pool.Lock(ctx, "orders/42")
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Unlock(ctx)

	fmt.Println(pool.List(ctx, "orders"))
	// Output: [orders/42] <nil>
}

// A revocable holder stops when another process needs the lock.
func ExampleRevocable() {
	pool := openPool()
	defer pool.Close()

	err := pool.Do(context.Background(), "reindex", func(ctx context.Context) error {
		if err := pool.Revoke(ctx, "reindex"); err != nil { // usually by another process
			return err
		}
		<-ctx.Done()
		return context.Cause(ctx) // the lock is held until here
	}, lockpool.Revocable())
	fmt.Println("revoked:", errors.Is(err, lockpool.ErrRevoked))
	// Output: revoked: true
}

func ExampleSemaphore() {
	pool := openPool()
	defer pool.Close()
	ctx := context.Background()

	gpus := pool.Semaphore("gpus", 4) // all callers state the limit
	permits, err := gpus.Acquire(ctx, 3)
	if err != nil {
		log.Fatal(err)
	}
	_, err = gpus.Acquire(ctx, 2, lockpool.WaitAtMost(0))
	fmt.Println("only one is free:", errors.Is(err, lockpool.ErrLocked))
	fmt.Println(permits.Unlock(ctx))
	// Output:
	// only one is free: true
	// <nil>
}

// A plain lock is a single node without a queue.
func ExamplePlain() {
	pool := openPool()
	defer pool.Close()
	ctx := context.Background()

	lock, err := pool.TryLock(ctx, "caches/prices", lockpool.Plain())
	if err != nil {
		log.Fatal(err)
	}
	_, err = pool.Lock(ctx, "caches/prices") // not plain
	fmt.Println("mismatch:", errors.Is(err, lockpool.ErrKindMismatch))
	fmt.Println(lock.Unlock(ctx))
	// Output:
	// mismatch: true
	// <nil>
}

func ExampleLockError() {
	pool := openPool()
	defer pool.Close()

	_, err := pool.Lock(context.Background(), "/orders")
	var lockError *lockpool.LockError
	if errors.As(err, &lockError) {
		fmt.Println(lockError.Op, lockError.Name, lockError.ErrorType())
	}
	fmt.Println(errors.Is(err, lockpool.ErrInvalidName))
	// Output:
	// lock /orders invalid_name
	// true
}

func ExamplePool_Stats() {
	pool := openPool(lockpool.WithMaxHandles(100))
	defer pool.Close()

	err := pool.Do(context.Background(), "orders/42", func(context.Context) error {
		stats := pool.Stats()
		fmt.Println("held:", stats.Held, "waiting:", stats.Waiting, "handles:", stats.InUse)
		return nil
	})
	fmt.Println(err)
	// Output:
	// held: 1 waiting: 0 handles: 1
	// <nil>
}

// A pool uses OpenTelemetry's global providers unless it is given others.
func ExampleWithTracerProvider() {
	pool := openPool(
		lockpool.WithTracerProvider(tracenoop.NewTracerProvider()),
		lockpool.WithMeterProvider(metricnoop.NewMeterProvider()),
		lockpool.WithMetricName(func(lock string) string { // orders/42 is counted as orders
			group, _, _ := strings.Cut(lock, "/")
			return group
		}),
	)
	defer pool.Close()

	fmt.Println(pool.Do(context.Background(), "orders/42", func(context.Context) error { return nil }))
	// Output: <nil>
}

func ExamplePool_Elect() {
	pool := openPool()
	defer pool.Close()

	// On every machine; one of them leads.
	err := pool.Elect(context.Background(), "mailer", func(ctx context.Context) error {
		lock, _ := lockpool.LockFromContext(ctx)
		token, err := lock.Token(ctx)
		if err != nil {
			return err // another one leads, and this one stands again
		}
		fmt.Println("leading with a token:", token > 0) // stop when ctx ends
		return nil                                      // resign
	})
	fmt.Println(err)
	// Output:
	// leading with a token: true
	// <nil>
}

func ExamplePool_Observe() {
	pool := openPool(lockpool.WithOwner("mailer-1"))
	defer pool.Close()
	ctx := context.Background()

	var lock *lockpool.Lock
	for q, err := range pool.Observe(ctx, "mailer") {
		switch {
		case err != nil:
			fmt.Println("the leader is not known:", err) // until the next value
		case len(q.Contenders) > 0:
			fmt.Println("leader:", q.Contenders[0].Owner)
			return
		default:
			fmt.Println("no leader")
			if lock, err = pool.Lock(ctx, "mailer"); err != nil {
				log.Fatal(err)
			}
			defer lock.Unlock(ctx)
		}
	}
	// Output:
	// no leader
	// leader: mailer-1
}
