package main

import (
	"context"
	"errors"
	"slices"

	"github.com/go-zookeeper/zk"
)

// children is the queue that textbooks show first, and a BAD EXAMPLE. Every
// waiter watches the children of the queue's node. So each release wakes all
// waiters, and each of them lists the whole queue, only for all but one to learn
// that it is not their turn: n wake-ups and n listings of n names where one
// wake-up would do. Watch the predecessor's node instead.
type children struct {
	session
	config
	node string
}

func openChildren(ctx context.Context, c config) (contender, error) {
	s, err := connect(ctx, c)
	if err != nil {
		return nil, err
	}
	if _, err := s.Create(c.path, nil, 0, worldACL); err != nil && !errors.Is(err, zk.ErrNodeExists) {
		return nil, errors.Join(err, s.close())
	}
	return &children{session: s, config: c}, nil
}

func (c *children) lock(ctx context.Context) (err error) {
	c.node, err = c.Create(c.path+"/n-", nil, zk.FlagEphemeral|zk.FlagSequence, worldACL)
	if err != nil {
		return err
	}
	for {
		names, _, changed, err := c.ChildrenW(c.path)
		if err != nil {
			return err
		}
		first := c.path + "/" + slices.Min(names)
		if first == c.node {
			return nil
		}
		c.waiters.add(first)
		if err := await(ctx, changed); err != nil {
			return err
		}
	}
}

func (c *children) unlock(context.Context) error { return c.Delete(c.node, -1) }

func (c *children) awaitOthers(ctx context.Context, n int) error {
	return c.waiters.await(ctx, c.node, n)
}
