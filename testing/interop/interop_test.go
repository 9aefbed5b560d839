package interop

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// contests are those who exclude each other, each pair of them.
var contests = []struct {
	name   string
	layout string // of lockpool's locks
	turns  int    // of each
	others func(c *contest) []*participant
}{
	{"CuratorMutexAndGoZookeeper", "", 40, func(c *contest) []*participant {
		return append(
			c.peers(participant{name: "Curator", ways: only("mutex"), reenters: true}, c.curator, 2),
			&participant{name: "go-zookeeper", client: newGoLock(c, c.path), ways: only("lock"), resigned: true})
	}},
}

func TestContests(t *testing.T) {
	for _, tt := range contests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newContest(t)
			c.participants = append(tt.others(c), c.lockpool(tt.layout, either("alone"))...)
			c.run(tt.turns)
		})
	}
}

// run lets everyone contend, and takes away two processes.
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
	c.lose(processes[0], processes[1], 10)
	c.finish()
}

// lockpool returns participants of lockpool: two of one session, and one of
// another.
func (c *contest) lockpool(layout string, ways []way) (found []*participant) {
	one, other := openPool(c, c.name, layout), openPool(c, c.name, layout)
	for name, p := range map[string]*pool{"lockpool 1": one, "lockpool 2": one, "lockpool 3": other} {
		found = append(found, &participant{
			name: name, client: p.holder(c.ctx), ways: ways, reenters: true, downgrades: len(ways) > 1,
		})
	}
	return found
}

// peers returns participants like p in so many processes of their own.
func (c *contest) peers(p participant, start func() *process, n int) (found []*participant) {
	for i := range n {
		one, process := p, start()
		one.name += " " + string(rune('1'+i))
		one.client, one.process = process, process
		found = append(found, &one)
	}
	return found
}

func (c *contest) curator() *process { return startCurator(c, c.path, c.room) }

func (c *contest) kazoo() *process { return startKazoo(c, c.path) }

// ready waits until a participant's process has a session.
func (c *contest) ready(p *participant) {
	answer, err := p.process.answer(c.ctx)
	require.NoError(c, err, p.name)
	require.Equal(c, "ready", answer, p.name)
}
