package lockpool_test

// This file has TestMain.

import (
	"os"
	"testing"

	"github.com/lockpool/lockpool/testing/locktest"
)

func TestMain(m *testing.M) {
	if role := os.Getenv("LOCKPOOL_TEST_ROLE"); role != "" {
		os.Exit(roles[role]())
	}
	locktest.Main(m)
}
