package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/google/uuid"

	"github.com/lockpool/lockpool/driver"
)

// A lock without a queue is one ephemeral node that has the name of the lock. The
// name is used again and again, so what tells one holder's node from another's
// is a GUID in front of its data.

// plainPrefix is how the data begins.
func plainPrefix(guid string) string { return guidPrefix + guid + "\n" }

// plainData takes the name of the holder's node from the data.
func parsePlainData(data []byte) (name string, stored []byte) {
	const length = len(guidPrefix) + guidLength
	if len(data) > length && data[length] == '\n' && string(data[:len(guidPrefix)]) == guidPrefix {
		return string(data[:length]), data[length+1:]
	}
	return "", data
}

// plainNode reads the node of a lock without a queue, also one that somebody
// else has made in some other way. It returns the data that the holder stored.
func parsePlainNode(data []byte, stat *zk.Stat) (driver.Node, []byte) {
	name, data := parsePlainData(data)
	if name == "" {
		name = fmt.Sprintf("%s%#x", foreignPlainPrefix, stat.Czxid)
	}
	return driver.Node{Kind: driver.Plain, Name: name}, data
}

const foreignPlainPrefix = "plain-"

// isPlain reports whether a node is that of a lock without a queue: an ephemeral
// one. (Containers look like persistent nodes to clients.)
func isPlain(stat *zk.Stat) bool { return stat.EphemeralOwner != 0 }

// Take implements driver.Session.
func (s *Session) TryCreate(ctx context.Context, name string, data []byte) (driver.Node, bool, error) {
	leave, err := s.acquireCallSlot(ctx)
	if err != nil {
		return driver.Node{}, false, err
	}
	path := s.path(name)
	t, err := run(ctx, s, func() (tryCreateResult, error) {
		defer leave()
		return s.tryCreate(ctx, path, data)
	}, func(t tryCreateResult) {
		if t.created {
			_ = s.removePlain(path, t.node) // fails only when the session is over
		}
	})
	return t.node, t.created, err
}

type tryCreateResult struct {
	node driver.Node
	created bool
}

func (s *Session) tryCreate(ctx context.Context, path string, data []byte) (t tryCreateResult, err error) {
	var made []string
	defer func() {
		if err != nil {
			s.removeContainers(made)
		}
	}()
	guid, claims := uuid.NewString(), claimsOn(path)
	ours := tryCreateResult{driver.Node{Kind: driver.Plain, Name: guidPrefix + guid}, true}
	data = append([]byte(plainPrefix(guid)), data...)
	for tries := 0; ; {
		if err := s.pauseBeforeRecreating(ctx, tries); err != nil {
			return tryCreateResult{}, err
		}
		turn := claims.create()
		_, err := s.conn.Create(path, data, zk.FlagEphemeral, s.cfg.ACL)
		if err != nil && !isRefused(err) {
			err = s.findCreatedPlain(path, ours.node)
		}
		claims.created(err == nil)
		switch {
		case err == nil:
			s.recordPlain(path, plainNode{name: ours.node.Name, since: s.now(), turn: turn})
			return ours, nil
		case errors.Is(err, zk.ErrNodeExists):
			var t tryCreateResult
			if t, err = s.readHolder(path); err == nil && t.node != (driver.Node{}) {
				return t, nil
			}
		case errors.Is(err, errNotCreated):
			tries++
			err = nil
		case errors.Is(err, zk.ErrNoNode):
			tries++
			err = s.createContainers(ctx, parent(path), &made)
		case errors.Is(err, zk.ErrNoChildrenForEphemerals):
			err = plainLockError(parent(path))
		case !errors.Is(err, driver.ErrSessionLost):
			err = explainError(err, "creating "+path, "CREATE", parent(path))
		}
		if err != nil {
			return tryCreateResult{}, err
		}
	}
}

// plain is a node of ours that holds a lock without a queue.
type plainNode struct {
	name    string
	uncertain bool          // it could not be seen
	since   time.Duration // when it was confirmed, by Session.now
	turn    int64         // claims.turn if nobody has taken the name since
}

// claims keeps creates and deletes of plain locks' nodes apart in this process, on
// whatever sessions, under all names that share one: while a delete is on its way
// no create is, which might make a node for it to hit.
type claims struct {
	mu                 sync.Mutex
	creating, deleting int
	granted            int64         // creates that succeeded
	changed            chan struct{} // closed when there are fewer; nil if nobody waits for that
}

// patience bounds the wait for another session, whose server may not answer.
const patience = 100 * time.Millisecond

// create waits until no delete is on its way, but not for long, and counts a create
// in. It returns what turn will be if this one succeeds, and no other: replies may
// be seen in another order than the server had.
func (c *claims) create() (turn int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.await(&c.deleting)
	c.creating++
	return c.granted + 1
}

// delete counts a delete in, and waits until no create is on its way. It reports
// false if that takes long.
func (c *claims) delete() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deleting++ // first, so that no create begins
	return c.await(&c.creating)
}

func (c *claims) await(busy *int) bool {
	if *busy == 0 {
		return true
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	for *busy > 0 {
		if c.changed == nil {
			c.changed = make(chan struct{})
		}
		changed := c.changed
		c.mu.Unlock()
		select {
		case <-changed:
			c.mu.Lock()
		case <-late.C:
			c.mu.Lock()
			return *busy == 0
		}
	}
	return true
}

// created counts a create out.
func (c *claims) created(success bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if success {
		c.granted++
	}
	c.creating--
	c.wake()
}

// deleted counts a delete out.
func (c *claims) deleted() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deleting--
	c.wake()
}

func (c *claims) wake() {
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

// turn is the number of creates that succeeded.
func (c *claims) turn() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.granted
}

var (
	allClaims [256]claims // few enough to be kept for ever; names that meet in one cost a look
	claimSeed = maphash.MakeSeed()
)

func claimsOn(path string) *claims {
	return &allClaims[maphash.String(claimSeed, path)%uint64(len(allClaims))]
}

// unwatched is for how long after it was confirmed a node of ours is taken to
// stand without a watch on it.
const unwatched = 50 * time.Millisecond

// own notes that the node at path is ours.
func (s *Session) recordPlain(path string, p plainNode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plains[path] = p
}

// disown notes that a node of ours is gone.
func (s *Session) forgetPlain(path string, node driver.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.plains[path].name == node.Name {
		delete(s.plains, path)
	}
}

// stillOwns reports whether the node of ours has not been seen to go, and whether
// that is as good as having looked at it: nobody in this process has taken the
// name since, and its watch has not fired, or it is so young that it needs none,
// because no person removes a node by hand so soon after its creation.
func (s *Session) ownsPlain(path string, node driver.Node) (owns, certain bool) {
	s.mu.Lock()
	p, w := s.plains[path], s.watches[path]
	s.mu.Unlock()
	if p.name != node.Name {
		return false, true
	}
	if p.uncertain || claimsOn(path).turn() != p.turn {
		return true, false
	}
	return true, s.now()-p.since < unwatched || w != nil && w.isArmed() && s.matchesPlain(path, node, w.raw, w.stat)
}

func plainLockError(path string) error {
	return fmt.Errorf("%w: a plain lock is held at %s", driver.ErrKind, path)
}

// who returns the node that is in the way of ours, or none if it has gone.
func (s *Session) readHolder(path string) (tryCreateResult, error) {
	data, stat, err := s.get(path)
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return tryCreateResult{}, nil
	case err != nil:
		return tryCreateResult{}, explainError(err, "reading "+path, "READ", path)
	case isPlain(stat):
		node, _ := parsePlainNode(data, stat)
		return tryCreateResult{node: node}, nil
	}
	children, err := s.childrenOf(path)
	if err != nil {
		return tryCreateResult{}, err
	}
	return tryCreateResult{}, fmt.Errorf("%w: %s", driver.ErrKind, describeUse(path, children))
}

// describe says what is at a path that has these children.
func describeUse(path string, children []string) string {
	switch n := len(contendersOf(slices.Clone(children))); {
	case n > 0:
		return fmt.Sprintf("a queue with %d contenders is at %s", n, path)
	case isSemaphore(children):
		return fmt.Sprintf("a semaphore is at %s", path)
	case len(children) > 0:
		return fmt.Sprintf("%s has other nodes below it, such as %s", path, slices.Min(children))
	}
	return fmt.Sprintf("an empty node is at %s: ZooKeeper removes it within minutes if a queue has left it behind, else remove it", path)
}

// get reads a node, for as long as it takes to be answered.
func (s *Session) get(path string) (data []byte, stat *zk.Stat, err error) {
	err = s.retryUntilAnswered(func() (err error) {
		data, stat, err = s.conn.Get(path)
		return err
	})
	return data, stat, err
}

// findPlain settles what became of a create whose reply was lost: nil means that
// the node is there and ours.
func (s *Session) findCreatedPlain(path string, node driver.Node) error {
	for {
		if err := s.pauseBeforeRetry(); err != nil {
			return err
		}
		ours, err := s.isPlainAt(path, node, true)
		switch {
		case ours:
			return nil
		case err == nil:
			return errNotCreated
		case errors.Is(err, driver.ErrSessionLost):
			return err
		case !errors.Is(err, zk.ErrNoAuth):
			continue
		}
		s.reapLater(func() bool {
			ours, err := s.isPlainAt(path, node, true)
			if ours {
				s.recordPlain(path, plainNode{name: node.Name})
				_ = s.removePlain(path, node) // fails only when it goes with the session
			}
			return err == nil
		})
		return explainError(err, "looking for a node whose creation was not confirmed", "READ", path)
	}
}

// isOurs reports whether the node at path is that one of ours. lost says that the
// reply to its create was lost, so that it may have no name any more, see claim.
func (s *Session) isPlainAt(path string, node driver.Node, lost bool) (bool, error) {
	err := s.retryUntilAnswered(func() error {
		_, err := s.conn.Sync(path)
		return err
	})
	var data []byte
	var stat *zk.Stat
	if err == nil {
		data, stat, err = s.get(path)
	}
	if err != nil {
		if errors.Is(err, zk.ErrNoNode) {
			err = nil
		}
		return false, err
	}
	return s.matchesPlain(path, node, data, stat) || lost && s.hasRevokeRequest(data, stat) && s.claimUnnamed(path, node), nil
}

// isPlainOf reports whether what was read at path is that node. A request to give
// the lock back has taken the place of its name; then it is the one that the
// session holds there, if it is the session's at all.
func (s *Session) matchesPlain(path string, node driver.Node, data []byte, stat *zk.Stat) bool {
	if found, _ := parsePlainNode(data, stat); found == node {
		return true
	}
	revoked := s.hasRevokeRequest(data, stat)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.plains[path].name == node.Name && revoked
}

// isRevoked reports whether a node of the session has a request for its name.
func (s *Session) hasRevokeRequest(data []byte, stat *zk.Stat) bool {
	return string(data) == revokeRequest && stat.EphemeralOwner == s.ID()
}

// claim is for a create whose reply was lost, and whose node has no name any more.
// If the session is not known to hold the lock, whoever comes first has it.
func (s *Session) claimUnnamed(path string, node driver.Node) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, held := s.plains[path]; held {
		return false
	}
	s.plains[path] = plainNode{name: node.Name}
	return true
}

// doubt notes that our node may be somebody else's by now.
func (s *Session) markUncertain(path string, node driver.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.plains[path].name == node.Name {
		s.plains[path] = plainNode{name: node.Name, uncertain: true}
	}
}

// removePlain deletes our node. The name may be that of somebody else's node by
// now, and a delete can not be made to depend on whose it is, so it looks first
// unless it knows (stillOwns), and again before it repeats a delete. The error is
// ErrRemoved if the node was gone before a delete of ours was sent.
func (s *Session) removePlain(path string, node driver.Node) error {
	for sent := false; ; {
		err := s.removePlainOnce(path, node, &sent)
		switch {
		case err == nil:
			s.forgetPlain(path, node)
			if !sent {
				return driver.ErrRemoved
			}
			return nil
		case errors.Is(err, zk.ErrNoAuth):
			s.markUnremovable()
			return explainError(err, "deleting "+path, "DELETE", parent(path))
		}
		if err := s.pauseBeforeRetry(); err != nil {
			return err
		}
	}
}

// removePlainOnce sends one delete, unless our node is gone. sent is whether one may
// have been carried out.
func (s *Session) removePlainOnce(path string, node driver.Node, sent *bool) error {
	claims := claimsOn(path)
	alone := claims.delete()
	defer claims.deleted()
	ours, certain := s.ownsPlain(path, node)
	if ours && (*sent || !certain || !alone) {
		var err error
		if ours, err = s.isPlainAt(path, node, false); err != nil {
			return err
		}
	}
	if !ours {
		return nil
	}
	err := s.conn.Delete(path, -1)
	if errors.Is(err, zk.ErrNoNode) {
		return nil
	}
	*sent = *sent || !isRefused(err)
	return err
}
