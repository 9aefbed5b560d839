//go:build !linux

package zktest

// This file has the same for other systems.

import (
	"errors"
	"net"
	"runtime"
	"syscall"
)

// reservePort finds a free port, without reserving the port: another process may take the
// port before the server starts, or while the server is stopped.
func reservePort() (port, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return port{}, err
	}
	return port{host: loopback, number: l.Addr().(*net.TCPAddr).Port}, l.Close()
}

// stopListening does nothing here: the listener is about to be closed.
func stopListening(net.Listener) {}

func ownNetwork() (*syscall.SysProcAttr, error) {
	return nil, errors.New("this is " + runtime.GOOS)
}

// awaitStopped does nothing here: the process stops soon after SIGSTOP.
func awaitStopped(int) error { return nil }
