package etcdtest

// This file tests users, passwords and rights.

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/driver/etcd"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/plays"
)

const password = "s3cret"

// protect makes the servers demand users, and adds some: "locks" has all rights below the
// prefix, "reader" may only read there, and "half" has all rights for sessions and the lock
// "a", and may read the lock "b". All have the same password. protect returns a function to
// open a client with all rights: on etcd 3.4 such a client is useless after the expiry of
// the token, because the client sends the expired token in asking for a new one.
func (c *Cluster) protect(t *testing.T) (root func() *clientv3.Client) {
	ctx := t.Context()
	var all []error
	do := func(_ any, err error) { all = append(all, err) }
	add := func(user string) {
		do(c.admin.UserAdd(ctx, user, password))
		do(c.admin.RoleAdd(ctx, user))
		do(c.admin.UserGrantRole(ctx, user, user))
	}
	grant := func(user, prefix string, right clientv3.PermissionType) {
		do(c.admin.RoleGrantPermission(ctx, user, prefix, clientv3.GetPrefixRangeEnd(prefix), right))
	}
	for _, user := range []string{"root", "locks", "reader", "half"} {
		add(user)
	}
	const all2, read = clientv3.PermissionType(clientv3.PermReadWrite), clientv3.PermissionType(clientv3.PermRead)
	grant("locks", "lockpool/", all2)
	grant("reader", "lockpool/", read)
	grant("half", "lockpool/.sessions/", all2)
	grant("half", "lockpool/a/", all2)
	grant("half", "lockpool/b/", read)
	do(c.admin.AuthEnable(ctx))
	for _, err := range all {
		require.NoError(t, err)
	}
	return func() *clientv3.Client {
		root, err := clientv3.New(clientv3.Config{Endpoints: c.admin.Endpoints(), Username: "root", Password: password, Logger: zap.NewNop()})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, root.Close()) })
		return root
	}
}

// left returns the existing leases and keys.
func left(t *testing.T, root *clientv3.Client) (all []string) {
	leases, err := root.Leases(t.Context())
	require.NoError(t, err)
	for _, l := range leases.Leases {
		all = append(all, fmt.Sprintf("lease %x", l.ID))
	}
	keys, err := root.Get(t.Context(), "", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	require.NoError(t, err)
	for _, kv := range keys.Kvs {
		all = append(all, string(kv.Key))
	}
	return all
}

// as opens a pool that logs, closed when the test ends.
func (c *Cluster) as(t *testing.T, log *locktest.Log, changes ...func(*etcd.Config)) *lockpool.Pool {
	debug := slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	p, err := lockpool.OpenConnector(c.connector(t, changes...), lockpool.WithLogger(debug))
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func user(name, password string) func(*etcd.Config) {
	return func(c *etcd.Config) { c.Username, c.Password = name, password }
}

func TestUsers(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, version Option) {
		c := Start(t, 1, version, TokenTTL(3*time.Second))
		root := c.protect(t)
		var log locktest.Log
		printed := func(values ...any) {
			for _, v := range values {
				for _, verb := range []string{"%v", "%+v", "%#v"} {
					require.NotContains(t, fmt.Sprintf(verb, v), password)
				}
			}
		}

		t.Run("RightsForThePrefix", func(t *testing.T) {
			c.everything(t, user("locks", password))
			p := c.as(t, &log, user("locks", password))
			require.NoError(t, p.Ping(t.Context()))
			printed(p, p.Stats())
		})
		t.Run("NotAllowed", func(t *testing.T) {
			before := left(t, root())
			for name, cfg := range map[string]struct {
				change func(*etcd.Config)
				says   string
			}{
				"wrong password":  {user("locks", "wr0ng-"+password), "check Config.Username and Config.Password"},
				"unknown user":    {user("nobody", password), "check Config.Username and Config.Password"},
				"no user":         {func(*etcd.Config) {}, "check Config.Username and Config.Password"},
				"may only read":   {user("reader", password), "needs the right to read and write all keys below the prefix lockpool/"},
				"another prefix":  {func(c *etcd.Config) { user("locks", password)(c); c.Prefix = "other" }, "below the prefix other/"},
				"prefix's prefix": {func(c *etcd.Config) { user("locks", password)(c); c.Prefix = "lock" }, "below the prefix lock/"},
			} {
				p := c.as(t, &log, cfg.change)
				ctx, cancel := context.WithTimeout(t.Context(), ttl)
				_, err := p.Lock(ctx, "a")
				require.ErrorIs(t, err, lockpool.ErrNoPermission, name)
				require.ErrorContains(t, err, cfg.says, name)
				require.NoError(t, ctx.Err(), "%s: at once", name)
				printed(err, p)
				require.NoError(t, p.Close())
				cancel()
			}
			require.Equal(t, before, left(t, root()))
		})
		t.Run("NoRightForALock", func(t *testing.T) {
			p := c.as(t, &log, user("half", password))
			l, err := p.Lock(t.Context(), "a")
			require.NoError(t, err)
			require.NoError(t, l.Unlock(t.Context()))
			before := left(t, root())
			for _, name := range []string{"b", "c"} { // what may be read, and what may not
				for _, how := range [][]lockpool.LockOption{nil, {lockpool.Plain()}} {
					_, err = p.Lock(t.Context(), name, how...)
					require.ErrorIs(t, err, lockpool.ErrNoPermission)
					require.ErrorContains(t, err, "below the prefix lockpool/")
					_, err = p.TryLock(t.Context(), name, how...)
					require.ErrorIs(t, err, lockpool.ErrNoPermission)
				}
				_, err = p.Semaphore(name, 2).Acquire(t.Context(), 1)
				require.ErrorIs(t, err, lockpool.ErrNoPermission)
			}
			_, err = p.Queue(t.Context(), "c")
			require.ErrorIs(t, err, lockpool.ErrNoPermission)
			require.Equal(t, before, left(t, root()))
		})
		t.Run("TokensEnd", func(t *testing.T) {
			// Tokens not used for 3 s expire, and proofs are further apart.
			const ttl = 40 * time.Second
			p := c.as(t, &log, user("locks", password), withTTL(ttl))
			l, err := p.Lock(t.Context(), "tokens")
			require.NoError(t, err)
			// All tokens of a user whose password is changed are revoked.
			_, err = root().UserChangePassword(t.Context(), "locks", password)
			require.NoError(t, err)
			soon, cancel := context.WithTimeout(t.Context(), ttl/8) // and not when the session takes the server for silent
			defer cancel()
			require.NoError(t, l.Verify(soon))
			select {
			case <-l.Lost():
			case <-time.After(ttl/8 + 4*time.Second):
			}
			require.NoError(t, l.Verify(t.Context()))
			require.NoError(t, l.Unlock(t.Context()))
		})
		t.Run("PasswordsTakeLong", func(t *testing.T) {
			const ttl = 4 * time.Second
			p := c.as(t, &log, user("locks", password), withTTL(ttl))
			l, err := p.Lock(t.Context(), "busy")
			require.NoError(t, err)
			asked := 0
			c.SetFault(func(m Message) Action {
				if m.Method == "Authenticate" && !m.Reply {
					asked++
				}
				return Pass
			})
			c.Clients(0).Break()
			c.Clients(0).Hold(false, true)
			time.Sleep(ttl / 5)
			c.Clients(0).Heal()
			require.NoError(t, l.Verify(t.Context()))
			c.SetFault(nil)
			require.Equal(t, 1, asked)
			require.NoError(t, l.Unlock(t.Context()))
		})
		t.Run("RightsAreWithdrawn", func(t *testing.T) {
			p, admin := c.as(t, &log, user("half", password)), root()
			withdraw := sync.OnceFunc(func() {
				_, err := admin.RoleRevokePermission(t.Context(), "half", "lockpool/a/", clientv3.GetPrefixRangeEnd("lockpool/a/"))
				assert.NoError(t, err)
			})
			c.SetFault(func(m Message) Action {
				if m.Method == "Watch" {
					withdraw()
				}
				return Pass
			})
			l, err := p.Lock(t.Context(), "a")
			require.NoError(t, err)
			soon, cancel := context.WithTimeout(t.Context(), ttl/2)
			defer cancel()
			_, err = l.Token(soon) // watches
			require.ErrorIs(t, err, lockpool.ErrLockLost)
			require.ErrorIs(t, err, lockpool.ErrNoPermission)
			c.SetFault(nil)
			err = l.Unlock(t.Context())
			require.ErrorIs(t, err, lockpool.ErrLockLost)
			next, err := c.as(t, &log, user("locks", password)).Lock(t.Context(), "a") // the key goes with the session
			require.NoError(t, err)
			require.NoError(t, next.Unlock(t.Context()))
			printed(err)
		})
		require.NotContains(t, log.String(), password)
	})
}

// The servers have carried out the first attempt, and refuse to say so.
func TestDowngradeIsUndecidedIfItsRightIsWithdrawn(t *testing.T) {
	t.Parallel()
	c := Start(t, 1)
	admin := c.protect(t)()
	s, err := c.connector(t, user("half", password)).Connect(t.Context())
	require.NoError(t, err)
	defer s.Close(context.Background()) // cannot revoke the lease
	joined, err := s.Join(t.Context(), "a", driver.Request{Kind: driver.Exclusive})
	require.NoError(t, err)
	lost := false
	c.SetFault(func(m Message) Action {
		if m.Method != "Txn" || !m.Reply || lost {
			return Pass
		}
		lost = true
		_, err := admin.RoleRevokePermission(t.Context(), "half", "lockpool/a/", clientv3.GetPrefixRangeEnd("lockpool/a/"))
		assert.NoError(t, err)
		return Break
	})
	_, err = s.(driver.Downgrader).Downgrade("a", joined.Node, nil)
	require.ErrorIs(t, err, driver.ErrUndecided)
	require.NotErrorIs(t, err, driver.ErrNoPermission)
	c.SetFault(nil)
}

// everything performs the plays with all abilities of pools.
func (c *Cluster) everything(t *testing.T, change func(*etcd.Config)) {
	for _, play := range plays.All {
		if play.Long {
			continue
		}
		t.Run(play.Name, func(t *testing.T) {
			connector := c.connector(t, change, func(cfg *etcd.Config) { cfg.Prefix = "lockpool/" + play.Name })
			s := &plays.Stage{TB: t, Ctx: t.Context(), Pool: open(t, connector, play.Opts...), Others: open(t, connector, play.Opts...)}
			s.AtNext = func(do func()) { do() }
			s.Prepare(play)
			s.Perform(play, func() {})
			_, err := s.Pool.List(t.Context(), "")
			require.NoError(t, err)
			require.NoError(t, s.Pool.Forget(t.Context(), "a"))
			require.NoError(t, s.Others.Shutdown(t.Context())) // waits for resting locks
			require.NoError(t, s.Pool.Shutdown(t.Context()))
		})
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, version Option) {
		for _, clientCertificates := range []bool{false, true} {
			t.Run(fmt.Sprint("clientCertificates=", clientCertificates), func(t *testing.T) {
				t.Parallel()
				c := Start(t, 1, version, TLS(clientCertificates))
				var log locktest.Log
				with := func(config *tls.Config) *lockpool.Pool {
					return c.as(t, &log, func(cfg *etcd.Config) { cfg.TLS = config })
				}
				good := c.ClientTLS()
				if !clientCertificates {
					good.Certificates = nil
				}
				c.everything(t, func(cfg *etcd.Config) { cfg.TLS = good })
				p := with(good)
				l, err := p.Lock(t.Context(), "a")
				require.NoError(t, err)
				c.Clients(0).Break()
				require.NoError(t, l.Verify(t.Context()))
				require.NoError(t, l.Unlock(t.Context()))

				refused := func(config *tls.Config, says ...string) {
					ctx, cancel := context.WithTimeout(t.Context(), ttl)
					defer cancel()
					_, err := with(config).Lock(ctx, "a")
					for _, text := range says {
						require.ErrorContains(t, err, text)
					}
					require.NoError(t, ctx.Err(), "at once: %v", err)
				}
				strange := c.ClientTLS()
				strange.RootCAs = x509.NewCertPool()
				refused(strange, "certificate signed by unknown authority", "check Config.TLS")
				elsewhere := c.ClientTLS()
				elsewhere.ServerName = "example.com"
				refused(elsewhere, "example.com", "check Config.TLS")
				if clientCertificates {
					without := c.ClientTLS()
					without.Certificates = nil
					refused(without, "certificate", "the client's Certificates")
				}
				another, err := net.Listen("tcp", "127.0.0.1:0") // one endpoint is no server with TLS
				require.NoError(t, err)
				defer another.Close()
				go func() { // ends with the listener
					for {
						conn, err := another.Accept()
						if err != nil {
							return
						}
						_, _ = conn.Write([]byte("this is no record of TLS\n"))
						_ = conn.Close()
					}
				}()
				for range 8 {
					p := c.as(t, &log, func(cfg *etcd.Config) { cfg.TLS, cfg.Endpoints = good, append(cfg.Endpoints, another.Addr().String()) })
					require.NoError(t, p.Ping(t.Context()))
				}
				ctx, cancel := context.WithTimeout(t.Context(), ttl) // only people know which server this is
				defer cancel()
				_, err = with(nil).Lock(ctx, "a")
				require.ErrorContains(t, err, "if the servers demand TLS, set Config.TLS")
			})
		}
		t.Run("ServersWithout", func(t *testing.T) {
			c := Start(t, 1, version)
			var log locktest.Log
			p := c.as(t, &log, func(cfg *etcd.Config) { cfg.TLS = &tls.Config{} })
			ctx, cancel := context.WithTimeout(t.Context(), ttl)
			defer cancel()
			_, err := p.Lock(ctx, "a")
			require.ErrorContains(t, err, "check Config.TLS")
			require.NoError(t, ctx.Err(), "at once")
		})
	})
}
