//go:build !linux

package clock

// measureSuspension does nothing: the system does not report suspensions, and
// only the wall clock shows them.
func measureSuspension() {}
