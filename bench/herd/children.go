package main

import (
	"context"
	"errors"
	"slices"

	"github.com/go-zookeeper/zk"
)

// children is the queue as textbooks first show it, and a BAD EXAMPLE. Whoever
// is not first watches the list of all who wait. So each one who goes wakes all
// the others, and all of them ask for the whole list, to learn that it is the
// next one's turn and not theirs: n wake-ups and n lists of n names where one
// wake-up would do. Watch the node before your own instead.
type children struct {
	session
	place
	node string
}

func openChildren(ctx context.Context, at place) (contender, error) {
	s, err := connect(ctx, at)
	if err != nil {
		return nil, err
	}
	if _, err := s.Create(at.path, nil, 0, anybody); err != nil && !errors.Is(err, zk.ErrNodeExists) {
		return nil, errors.Join(err, s.close())
	}
	return &children{session: s, place: at}, nil
}

func (c *children) lock(ctx context.Context) (err error) {
	c.node, err = c.Create(c.path+"/n-", nil, zk.FlagEphemeral|zk.FlagSequence, anybody)
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
		c.herd.waits(first)
		select {
		case e := <-changed:
			if e.Err != nil {
				return e.Err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *children) unlock(context.Context) error { return c.Delete(c.node, -1) }

func (c *children) settled(ctx context.Context, others int) error {
	return c.herd.assembled(ctx, c.node, others)
}
