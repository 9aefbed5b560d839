//go:build !race

package lockpool

const underRace = false
