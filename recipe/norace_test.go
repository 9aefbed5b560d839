//go:build !race

package recipe

const raceDetector = false
