package zktest_test

// This file has the examples.

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool/testing/zktest"
)

// register is the code under test, from a project without locks: a worker registers itself.
// A lost reply must not make register fail.
func register(conn *zk.Conn, name string) error {
	_, err := conn.Create("/workers/"+name, nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
	if errors.Is(err, zk.ErrNodeExists) {
		return nil // ours, from an attempt whose reply was lost
	}
	return err
}

// TestRegisterSurvivesALostReply shows how a project tests such code.
func TestRegisterSurvivesALostReply(t *testing.T) {
	server := zktest.Start(t) // closed with the test
	if err := server.Create("/workers", nil); err != nil {
		t.Fatal(err)
	}
	conn, events, err := zk.Connect([]string{server.Addr()}, 5*time.Second, zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		conn.Close()
		for range events { // closed when the client's goroutines have ended
		}
	}()

	lost := server.Inject(zktest.Rule{
		Match: zktest.Match{Ops: zktest.Creates, Prefix: "/workers/"},
		Do:    zktest.DropAfterApply(),
	})
	err = zk.ErrConnectionClosed
	for errors.Is(err, zk.ErrConnectionClosed) || errors.Is(err, zk.ErrNoServer) { // until the client has reconnected
		err = register(conn, "w1")
	}
	if err != nil {
		t.Error(err)
	}
	if lost.Fired() != 1 {
		t.Error("the reply was not lost")
	}
	if got := server.State().Children("/workers"); len(got) != 1 {
		t.Errorf("registered: %v", got)
	}
}

// One test runs on the embedded server and on a real one behind a proxy.
func ExampleFaultInjector() {
	var t *testing.T // of the test
	for name, start := range map[string]func(*testing.T) zktest.FaultInjector{
		"embedded": func(t *testing.T) zktest.FaultInjector { return zktest.Start(t) },
		"real": func(t *testing.T) zktest.FaultInjector {
			return zktest.StartProxy(t, zktest.StartReal(t).Addr())
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := start(t)
			failed := server.Inject(zktest.Rule{
				Match: zktest.Match{Ops: zktest.Lists},
				Do:    zktest.FailWith(zktest.ErrSystem),
			})
			// ... the code under test uses server.Addr() ...
			if err := failed.Wait(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// The test above uses Start. This program does the same with Run.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	server, err := zktest.Run(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()

	conn, events, err := zk.Connect([]string{server.Addr()}, 5*time.Second, zk.WithLogInfo(false))
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = conn.Create("/config", []byte("old"), 0, zk.WorldACL(zk.PermAll))
	if err != nil {
		fmt.Println(err)
		return
	}
	_, _, changed, err := conn.GetW("/config")
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := server.WaitWatch(ctx, "/config", 1); err != nil { // instead of sleeping
		fmt.Println(err)
		return
	}
	if err := server.Set("/config", []byte("new")); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println((<-changed).Type)

	session := server.State().Sessions[0].ID
	if err := server.ExpireSession(session); err != nil { // without waiting for 5 s
		fmt.Println(err)
		return
	}
	for event := range events {
		if event.State == zk.StateExpired {
			fmt.Println("expired")
			break
		}
	}
	conn.Close()
	for range events { // closed when the client's goroutines have ended
	}
	// Output:
	// EventNodeDataChanged
	// expired
}
