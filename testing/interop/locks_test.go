package interop

// This file has the tests of mutexes and of locks of readers and writers.

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// contests are the combinations of clients excluding each other.
var contests = []struct {
	name   string
	layout string // of lockpool's locks
	modes  []mode // of lockpool's contenders
	turns  int    // of each contender
	idle   time.Duration
	others func(c *contest) []*contender
	shared string // a pair required to share the lock at least once
}{
	{"CuratorMutexAndGoZookeeper", "", exclusiveOrRead("exclusive"), 40, 0, func(c *contest) []*contender {
		return append(c.peers(curatorMutex, c.curator, 2), c.goZookeeper())
	}, "lockpool 2 and lockpool 3"},
	// Curator waits for lockpool's first nodes, and takes their twins for later
	// contenders.
	{"CuratorMutexAndGoZookeeperBesideTwins", "kazoo", exclusiveOrRead("exclusive"), 40, 0, func(c *contest) []*contender {
		return append(c.peers(curatorMutex, c.curator, 2), c.goZookeeper())
	}, "lockpool 2 and lockpool 3"},
	{"CuratorReadWriteLock", "curator-rw", exclusiveOrRead("exclusive"), 50, 0, func(c *contest) []*contender {
		return c.peers(contender{name: "Curator", modes: exclusiveOrRead("write"), reenters: true}, c.curator, 2)
	}, "Curator 1 and lockpool 3"},
	{"KazooLocks", "kazoo", exclusiveOrRead("exclusive"), 40, 0, func(c *contest) []*contender {
		return append(c.peers(kazooLock, c.kazoo, 2), c.peers(kazooPatternLock, c.kazoo, 1)...)
	}, "lockpool 2 and lockpool 3"},
	// go-zookeeper waits for kazoo; kazoo waits for go-zookeeper only with
	// extra_lock_patterns.
	{"KazooPatternLocksAndGoZookeeper", "kazoo", exclusiveOrRead("exclusive"), 40, 0, func(c *contest) []*contender {
		return append(c.peers(kazooPatternLock, c.kazoo, 2), c.goZookeeper())
	}, "lockpool 2 and lockpool 3"},
	// With extra_lock_patterns kazoo even waits for a lock without twins, unless held by
	// readers.
	{"KazooPatternLocksBesideNoTwins", "", exclusive("exclusive"), 40, 0, func(c *contest) []*contender {
		return append(c.peers(kazooPatternLock, c.kazoo, 2), c.goZookeeper())
	}, ""},
	// kazoo takes lockpool's readers for writers, and waits for them.
	{"KazooReadersAndWriters", "kazoo", exclusiveOrRead("exclusive"), 40, kazooIdle, func(c *contest) []*contender {
		return c.peers(contender{name: "kazoo", modes: exclusiveOrRead("write"), waitsForReaders: true}, c.kazoo, 2)
	}, "lockpool 2 and lockpool 3"},
	{"KazooReadersShare", "kazoo-rw", exclusiveOrRead("exclusive"), 40, kazooIdle, func(c *contest) []*contender {
		return c.peers(contender{name: "kazoo", modes: exclusiveOrRead("write")}, c.kazoo, 2)
	}, "kazoo 1 and lockpool 3"},
	// lockpool's locks exclude each other in all layouts, and go-zookeeper's too.
	{"AllLayoutsAndGoZookeeper", "", exclusiveOrRead("exclusive"), 25, 0, func(c *contest) []*contender {
		found := []*contender{c.goZookeeper()}
		for _, layout := range []string{"curator-rw", "kazoo", "kazoo-rw"} {
			for _, p := range c.lockpool(layout, exclusiveOrRead("exclusive"))[1:3] { // one of each session
				p.name += " " + layout
				found = append(found, p)
			}
		}
		return found
	}, "lockpool 2 kazoo and lockpool 3 curator-rw"},
}

var (
	curatorMutex     = contender{name: "Curator", modes: exclusive("mutex"), reenters: true}
	kazooLock        = contender{name: "kazoo", modes: exclusive("lock")}
	kazooPatternLock = contender{name: "kazoo with patterns", modes: exclusive("pattern-lock")}
)

// kazooIdle leaves readers of kazoo before 2.9 a moment without a later writer: they need
// one to be granted the lock.
const kazooIdle = 30 * time.Millisecond

func TestClientsExcludeEachOther(t *testing.T) {
	for _, tt := range contests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newContest(t)
			c.idle = tt.idle
			c.contenders = append(tt.others(c), c.lockpool(tt.layout, tt.modes)...)
			c.run(tt.turns)
			if tt.shared != "" {
				require.Contains(t, c.shared, tt.shared)
			}
		})
	}
}
