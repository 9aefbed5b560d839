// Package shoptest checks the output of the quickstart, with any driver.
package shoptest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// RequireStory requires the output to tell the story: of one who waits, one who does not
// wait, one who gives up, and one who enters the lock again.
func RequireStory(t testing.TB, stdout string) {
	t.Helper()
	require.Contains(t, stdout, "refunds   tries orders/42: busy\n")
	require.Regexp(t, `refunds   gives up: lockpool: lock "orders/42": waiting behind .+: context deadline exceeded \(owner: quickstart\S*, process \d+ on .+\)\n`, stdout)
	require.Regexp(t, `billing   enters orders/42 again, without waiting \(.+\): depth 2\n`, stdout)
	for _, row := range []string{
		`(?m)^billing   orders/42  ·*█+ +waited    0 ms  acquired$`,
		`(?m)^shipping  orders/42  .*░█+ +waited +\d+ ms  acquired$`,
		`(?m)^refunds   orders/42  .*░█+ +waited +\d+ ms  acquired$`,
		`(?m)^refunds   orders/42   *·+ +waited    0 ms  busy$`,
		`(?m)^refunds   orders/42   *·*░+·* +waited +\d+ ms  timeout$`,
	} {
		require.Regexp(t, row, stdout)
	}
}
