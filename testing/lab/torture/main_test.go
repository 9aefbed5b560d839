//go:build linux

package main

// This file has TestMain, and lets the test binary be a client.

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/lockpool/lockpool/testing/lab/torture/campaign"
)

func TestMain(m *testing.M) {
	campaign.RunClient(engine)
	goleak.VerifyTestMain(m)
}
