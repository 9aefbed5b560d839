package recipe

// This file finds the holder of a lock with a queue.

import (
	"context"
	"errors"

	"github.com/lockpool/lockpool/driver"
)

// FindHolder returns the first node in the queue, the holder's, and the stored data. It
// returns the zero Node if the queue is empty or the service does not answer.
func FindHolder(ctx context.Context, s driver.Session, queue string) (driver.Node, []byte) {
	return findHolder(ctx, s, queue, driver.Node{})
}

// findHolder is FindHolder for a caller with an earlier listing. The queue is listed again
// only if first, the earlier head, is the zero Node or gone.
func findHolder(ctx context.Context, s driver.Session, queue string, first driver.Node) (driver.Node, []byte) {
	const tries = 5 // for a lock changing hands faster than listings arrive
	for range tries {
		if first.Name != "" {
			data, err := s.Data(ctx, queue, first)
			if err == nil {
				return first, data
			}
			if !errors.Is(err, driver.ErrRemoved) {
				break
			}
		}
		nodes, err := s.List(ctx, queue)
		if err != nil || len(nodes) == 0 {
			break
		}
		first = nodes[0]
	}
	return driver.Node{}, nil
}
