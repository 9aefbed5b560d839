// Package blocks is what the Go blocks of the pages are compiled into.
package blocks

import (
	"context"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/lockpool/lockpool"
	_ "github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/zktest"
)

// blocks are the bodies of functions, by page and line.
var blocks = map[string]func(ctx context.Context) error{}

// What a body may use, beside ctx. Each has a server of its own.
var (
	pool   *lockpool.Pool
	server *zktest.Server
	stop   context.CancelFunc // ends ctx
)

func TestBlocks(t *testing.T) {
	for name, run := range blocks {
		t.Run(name, func(t *testing.T) {
			var ctx context.Context
			ctx, stop = context.WithTimeout(t.Context(), 10*time.Second)
			defer stop()
			server = zktest.Start(t)
			var err error
			if pool, err = lockpool.Open("zookeeper", server.Addr()); err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			if err := run(ctx); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// What the pages leave to the reader.

func charge(context.Context) error  { return nil }
func train(context.Context) error   { return nil }
func work(context.Context) error    { return nil }
func reindex(context.Context) error { return nil }

// lead leads until the process is told to stop.
func lead(ctx context.Context) error {
	stop()
	<-ctx.Done()
	return ctx.Err()
}

// serve serves until the process is told to stop, which is at once.
func serve(context.Context, *lockpool.Pool) {
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		panic(err)
	}
}
