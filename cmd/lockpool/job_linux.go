package main

// This file has what only Linux offers for jobs: death with the parent, and the state of a
// process.

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
)

// dieWithParent makes the kernel kill the process at the end of the starting thread, even
// if the process has left the group by then.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// isStopped reports whether a process is stopped.
func isStopped(pid int) bool { return state(pid) == 'T' }

// isOver reports whether a process has ended.
func isOver(pid int) bool {
	s := state(pid)
	return s == 0 || s == 'Z'
}

// state returns the letter for the state of a process, or 0 if there is none.
func state(pid int) byte {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if _, after, found := bytes.Cut(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" ")); err == nil && found {
		return after[0]
	}
	return 0
}
