package memory_test

// This file has an example of a unit test with a Store.

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/memory"
)

// charge is the program under test: charge a customer for an order, unless another machine
// is about to.
func charge(ctx context.Context, pool *lockpool.Pool, order string, pay func(ctx context.Context) error) error {
	err := pool.Do(ctx, "orders/"+order, pay, lockpool.WaitAtMost(0))
	switch {
	case errors.Is(err, lockpool.ErrLocked):
		return fmt.Errorf("order %s is being charged", order)
	case errors.Is(err, lockpool.ErrLockLost):
		return fmt.Errorf("order %s may have been charged twice: look it up", order)
	}
	return err
}

// A unit test gives each process of the program a pool on the same store, and causes the
// events to be tested. This one is written as an example; a test that takes time would run
// in a bubble of testing/synctest.
func Example() {
	ctx, store := context.Background(), memory.New()
	pool := func() *lockpool.Pool {
		p, err := lockpool.OpenConnector(store)
		if err != nil {
			log.Fatal(err)
		}
		return p
	}
	here, there := pool(), pool()
	defer here.Close()
	defer there.Close()

	err := charge(ctx, here, "42", func(context.Context) error {
		fmt.Println(charge(ctx, there, "42", func(context.Context) error { return nil }))
		return nil
	})
	fmt.Println(err)

	err = charge(ctx, here, "43", func(ctx context.Context) error {
		store.Expire() // the service ends the sessions
		<-ctx.Done()
		return nil
	})
	fmt.Println(err)
	// Output:
	// order 42 is being charged
	// <nil>
	// order 43 may have been charged twice: look it up
}
