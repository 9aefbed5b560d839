package zookeeper

import "time"

// Tests need not wait half a minute for a check.
func init() { recheckInterval = 300 * time.Millisecond }
