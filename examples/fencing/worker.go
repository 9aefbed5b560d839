package main

// This file has the worker: a change of a balance under a lock.

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"time"

	"github.com/lockpool/lockpool"
	_ "github.com/lockpool/lockpool/driver/zookeeper"
)

const account = 7

// work changes the balance of the account by amount, under the account's lock.
func work(dsn, database string, amount int64) error {
	ctx := context.Background()
	pool, err := lockpool.Open("zookeeper", dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	db, err := openDatabase(database)
	if err != nil {
		return err
	}
	defer db.Close()

	name := fmt.Sprintf("account/%d", account)
	send(asks, 0, "asks for the lock %s", name)
	lock, err := pool.Lock(ctx, name)
	if err != nil {
		return err
	}
	defer lock.Unlock(ctx)
	token, err := lock.Token(ctx)
	if err != nil {
		return err
	}
	send("", 0, "holds the lock, with token %d", token)
	held := lock.Context(ctx) // ends when the lock is lost

	balance, err := readBalance(ctx, db, account, token)
	if err != nil {
		return err
	}
	send(hasRead, token, "reads the balance: %d", balance)

	// The worker works until the parent closes the input. A pause can come here or at any
	// other instant, even between a check of held and the write. So a check would not help,
	// and there is none.
	_, _ = io.Copy(io.Discard, os.Stdin)
	balance += amount
	send("", 0, "writes the balance %d with token %d", balance, token)
	err = writeBalance(ctx, db, account, balance, token)
	if err == nil {
		send(hasWritten, token, "has written it and unlocks")
		return lock.Unlock(ctx)
	}
	if !errors.Is(err, errStale) {
		return err
	}
	send(isRefused, token, "is %v", err)

	select {
	case <-held.Done():
	case <-time.After(timeout):
		return errors.New("the worker has not learned of its loss")
	}
	if cause := context.Cause(held); !errors.Is(cause, lockpool.ErrLockLost) {
		return fmt.Errorf("the context ended for another reason: %w", cause)
	}
	send(hasLost, token, "learns that its context has ended: %v", context.Cause(held))
	return nil
}

// openDatabase opens an SQLite file, used by several processes.
func openDatabase(file string) (*sql.DB, error) {
	u := url.URL{Scheme: "file", Path: file, RawQuery: "_pragma=busy_timeout(5000)"}
	return sql.Open("sqlite", u.String())
}

// report is a message of a worker, a line of JSON on standard output.
type report struct {
	Text  string
	State string `json:",omitempty"`
	Token int64  `json:",omitempty"`
}

// The states of a worker.
const (
	asks       = "asks"
	hasRead    = "has read"
	hasWritten = "has written"
	isRefused  = "is refused"
	hasLost    = "has lost the lock"
)

func send(state string, token int64, format string, args ...any) {
	// If the parent has exited, SIGPIPE ends this process.
	_ = json.NewEncoder(os.Stdout).Encode(report{fmt.Sprintf(format, args...), state, token})
}
