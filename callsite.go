package lockpool

import (
	"fmt"
	"runtime"
	"strings"
)

// ownFunctions begins the names of this package's functions.
const ownFunctions = "github.com/lockpool/lockpool."

// callSite returns where in the program the call into this package was made, and what
// called that, as far as it fits into a node: "main.refund (refund.go:24) from
// main.serve (main.go:57)".
func callSite() (site string) {
	const most = 200 // bytes
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for more := true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		if f.Function == "" || strings.HasPrefix(f.Function, ownFunctions) || strings.HasPrefix(f.Function, "runtime.") {
			continue
		}
		frame := fmt.Sprintf("%s (%s:%d)", afterSlash(f.Function), afterSlash(f.File), f.Line)
		if site != "" {
			frame = " from " + frame
		}
		if len(site)+len(frame) > most {
			break
		}
		site += frame
	}
	return site
}

func afterSlash(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }
