//go:build unix

package main

// This file tests the example.

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/examples/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

func TestLateWriteOfPausedHolderIsRefused(t *testing.T) {
	t.Parallel()
	p := exampletest.New(t)
	p.RequireSuccess(t)
	require.Regexp(t, `(?s)`+strings.Join([]string{
		`A  holds the lock, with token \d+\n`,
		`A  is PAUSED`,
		`B  holds the lock, with token \d+\n`,
		`B  has written it`,
		`A  RESUMES`,
		`A  writes the balance 70 with token \d+\n`,
		`A  is refused`,
		`A  learns that its context has ended: lock lost: `,
		`The balance is 150, with token \d+: what B wrote\.\n$`,
	}, `.*`), p.Stdout)
}

func TestInterruptDuringThePauseLeavesNothing(t *testing.T) {
	t.Parallel()
	p := exampletest.New(t)
	p.StartUntil(t, "A  is PAUSED")
	p.RequireInterrupted(t, "fencing: B ended before it has read")
}

func TestRowRefusesSmallerTokens(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db, err := openDatabase(filepath.Join(t.TempDir(), "db"))
	require.NoError(t, err)
	defer db.Close()
	_, err = db.ExecContext(ctx, schema+`; INSERT INTO account (id, balance) VALUES (1, 100)`)
	require.NoError(t, err)

	balance, err := readBalance(ctx, db, 1, 5)
	require.NoError(t, err)
	require.EqualValues(t, 100, balance)
	require.NoError(t, writeBalance(ctx, db, 1, 110, 5))
	require.NoError(t, writeBalance(ctx, db, 1, 120, 5), "a holder may write more than once")

	balance, err = readBalance(ctx, db, 1, 9)
	require.NoError(t, err)
	require.EqualValues(t, 120, balance)
	require.ErrorIs(t, writeBalance(ctx, db, 1, 130, 5), errStale, "the holder with token 9 has read, and will write")
	_, err = readBalance(ctx, db, 1, 8)
	require.ErrorIs(t, err, errStale)
	require.NoError(t, writeBalance(ctx, db, 1, 170, 9))
	balance, err = readBalance(ctx, db, 1, 9)
	require.NoError(t, err)
	require.EqualValues(t, 170, balance)
}
