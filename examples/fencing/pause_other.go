//go:build !unix

package main

import (
	"errors"
	"os"
	"runtime"
)

var errPause = errors.New("this example pauses a process with the signal SIGSTOP, which there is not on " + runtime.GOOS)

func pause(*os.Process) error  { return errPause }
func resume(*os.Process) error { return errPause }
