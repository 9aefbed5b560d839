package etcdtest

// This file compares the formulas of docs/scale.md for etcd with the messages of clients.

import (
	"flag"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/formula"
)

// counting counts the messages between clients and members for which counted is true, from now on.
func (c *Cluster) counting(counted func(Message) bool) (soFar func() formula.Counts) {
	var mu sync.Mutex
	n := formula.Counts{"requests": 0, "writes": 0, "bytes to the servers": 0, "bytes from them": 0}
	c.SetFault(func(m Message) Action {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case !counted(m):
		case m.Reply:
			n["bytes from them"] += float64(len(m.Data))
		default:
			n["requests"]++
			n["bytes to the servers"] += float64(len(m.Data))
			if isWrite(m) {
				n["writes"]++
			}
		}
		return Pass
	})
	return func() formula.Counts {
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(n)
	}
}

func everything(Message) bool { return true }
func noProofs(m Message) bool { return !m.IsProof() }

// afterTheGrant returns noProofs, for the messages behind the reply that grants a free lock.
func afterTheGrant() func(Message) bool {
	granted := false
	return func(m Message) bool {
		if !granted {
			granted = m.Method == "Txn" && m.Reply
			return false
		}
		return noProofs(m)
	}
}

func isWrite(m Message) bool {
	switch m.Method {
	case "Put", "DeleteRange", "LeaseGrant", "LeaseRevoke":
		return true
	case "Txn":
		var r pb.TxnRequest
		if proto.Unmarshal(m.Data, &r) != nil {
			panic("not a transaction")
		}
		for _, op := range r.Success {
			if op.GetRequestRange() == nil {
				return true
			}
		}
	}
	return false
}

var processes = flag.Int("processes", 10, "the `number` of processes whose messages are compared with the page")

// The formulas of docs/scale.md are compared with the messages of clients, for several values
// of their variables.
func TestPageStatesWhatClientsSend(t *testing.T) {
	t.Parallel()
	page := formula.Read(t, "../../../docs/scale.md", "on etcd")
	for _, n := range []int{1, 2, 3, 10} {
		page.Compare("n", n, contended(page, n), tolerance)
	}
	page.Compare("n", *processes, lasting(page, *processes), tolerance)
	page.RequireAll()
}

// tolerance is how far a count may be from the page. The length of keys depends on the name of
// the machine, and a rate on when the first request was sent.
func tolerance(operation, column string, count float64) float64 {
	switch {
	case strings.Contains(column, "bytes"):
		return max(0.2*count, 40)
	case strings.Contains(operation, " for "), strings.Contains(operation, "election"):
		return 0.1 * count
	}
	return 0
}

// process returns a pool with one session.
func (c *Cluster) process(t *testing.T, ttl time.Duration) *lockpool.Pool {
	p := open(t, c.connector(t, withTTL(ttl)), lockpool.WithMaxSessions(1), lockpool.WithTraceLinks(false))
	require.NoError(t, p.Ping(t.Context()))
	return p
}

// settled is long enough for messages that the page does not have.
const settled = 100 * time.Millisecond

// await waits until an operation has cost what the page says, or will not.
func await(page *formula.Page, operation string, n int, soFar func() formula.Counts) {
	for began := time.Now(); time.Since(began) < patience && !page.Reached("n", n, operation, soFar(), tolerance); {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(settled)
}

// contended measures operations on a lock with n contenders, each with a separate session: one
// holder, and waiters.
func contended(page *formula.Page, n int) map[string]formula.Counts {
	t := page.T
	c, calm := Start(t, 1), 5*time.Minute
	found := map[string]formula.Counts{}
	measure := func(operation string, n int, counted func(Message) bool, f func()) {
		soFar := c.counting(counted)
		f()
		await(page, operation, n, soFar)
		found[operation] = soFar()
	}
	pools := make([]*lockpool.Pool, n+1)
	for i := range pools {
		pools[i] = c.process(t, calm)
	}
	time.Sleep(settled)
	locks := make(chan *lockpool.Lock, len(pools))
	lock := func(p *lockpool.Pool, name string) {
		l, err := p.Lock(t.Context(), name)
		assert.NoError(t, err)
		locks <- l
	}
	unlock := func() { require.NoError(t, (<-locks).Unlock(t.Context())) }
	for short := false; !short; { // a longer hold has a watch
		measure("`Do`", n, noProofs, func() {
			began := time.Now()
			lock(pools[0], "free")
			unlock()
			short = time.Since(began) < 20*time.Millisecond
		})
	}
	measure("hold it for more than 20 ms", n, afterTheGrant(), func() { lock(pools[0], "a") })
	for i, p := range pools[1:] {
		measure("`Lock`, until it waits", i+1, noProofs, func() {
			go lock(p, "a") // ends with the grant
			require.Eventually(t, func() bool { return p.Stats().Waiting == 1 }, calm, time.Millisecond)
		})
	}
	measure("`Unlock` that hands the lock over", n, noProofs, func() { unlock(); locks <- <-locks })
	for range n {
		unlock()
	}
	return found
}

// lasting measures n sessions over time: idle, and with a lock each. All sessions begin at about
// the same time, and so do their proofs; counting begins and ends between two proofs. A keep-alive
// of more than 3/50 of the TTL ends idleness, and a member without a leader answers after 1 s.
func lasting(page *formula.Page, n int) map[string]formula.Counts {
	const ttl = 20 * time.Second
	t := page.T
	c := Start(t, 3)
	found := map[string]formula.Counts{}
	pools := make([]*lockpool.Pool, n)
	for i := range pools {
		pools[i] = c.process(t, ttl)
	}
	measure := func(what string, between, period time.Duration) {
		time.Sleep(between)
		soFar := c.counting(everything)
		time.Sleep(ttl)
		counts := soFar()
		for column := range counts {
			counts[column] *= 10
		}
		found[what+", for 10 TTLs"] = counts
		soFar = c.counting(noProofs)
		elect(t, c)
		await(page, what+", after an election", n, soFar)
		time.Sleep(period)
		found[what+", after an election"] = soFar()
	}
	measure("sessions that do nothing", ttl*3/5, ttl*2/5) // idle since 3/8 or 4/8 of the TTL, with a keep-alive in each third
	for i, p := range pools {
		l, err := p.Lock(t.Context(), fmt.Sprint("a/", i))
		require.NoError(t, err)
		defer l.Unlock(t.Context())
	}
	measure("sessions that hold a lock", ttl/16, ttl/8) // with a round in each eighth
	return found
}
