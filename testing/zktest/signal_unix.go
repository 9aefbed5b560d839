//go:build unix

package zktest

// This file has signals of Unix systems.

import "syscall"

const (
	sigStop = syscall.SIGSTOP
	sigCont = syscall.SIGCONT
	sigTerm = syscall.SIGTERM
)

// systemError says why real servers cannot run on this system.
var systemError error

func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
