package zookeeper

import "time"

// Tests need not wait as long for what is rare.
func init() { recheckInterval = 300 * time.Millisecond }
