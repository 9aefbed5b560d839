package zookeeper

// This file reads what contenders and holders have stored, lists locks, and breaks and
// revokes contenders.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/znode"
)

// Data implements driver.Session.
func (s *session) Data(ctx context.Context, queue string, node driver.Node) ([]byte, error) {
	path := s.paths(queue, node)[0]
	q, err := s.get(ctx, path)
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return nil, driver.ErrRemoved
	case err != nil:
		return nil, explainError(err, "reading "+path, "READ", path)
	}
	_, data := znode.CutPlainData(q.data)
	return data, nil
}

// read is one of the many reads of a call.
type read struct {
	// begin returns the request to wait for, and the request to start: the same request, or
	// nil if another call has started this one.
	begin func() (awaited, unsent *request)

	// answered returns the further reads required by the answer.
	answered func(*request) (more []read, err error)
}

// readOf is a read by the request for path that newRequest returns.
func readOf(newRequest func(path string) *request, path string, answered func(*request) ([]read, error)) read {
	begin := func() (awaited, unsent *request) {
		q := newRequest(path)
		return q, q
	}
	return read{begin, answered}
}

// maxReads bounds one call's reads under way to half of the number allowed by requests, so
// that a call with many reads does not delay other calls for long.
const maxReads = maxAnswers / minAnswer / 2

// readAll makes reads, and the further reads required by the answers. It does not wait for
// one answer before sending the next request. Reads change nothing, so they are repeated
// until the server answers, and abandoned when ctx ends.
func (s *session) readAll(ctx context.Context, left ...read) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	type begun struct {
		read
		request *request
	}
	var underWay []begun // answered in this order
	defer func() {
		for _, r := range underWay {
			if r.request != nil {
				s.requests.cancel(r.request)
			}
		}
	}()
	for len(left) > 0 || len(underWay) > 0 {
		if len(underWay) <= maxReads/2 { // several at a time, because they share a write
			n := min(len(left), maxReads-len(underWay))
			var unsent []*request
			for _, r := range left[:n] {
				awaited, own := r.begin()
				underWay = append(underWay, begun{r, awaited})
				if own != nil {
					unsent = append(unsent, own)
				}
			}
			s.requests.start(unsent...)
			left = left[n:]
		}
		first := &underWay[0]
		answer, err := s.ask(ctx, func() *request { // ask gives the request up itself
			q := first.request
			if first.request = nil; q == nil { // not answered
				var own *request
				if q, own = first.begin(); own != nil {
					s.requests.start(own)
				}
			}
			return q
		})
		if isUnsure(err) {
			return err
		}
		underWay = underWay[1:]
		more, err := first.answered(answer)
		if err != nil {
			return err
		}
		left = append(left, more...)
	}
	return nil
}

// readNode is a read of the node at path, whose error in an answer is ErrNoNode, or none.
func (s *session) readNode(path string, found func(q *request)) read {
	return readOf(getRequest, path, func(q *request) ([]read, error) {
		switch {
		case q.err == nil:
			found(q)
		case !errors.Is(q.err, zk.ErrNoNode):
			return nil, explainError(q.err, "reading "+path, "READ", path)
		}
		return nil, nil
	})
}

// readChildren is a read of the children of the directory at path, if the directory exists.
func (s *session) readChildren(path string, found func(l *listing) []read) read {
	var l *listing
	return read{
		begin: func() (awaited, unsent *request) {
			l, unsent = s.beginListing(path)
			return l.request, unsent
		},
		answered: func(q *request) ([]read, error) {
			if q.err != nil && !errors.Is(q.err, zk.ErrNoNode) {
				return nil, s.explainListError(q.err, "listing", path)
			}
			return found(l), nil
		},
	}
}

// catchUp makes a lagging server catch up.
func (s *session) catchUp(ctx context.Context, path string) error {
	_, err := s.ask(ctx, func() *request { return s.requests.send(syncRequest(path)) })
	return explainError(err, "catching up", "READ", path)
}

// Inspect implements driver.Inspector.
func (s *session) Inspect(ctx context.Context, queue string, want func(driver.Node) bool) (found []driver.Contender, others []string, err error) {
	dir := s.path(queue)
	if err := s.catchUp(ctx, dir); err != nil {
		return nil, nil, err
	}
	err = s.readAll(ctx, s.readChildren(dir, func(l *listing) (more []read) {
		if len(l.children()) == 0 {
			return []read{s.readPlain(dir, func(holder driver.Contender) {
				if want != nil && !want(holder.Node) { // only reading the node tells
					holder = driver.Contender{Node: holder.Node}
				}
				found = append(found, holder)
			})}
		}
		for _, name := range l.children() {
			if !znode.IsContender(name) {
				others = append(others, name)
			}
		}
		slices.Sort(others)
		for i, node := range l.contenders() {
			if want != nil && !want(node) {
				found = append(found, driver.Contender{Node: node})
				continue
			}
			found = append(found, driver.Contender{}) // until read
			more = append(more, s.readContender(dir, node, func(c driver.Contender) { found[i] = c }))
		}
		return more
	}))
	found = slices.DeleteFunc(found, func(c driver.Contender) bool { return c.Name == "" }) // contenders that have left
	return found, others, err
}

// readContender is a read of a listed contender. An exclusive contender whose node is gone
// may have been downgraded since; then the Read node is looked for.
func (s *session) readContender(dir string, node driver.Node, found func(driver.Contender)) read {
	r := s.readNode(dir+"/"+node.Name, func(q *request) { found(znode.NewContender(node, q.data, &q.stat)) })
	if node.Kind == driver.Shared || !strings.HasPrefix(node.Name, znode.GUIDPrefix) || len(node.Name) < len(znode.GUIDPrefix)+znode.GUIDLength {
		return r
	}
	answered := r.answered
	r.answered = func(q *request) ([]read, error) {
		if !errors.Is(q.err, zk.ErrNoNode) {
			return answered(q)
		}
		return []read{s.readChildren(dir, func(l *listing) []read {
			for _, n := range l.contenders() {
				if n.Kind == driver.Shared && n.Seq == node.Seq && znode.HasGUID(n.Name, znode.GUIDOf(node.Name)) {
					return []read{s.readContender(dir, n, found)}
				}
			}
			return nil
		})}, nil
	}
	return r
}

// readPlain is a read of the holder of a plain lock, if there is one.
func (s *session) readPlain(path string, found func(driver.Contender)) read {
	return s.readNode(path, func(q *request) {
		if znode.IsPlain(&q.stat) {
			found(znode.NewContender(znode.PlainNode(q.data, &q.stat), q.data, &q.stat))
		}
	})
}

// Queues implements driver.Inspector.
func (s *session) Queues(ctx context.Context, prefix string) (names []string, err error) {
	if err := s.catchUp(ctx, max(s.cfg.Chroot, "/")); err != nil {
		return nil, err
	}
	err = s.readAll(ctx, s.readLocks(prefix, func(queue string) { names = append(names, driver.LockOf(queue)) }))
	slices.Sort(names)
	return slices.Compact(names), err
}

// readLocks is a read of a lock's directory, and then of the names below it. It calls found
// with each name with a contender or a plain lock's holder, and with each unreadable name
// below. The empty name is the root.
func (s *session) readLocks(name string, found func(name string)) read {
	dir, begin := s.path(name), name+"/"
	if name == "" {
		dir, begin = max(s.cfg.Chroot, "/"), ""
	}
	return s.readChildren(dir, func(l *listing) (more []read) {
		if len(l.children()) == 0 && name != "" {
			return []read{s.readPlain(dir, func(driver.Contender) { found(name) })}
		}
		inUse := false
		for _, child := range l.children() {
			switch path := begin + child; {
			case znode.IsContender(child):
				inUse = name != ""
			case path == driver.Records, path == driver.Waits, path == "zookeeper" && s.cfg.Chroot == "": // the latter is the server's own
			default:
				below := s.readLocks(path, found)
				answered := below.answered
				below.answered = func(q *request) ([]read, error) {
					if errors.Is(q.err, zk.ErrNoAuth) {
						found(path)
						return nil, nil
					}
					return answered(q)
				}
				more = append(more, below)
			}
		}
		if inUse {
			found(name)
		}
		return more
	})
}

// Break implements driver.Breaker.
func (s *session) Break(ctx context.Context, queue string, node driver.Node) error {
	_, err := runInSlot(ctx, s, func() (struct{}, error) {
		for i, path := range s.paths(queue, node) {
			sent, err := s.breakOne(path, node)
			switch {
			case errors.Is(err, zk.ErrNoNode) && !sent && i == 0:
				return struct{}{}, driver.ErrRemoved
			case err != nil && !errors.Is(err, zk.ErrNoNode):
				return struct{}{}, explainError(err, "deleting "+path, "DELETE", parent(path))
			}
			s.cfg.Logger.Warn("lockpool: a contender was removed by request", "path", path, "session", s.Info().ID)
		}
		return struct{}{}, nil
	}, nil)
	return err
}

// breakOne deletes one of the paths of node. sent reports whether a delete without an
// answer may have been carried out before.
func (s *session) breakOne(path string, node driver.Node) (sent bool, err error) {
	ctx := context.Background() // the claims last until the answer
	err = s.insist(ctx, func() error {
		if node.Kind == driver.Plain { // checked at each attempt: the name may be the next holder's by now
			claims := s.claims.on(path)
			claims.delete()
			defer claims.deleted()
			if _, _, err := s.readNodeOf(ctx, path, node); err != nil {
				return err
			}
		}
		q := deleteRequest(path, -1)
		q.atOnce = node.Kind == driver.Plain
		err := s.requests.do(q)
		sent = sent || q.isSent() && isUnsure(err)
		return err
	})
	return sent, err
}

// readNodeOf reads the node at path. The error is ErrNoNode if the path is a plain lock's,
// held by another node.
func (s *session) readNodeOf(ctx context.Context, path string, node driver.Node) (raw []byte, version int32, err error) {
	q := s.requests.send(getRequest(path))
	switch err := s.answer(ctx, q); {
	case err != nil:
		return nil, 0, err
	case node.Kind == driver.Plain && znode.PlainNode(q.data, &q.stat) != node:
		return nil, 0, zk.ErrNoNode
	}
	return q.data, q.stat.Version, nil
}

// Revoke implements driver.Revoker.
func (s *session) Revoke(ctx context.Context, queue string, node driver.Node, ours bool) error {
	return s.update(ctx, queue, node, func(raw []byte) []byte {
		_, revoked := znode.CutRevocation(raw)
		switch {
		case revoked:
			return nil
		case ours:
			return withRevocation(raw)
		}
		return []byte(znode.RevokeRequest)
	})
}

// Rewrite implements driver.Session.
func (s *session) Rewrite(ctx context.Context, queue string, node driver.Node, data []byte) error {
	return s.update(ctx, queue, node, func(raw []byte) []byte {
		if _, revoked := znode.CutRevocation(raw); revoked {
			return withRevocation(data)
		}
		return data
	})
}

// update changes what is stored in a node, and may repeat the change: to returns nil if the
// change was made before.
func (s *session) update(ctx context.Context, queue string, node driver.Node, to func(raw []byte) []byte) error {
	path := s.paths(queue, node)[0]
	err := s.insist(ctx, func() error {
		for {
			raw, version, err := s.readNodeOf(ctx, path, node)
			if err != nil {
				return err
			}
			var q *request
			if data := to(raw); data == nil { // the read may have been older than the node's removal
				q = multiRequest(&zk.CheckVersionRequest{Path: path, Version: version})
			} else {
				q = setRequest(path, data, version)
			}
			q.atOnce = node.Kind == driver.Plain // another plain lock's node may get the same version
			if err := s.answer(ctx, s.requests.send(q)); !errors.Is(err, zk.ErrBadVersion) {
				return err
			}
		}
	})
	if errors.Is(err, zk.ErrNoNode) {
		return driver.ErrRemoved
	}
	return explainError(err, "changing "+path, "WRITE", path)
}

func withRevocation(raw []byte) []byte { return fmt.Appendf(nil, "%s\n%s", raw, znode.RevokeRequest) }
