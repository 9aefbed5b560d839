package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
)

// pace pauses before the nth repetition of something that somebody undoes each
// time: the server, which removes an empty container between two of our requests,
// or a script that deletes a queue again and again. It returns an error when that
// is to end, with the context or the session.
func (s *Session) pauseBeforeRecreating(ctx context.Context, n int) error {
	const longest = 50 // so that whoever undoes it does not win for ever
	if n <= 1 {
		return ctx.Err() // a queue that is made for the first time costs no time
	}
	select {
	case <-time.After(time.Duration(min(n-1, longest)) * time.Millisecond):
	case <-ctx.Done():
	case <-s.alive.Done():
		return s.Err()
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("the directory of the lock was removed each of the %d times that it was made: %w", n, err)
	}
	return nil
}

// makeQueue creates dir, and its parents where they are missing, as containers,
// which the server removes when they have been left empty. It adds to made what it
// may have created, for unmake, whether or not it succeeds.
func (s *Session) createContainers(ctx context.Context, dir string, made *[]string) error {
	for tries := 0; ; tries++ {
		if err := s.pauseBeforeRecreating(ctx, tries); err != nil {
			return err
		}
		container, err := s.createContainer(dir)
		if container && (err == nil || !isRefused(err)) && !slices.Contains(*made, dir) {
			*made = append(*made, dir)
		}
		switch {
		case err == nil, errors.Is(err, zk.ErrNodeExists):
			return nil
		case errors.Is(err, zk.ErrNoNode) && parent(dir) != "/":
			err = s.createContainers(ctx, parent(dir), made)
		case isUnimplemented(err):
			s.mu.Lock()
			s.noContainers = true // ZooKeeper before 3.5.1
			s.mu.Unlock()
			err = nil
		case isUnsure(err):
			err = s.pauseBeforeRetry()
		case errors.Is(err, zk.ErrNoChildrenForEphemerals):
			err = plainLockError(parent(dir))
		default:
			err = explainError(err, "creating "+dir, "CREATE", parent(dir))
		}
		if err != nil {
			return err
		}
	}
}

// unmake removes the containers that were made for a node that was not created
// after all. The server would keep one for ever that never had a child. So it goes
// on while the session is being closed, for as long as that has a connection.
func (s *Session) removeContainers(made []string) {
	slices.Sort(made) // each is below the one before it
	for _, path := range slices.Backward(made) {
		err := s.conn.Delete(path, 0)
		for isUnsure(err) && !s.mustNotDial() {
			time.Sleep(minBackoff)
			err = s.conn.Delete(path, 0)
		}
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return // somebody uses it, and with it what is above
		}
	}
}

func (s *Session) createContainer(path string) (container bool, err error) {
	s.mu.Lock()
	container = !s.noContainers && !s.cfg.Layout.naming().persistent
	s.mu.Unlock()
	if container {
		_, err = s.conn.CreateContainer(path, nil, zk.FlagContainer, s.cfg.ACL)
	} else {
		_, err = s.conn.Create(path, nil, 0, s.cfg.ACL)
	}
	return container, err
}

func parent(path string) string {
	if i := strings.LastIndexByte(path, '/'); i > 0 {
		return path[:i]
	}
	return "/"
}
