package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/lockpool/lockpool/testing/zktest"
)

// startZooKeeper starts a server for us alone, on a free port of this machine
// and in a temporary directory. Where ZooKeeper is missing and apt-get is not,
// it installs it first.
func startZooKeeper(ctx context.Context) (*zktest.RealServer, error) {
	if _, err := exec.LookPath("apt-get"); err == nil && !installed() {
		if err := install(ctx); err != nil {
			return nil, err
		}
	}
	fmt.Println("Starting a ZooKeeper server ...")
	server, err := zktest.RunReal(ctx)
	if ctx.Err() != nil && err != nil {
		return nil, fmt.Errorf("stopped: %w", context.Cause(ctx))
	}
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, otherwise)
	}
	fmt.Printf("It is up on %s and will be stopped in the end.\n\n", server.Addr())
	return server, nil
}

const otherwise = "You can also pass -zookeeper HOST:PORT, or set ZOOKEEPER_HOME to an unpacked ZooKeeper."

// installed tells whether what zktest needs is there.
func installed() bool {
	_, noJava := exec.LookPath("java")
	_, noPackage := os.Stat("/usr/share/java/zookeeper.jar")
	return noJava == nil && (noPackage == nil || os.Getenv("ZOOKEEPER_HOME") != "")
}

func install(ctx context.Context) error {
	commands := []string{
		"apt-get update",
		"apt-get install -y --no-install-recommends zookeeper default-jre-headless",
	}
	if os.Geteuid() != 0 {
		if _, err := exec.LookPath("sudo"); err != nil {
			return fmt.Errorf("there is no ZooKeeper here, and no sudo to install it; as root run\n\t%s\n%s",
				strings.Join(commands, "\n\t"), otherwise)
		}
		for i := range commands {
			commands[i] = "sudo " + commands[i]
		}
	}
	fmt.Printf("There is no ZooKeeper here. Installing it:\n\t%s\n", strings.Join(commands, "\n\t"))
	for _, command := range commands {
		argv := strings.Fields(command)
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr    // sudo may ask for a password
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // not in the middle of a package
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w\n%s", command, err, otherwise)
		}
	}
	return nil
}
