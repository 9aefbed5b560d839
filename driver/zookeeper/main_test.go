package zookeeper_test

import (
	"testing"

	"github.com/lockpool/lockpool/testing/locktest"
)

func TestMain(m *testing.M) { locktest.Main(m) }
