//go:build race

package bubble

// This file has the mark of programs with the race detector.

func init() { detector = true }
