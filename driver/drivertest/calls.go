package drivertest

// This file has every waiting method, for the laws about each call.

import (
	"context"
	"errors"
	"fmt"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
)

// things are what calls are about.
type things struct {
	own, other       driver.Located // nodes in one queue, of the calling session and of another one
	queue            string         // theirs
	plain, semaphore string         // free names
	record           driver.Record  // missing, of a name with another record
}

// newThings returns things for a call of s.
func (r *run) newThings(s, other driver.Session) things {
	r.Helper()
	queue := r.name()
	on := things{queue: queue, own: r.join(s, queue), other: r.join(other, queue), plain: r.name(), semaphore: r.name()}
	require.NoError(r, s.Ping(r.ctx))
	if rec, ok := other.(driver.Recorder); ok {
		on.record = r.newRecord(rec)
		r.records(other, on.record.Name, "another") // so nothing else is missing when the record is to be created
	}
	return on
}

// call is a method of a session.
type call struct {
	name string
	do   func(ctx context.Context, s driver.Session, on things) error
}

// calls are all calls waiting for the service with a context, except Leave and Close, with
// laws of their own.
func calls(s driver.Session) []call {
	all := []call{
		{"Join", func(ctx context.Context, s driver.Session, on things) error {
			_, err := s.Join(ctx, on.queue, driver.Request{Kind: driver.Exclusive})
			return err
		}},
		{"List", func(ctx context.Context, s driver.Session, on things) error {
			_, err := s.List(ctx, on.queue)
			return err
		}},
		{"Watch", func(ctx context.Context, s driver.Session, on things) error {
			_, err := s.Watch(ctx, on.queue, on.own.Node, on.other.Node)
			return err
		}},
		{"Data", func(ctx context.Context, s driver.Session, on things) error {
			_, err := s.Data(ctx, on.queue, on.other.Node)
			return err
		}},
		{"Verify", func(ctx context.Context, s driver.Session, on things) error {
			return s.Verify(ctx, on.own, on.other)
		}},
		{"Rewrite", func(ctx context.Context, s driver.Session, on things) error {
			return s.Rewrite(ctx, on.queue, on.own.Node, []byte(data))
		}},
		{"Ping", func(ctx context.Context, s driver.Session, on things) error { return s.Ping(ctx) }},
	}
	if _, ok := s.(driver.PlainLocker); ok {
		all = append(all, call{"TryCreate", func(ctx context.Context, s driver.Session, on things) error {
			_, _, err := s.(driver.PlainLocker).TryCreate(ctx, on.plain, nil)
			return err
		}})
	}
	if _, ok := s.(driver.Limiter); ok {
		all = append(all, call{"Limit", func(ctx context.Context, s driver.Session, on things) error {
			_, _, err := s.(driver.Limiter).Limit(ctx, on.semaphore, 2)
			return err
		}}, call{"SetLimit", func(ctx context.Context, s driver.Session, on things) error {
			return s.(driver.Limiter).SetLimit(ctx, on.semaphore, 2)
		}})
	}
	if _, ok := s.(driver.Inspector); ok {
		all = append(all, call{"Inspect", func(ctx context.Context, s driver.Session, on things) error {
			_, _, err := s.(driver.Inspector).Inspect(ctx, on.queue, nil)
			return err
		}}, call{"Queues", func(ctx context.Context, s driver.Session, on things) error {
			_, err := s.(driver.Inspector).Queues(ctx, on.queue)
			return err
		}})
	}
	if _, ok := s.(driver.Follower); ok {
		all = append(all, call{"Follow", func(ctx context.Context, s driver.Session, on things) error {
			_, err := s.(driver.Follower).Follow(ctx, on.queue, func(queue []driver.Node) (int, bool) { return len(queue), false })
			return err
		}})
	}
	if _, ok := s.(driver.Revoker); ok {
		all = append(all, call{"Revoke", func(ctx context.Context, s driver.Session, on things) error {
			return s.(driver.Revoker).Revoke(ctx, on.queue, on.other.Node, true)
		}})
	}
	if _, ok := s.(driver.Recorder); ok {
		all = append(all, call{"Finish", func(ctx context.Context, s driver.Session, on things) error {
			return s.(driver.Recorder).Finish(ctx, on.queue, on.own.Node, on.record)
		}}, call{"Settle", func(ctx context.Context, s driver.Session, on things) error {
			_, err := s.(driver.Recorder).Settle(ctx, on.queue, on.other.Node, on.record)
			return err
		}}, call{"Record", func(ctx context.Context, s driver.Session, on things) error {
			_, _, err := s.(driver.Recorder).Record(ctx, on.record.Name, on.record.Key)
			return err
		}}, call{"Records", func(ctx context.Context, s driver.Session, on things) error {
			_, err := s.(driver.Recorder).Records(ctx, on.record.Name)
			return err
		}}, call{"Forget", func(ctx context.Context, s driver.Session, on things) error {
			return s.(driver.Recorder).Forget(ctx, on.record.Name, on.record.Key)
		}}, call{"ForgetOld", func(ctx context.Context, s driver.Session, on things) error {
			if c, ok := s.(driver.Clearer); ok {
				return c.ClearRecords(ctx, on.record)
			}
			_, _, err := s.(driver.Recorder).Record(ctx, on.record.Name, on.record.Key)
			return err
		}})
	}
	if _, ok := s.(driver.Breaker); ok {
		all = append(all, call{"Break", func(ctx context.Context, s driver.Session, on things) error {
			return s.(driver.Breaker).Break(ctx, on.queue, on.other.Node)
		}})
	}
	return all
}

// unchanged requires the calls to have left the things alone.
func (r *run) unchanged(s driver.Session, on things) {
	r.Helper()
	require.Equal(r, []driver.Node{on.own.Node, on.other.Node}, r.list(s, on.queue))
	require.False(r, r.watchOne(s, on.other).Revoked)
	r.waits(r.watchOne(s, on.other), "the node has not changed")
	if l, ok := s.(driver.PlainLocker); ok {
		node, created, err := l.TryCreate(r.ctx, on.plain, nil)
		require.NoError(r, err)
		require.True(r, created, "the lock was taken")
		r.leave(s, driver.Located{Queue: on.plain, Node: node})
	}
	if l, ok := s.(driver.Limiter); ok {
		_, _, err := l.Limit(r.ctx, on.semaphore, 0)
		require.ErrorIs(r, err, driver.ErrLimit)
	}
	if l, ok := s.(driver.Recorder); ok {
		_, found, err := l.Record(r.ctx, on.record.Name, on.record.Key)
		require.NoError(r, err)
		require.False(r, found, "a record was created")
	}
}

// expect returns an error unless err, returned by a call, is one of the targets.
func expect(call string, err error, targets ...error) error {
	for _, target := range targets {
		if errors.Is(err, target) {
			return nil
		}
	}
	return fmt.Errorf("the error of %s is %v, not %v", call, err, targets[0])
}
