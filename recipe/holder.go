package recipe

// This file finds the holder of a lock with a queue.

import (
	"context"
	"errors"

	"github.com/lockpool/lockpool/driver"
)

// FindHolder returns the first node in the queue, the holder's, and the stored data. It
// returns the zero Node if the queue is empty or the service does not answer. The queue is
// listed only if first, the head of an earlier listing, is the zero Node or gone.
func FindHolder(ctx context.Context, s driver.Session, queue string, first driver.Node) (driver.Node, []byte) {
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
