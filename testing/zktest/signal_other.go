//go:build !unix

package zktest

// This file has signals of systems other than Unix.

import (
	"errors"
	"os"
	"runtime"
	"syscall"
)

// Never sent: no server starts on this system.
var (
	sigStop = os.Kill
	sigCont = os.Kill
	sigTerm = os.Kill
)

// systemError says why real servers cannot run on this system.
var systemError = errors.New("zktest: real ZooKeeper servers need a Unix system, this is " + runtime.GOOS)

func ownGroup() *syscall.SysProcAttr { return nil }
