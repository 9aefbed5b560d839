package zookeeper

// This file tests the guess whether the directory of a lock exists.

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// A queue that the session does not know is expected to be like the last such one.
func TestQueuesAreExpectedToBeLikeTheLastOne(t *testing.T) {
	t.Parallel()
	d := directories{joined: map[string]bool{}}
	require.True(t, d.expectsNew("a"))
	d.noteQueue("a", true)
	require.False(t, d.expectsNew("a"), "it is known")
	require.True(t, d.expectsNew("b"))
	d.noteQueue("b", false)
	require.False(t, d.expectsNew("c"))
	d.noteQueue("a", true)
	require.False(t, d.expectsNew("c"), "a was known before")
	d.noteQueue("c", true)
	require.True(t, d.expectsNew("d"))
	for i := range 2 * maxJoined {
		d.noteQueue(fmt.Sprint(i), true)
	}
	require.Len(t, d.joined, maxJoined)
}
