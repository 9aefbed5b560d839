//go:build unix

package zktest

// This file has the entry point of the tests.

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if how := os.Getenv(ownerEnv); how != "" {
		runOwner(how)
		return
	}
	goleak.VerifyTestMain(m)
}
