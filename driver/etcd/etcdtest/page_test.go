package etcdtest

// This file compares the formulas of docs/scale.md for etcd with the messages of clients.

import (
	"flag"
	"fmt"
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

// counting counts the messages between clients and members until the function it returns is
// called, without the proofs of leases unless proofs is set.
func (c *Cluster) counting(proofs bool) (stop func() formula.Counts) {
	var mu sync.Mutex
	n := formula.Counts{"requests": 0, "writes": 0, "bytes to the servers": 0, "bytes from them": 0}
	c.SetFault(func(m Message) Action {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case m.IsProof() && !proofs:
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
		c.SetFault(nil)
		mu.Lock()
		defer mu.Unlock()
		return n
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
		page.Compare("n", n, contended(t, n), tolerance)
	}
	page.Compare("n", *processes, lasting(t, *processes), tolerance)
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

// settled is when the servers have answered everything, except proofs.
const settled = 100 * time.Millisecond

// contended measures operations on a lock with n contenders, each with a separate session: one
// holder, and waiters.
func contended(t *testing.T, n int) map[string]formula.Counts {
	c, calm := Start(t, 1), 5*time.Minute
	found := map[string]formula.Counts{}
	measure := func(operation string, f func()) {
		time.Sleep(settled)
		stop := c.counting(false)
		f()
		time.Sleep(settled)
		found[operation] = stop()
	}
	pools := make([]*lockpool.Pool, n+1)
	for i := range pools {
		pools[i] = c.process(t, calm)
	}
	locks := make(chan *lockpool.Lock, len(pools))
	lock := func(p *lockpool.Pool, name string) {
		l, err := p.Lock(t.Context(), name)
		assert.NoError(t, err)
		locks <- l
	}
	unlock := func() { require.NoError(t, (<-locks).Unlock(t.Context())) }
	measure("`Do`", func() { lock(pools[0], "free"); unlock() })
	lock(pools[0], "a")
	stop := c.counting(false)
	time.Sleep(settled)
	found["hold it for more than 20 ms"] = stop()
	wait := func(p *lockpool.Pool) {
		go lock(p, "a") // ends with the grant
		require.Eventually(t, func() bool { return p.Stats().Waiting == 1 }, calm, time.Millisecond)
	}
	for _, p := range pools[1:n] {
		wait(p)
		time.Sleep(settled)
	}
	measure("`Lock`, until it waits", func() { wait(pools[n]) })
	measure("`Unlock` that hands the lock over", func() { unlock(); locks <- <-locks })
	for range n {
		unlock()
	}
	return found
}

// lasting measures n sessions over time: idle, and with a lock each.
func lasting(t *testing.T, n int) map[string]formula.Counts {
	c := Start(t, 3)
	found := map[string]formula.Counts{}
	pools := make([]*lockpool.Pool, n)
	for i := range pools {
		pools[i] = c.process(t, ttl)
	}
	for _, what := range []string{"sessions that do nothing", "sessions that hold a lock"} {
		if what == "sessions that hold a lock" {
			for i, p := range pools {
				l, err := p.Lock(t.Context(), fmt.Sprint("a/", i))
				require.NoError(t, err)
				defer l.Unlock(t.Context())
			}
		}
		time.Sleep(ttl)
		stop := c.counting(true)
		time.Sleep(2 * ttl)
		found[what+", for 10 TTLs"] = stop()
		for column := range found[what+", for 10 TTLs"] {
			found[what+", for 10 TTLs"][column] *= 5
		}
		stop = c.counting(false)
		elect(t, c)
		time.Sleep(ttl / 2)
		found[what+", after an election"] = stop()
	}
	return found
}
