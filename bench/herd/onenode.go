package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"
)

// oneNode is the lock that is one ephemeral node, and a BAD EXAMPLE. Who can
// create the node has the lock; all the others watch it. So each release wakes
// them all, all of them try, and all but one have to watch again. Besides, there
// is no queue: luck decides who is next.
type oneNode struct {
	session
	place
}

func openOneNode(ctx context.Context, at place) (contender, error) {
	s, err := connect(ctx, at)
	return &oneNode{s, at}, err
}

func (o *oneNode) lock(ctx context.Context) error {
	for {
		_, err := o.Create(o.path, nil, zk.FlagEphemeral, anybody)
		if !errors.Is(err, zk.ErrNodeExists) {
			return err // nil if we have created it
		}
		_, stat, changed, err := o.GetW(o.path)
		if errors.Is(err, zk.ErrNoNode) {
			continue // gone meanwhile
		}
		if err != nil {
			return err
		}
		o.herd.waits(fmt.Sprint(stat.EphemeralOwner))
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

func (o *oneNode) unlock(context.Context) error { return o.Delete(o.path, -1) }

func (o *oneNode) settled(ctx context.Context, others int) error {
	return o.herd.assembled(ctx, fmt.Sprint(o.SessionID()), others)
}
