package drivertest

// This file has the laws of names, of unsupported calls, and of the kinds of locks.

import (
	"errors"
	"math/rand/v2"
	"strings"
	"sync"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver"
)

func unsupportedInterfaces(r *run) {
	s := r.connect()
	require.Equal(r, r.connector.DriverName(), s.Info().Driver)
	for _, err := range []error{
		missing[driver.PlainLocker](s), missing[driver.Limiter](s), missing[driver.Downgrader](s),
		missing[driver.Inspector](s), missing[driver.Follower](s), missing[driver.Breaker](s),
		missing[driver.Revoker](s), missing[driver.Recorder](s), missing[driver.Refuser](s),
		missing[driver.Counter](s), missing[driver.Sizer](s),
	} {
		if err != nil {
			require.ErrorIs(r, err, errors.ErrUnsupported)
			r.Log(err)
		}
	}
}

func missing[T any](s driver.Session) error {
	_, err := driver.Offer[T](s)
	return err
}

func unsupportedNames(r *run) {
	for _, name := range []string{"a", "orders/42", r.name(), driver.Limit, "a b%2F~/-.:=@,+_", strings.Repeat("x", 512)} {
		require.NoError(r, r.connector.CheckName(name), name)
	}
	for range 1000 {
		part := lockpool.Escape(anyText())
		for _, name := range []string{part, "a/" + part, part + "/a", "a/" + part + "/a"} {
			require.NoError(r, r.connector.CheckName(name), name)
		}
	}
	for _, name := range []string{
		"", "/a", "a/", "a//b", ".", "..", "./a", "a/../b", "a\x00", "a\nb", "a\u0085", "a\xff", strings.Repeat("x", 513),
		"a/" + driver.Guards, "a/" + driver.Leases, "a/b/" + driver.Limit,
		driver.Waits, driver.Waits + "/a", driver.Records, driver.Records + "/a",
	} {
		require.Error(r, driver.CheckName(name), name)
		require.Error(r, r.connector.CheckName(name), "CheckName accepts %q, which driver.CheckName refuses", name)
	}
	for _, node := range []string{"", driver.Guards, driver.Leases, driver.Limit, driver.Waits, driver.Records} {
		require.False(r, r.connector.IsContender(node), "IsContender of %q", node)
	}
}

// anyText returns a text of what names, keys and nodes of services consist of.
func anyText() string {
	words := []string{
		"", ".", "..", "/", "_", "__", "-", "~", "%", "a", " ", "\x00", "\xff", "ä", "lock-", "_c_", "__READ__", "0000000001", "20261123",
		"1200", "0123456789abcdef", uuid.NewString(), "plain", "zookeeper", "sessions", "forgotten", "done", "waits",
		driver.Guards, driver.Leases, driver.Limit, driver.Records, driver.Waits,
	}
	var text strings.Builder
	for range rand.IntN(4) {
		text.WriteString(words[rand.IntN(len(words))])
	}
	return text.String()
}

// unsupportedRequests makes requests of possibly unsupported kinds.
func unsupportedRequests(r *run) {
	s := r.connect()
	for _, request := range []driver.Request{
		{Kind: driver.Shared},
		{Kind: driver.Permit, Permits: 1, Limit: 1}, {Kind: driver.Permit, Permits: 100, Limit: 100}, {Kind: driver.Permit, Permits: 1 << 20, Limit: 1 << 20},
	} {
		name := r.name()
		queue := name
		if request.Kind == driver.Permit {
			queue += "/" + driver.Leases
			if err := r.connector.CheckPermits(name, request.Permits); err != nil {
				r.Logf("%d permits: %v", request.Permits, err)
				continue // the pool does not ask for them
			}
		}
		joined, err := s.Join(r.ctx, queue, request)
		if err != nil {
			require.ErrorIs(r, err, errors.ErrUnsupported)
			r.Log(err)
			require.Empty(r, r.list(s, queue))
			continue
		}
		require.Equal(r, request.Kind, joined.Node.Kind)
		r.leave(s, driver.Located{Queue: queue, Node: joined.Node})
	}
}

// hold is a way to hold a lock of a kind, as package recipe does.
type hold struct {
	kind string
	take func(r *run, s driver.Session, name string) (release func() error, err error)
}

// holds are the session's ways of holding a lock.
func holds(s driver.Session) []hold {
	all := []hold{{"queue", func(r *run, s driver.Session, name string) (func() error, error) {
		joined, err := s.Join(r.ctx, name, driver.Request{Kind: driver.Exclusive})
		return func() error { return s.Leave(r.ctx, name, joined.Node) }, err
	}}}
	if _, ok := s.(driver.PlainLocker); ok {
		all = append(all, hold{"plain lock", func(r *run, s driver.Session, name string) (func() error, error) {
			node, created, err := s.(driver.PlainLocker).TryCreate(r.ctx, name, nil)
			if err == nil && !created {
				err = errors.New("held by another")
			}
			return func() error { return s.Leave(r.ctx, name, node) }, err
		}})
	}
	if _, ok := s.(driver.Limiter); ok {
		all = append(all, hold{"semaphore", takePermit})
	}
	return all
}

// takePermit takes a permit of a semaphore not used by other clients.
func takePermit(r *run, s driver.Session, name string) (release func() error, err error) {
	guards, leases := name+"/"+driver.Guards, name+"/"+driver.Leases
	guard, err := s.Join(r.ctx, guards, driver.Request{Kind: driver.Guard})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Leave(r.ctx, guards, guard.Node)) }()
	if _, _, err := s.(driver.Limiter).Limit(r.ctx, name, 1); err != nil {
		return nil, err
	}
	lease, err := s.Join(r.ctx, leases, driver.Request{Kind: driver.Permit, Permits: 1, Limit: 1})
	return func() error { return s.Leave(r.ctx, leases, lease.Node) }, err
}

func kindsInTurn(r *run) {
	s, other := r.connect(), r.connect()
	all := holds(s)
	if len(all) == 1 {
		r.Skip("the driver has one kind of locks")
	}
	for _, first := range all {
		for _, second := range all {
			if first.kind == second.kind {
				continue
			}
			name := r.name()
			release, err := first.take(r, s, name)
			require.NoError(r, err, first.kind)
			_, err = second.take(r, other, name)
			require.ErrorIs(r, err, driver.ErrKind, "a %s where there is a %s", second.kind, first.kind)
			_, err = second.take(r, other, name)
			require.ErrorIs(r, err, driver.ErrKind, "again, because nothing is left of what was refused")
			if l, ok := other.(driver.Limiter); ok && first.kind != "semaphore" {
				require.ErrorIs(r, l.SetLimit(r.ctx, name, 1), driver.ErrKind, "a limit where there is a %s", first.kind)
			}
			require.NoError(r, release())
		}
	}
	if l, ok := s.(driver.Limiter); ok {
		name := r.name()
		require.NoError(r, l.SetLimit(r.ctx, name, 1))
		r.leave(other, r.join(other, name)) // no contender uses the limit
	}
}

func kindsTogether(r *run) {
	sessions := r.connectAll(3)
	all := holds(sessions[0])
	if len(all) == 1 {
		r.Skip("the driver has one kind of locks")
	}
	for range 20 {
		name := r.name()
		releases, errs := make([]func() error, len(all)), make([]error, len(all))
		var taking sync.WaitGroup
		for i, hold := range all {
			taking.Go(func() { releases[i], errs[i] = hold.take(r, sessions[i], name) })
		}
		taking.Wait()
		var held []string
		for i, hold := range all {
			if errs[i] != nil {
				require.ErrorIs(r, errs[i], driver.ErrKind, hold.kind)
				continue
			}
			held = append(held, hold.kind)
			require.NoError(r, releases[i]())
		}
		require.LessOrEqual(r, len(held), 1, "locks of one name: %v", held)
	}
}
