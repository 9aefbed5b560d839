package interop

// This file has what the tests share: servers and compiled clients.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lockpool/lockpool/testing/zktest"
)

const (
	curatorJars  = "/usr/share/java/curator-recipes.jar:/usr/share/java/slf4j-simple.jar" // their manifests name the other jars
	debianPython = "/usr/bin/python3"                                                     // another Python on the PATH would lack kazoo
)

var (
	// server is shared by all tests. Each has a separate chroot.
	server *zktest.RealServer
	// classes is the directory of the compiled Peer.java.
	classes string
)

func TestMain(m *testing.M) {
	os.Exit(func() (code int) {
		err := prepare()
		if err == nil {
			code = m.Run()
		}
		if server != nil {
			err = errors.Join(err, server.Close())
		}
		if err = errors.Join(err, os.RemoveAll(classes), goleak.Find()); err != nil && code == 0 {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		return code
	}())
}

func prepare() (err error) {
	if _, err := os.Stat(debianPython); err != nil {
		return errors.New("kazoo is missing: apt-get install python3-kazoo")
	}
	if _, err := os.Stat("/usr/share/java/curator-recipes.jar"); err != nil {
		return errors.New("Curator is missing: apt-get install libcurator-recipes-java")
	}
	if classes, err = os.MkdirTemp("", "interop-"); err != nil {
		return err
	}
	out, err := exec.Command("javac", "-cp", curatorJars, "-d", classes, "testdata/Peer.java").CombinedOutput()
	if err != nil {
		return fmt.Errorf("javac (apt-get install default-jdk-headless): %w: %s", err, out)
	}
	// The server removes empty containers while tests run, so that sequence numbers
	// start anew.
	server, err = zktest.RunReal(context.Background(), zktest.JVMFlags("-Dznode.container.checkIntervalMs=50"))
	return err
}

// peerTimeout is the session timeout of processes, some of them killed. It is long enough
// for a busy machine.
const peerTimeout = 5 * time.Second
