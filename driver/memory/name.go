package memory

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/lockpool/lockpool/driver"
)

// maxName bounds the length of a lock's name in bytes, as on ZooKeeper.
const maxName = 512

// CheckName implements driver.Connector.
func (*Store) CheckName(name string) error {
	parts := strings.Split(name, "/")
	last := parts[len(parts)-1]
	switch {
	case name == "":
		return errors.New("it is empty")
	case len(name) > maxName:
		return fmt.Errorf("it is longer than %d bytes", maxName)
	case !utf8.ValidString(name):
		return errors.New("it is not valid UTF-8")
	case strings.ContainsFunc(name, unicode.IsControl):
		return errors.New("it has a control character")
	case slices.Contains(parts, ""):
		return errors.New("it has an empty part (two slashes, or one at either end)")
	case slices.Contains(parts, "."), slices.Contains(parts, ".."):
		return errors.New("the parts . and .. cannot be used")
	case len(parts) > 1 && (last == driver.Guards || last == driver.Leases || last == driver.Limit):
		return fmt.Errorf("%s is where a semaphore keeps its nodes", last)
	case parts[0] == driver.Records, parts[0] == driver.Waits:
		return fmt.Errorf("%s is not for locks", parts[0])
	}
	return nil
}

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

// partsOf returns the names of the queues that a lock of that name may have.
func partsOf(name string) []string {
	return []string{name, name + "/" + driver.Guards, name + "/" + driver.Leases}
}

// lockOf returns the name of the lock whose contenders are in the queue, and whether that
// is a queue of a semaphore.
func lockOf(queue string) (name string, semaphore bool) {
	if i := strings.LastIndexByte(queue, '/'); i >= 0 && (queue[i+1:] == driver.Guards || queue[i+1:] == driver.Leases) {
		return queue[:i], true
	}
	return queue, false
}
