//go:build race

package lockpool

const underRace = true // what is measured is slower
