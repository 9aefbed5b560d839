package zookeeper

// This file has what the tests in package zookeeper_test see of the inside.

import "time"

// Tests need not wait half a minute for a check.
func init() { recheckInterval = 300 * time.Millisecond }

// Session is the driver's session.
type Session = session

// ID returns the session's ID.
func (s *session) ID() int64 { return s.id() }

// Allocated returns how many bytes the program has allocated.
var Allocated = allocated
