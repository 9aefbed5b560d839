// Package drivertest proves that a driver keeps the laws of package driver. The author of a
// driver runs the package first:
//
//	package postgres_test
//
//	import (
//		"testing"
//		"time"
//
//		"github.com/stretchr/testify/require"
//
//		"example.com/postgres"
//		"github.com/lockpool/lockpool/driver"
//		"github.com/lockpool/lockpool/driver/drivertest"
//	)
//
//	// The driver keeps the laws of package driver.
//	func TestLaws(t *testing.T) {
//		server := startServer(t) // with a proxy before it, say
//		connector, err := postgres.NewConnector(postgres.Config{Address: server.Address, SessionTimeout: 2 * time.Second})
//		require.NoError(t, err)
//		drivertest.Run(t, connector, drivertest.Options{
//			Timeout: 2 * time.Second,
//			Expire: func(s driver.Session) {
//				require.NoError(t, server.Execute("DELETE FROM sessions WHERE id = $1", s.Info().ID))
//			},
//			Pause: func(s driver.Session) (resume func()) {
//				server.Proxy.Hold(s.Info().ID)
//				return func() { server.Proxy.Release(s.Info().ID) }
//			},
//		})
//	}
//
// Each law has a subtest, and each optional interface has one for the laws of its methods:
// go test -run 'TestLaws/Deleted' runs one of the subtests. All fields of [Options] are
// optional. Without a field, the tests prove only what a healthy service shows, and skip
// the rest, as they skip interfaces missing in the driver; go test -v says so. Set as many
// fields as the service allows: a healthy service hides the important bugs.
//
// A good order for a new driver is Join, Order, Leave, Watch, Deleted, Session, Close and
// Context, with methods returning errors.ErrUnsupported until written, and then the rest.
// Verify, LeaveIf and Rewrite have subtests of their own names.
//
// A failing test prints the demand of the law. Some laws bound a time without a number;
// their tests fail only after a minute and four session timeouts.
//
// Several processes use one service. If sessions of one process share knowledge, run the laws
// once more with a connector whose sessions belong, in turn, to two connectors of the driver.
// Otherwise no test proves what other processes see.
//
// The tests cannot prove what is invisible from outside: that Lease rests on guarantees of
// the service and not on usual behavior (the driver's documentation must show this), and
// that rare moments were met. A subtest failing now and then has found a violation.
//
// If the driver works in a bubble of testing/synctest, with a service in memory, use
// [RunInBubbles]: no test waits for a timeout, and each test has a new service, as in
// driver/memory:
//
//	func TestLaws(t *testing.T) {
//		drivertest.RunInBubbles(t, func(t *testing.T) (driver.Connector, drivertest.Options) {
//			store := memory.New()
//			return store, drivertest.Options{
//				Expire: func(s driver.Session) { require.Equal(t, 1, store.Expire(s.Info().ID)) },
//				Pause:  func(driver.Session) (resume func()) { return store.Pause() },
//				Remove: func(queue string, node driver.Node) { require.True(t, store.Remove(queue, node.Name)) },
//			}
//		})
//	}
package drivertest
