package zookeeper

// This file has tests of the names that ZooKeeper, or the nodes of the driver, rule out.

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The law Unsupported has the names that every driver refuses.
func TestNamesWithAnotherMeaningAreRefused(t *testing.T) {
	t.Parallel()
	c, err := NewConnector(Config{Servers: []string{"localhost"}})
	require.NoError(t, err)
	for name, why := range map[string]string{
		"zookeeper/quota": "/zookeeper belongs to the server; use another name or a chroot",
		".waits/a/b":      ".waits is where calls that wait for plain locks have nodes; use another name",
		"a\x7fb":          "it has a control character",
		"a\ue000b":        "it has the character U+E000, which ZooKeeper does not allow",
		"a\ufff0b":        "it has the character U+FFF0, which ZooKeeper does not allow",
		"a\U0001F512b":    "it has the character U+1F512, which ZooKeeper does not allow",
		"a/_c_00000000-0000-0000-0000-000000000000-lock-0000000001": `its part "_c_00000000-0000-0000-0000-000000000000-lock-0000000001" could be mistaken for a contender's node`,
		"_c_x":                    `its part "_c_x" could be mistaken for a contender's node`,
		"x-lock-0000000001":       `its part "x-lock-0000000001" could be mistaken for a contender's node`,
		"b__rlock__0000000001/c":  `its part "b__rlock__0000000001" could be mistaken for a contender's node`,
		"a/lock--2147483648":      `its part "lock--2147483648" could be mistaken for a contender's node`,
		"a/b__READ__0000000001/c": `its part "b__READ__0000000001" could be mistaken for a contender's node`,
	} {
		require.EqualError(t, c.CheckName(name), why)
	}
	for _, name := range []string{
		"waits", ".waitsfor", "a/.waits", "a/.waits/b", "ä/日本", "lock-1", "lock-", "a.b", "...", "_c", "x-12", "locks", "zookeeper1",
	} {
		require.NoError(t, c.CheckName(name))
	}
}
