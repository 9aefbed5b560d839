package tracing

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	"go.uber.org/goleak"

	_ "github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/zktest"
)

// server is shared by all tests.
var server *zktest.Server

func TestMain(m *testing.M) {
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(error) {})) // some exporters are made to fail
	os.Exit(func() (code int) {
		var err error
		if server, err = zktest.Run(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() {
			err := errors.Join(server.Close(), goleak.Find())
			if err != nil && code == 0 {
				fmt.Fprintln(os.Stderr, err)
				code = 1
			}
		}()
		return m.Run()
	}())
}

// patience is how long tests wait for what must happen before they fail.
const patience = 20 * time.Second
