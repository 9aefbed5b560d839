package interop

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// contests are those who exclude each other, each pair of them.
var contests = []struct {
	name   string
	layout string // of lockpool's locks
	ways   []way  // of lockpool
	turns  int    // of each
	idle   time.Duration
	others func(c *contest) []*participant
	shared string // who must have been inside together, at least once
}{
	{"CuratorMutexAndGoZookeeper", "", either("alone"), 40, 0, func(c *contest) []*participant {
		return append(c.peers(curatorMutex, c.curator, 2), c.goZookeeper())
	}, "lockpool 2 and lockpool 3"},
	// Curator waits for lockpool's first nodes, and takes their twins for later ones.
	{"CuratorMutexAndGoZookeeperBesideTwins", "kazoo", either("alone"), 40, 0, func(c *contest) []*participant {
		return append(c.peers(curatorMutex, c.curator, 2), c.goZookeeper())
	}, "lockpool 2 and lockpool 3"},
	{"CuratorReadWriteLock", "curator-rw", either("alone"), 50, 0, func(c *contest) []*participant {
		return c.peers(participant{name: "Curator", ways: either("write"), reenters: true}, c.curator, 2)
	}, "Curator 1 and lockpool 3"},
	{"KazooLocks", "kazoo", either("alone"), 40, 0, func(c *contest) []*participant {
		return append(c.peers(kazooLock, c.kazoo, 2), c.peers(kazooLockThatSees, c.kazoo, 1)...)
	}, "lockpool 2 and lockpool 3"},
	// go-zookeeper waits for kazoo; kazoo waits for go-zookeeper only if it is told to.
	{"KazooLocksThatSeeGoZookeeper", "kazoo", either("alone"), 40, 0, func(c *contest) []*participant {
		return append(c.peers(kazooLockThatSees, c.kazoo, 2), c.goZookeeper())
	}, "lockpool 2 and lockpool 3"},
	// Those even see a lock without twins, if nobody reads.
	{"KazooLocksThatSeeBesideNoTwins", "", only("alone"), 40, 0, func(c *contest) []*participant {
		return append(c.peers(kazooLockThatSees, c.kazoo, 2), c.goZookeeper())
	}, ""},
	// kazoo takes lockpool's readers for writers, and waits for them.
	{"KazooReadersAndWriters", "kazoo", either("alone"), 40, kazooIdle, func(c *contest) []*participant {
		return c.peers(participant{name: "kazoo", ways: either("write"), mayWait: true}, c.kazoo, 2)
	}, "lockpool 2 and lockpool 3"},
	{"KazooReadersShare", "kazoo-rw", either("alone"), 40, kazooIdle, func(c *contest) []*participant {
		return c.peers(participant{name: "kazoo", ways: either("write")}, c.kazoo, 2)
	}, "kazoo 1 and lockpool 3"},
	// lockpool heeds itself in whatever layout, and so does go-zookeeper.
	{"AllLayoutsAndGoZookeeper", "", either("alone"), 25, 0, func(c *contest) []*participant {
		found := []*participant{c.goZookeeper()}
		for _, layout := range []string{"curator-rw", "kazoo", "kazoo-rw"} {
			for _, p := range c.lockpool(layout, either("alone"))[1:] { // the first two are of one session
				p.name += " " + layout
				found = append(found, p)
			}
		}
		return found
	}, "lockpool 2 kazoo and lockpool 3 curator-rw"},
}

var (
	curatorMutex      = participant{name: "Curator", ways: only("mutex"), reenters: true}
	kazooLock         = participant{name: "kazoo", ways: only("lock")}
	kazooLockThatSees = participant{name: "seeing kazoo", ways: only("seeing-lock")}
)

// kazooIdle lets readers of kazoo before 2.9 in, who need a moment without a
// writer behind them.
const kazooIdle = 30 * time.Millisecond

func TestContests(t *testing.T) {
	for _, tt := range contests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newContest(t)
			c.idle = tt.idle
			c.participants = append(tt.others(c), c.lockpool(tt.layout, tt.ways)...)
			c.run(tt.turns)
			if tt.shared != "" {
				require.Contains(t, c.met, tt.shared)
			}
		})
	}
}

// Curator's writer takes the read lock, too, and leaves the write lock. (With a
// writer behind it, Curator before 5.5 would lose what it reads, whoever that
// is.) Then lockpool does the same.
func TestWriterThatGoesOnReading(t *testing.T) {
	t.Parallel()
	c := newContest(t)
	write, read := way{"write", all}, way{"read", 1}
	curator := c.peers(participant{name: "Curator", ways: []way{write, read}}, c.curator, 1)[0]
	lockpool := c.lockpool("curator-rw", either("alone"))[0]
	c.participants = []*participant{curator, lockpool}
	c.ready(curator)
	goesOnReading := func(p, other *participant) {
		write, otherWrite := p.ways[0], other.ways[0]
		c.in(p, write)
		c.in(p, way{"read", 0})
		require.NoError(t, c.leave(c.ctx, p, way{write.kind, all - 1}))
		c.in(other, read)
		require.NoError(t, c.leave(c.ctx, other, read))
		in, err := c.enter(c.ctx, other, otherWrite, 100*time.Millisecond)
		require.NoError(t, err)
		require.False(t, in)
		require.NoError(t, c.leave(c.ctx, p, read))
		c.in(other, otherWrite)
		require.NoError(t, c.leave(c.ctx, other, otherWrite))
	}
	goesOnReading(curator, lockpool)
	goesOnReading(lockpool, curator)
	c.finish()
}

// Since 5.5 Curator's writer that goes on reading has two nodes of one number,
// and is one contender. This plays it by hand.
func TestWriterThatGoesOnReadingWithTheSameNumber(t *testing.T) {
	t.Parallel()
	c := newContest(t)
	c.participants = c.lockpool("curator-rw", either("alone"))
	reader, writer := c.participants[0], c.participants[1]
	alone, read := writer.ways[0], reader.ways[1]
	_, err := c.admin.Create(c.path, nil, 0, zk.WorldACL(zk.PermAll)) // no container, which would go between two steps
	require.NoError(t, err)
	node := func(ending string, flags int32) string {
		path, err := c.admin.Create(c.path+"/_c_"+uuid.NewString()+"-"+ending, nil, flags, zk.WorldACL(zk.PermAll))
		require.NoError(t, err)
		return path
	}
	first := func() string { return node("__WRIT__", zk.FlagEphemeral|zk.FlagSequence) }
	second := func(first string) string { return node("__READ__"+first[len(first)-10:], zk.FlagEphemeral) }
	remove := func(path string) { require.NoError(t, c.admin.Delete(path, -1)) }
	waitsForSecond := func(writes <-chan error, second string) {
		c.watched(second)
		require.Empty(t, writes)
		remove(second)
		require.NoError(t, <-writes)
		require.NoError(t, c.leave(c.ctx, writer, alone))
	}

	// A writer that comes when both are there waits for both.
	write := first()
	downgraded := second(write)
	writes := c.entering(writer, alone)
	remove(write)
	waitsForSecond(writes, downgraded)

	// One that was there before the second is not let in by the first's going.
	write = first()
	writes = c.entering(writer, alone)
	c.watched(write)
	downgraded = second(write)
	remove(write)
	waitsForSecond(writes, downgraded)

	// A reader waits for the first only; a writer behind it for the second again.
	write = first()
	downgraded = second(write)
	reads := c.entering(reader, read)
	c.watched(write)
	writes = c.entering(writer, alone)
	require.Empty(t, reads)
	remove(write)
	require.NoError(t, <-reads)
	require.NoError(t, c.leave(c.ctx, reader, read))
	waitsForSecond(writes, downgraded)
	c.finish()
}

// entering begins to let somebody in, and returns when he has a place in the
// queue.
func (c *contest) entering(p *participant, w way) <-chan error {
	before := len(c.contenders())
	done := make(chan error, 1)
	go func() { // ends with c.ctx at the latest
		_, err := c.enter(c.ctx, p, w, forever)
		done <- err
	}()
	c.until(func() bool { return len(c.contenders()) > before }, "%s waits", p.name)
	return done
}

// watched waits until somebody watches a node.
func (c *contest) watched(path string) {
	c.until(func() bool {
		paths, err := server.Command(c.ctx, "wchp")
		require.NoError(c, err)
		return strings.Contains(paths, path+"\n")
	}, "%s is watched", path)
}

// run lets everyone contend, and then takes away two processes, if there are any.
func (c *contest) run(turns int) {
	var processes []*participant
	for _, p := range c.participants {
		if p.process != nil {
			c.ready(p)
			processes = append(processes, p)
		}
	}
	c.everyoneKeepsOut()
	require.NoError(c, c.contend(turns, c.participants))
	c.until(func() bool { return len(c.contenders()) == 0 }, "nothing is left behind")
	if len(processes) > 0 {
		c.lose(processes[0], processes[1], 10)
	}
	c.finish()
}

// lockpool returns participants of lockpool: two of one session, and one of
// another.
func (c *contest) lockpool(layout string, ways []way) (found []*participant) {
	one, other := openPool(c, c.name, layout), openPool(c, c.name, layout)
	for i, p := range []*pool{one, one, other} {
		found = append(found, &participant{
			name: fmt.Sprint("lockpool ", i+1), client: p.holder(c.ctx), ways: ways, reenters: true, downgrades: len(ways) > 1,
		})
	}
	return found
}

// peers returns participants like p in so many processes of their own.
func (c *contest) peers(p participant, start func() *process, n int) (found []*participant) {
	for i := range n {
		one, process := p, start()
		one.name = fmt.Sprint(p.name, " ", i+1)
		one.client, one.process = process, process
		found = append(found, &one)
	}
	return found
}

func (c *contest) curator() *process { return startCurator(c, c.path, c.room) }

func (c *contest) kazoo() *process { return startKazoo(c, c.path) }

func (c *contest) goZookeeper() *participant {
	return &participant{name: "go-zookeeper", client: newGoLock(c, c.path), ways: only("lock"), resigned: true}
}

// in lets somebody in who must get in.
func (c *contest) in(p *participant, w way) {
	c.Helper()
	_, err := c.enter(c.ctx, p, w, forever)
	require.NoError(c, err)
}

// ready waits until a participant's process has a session.
func (c *contest) ready(p *participant) {
	answer, err := p.process.answer(c.ctx)
	require.NoError(c, err, p.name)
	require.Equal(c, "ready", answer, p.name)
}
