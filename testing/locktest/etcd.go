package locktest

// This file starts etcd.

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"testing"
	"time"
)

// guardScript runs a command until the script's input ends, as it does with the process that
// started the script, for any reason. The script's output ends with the command.
const guardScript = `"$@" </dev/null & exec >/dev/null 2>&1; read -r line; kill -9 $!; wait $!`

// StartEtcd starts the installed etcd with one member, and returns the member's address. The
// member stops when the test ends.
func StartEtcd(t testing.TB, flags ...string) (endpoint string) {
	t.Helper()
	// No other program has this loopback address, so the ports are free, and stay so.
	host := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
	clients, peers := "http://"+host+":2379", "http://"+host+":2380"
	server := exec.Command("sh", append([]string{
		"-c", guardScript, "sh", "etcd", "--data-dir", t.TempDir(), "--log-level", "error",
		"--listen-client-urls", clients, "--advertise-client-urls", clients,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default=" + peers,
	}, flags...)...)
	in, inErr := server.StdinPipe()
	out, outErr := server.StdoutPipe()
	server.Stderr = server.Stdout
	if err := errors.Join(inErr, outErr, server.Start()); err != nil {
		t.Fatal(err)
	}
	log, ended := new(Log), make(chan struct{})
	go func() { // ends with etcd
		_, _ = io.Copy(log, out)
		close(ended)
	}()
	t.Cleanup(func() {
		_ = in.Close()
		<-ended
		_ = server.Wait() // killed
	})
	for began, over := time.Now(), false; !over && time.Since(began) < Patience; {
		answer, err := http.Get(clients + "/health")
		if err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return host + ":2379"
			}
		}
		select {
		case <-ended:
			over = true
		case <-time.After(10 * time.Millisecond):
		}
	}
	t.Fatalf("etcd does not serve; make deps installs it\n%s", log)
	return ""
}
