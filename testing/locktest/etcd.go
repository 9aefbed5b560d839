package locktest

// This file starts etcd.

import (
	"net"
	"net/http"
	"os/exec"
	"testing"
	"time"
)

// guardScript runs a command until the script's input ends, as it does with the process that
// started the script, for any reason.
const guardScript = `"$@" </dev/null & read -r line; kill -9 $!; wait $! 2>/dev/null`

// StartEtcd starts the installed etcd with one member, and returns the member's address. The
// member stops when the test ends.
func StartEtcd(t testing.TB, flags ...string) (endpoint string) {
	t.Helper()
	var addresses [2]string
	for i := range addresses {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addresses[i] = l.Addr().String()
		_ = l.Close()
	}
	clients, peers := "http://"+addresses[0], "http://"+addresses[1]
	server := exec.Command("sh", append([]string{
		"-c", guardScript, "sh", "etcd", "--data-dir", t.TempDir(), "--log-level", "error",
		"--listen-client-urls", clients, "--advertise-client-urls", clients,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default=" + peers,
	}, flags...)...)
	log := new(Log)
	server.Stdout, server.Stderr = log, log
	in, err := server.StdinPipe()
	if err == nil {
		err = server.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = server.Wait() // killed
	})
	for began := time.Now(); time.Since(began) < Patience; time.Sleep(10 * time.Millisecond) {
		answer, err := http.Get(clients + "/health")
		if err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return addresses[0]
			}
		}
	}
	t.Fatalf("etcd does not serve; make deps installs it\n%s", log)
	return ""
}
