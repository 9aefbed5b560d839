package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"
)

// oneNode is a lock that consists of one ephemeral node, and a BAD EXAMPLE. The
// client that creates the node has the lock; all others watch it. So each release
// wakes all of them, all try to create it, and all but one watch it again.
// Moreover, there is no queue: luck decides which client is next.
type oneNode struct {
	session
	config
}

func openOneNode(ctx context.Context, c config) (contender, error) {
	s, err := connect(ctx, c)
	return &oneNode{s, c}, err
}

func (o *oneNode) lock(ctx context.Context) error {
	for {
		_, err := o.Create(o.path, nil, zk.FlagEphemeral, worldACL)
		if !errors.Is(err, zk.ErrNodeExists) {
			return err // nil if it was created
		}
		_, stat, changed, err := o.GetW(o.path)
		if errors.Is(err, zk.ErrNoNode) {
			continue // deleted meanwhile
		}
		if err != nil {
			return err
		}
		o.waiters.add(fmt.Sprint(stat.EphemeralOwner))
		if err := await(ctx, changed); err != nil {
			return err
		}
	}
}

func (o *oneNode) unlock(context.Context) error { return o.Delete(o.path, -1) }

func (o *oneNode) awaitOthers(ctx context.Context, n int) error {
	return o.waiters.await(ctx, fmt.Sprint(o.SessionID()), n)
}
