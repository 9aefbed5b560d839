//go:build linux

package main

// This file finds leftover nodes of contenders.

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool/testing/lab/simulate/workload"
)

// lookTimeout bounds how long the search for leaked nodes takes.
const lookTimeout = 30 * time.Second

// Look implements campaign.Cluster: list the leftover nodes of contenders.
func (c ensemble) Look(_ context.Context, w workload.Config, rec *workload.Record) error {
	conn, events, err := zk.Connect(strings.Split(c.ConnectString(), ","), w.Timeout, zk.WithLogger(noLogger{}), zk.WithLogInfo(false))
	if err != nil {
		return err
	}
	go func() { // ends with the connection
		for range events {
		}
	}()
	defer conn.Close()
	defer time.AfterFunc(lookTimeout, conn.Close).Stop()
	if _, err := conn.Sync("/"); err != nil {
		return err
	}
	rec.Leaked, err = nodesBelowChroot(conn, w.Directories(chroot))
	return err
}

// nodesBelowChroot lists all nodes below the chroot except for directories, because these
// stay for a while, or for good. (A plain lock has no directory: the lock's own node is
// there.)
func nodesBelowChroot(conn *zk.Conn, directories []string) (found []string, err error) {
	for rest := []string{chroot}; len(rest) > 0; rest = rest[1:] {
		path := rest[0]
		data, stat, err := conn.Get(path)
		if err == zk.ErrNoNode {
			continue
		}
		if err != nil {
			return nil, err
		}
		if stat.EphemeralOwner != 0 || path != chroot && !slices.Contains(directories, path) {
			found = append(found, fmt.Sprintf("%s, created at %#x by session %#x, with data %q", path, stat.Czxid, uint64(stat.EphemeralOwner), data))
		}
		children, _, err := conn.Children(path)
		if err != nil && err != zk.ErrNoNode {
			return nil, err
		}
		slices.Sort(children)
		for _, child := range children {
			rest = append(rest, path+"/"+child)
		}
	}
	return found, nil
}

type noLogger struct{}

func (noLogger) Printf(string, ...any) {}
