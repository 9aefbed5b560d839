//go:build race

package recipe

const raceDetector = true
