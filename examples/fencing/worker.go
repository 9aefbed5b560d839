package main

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

const (
	account        = 7
	sessionTimeout = 2 * time.Second // short, because the story waits for it
)

// work changes the balance of the account by amount, under its lock.
func work(address, database string, amount int64) error {
	ctx := context.Background()
	pool, err := lockpool.Open("zookeeper", fmt.Sprintf("%s?session_timeout=%s", address, sessionTimeout))
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
	tell("", 0, "asks for the lock %s", name)
	lock, err := pool.Lock(ctx, name)
	if err != nil {
		return err
	}
	defer lock.Unlock(ctx)
	token, err := lock.Token(ctx)
	if err != nil {
		return err
	}
	tell("", 0, "holds the lock, with token %d", token)
	held := lock.Context(ctx) // ends if the lock is lost

	balance, err := readBalance(ctx, db, account, token)
	if err != nil {
		return err
	}
	tell(hasRead, token, "reads the balance: %d", balance)

	// Some work, until the parent says that it is done. A pause may come here,
	// and at any other instant: also after a look at held, right before the
	// write. So looking would not help, and nobody looks.
	_, _ = io.Copy(io.Discard, os.Stdin)
	balance += amount
	tell("", 0, "writes the balance %d with token %d", balance, token)
	err = writeBalance(ctx, db, account, balance, token)
	if err == nil {
		tell(hasWritten, token, "has written it, and lets the lock go")
		return lock.Unlock(ctx)
	}
	if !errors.Is(err, errLate) {
		return err
	}
	tell(isRefused, token, "is %v", err)

	select {
	case <-held.Done():
	case <-time.After(sessionTimeout):
		return errors.New("still believes to hold the lock")
	}
	if cause := context.Cause(held); !errors.Is(cause, lockpool.ErrLockLost) {
		return fmt.Errorf("the lock has ended otherwise: %w", cause)
	}
	tell(hasLost, token, "sees that its context has ended: %v", context.Cause(held))
	return nil
}

// openDatabase opens an SQLite file that several processes use.
func openDatabase(file string) (*sql.DB, error) {
	u := url.URL{Scheme: "file", Path: file, RawQuery: "_pragma=busy_timeout(5000)"}
	return sql.Open("sqlite", u.String())
}

// report is a line that a worker writes for its parent.
type report struct {
	Say   string
	State string `json:",omitempty"`
	Token int64  `json:",omitempty"`
}

// The states of a worker.
const (
	hasRead    = "has read"
	hasWritten = "has written"
	isRefused  = "is refused"
	hasLost    = "has lost the lock"
)

func tell(state string, token int64, format string, args ...any) {
	// If the parent is gone, writing to it ends this process.
	_ = json.NewEncoder(os.Stdout).Encode(report{fmt.Sprintf(format, args...), state, token})
}
