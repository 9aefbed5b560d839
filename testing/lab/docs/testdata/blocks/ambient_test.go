// Package blocks is what the Go blocks of the pages are compiled into.
package blocks

import (
	"context"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/lockpool/lockpool"
	_ "github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/zktest"
)

// blocks are the bodies of functions, by page and line.
var blocks = map[string]func(ctx context.Context) error{}

// The names for bodies, beside ctx. Each body has a new server.
var (
	pool   *lockpool.Pool
	server *zktest.Server
	caFile string // of a certificate authority
)

func TestBlocks(t *testing.T) {
	authority := httptest.NewTLSServer(nil)
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.Certificate().Raw})
	authority.Close()
	caFile = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(caFile, certificate, 0o666); err != nil {
		t.Fatal(err)
	}
	for name, run := range blocks {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
			defer stop()
			server = zktest.Start(t)
			var err error
			if pool, err = lockpool.Open("zookeeper", server.Addr()); err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			terms, endBlock = 0, stop
			if err := run(ctx); err != nil && terms < enough {
				t.Fatal(err)
			}
		})
	}
}

// What the pages leave to the reader.

func charge(context.Context) error   { return nil }
func read(context.Context) error     { return nil }
func reindex(context.Context) error  { return nil }
func train(context.Context) error    { return nil }
func cleanUp(context.Context) error  { return nil }
func transfer(context.Context) error { return nil }
func work(context.Context) error     { return nil }
func write(context.Context) error    { return nil }

// lead resigns. When it has led often enough, the block ends.
func lead(context.Context) error {
	if terms++; terms == enough {
		endBlock()
	}
	return nil
}

const enough = 3

var (
	terms    int // of the present block
	endBlock func()
)

// serve serves until the process is told to stop: at once.
func serve(context.Context, *lockpool.Pool) {
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		panic(err)
	}
}

// shop returns a handler of requests. There are none before the process is told to stop.
func shop(p *lockpool.Pool) http.Handler {
	time.AfterFunc(100*time.Millisecond, func() { serve(context.Background(), p) })
	return http.NotFoundHandler()
}
