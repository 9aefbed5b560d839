package lockpool_test

// This file tests that go vet reports copies of locks.

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/locktest"
)

func TestVetReportsCopies(t *testing.T) {
	locktest.Once(t)
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "vet", "-copylocks", "./testdata/copies").CombinedOutput()
	require.Error(t, err)
	const report = "assignment copies lock value to c: github.com/lockpool/lockpool."
	require.Contains(t, string(out), report+"Lock contains")
	require.Equal(t, 1, strings.Count(string(out), report), "a copy of a pointer is none:\n%s", out)
}
