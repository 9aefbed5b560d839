//go:build unix

package main

// This file tests the command on etcd.

import (
	"bufio"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/lockpool/lockpool/testing/locktest"
)

// onEtcd returns a shell whose LOCKPOOL_SERVER is an etcd, and a client.
func onEtcd(t *testing.T, flags ...string) (*shell, *clientv3.Client) {
	endpoint := locktest.StartEtcd(t, flags...)
	admin, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = admin.Close() })
	s := newShell(t)
	s.env = append(s.env, "LOCKPOOL_SERVER=etcd://"+endpoint+"/team")
	return s, admin
}

func TestEtcd(t *testing.T) {
	t.Parallel()
	s, admin := onEtcd(t)
	holder := s.holder("--session-timeout", "4s", "orders/42")
	waiter := s.start("run", "--verbose", "--owner", "cart", "orders/42", "--", "sh", "-c", "echo token $LOCKPOOL_TOKEN")
	s.Until(func() bool { return strings.Contains(s.prints("show", "orders/42"), "1 holder, 1 waiter") }, "the second waits")
	require.Regexp(t, `orders/42 +mutex +1 +1 `, s.prints("ls"))
	require.Contains(t, s.prints("show", "orders/42"), "cart, process ")
	require.Contains(t, s.prints("waits"), "1 waiter, 0 deadlocks")
	require.Contains(t, s.prints("insights"), "No pool has published")
	page := s.visitor(s.serve()).send("GET", "/events?lock=orders/42", "")
	seen := bufio.NewScanner(page.Body)
	require.True(t, seen.Scan())
	require.Contains(t, seen.Text(), `"Title":"orders/42: 1 holder, 1 waiter"`)
	completed, _ := s.run(0, "__complete", "break", "or")
	require.Equal(t, "orders/42\n:4\n", completed)
	s.says(116, "orders/42 is held by sh, process ", "run", "--try", "orders/42", "--", "true")
	require.Regexp(t, `^orders/42 is taken from sh, process`, s.prints("break", "--yes", "orders/42"))
	require.Equal(t, 117, holder.code())
	require.Equal(t, 0, waiter.code())
	for !strings.Contains(seen.Text(), "orders/42: 0 holders, 0 waiters") {
		require.True(t, seen.Scan())
	}
	require.Regexp(t, `^token \d+\n$`, waiter.stdout.String())

	revoked := s.holder("--revocable", "job")
	require.Contains(t, s.prints("show", "job"), "(mutex, revocable)")
	s.prints("revoke", "--yes", "job")
	require.NotZero(t, revoked.code())
	require.Equal(t, "1\n", s.prints("run", "--once", "today", "report", "--", "echo", "1"))
	s.run(115, "run", "--once", "today", "report", "--", "echo", "2")
	require.Equal(t, "3\n", s.prints("run", "--permits", "1/3", "gpu", "--", "echo", "3"))
	got, err := admin.Get(t.Context(), "", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	require.NoError(t, err)
	for _, kv := range got.Kvs {
		require.Regexp(t, `^team/`, string(kv.Key))
	}

	r := s.diagnosis(0)
	require.Regexp(t, `^etcd \d+\.\d+\.\d+`, r.Servers[0].Version)
	require.Equal(t, "leader", r.Servers[0].Mode)
	require.Equal(t, sessionReport{Asked: 15000, Granted: 15000}, *r.Session)
	require.Positive(t, r.Latency.WriteMedian)
	require.Positive(t, *r.Lock)
	require.Equal(t, []string{"the service survives the loss of no server"}, r.whats(advice))
	require.Equal(t, []string{"127.0.0.1:1 cannot be used: dial tcp 127.0.0.1:1: connect: connection refused"},
		s.diagnosis(1, "--server", "etcd://127.0.0.1:1").whats(wrong))

	// With users.
	for _, user := range []string{"root", "me", "stranger"} {
		_, err := admin.UserAdd(t.Context(), user, "secret")
		require.NoError(t, err)
	}
	_, err = admin.RoleAdd(t.Context(), "locks")
	require.NoError(t, err)
	_, err = admin.RoleGrantPermission(t.Context(), "locks", "team/", clientv3.GetPrefixRangeEnd("team/"), clientv3.PermissionType(clientv3.PermReadWrite))
	require.NoError(t, err)
	_, err = admin.UserGrantRole(t.Context(), "me", "locks")
	require.NoError(t, err)
	_, err = admin.RoleAdd(t.Context(), "root")
	require.NoError(t, err)
	_, err = admin.UserGrantRole(t.Context(), "root", "root")
	require.NoError(t, err)
	_, err = admin.AuthEnable(t.Context())
	require.NoError(t, err)
	s.says(119, "LOCKPOOL_CREDENTIALS", "run", "--try", "job", "--", "true")
	s.env = append(s.env, "LOCKPOOL_CREDENTIALS=stranger:secret")
	require.Contains(t, strings.Join(s.diagnosis(1).whats(wrong), "\n"), "no permission: the user needs the right to read and write all keys below the prefix team/")
	s.env = append(s.env, "LOCKPOOL_CREDENTIALS=me:secret")
	require.Contains(t, s.diagnosis(0).whats(advice), "the password is sent without TLS")
	require.Equal(t, "hi\n", s.prints("run", "job", "--", "echo", "hi"))
}

func TestDoctorSaysThatEtcdIsFull(t *testing.T) {
	t.Parallel()
	s, admin := onEtcd(t, "--quota-backend-bytes", "1000000")
	s.Until(func() bool {
		_, err := admin.Put(t.Context(), fmt.Sprint(time.Now()), strings.Repeat("x", 100_000))
		return err != nil
	}, "the database is full")
	require.Contains(t, s.diagnosis(1).whats(wrong)[0], " cannot be used: the servers' database is full, and accepts removals only: compact")
}
