//go:build !unix

package main

// This file refuses to pause processes on systems other than Unix.

import (
	"errors"
	"os"
	"runtime"
)

var errPause = errors.New("this example pauses a process with SIGSTOP, which is not supported on " + runtime.GOOS)

func pause(*os.Process) error  { return errPause }
func resume(*os.Process) error { return errPause }
