package memory

// This file has the names of locks, queues and nodes.

import (
	"strconv"
	"strings"

	"github.com/lockpool/lockpool/driver"
)

// CheckName implements driver.Connector.
func (*Store) CheckName(name string) error { return driver.CheckName(name) }

// CheckPermits implements driver.Connector. Any number of permits can be taken in one step.
func (*Store) CheckPermits(string, int) error { return nil }

// nodeName returns the name of a node.
func nodeName(kind driver.Kind, order int64) string {
	return kind.String() + "-" + strconv.FormatInt(order, 10)
}

// IsContender implements driver.Connector.
func (*Store) IsContender(node string) bool {
	kind, number, _ := strings.Cut(node, "-")
	digit := func(r rune) bool { return '0' <= r && r <= '9' }
	for k := driver.Exclusive; k < driver.Guard; k++ {
		if kind == k.String() {
			return number != "" && strings.TrimLeftFunc(number, digit) == ""
		}
	}
	return false
}

// DriverName implements driver.Connector.
func (*Store) DriverName() string { return "memory" }

// partsOf returns the names of the possible queues of a lock.
func partsOf(name string) []string {
	return []string{name, name + "/" + driver.Guards, name + "/" + driver.Leases}
}
