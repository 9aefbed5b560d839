package zookeeper

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
)

func TestContendersOfAllClientsAreRead(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]driver.Node{
		"_c_0f0e-lock-0000000007":             {Kind: driver.Mutex, Seq: 7},
		"_c_0f0e-lock-lock-0000000007":        {Kind: driver.Mutex, Seq: 7},
		"_c_0f0e-lock-2147483647":             {Kind: driver.Mutex, Seq: math.MaxInt32},
		"_c_0f0e-lock--2147483648":            {Kind: driver.Mutex, Seq: math.MinInt32},
		"_c_0f0e-lock--000000005":             {Kind: driver.Mutex, Seq: -5},
		"_c_0f0e-__READ__0000000012":          {Kind: driver.Read, Seq: 12},
		"_c_0f0e-__WRIT__0000000012":          {Kind: driver.Write, Seq: 12},
		"0123456789abcdef__lock__0000000001":  {Kind: driver.Mutex, Seq: 1},
		"0123456789abcdef__rlock__0000000001": {Kind: driver.Read, Seq: 1},
		"lock-0000000000":                     {Kind: driver.Mutex, Seq: 0},
	} {
		want.Name = name
		got, ok := parseNode(name)
		require.True(t, ok, name)
		require.Equal(t, want, got)
	}
	for _, name := range []string{
		"", "0", "config", "-x", "lock-", "lock-12", "lock-000000000", "lock-00000000012", "lock-+000000001", "0000000001",
		"x-12345-0000000001", "_c_0f0e-lease-0000000001", "lock-9999999999", "lock-0000000001x", "lock_0000000001",
	} {
		_, ok := parseNode(name)
		require.False(t, ok, name)
	}
}

func TestQueueIsOrderedByNumberWhateverTheNames(t *testing.T) {
	t.Parallel()
	want := []string{
		"z-lock--2147483648", "y-lock--2147483647", "z__lock__0000000001", "b-lock-0000000002",
		"_c_x-__READ__0000000003", "_c_x-__WRIT__0000000003", "a-lock-0000000010", "a-lock-2147483647",
	}
	for range 10 {
		children := append([]string{"config"}, want...)
		rand.Shuffle(len(children), func(i, j int) { children[i], children[j] = children[j], children[i] })
		var got []string
		for _, node := range sorted(children) {
			got = append(got, node.Name)
		}
		require.Equal(t, want, got)
	}
}

func TestOurOwnNamesAreContenders(t *testing.T) {
	t.Parallel()
	for _, kind := range []driver.Kind{driver.Mutex, driver.Read} {
		node, ok := parseNode(prefix("c0ffee", kind) + "0000000001")
		require.True(t, ok)
		require.Equal(t, kind, node.Kind)
	}
}

func TestWhatIsSharedKeepsItsPlace(t *testing.T) {
	t.Parallel()
	for alone, read := range map[string]string{
		"_c_1-lock-0000000007":    "_c_1-rlock-0000000007",
		"_c_1-__WRIT__0000000007": "_c_1-__READ__0000000007",
		"1__lock__0000000007":     "1__rlock__0000000007",
	} {
		before, ok := parseNode(alone)
		require.True(t, ok)
		after, ok := parseNode(read)
		require.True(t, ok)
		require.Equal(t, driver.Read, after.Kind)
		require.Equal(t, after, shared(before))
	}
}
