//go:build unix && !linux

package main

import "syscall"

// dieWithParent does nothing here: the guard alone ends the group.
func dieWithParent(*syscall.SysProcAttr) {}
