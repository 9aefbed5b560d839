// Package drivertest proves that a driver keeps the laws of package driver. It is what the
// author of a driver runs first:
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
// Each law has a subtest, and so has each optional interface, for what its methods promise:
// go test -run 'TestLaws/Deleted' runs those of one. All fields of [Options] are optional:
// without them, the tests prove what can be seen without a fault. What a field would prove
// besides is skipped, and so are interfaces that the driver lacks; go test -v says so. Set as
// many as the service allows: the mistakes that matter are those that no healthy service
// shows.
//
// A good order for a new driver is Join, Order, Leave, Watch, Deleted, Session, Close and
// Context, with methods that return errors.ErrUnsupported where they are not written yet,
// and then the rest. Verify, LeaveIf and Rewrite, like the optional interfaces, have subtests of
// their own names.
//
// A test that fails prints what the law demands there. Some wait for what a law bounds
// without a number, and fail only after a minute and four session timeouts.
//
// Several processes use one service. If those of one process tell each other what they do,
// or share what they know, run the laws once more with a connector whose sessions belong,
// in turn, to two connectors of the driver: else nothing proves what other processes see.
//
// What cannot be seen from outside is not proved: above all that Lease rests on what the
// service guarantees and not on what it does as a rule, which the driver's documentation
// must show; and whether rare moments were met. A subtest that fails now and then has found
// a violation.
//
// If the driver works in a bubble of testing/synctest, with a service in memory, use
// [RunInBubbles]: then no test waits for a timeout, and each has a service of its own. As
// driver/memory does:
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
