package driver

// This file checks the names of locks.

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// CheckName is the part of [Connector.CheckName] common to all drivers. A name is a
// relative path of at most 512 bytes of UTF-8. It contains no control character, no empty
// part, and no part "." or "..". If it has several parts, the last is not Guards, Leases or
// Limit. The first is not Waits or Records.
func CheckName(name string) error {
	const most = 512
	parts := strings.Split(name, "/")
	last := parts[len(parts)-1]
	switch {
	case name == "":
		return errors.New("it is empty")
	case len(name) > most:
		return fmt.Errorf("it is longer than %d bytes", most)
	case name[0] == '/':
		return errors.New("it begins with a slash; a name is a relative path such as orders/42")
	case !utf8.ValidString(name):
		return errors.New("it is not valid UTF-8")
	case strings.ContainsFunc(name, unicode.IsControl):
		return errors.New("it has a control character")
	case slices.Contains(parts, ""):
		return errors.New("it has an empty part (two slashes, or one at either end)")
	case slices.Contains(parts, "."), slices.Contains(parts, ".."):
		return errors.New("the parts . and .. cannot be used")
	case len(parts) > 1 && (last == Guards || last == Leases || last == Limit):
		return fmt.Errorf("%s is where a semaphore keeps its nodes", last)
	case parts[0] == Records:
		return fmt.Errorf("%s is where the records of finished runs are", Records)
	case parts[0] == Waits:
		return fmt.Errorf("%s is where calls that wait for plain locks have nodes; use another name", Waits)
	}
	return nil
}
