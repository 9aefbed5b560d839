package lockpool_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/internal/locktest"
)

// address of a ZooKeeper server that runs while the examples do.
func address() string { return locktest.Shared().Addr() }

func ExampleOpen() {
	// import _ "github.com/lockpool/lockpool/driver/zookeeper"
	pool, err := lockpool.Open("zookeeper", address()+"/example?session_timeout=10s")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	fmt.Println(pool.Ping(ctx))
	// Output: <nil>
}

func ExampleOpenConnector() {
	connector, err := zookeeper.NewConnector(zookeeper.Config{
		Servers:        []string{address()},
		Chroot:         "/example",
		SessionTimeout: 10 * time.Second,
		Digest:         zookeeper.Digest{User: "shop", Password: "secret"},
	})
	if err != nil {
		log.Fatal(err)
	}
	pool, err := lockpool.OpenConnector(connector, lockpool.WithMaxSessions(2))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	fmt.Println(pool, pool.Stats().MaxSessions)
	// Output: lockpool.Pool(zookeeper) 2
}

func ExamplePool_Do() {
	pool, err := lockpool.Open("zookeeper", address()+"/example")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	ctx := context.Background()

	// What a caller holds, the code below may lock again.
	charge := func(ctx context.Context) error {
		return pool.Do(ctx, "orders/42", func(ctx context.Context) error {
			fmt.Println("charging")
			return nil
		})
	}
	err = pool.Do(ctx, "orders/42", func(ctx context.Context) error {
		return charge(ctx)
	}, lockpool.WaitAtMost(5*time.Second))
	fmt.Println(err)
	// Output:
	// charging
	// <nil>
}

func ExamplePool_Lock() {
	pool, err := lockpool.Open("zookeeper", address()+"/example")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	lock, err := pool.Lock(ctx, "reports/daily") // waits no longer than ctx
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Unlock(ctx) // unlocks even if ctx has ended by then

	work := lock.Context(context.Background()) // ends if the lock is lost
	fmt.Println(work.Err(), lock.Depth())
	// Output: <nil> 1
}

func ExamplePool_TryLock() {
	pool, err := lockpool.Open("zookeeper", address()+"/example")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	ctx := context.Background()

	lock, err := pool.TryLock(ctx, "cron/nightly")
	if err != nil {
		log.Fatal(err)
	}
	_, err = pool.TryLock(ctx, "cron/nightly") // another holder
	fmt.Println("busy:", errors.Is(err, lockpool.ErrLocked))
	fmt.Println(lock.Unlock(ctx))
	// Output:
	// busy: true
	// <nil>
}

func ExampleSession() {
	pool, err := lockpool.Open("zookeeper", address()+"/example")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	ctx := context.Background()

	handle, err := pool.Handle(ctx) // one holder
	if err != nil {
		log.Fatal(err)
	}
	defer handle.Close(ctx) // releases whatever it still holds

	outer, err := handle.Lock(ctx, "accounts/7")
	if err != nil {
		log.Fatal(err)
	}
	inner, err := handle.Lock(ctx, "accounts/7") // held already: enters again
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(inner.Depth())
	fmt.Println(inner.Unlock(ctx), outer.Depth())
	fmt.Println(outer.Unlock(ctx), outer.Depth())
	fmt.Println(errors.Is(outer.Unlock(ctx), lockpool.ErrNotHeld))
	// Output:
	// 2
	// <nil> 1
	// <nil> 0
	// true
}

func ExampleSemaphore() {
	pool, err := lockpool.Open("zookeeper", address()+"/example")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	ctx := context.Background()

	gpus := pool.Semaphore("gpus", 4) // everybody says 4
	permits, err := gpus.Acquire(ctx, 3)
	if err != nil {
		log.Fatal(err)
	}
	_, err = gpus.TryAcquire(ctx, 2)
	fmt.Println("busy:", errors.Is(err, lockpool.ErrLocked))
	fmt.Println(permits.Release(ctx))
	fmt.Println(gpus.Do(ctx, 4, func(context.Context) error {
		fmt.Println("all of them")
		return nil
	}))
	// Output:
	// busy: true
	// <nil>
	// all of them
	// <nil>
}

func ExamplePlain() {
	pool, err := lockpool.Open("zookeeper", address()+"/example")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	ctx := context.Background()

	lock, err := pool.TryLock(ctx, "cron/cleanup", lockpool.Plain())
	if err != nil {
		log.Fatal(err)
	}
	_, err = pool.Lock(ctx, "cron/cleanup") // another kind of lock
	fmt.Println("mismatch:", errors.Is(err, lockpool.ErrKindMismatch))
	fmt.Println(lock.Unlock(ctx))
	// Output:
	// mismatch: true
	// <nil>
}

func ExampleRevocable() {
	pool, err := lockpool.Open("zookeeper", address()+"/example")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	err = pool.Do(context.Background(), "reindex", func(ctx context.Context) error {
		if err := pool.Revoke(ctx, "reindex"); err != nil { // usually somebody else
			return err
		}
		<-ctx.Done() // asked to stop; the lock is held until this returns
		return context.Cause(ctx)
	}, lockpool.Revocable())
	fmt.Println(errors.Is(err, lockpool.ErrRevoked))
	// Output: true
}
