//go:build race

package recipe

// This file says that the race detector is on.

const raceDetector = true
