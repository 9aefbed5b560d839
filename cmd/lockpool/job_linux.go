package main

import "syscall"

// dieWithParent makes the kernel kill the process when the thread that starts it ends,
// even if it has left the group by then.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
