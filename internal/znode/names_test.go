package znode

// This file has tests of the names of contenders of all clients.

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
)

func TestParseNodeKnowsContendersOfAllClients(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]driver.Node{
		"_c_0f0e-lock-0000000007":                        {Kind: driver.Exclusive, Seq: 7},
		"_c_0f0e-lock-lock-0000000007":                   {Kind: driver.Exclusive, Seq: 7},
		"_c_0f0e-lock-2147483647":                        {Kind: driver.Exclusive, Seq: math.MaxInt32},
		"_c_0f0e-lock--2147483648":                       {Kind: driver.Exclusive, Seq: math.MinInt32},
		"_c_0f0e-lock--000000005":                        {Kind: driver.Exclusive, Seq: -5},
		"_c_0f0e-__READ__0000000012":                     {Kind: driver.Shared, Seq: 12},
		"_c_0f0e-__WRIT__0000000012":                     {Kind: driver.Convertible, Seq: 12},
		"0123456789abcdef__lock__0000000001":             {Kind: driver.Exclusive, Seq: 1},
		"0123456789abcdef__rlock__0000000001":            {Kind: driver.Shared, Seq: 1},
		"_c_0f0e-lease-0000000001":                       {Kind: driver.Permit, Seq: 1, Permits: 1},
		"_c_" + guid + "-lease-0000000001":               {Kind: driver.Permit, Seq: 1, Permits: 1},
		"_c_" + guid + "-of12-lease-0000000001":          {Kind: driver.Permit, Seq: 1, Permits: 1, Limit: 12},
		"_c_" + guid + "-of-3-lease-0000000001":          {Kind: driver.Permit, Seq: 1, Permits: 1},
		"_c_" + guid + "-of0-lease-0000000001":           {Kind: driver.Permit, Seq: 1, Permits: 1},
		"_c_" + guid + "-of99999999999-lease-0000000001": {Kind: driver.Permit, Seq: 1, Permits: 1},
		"lock-0000000000":                                {Kind: driver.Exclusive, Seq: 0},
	} {
		want.Name = name
		got, ok := Parse(name)
		require.True(t, ok, name)
		require.Equal(t, want, got)
	}
	for _, name := range []string{
		"", "0", "config", "-x", "lock-", "lock-12", "lock-000000000", "lock-00000000012", "lock-+000000001", "0000000001",
		"x-12345-0000000001", "lock-9999999999", "lock-0000000001x", "lock_0000000001",
	} {
		_, ok := Parse(name)
		require.False(t, ok, name)
	}
}

func TestQueueIsOrderedByNumberNotByName(t *testing.T) {
	t.Parallel()
	want := []string{
		"z-lock--2147483648", "y-lock--2147483647", "z__lock__0000000001", "b-lock-0000000002",
		"_c_x-__WRIT__0000000003", "_c_a-__READ__0000000003", "a-lock-0000000010", "a-lock-2147483647",
	}
	for range 10 {
		children := append([]string{"config"}, want...)
		rand.Shuffle(len(children), func(i, j int) { children[i], children[j] = children[j], children[i] })
		var got []string
		for _, node := range Contenders(children) {
			got = append(got, node.Name)
		}
		require.Equal(t, want, got)
	}
}

const guid = "01234567-89ab-cdef-0123-456789abcdef"

// An alias without a first node is a contender of its own, and so is one whose number
// is not the next.
func TestNodesOfDifferentContendersAreNotMerged(t *testing.T) {
	t.Parallel()
	const first, alias = "_c_" + guid + "-lock-", "0123456789abcdef0123456789abcdef__lock__"
	for _, children := range [][]string{
		{first + FormatSeq(7), alias + FormatSeq(9)},
		{first + FormatSeq(7), alias + FormatSeq(7)},
		{first + FormatSeq(8), alias + FormatSeq(7)},
		{first + FormatSeq(7), "1123456789abcdef0123456789abcdef__lock__" + FormatSeq(8)},
		{first + FormatSeq(7), first + FormatSeq(8)},
		{alias + FormatSeq(7), alias + FormatSeq(8)},
		{"_c_01234567-lock-" + FormatSeq(7), "01234567__lock__" + FormatSeq(8)},
		{"_c_" + guid + "-lease-" + FormatSeq(7), alias + FormatSeq(8)},
		{first + FormatSeq(7), "_c_" + guid + "-lease-" + FormatSeq(8)},
		{"_c_" + guid + "-of3-lease-" + FormatSeq(7), "_c_" + guid + "-of4-lease-" + FormatSeq(8)},
	} {
		require.Len(t, Contenders(children), 2, "%v", children)
	}
	require.Len(t, Contenders([]string{first + FormatSeq(7), alias + FormatSeq(8), alias + FormatSeq(9)}), 2)
}
