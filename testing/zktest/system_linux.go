package zktest

import (
	"errors"
	"os"
	"syscall"
	"time"
	"unsafe"
)

// reservePort finds a free port and holds it until close. The holding socket
// is bound but does not listen: the kernel then gives the port to nobody who
// asks for just any port, neither to a listener nor as the source of an
// outgoing connection (a client that dials a stopped server over and over may
// otherwise end up connected to itself). A server that asks for this very port
// still gets it, because both sides set SO_REUSEADDR.
func reservePort() (port, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return port{}, os.NewSyscallError("socket", err)
	}
	hold := os.NewFile(uintptr(fd), "port")
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return port{}, errors.Join(os.NewSyscallError("setsockopt", err), hold.Close())
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return port{}, errors.Join(os.NewSyscallError("bind", err), hold.Close())
	}
	addr, err := syscall.Getsockname(fd)
	if err != nil {
		return port{}, errors.Join(os.NewSyscallError("getsockname", err), hold.Close())
	}
	return port{loopback, addr.(*syscall.SockaddrInet4).Port, hold}, nil
}

// ownNetwork is for a process that starts in a new network namespace.
func ownNetwork() (*syscall.SysProcAttr, error) {
	return &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}, nil
}

// awaitStopped returns when every thread of the child has stopped, which
// happens some time after SIGSTOP was sent.
func awaitStopped(pid int) error {
	const pPid = 1 // P_PID in <sys/wait.h>
	for deadline := time.Now().Add(stopTimeout); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		var info [32]int32 // siginfo_t; the first field stays 0 while there is no news
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
