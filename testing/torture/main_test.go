//go:build linux

package main

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if config := os.Getenv(clientEnv); config != "" {
		os.Exit(runClient(config))
	}
	goleak.VerifyTestMain(m)
}
