package zktest

// This file has what only Linux offers.

import (
	"errors"
	"net"
	"os"
	"syscall"
	"time"
	"unsafe"
)

// reservePort finds a free port and reserves the port until the reservation is closed. The
// reservation is a bound socket, not listening. The kernel then assigns the port neither to
// a listener asking for any free port nor to an outgoing connection. (A client dialing a
// stopped server again and again might otherwise connect to itself.) A server can bind the
// port by number, because both sockets set SO_REUSEADDR.
func reservePort() (port, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return port{}, os.NewSyscallError("socket", err)
	}
	reservation := os.NewFile(uintptr(fd), "port")
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return port{}, errors.Join(os.NewSyscallError("setsockopt", err), reservation.Close())
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return port{}, errors.Join(os.NewSyscallError("bind", err), reservation.Close())
	}
	addr, err := syscall.Getsockname(fd)
	if err != nil {
		return port{}, errors.Join(os.NewSyscallError("getsockname", err), reservation.Close())
	}
	return port{loopback, addr.(*syscall.SockaddrInet4).Port, reservation}, nil
}

// stopListening makes the kernel refuse connections at once. Closing alone does so only
// when no child process being started holds a copy of the descriptor.
func stopListening(ln net.Listener) {
	if raw, err := ln.(*net.TCPListener).SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = syscall.Shutdown(int(fd), syscall.SHUT_RDWR) })
	}
}

// ownNetwork returns the attributes for starting a process in a new network namespace.
func ownNetwork() (*syscall.SysProcAttr, error) {
	return &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}, nil
}

// awaitStopped returns when every thread of the child has stopped: some time
// after SIGSTOP was sent.
func awaitStopped(pid int) error {
	const pPid = 1 // P_PID in <sys/wait.h>
	for deadline := time.Now().Add(stopTimeout); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		var info [32]int32 // siginfo_t; the first field stays 0 until the child has stopped
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, pPid, uintptr(pid), uintptr(unsafe.Pointer(&info)),
			syscall.WSTOPPED|syscall.WNOWAIT|syscall.WNOHANG, 0, 0)
		if errno != 0 && errno != syscall.EINTR {
			return os.NewSyscallError("waitid", errno)
		}
		if errno == 0 && info[0] != 0 {
			return nil
		}
	}
	return errors.New("the server has not stopped")
}
