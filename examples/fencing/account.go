package main

// This file has the writes and reads that compare fencing tokens.

import (
	"context"
	"database/sql"
	"errors"

	_ "modernc.org/sqlite" // any database will do
)

// schema is the table of accounts. Each row has the largest fencing token seen.
const schema = `CREATE TABLE account (
	id      INTEGER PRIMARY KEY,
	balance INTEGER NOT NULL,
	token   INTEGER NOT NULL DEFAULT 0
)`

// errStale means that a later holder of the lock has used the row.
var errStale = errors.New("refused: the row has seen a larger token")

// writeBalance writes on behalf of the holder of a lock, with the token from
// [lockpool.Lock.Token]. The database compares the tokens and writes in one statement, so
// nothing can come in between: once a later holder has used the row, an earlier one is
// refused, aware of the loss or not.
func writeBalance(ctx context.Context, db *sql.DB, id, balance, token int64) error {
	result, err := db.ExecContext(ctx,
		`UPDATE account SET balance = ?, token = ? WHERE id = ? AND token <= ?`, balance, token, id, token)
	if err != nil {
		return err
	}
	n, err := result.RowsAffected()
	if err == nil && n == 0 {
		err = errStale
	}
	return err
}

// readBalance reads a balance as the basis of a write. It stores the token as well.
// Otherwise a late write of an earlier holder could come between this read and the
// following write, and be overwritten.
func readBalance(ctx context.Context, db *sql.DB, id, token int64) (balance int64, err error) {
	err = db.QueryRowContext(ctx,
		`UPDATE account SET token = ? WHERE id = ? AND token <= ? RETURNING balance`, token, id, token).Scan(&balance)
	if errors.Is(err, sql.ErrNoRows) {
		err = errStale
	}
	return balance, err
}
