//go:build linux

package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/zktest"
)

// campaignOf runs a campaign and returns what it found, and the last line.
func campaignOf(t *testing.T, change func(*options)) (report, string) {
	o := usual()
	o.log = io.Discard
	change(&o)
	var out strings.Builder
	found, err := run(t.Context(), &out, o)
	t.Log("\n" + out.String())
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	return found, lines[len(lines)-1]
}

func TestACampaignFindsNothing(t *testing.T) {
	found, last := campaignOf(t, func(o *options) { o.Duration = 25 * time.Second })
	require.Equal(t, "violations=0 leaked_nodes=0 stuck_waiters=0", last)
	require.True(t, found.clean())
	for _, kind := range []string{readWrite, semaphore} {
		require.Greater(t, found.together[nameOf(kind, 1)], 1, kind)
	}
	for _, kind := range []string{exclusive, plain} {
		require.Equal(t, 1, found.together[nameOf(kind, 1)], kind)
	}
}

// What each kind of lock leaves behind is found, and what it may is not.
func TestWhatIsLeftOfAnyKindOfLockIsFound(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server := zktest.Start(t)
	conn, _, err := zk.Connect([]string{server.ConnectString()}, time.Minute, zk.WithLogger(quiet{}), zk.WithLogInfo(false))
	require.NoError(t, err)
	defer conn.Close()
	c := &campaign{options: usual()}
	left := func() []string {
		left, err := leftIn(conn, c.directories())
		require.NoError(t, err)
		return left
	}
	require.Empty(t, left())
	for layout, more := range map[zookeeper.Layout]int{zookeeper.LayoutCurator: 0, zookeeper.LayoutKazoo: 1} {
		pool, err := lockpool.Open("zookeeper", fmt.Sprintf("%s%s?layout=%s", server.ConnectString(), chroot, layout))
		require.NoError(t, err)
		for kind, nodes := range map[string]int{exclusive: 1 + more, readWrite: 1 + more, semaphore: 2, plain: 1} {
			w := &turn{client: &client{clientConfig: clientConfig{Fewest: 2, Reads: 100}}, pool: pool, r: rand.New(rand.NewPCG(1, 1)), name: nameOf(kind, 1)}
			ways[kind].prepare(w)
			w.permits = min(w.permits, 2)
			held, err := w.take(ctx)
			require.NoError(t, err)
			require.Len(t, left(), nodes, "%s: %q", kind, left())
			require.NoError(t, held.Unlock(ctx))
			require.Empty(t, left(), kind)
		}
		require.NoError(t, pool.Close())
	}
	guard := chroot + "/" + nameOf(semaphore, 1) + "/locks/_c_00000000-0000-0000-0000-000000000000-lock-0000000007"
	_, err = conn.Create(guard, nil, 0, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	require.Len(t, left(), 1)
	require.Contains(t, left()[0], guard)
}

// The holder of a lock is cut off for longer than its session lives, and a rival
// waits. With its lease it stops in time. Without, it is found out: if it
// ignores the loss, and if its clock hardly moves, so that the lease never ends.
// (Permits and plain locks are in the planted histories of check_test.go: a
// campaign takes half a minute.)
func TestACampaignFindsOutClientsWithoutALease(t *testing.T) {
	for _, c := range []struct {
		what     string
		change   func(*options)
		innocent bool
	}{
		{"as they are", func(*options) {}, true},
		{"heedless", func(o *options) { o.Heedless = true }, false},
		{"with slow clocks", func(o *options) { o.Rate = 0.1 }, false},
		{"heedless of readers and writers", func(o *options) {
			o.Heedless, o.Kinds = true, []string{readWrite}
			o.Reads = func(client int) float64 { return float64(100 * client) } // one writes, the other reads
		}, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			found, last := campaignOf(t, func(o *options) {
				o.Clients, o.Workers, o.Locks, o.Kinds = 2, 2, 1, []string{exclusive}
				o.Long, o.Shortest, o.Longest = 100, 4*o.Timeout, 4*o.Timeout // outlasts the fault
				o.Duration = 5 * time.Second
				o.faults = []fault{{"freeze the connections of the holder", connections, long,
					func(c *campaign, _ *rand.Rand) (string, func() error, error) {
						i := slices.IndexFunc(c.clients, func(p *process) bool { return p.name == c.history.longestHolder() })
						return c.disturb(i, func(p *zktest.Proxy) { p.Partition(all, zktest.Both) })
					}}}
				c.change(o)
			})
			require.Equal(t, c.innocent, found.clean(), last)
			if !c.innocent {
				require.NotEmpty(t, found.violations)
				require.Contains(t, found.violations[0], "was held twice")
				require.NotContains(t, last, "violations=0")
			}
		})
	}
}

func TestClientsThatEndByThemselvesAndThoseThatDoNotAreFound(t *testing.T) {
	t.Parallel()
	c := &campaign{options: usual(), history: newHistory(io.Discard), clients: make([]*process, 3)}
	c.Clients, c.Grace = 3, time.Second
	for i, script := range []string{
		"echo for that reason >&2; exit 7",
		"trap '' TERM; echo deaf >&2; while read -r line; do :; done",
		"trap 'exit 0' TERM; echo ready >&2; while read -r line; do :; done",
	} {
		require.NoError(t, c.launch(i, exec.Command("sh", "-c", script)))
	}
	<-c.client(0).done
	for _, i := range []int{1, 2} { // its trap is set
		require.Eventually(t, func() bool { return c.client(i).log.String() != "" }, 10*time.Second, time.Millisecond)
	}
	c.endClients(syscall.SIGTERM)
	r := &c.history.record
	require.Len(t, r.accidents, 1)
	require.Contains(t, r.accidents[0], "exit status 7")
	require.Contains(t, r.accidents[0], "for that reason")
	require.Len(t, r.hanging, 1)
	require.Contains(t, r.hanging[0], c.client(1).name)
	require.Contains(t, r.hanging[0], "deaf")
}
