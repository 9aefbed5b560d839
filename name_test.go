package lockpool_test

// This file tests Escape and Unescape.

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
)

// unsafe are texts that are no part of a lock's name.
var unsafe = []string{
	"", " ", "/", "//", "a/b", ".", "..", "~", "%", "%7E", "%2", "_", "__", "_c_",
	"https://example.com/a?b=c&d=%20#e", "C:\\dir", "ä/日本", "\U0001F512", "a\x00b", "\n\t\r\x7f\u0085\ue000\ufff0", "\xff\xfe", "\xc3",
	".sessions", ".forgotten", ".x", "zookeeper", "locks", "leases", "limit", ".done", ".waits",
	"_c_00000000-0000-0000-0000-000000000000-lock-0000000001", "x__READ__0000000001", "x__WRIT__0000000001",
	"00000000000000000000000000000000__lock__0000000001", "x__rlock__0000000001", "x-lock-0000000001", "lock--2147483648",
	"lock-0000000001", "-0000000001", "0000000001", "x-rlock-000000001", "__lock__-2147483648", "___READ___",
}

func TestEscapeLeavesPlainTextAsItIs(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"42", "order-42", "a.b", "x=1,y=2", "user@example.com", "snake_case", "12:30", "0000000001", "202611231200", "plain"} {
		require.Equal(t, s, lockpool.Escape(s), "it needs no escape")
	}
}

func TestUnescapeRejectsInvalidEscapes(t *testing.T) {
	t.Parallel()
	for _, part := range []string{"%", "a%2", "%zz", "%%"} {
		_, err := lockpool.Unescape(part)
		require.ErrorContains(t, err, "lockpool: unescape")
	}
}

// A text becomes one part of a name, from which the text can be restored. The law Unsupported
// of drivertest and EscapedNames of behavior prove that names with such parts are valid.
func FuzzEscape(f *testing.F) {
	for _, s := range unsafe {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		part := lockpool.Escape(s)
		require.NotEmpty(t, part)
		require.NotContains(t, part, "/")
		back, err := lockpool.Unescape(part)
		require.NoError(t, err)
		require.Equal(t, s, back)
	})
}
