// Quickstart shows lockpool at work: three processes, the services of a shop,
// all want to change order 42, and the lock orders/42 admits them one at a time.
// In the end it draws which of them waited, and for how long.
//
//	go run ./examples/quickstart
//	go run ./examples/quickstart -servers HOST:PORT
//	go run ./examples/quickstart -driver etcd
//	go run ./examples/quickstart -driver memory
//
// The story is in package shop, and above all in worker.go there. This file has what
// differs between services: their drivers, to be imported by a program, and servers to try
// them on.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	_ "github.com/lockpool/lockpool/driver/memory"
	_ "github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/examples/internal/demo"
	"github.com/lockpool/lockpool/examples/quickstart/shop"
)

func main() {
	shop.Main(
		shop.Engine{
			Driver: "zookeeper",
			DSN: func(servers string, id int) string {
				return fmt.Sprintf("%s/quickstart-%d?session_timeout=10s", servers, id)
			},
			Check: demo.CheckZooKeeper,
			Start: func(ctx context.Context) (string, func() error, error) {
				server, err := demo.OpenServer(ctx, "")
				if err != nil {
					return "", nil, err
				}
				return server.Address, server.Close, nil
			},
		},
		shop.Engine{
			Driver:    "etcd",
			Check:     func(string) error { return nil }, // by the other program
			Elsewhere: runEtcd,
		},
		shop.Engine{
			Driver: "memory",
			DSN:    func(string, int) string { return "" },
		},
	)
}

// runEtcd runs the quickstart of the driver for etcd. The etcd driver is in another module
// and workspace, so that only its users need etcd's dependencies.
func runEtcd(ctx context.Context, servers string) error {
	_, file, _, _ := runtime.Caller(0)
	dir := filepath.Join(filepath.Dir(file), "..", "..", "driver", "etcd")
	if _, err := os.Stat(dir); err != nil {
		return errors.New("-driver etcd needs a clone of the repository: run go run ./examples/quickstart -driver etcd there")
	}
	temp, err := os.MkdirTemp("", "quickstart-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	fmt.Print("Building a quickstart with etcd, which takes minutes the first time.\n\n")
	program := filepath.Join(temp, "quickstart")
	if runtime.GOOS == "windows" {
		program += ".exe"
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", program, "./etcdtest/quickstart")
	build.Dir, build.Stderr = dir, os.Stderr
	build.Env = append(os.Environ(), "GOWORK="+filepath.Join(dir, "go.work"))
	if err := build.Run(); err != nil {
		return fmt.Errorf("building: %w", err)
	}
	// The story does not end with ctx: an interrupt at the terminal reaches the story as
	// well, and the story never runs for long.
	story := exec.Command(program)
	if servers != "" {
		story.Args = append(story.Args, "-servers", servers)
	}
	story.Stdout, story.Stderr = os.Stdout, os.Stderr
	err = story.Run()
	if exit := new(exec.ExitError); errors.As(err, &exit) { // the story has said why
		_ = os.RemoveAll(temp)
		os.Exit(exit.ExitCode())
	}
	return err
}
