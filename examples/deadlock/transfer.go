package main

// This file has the transfers, and how a victim of a deadlock begins again.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/lockpool/lockpool"
	_ "github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/examples/internal/process"
)

const (
	customer = "accounts/customer"
	shop     = "accounts/shop"
)

// teller is one of the transferring processes.
type teller struct {
	*process.Worker
	pool  *lockpool.Pool
	dir   string // of the balances
	other func() // waits until the other teller holds the first lock
}

// jobs are what a teller can be told to do.
var jobs = map[string]func(*teller, context.Context) error{
	"pay":    (*teller).pay,
	"refund": (*teller).refund,
}

// pay transfers 30 from the customer to the shop.
func (t *teller) pay(ctx context.Context) error {
	return t.pool.Do(ctx, customer, func(ctx context.Context) error {
		t.say("holds %s", customer)
		if balance, err := t.balance(customer); err != nil || balance < 30 {
			return errors.Join(err, errors.New("not enough money"))
		}
		t.other()
		return t.pool.Do(ctx, shop, func(context.Context) error {
			return t.move(30, customer, shop)
		})
	})
}

// refund transfers 10 from the shop to the customer. It locks the accounts in the other
// order than pay. With LockAll(ctx, []string{customer, shop}) in both, they could not wait
// for each other; where a function locks something unknown to the caller, a common order is
// not as simple.
func (t *teller) refund(ctx context.Context) error {
	return t.pool.Do(ctx, shop, func(ctx context.Context) error {
		t.say("holds %s", shop)
		if balance, err := t.balance(shop); err != nil || balance < 10 {
			return errors.Join(err, errors.New("not enough money"))
		}
		t.other()
		return t.pool.Do(ctx, customer, func(context.Context) error {
			return t.move(10, shop, customer)
		})
	})
}

// untilNoDeadlock does a job, and does it again if it was the victim of a deadlock. By then
// nothing has been written, and the victim's locks are free, so that the others can go on.
func (t *teller) untilNoDeadlock(ctx context.Context, job func(*teller, context.Context) error) error {
	for {
		err := job(t, ctx)
		if !errors.Is(err, lockpool.ErrDeadlock) {
			return err
		}
		t.say("is the victim: %v", err)
		t.say("has unlocked everything, and begins again")
	}
}

// balance returns the balance of an account.
func (t *teller) balance(account string) (int, error) {
	text, err := os.ReadFile(file(t.dir, account))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(text))
}

// move moves money between two locked accounts.
func (t *teller) move(amount int, from, to string) error {
	if err := t.add(from, -amount); err != nil {
		return err
	}
	return t.add(to, amount)
}

// add changes the balance of a locked account.
func (t *teller) add(account string, amount int) error {
	balance, err := t.balance(account)
	if err != nil {
		return err
	}
	return write(t.dir, account, balance+amount)
}

func write(dir, account string, balance int) error {
	return os.WriteFile(file(dir, account), []byte(strconv.Itoa(balance)), 0o666)
}

func file(dir, account string) string {
	return filepath.Join(dir, strings.ReplaceAll(account, "/", "-"))
}

// checkAfter is longer than the default of 500 ms, because the program looks at the
// deadlock before the end, on slow machines too.
const checkAfter = 5 * time.Second

// open opens a pool on the locks of the program with the process ID.
func open(ctx context.Context, address string, pid int, owner string) (*lockpool.Pool, error) {
	pool, err := lockpool.Open("zookeeper", fmt.Sprintf("%s/deadlock-%d?session_timeout=10s", address, pid),
		lockpool.WithOwner(owner), lockpool.WithDeadlockCheck(checkAfter))
	if err != nil {
		return nil, err
	}
	// Open does not connect. Ping does, to find a wrong address early.
	ctx, stop := context.WithTimeout(ctx, 3*time.Second)
	defer stop()
	if err := pool.Ping(ctx); err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	return pool, nil
}

// order is what a teller is told to do. The teller then receives a message when the other
// one holds the first lock.
type order struct{ Dir, Job string }

// report is a message of a teller.
type report struct {
	Text, State, Failure string
}

// The states of a teller.
const (
	ready   = "ready"
	holding = "holding" // the first lock
	asking  = "asking"  // for the second lock
	done    = "done"
)

func (t *teller) say(format string, args ...any) { t.Send(report{Text: fmt.Sprintf(format, args...)}) }

// runTeller is the teller of this process.
func runTeller(worker *process.Worker, address string) {
	if err := work(worker, address); err != nil {
		worker.Send(report{Failure: err.Error()})
	}
}

func work(worker *process.Worker, address string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	pool, err := open(ctx, address, os.Getppid(), worker.Name)
	if err != nil {
		return err
	}
	defer pool.Close()
	worker.Send(report{State: ready})
	var o order
	if worker.Receive(&o) != nil { // stopped
		return nil
	}
	meet := make(chan struct{})
	go func() { // ends with the input, or with the process
		defer cancel()
		if worker.Receive(new(string)) == nil {
			close(meet)
			_ = worker.Receive(new(string)) // the end of the input
		}
	}()
	t := &teller{worker, pool, o.Dir, func() {
		worker.Send(report{State: holding})
		select {
		case <-meet:
		case <-ctx.Done():
		}
		worker.Send(report{Text: "asks for the other account", State: asking})
	}}
	err = t.untilNoDeadlock(ctx, jobs[o.Job])
	if ctx.Err() != nil { // stopped
		return nil
	}
	if err == nil {
		t.Send(report{Text: "is done", State: done})
		<-ctx.Done()
	}
	return err
}
