package driver

// This file checks the names of locks.

import (
	"errors"
	"fmt"
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
	first, _, several := strings.Cut(name, "/")
	last := name[strings.LastIndexByte(name, '/')+1:]
	hasPart := func(part string) bool {
		for p := range strings.SplitSeq(name, "/") {
			if p == part {
				return true
			}
		}
		return false
	}
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
	case hasPart(""):
		return errors.New("it has an empty part (two slashes, or one at either end)")
	case hasPart("."), hasPart(".."):
		return errors.New("the parts . and .. cannot be used")
	case several && (last == Guards || last == Leases || last == Limit):
		return fmt.Errorf("%s is where a semaphore keeps its nodes", last)
	case first == Records:
		return fmt.Errorf("%s is where the records of finished runs are", Records)
	case first == Waits:
		return fmt.Errorf("%s is where calls that wait for plain locks have nodes; use another name", Waits)
	}
	return nil
}

// LockOf returns the name of the lock whose contenders are in the queue. A queue of Waits is
// returned unchanged: its lock may be named Guards or Leases.
func LockOf(queue string) string {
	if strings.HasPrefix(queue, Waits+"/") {
		return queue
	}
	for _, part := range []string{Guards, Leases} { // of a semaphore
		if of, ok := strings.CutSuffix(queue, "/"+part); ok {
			return of
		}
	}
	return queue
}
