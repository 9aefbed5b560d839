package main

import (
	"context"
	"database/sql"
	"errors"

	_ "modernc.org/sqlite" // any database will do
)

// schema is that of a table whose rows remember the largest token they have
// seen.
const schema = `CREATE TABLE account (
	id      INTEGER PRIMARY KEY,
	balance INTEGER NOT NULL,
	token   INTEGER NOT NULL DEFAULT 0
)`

// errLate: somebody with a larger token has been there.
var errLate = errors.New("refused: the row has seen a larger token")

// writeBalance writes on behalf of the holder of a lock, with the token of
// [lockpool.Lock.Token]. The database compares tokens and writes in one
// statement, so nothing comes in between: a holder that has lost the lock to
// somebody who was here since is refused, whatever it believes itself.
func writeBalance(ctx context.Context, db *sql.DB, id, balance, token int64) error {
	result, err := db.ExecContext(ctx,
		`UPDATE account SET balance = ?, token = ? WHERE id = ? AND token <= ?`, balance, token, id, token)
	if err != nil {
		return err
	}
	n, err := result.RowsAffected()
	if err == nil && n == 0 {
		err = errLate
	}
	return err
}

// readBalance reads what a write is to be based on. It leaves the token too, or
// else a late write could still come between this read and our write, and we
// would write over it.
func readBalance(ctx context.Context, db *sql.DB, id, token int64) (balance int64, err error) {
	err = db.QueryRowContext(ctx,
		`UPDATE account SET token = ? WHERE id = ? AND token <= ? RETURNING balance`, token, id, token).Scan(&balance)
	if errors.Is(err, sql.ErrNoRows) {
		err = errLate
	}
	return balance, err
}
