//go:build race

package bubble

func init() { detector = true }
