//go:build unix && !linux

package main

// This file has the substitutes for job_linux.go on other systems.

import "syscall"

// dieWithParent does nothing here: the guard alone ends the group.
func dieWithParent(*syscall.SysProcAttr) {}

// isStopped cannot be known here.
func isStopped(int) bool { return false }

// isOver cannot be known here.
func isOver(int) bool { return false }
