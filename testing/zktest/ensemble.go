package zktest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// RealEnsemble is a group of Apache ZooKeeper servers that replicate the same
// data. All methods may be called concurrently.
type RealEnsemble struct {
	members []*RealServer
}

// StartRealEnsemble starts n servers for a test and returns when all of them
// serve and one leads. The test fails at once if they do not start, and they
// are closed when the test ends.
func StartRealEnsemble(t testing.TB, n int, opts ...RealOption) *RealEnsemble {
	t.Helper()
	e, err := RunRealEnsemble(t.Context(), n, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// RunRealEnsemble starts n servers, at least 1, and returns when all of them
// serve and one leads; call Close when done with them. ctx bounds only the
// start, which takes at most a minute anyway. The error has the end of the log
// of a server that did not come up.
func RunRealEnsemble(ctx context.Context, n int, opts ...RealOption) (*RealEnsemble, error) {
	if n < 1 {
		return nil, fmt.Errorf("zktest: an ensemble of %d servers", n)
	}
	members, err := runReal(ctx, n, true, opts)
	if err != nil {
		return nil, err
	}
	return &RealEnsemble{members}, nil
}

// ConnectString returns the addresses of all members, running or not,
// separated by commas.
func (e *RealEnsemble) ConnectString() string {
	addrs := make([]string, len(e.members))
	for i, s := range e.members {
		addrs[i] = s.Addr()
	}
	return strings.Join(addrs, ",")
}

// Len returns the number of members, running or not.
func (e *RealEnsemble) Len() int { return len(e.members) }

// Member returns the member with index i, from 0 to Len()-1.
func (e *RealEnsemble) Member(i int) *RealServer { return e.members[i] }

// Leader waits until exactly one member says that it leads, and returns it. A
// member that is paused or stopped says nothing, so this is how to wait for
// its successor. The error is that of ctx.
func (e *RealEnsemble) Leader(ctx context.Context) (*RealServer, error) {
	for {
		var leaders []*RealServer
		for _, s := range e.members {
			if mode, err := s.serving(ctx); err == nil && leads(mode) {
				leaders = append(leaders, s)
			}
		}
		if len(leaders) == 1 {
			return leaders[0], nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("zktest: waiting for one leader, there are %d: %w", len(leaders), ctx.Err())
		case <-time.After(pollInterval):
		}
	}
}

// Close closes all members.
func (e *RealEnsemble) Close() error { return closeAll(e.members) }
