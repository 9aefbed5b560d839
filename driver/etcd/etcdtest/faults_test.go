package etcdtest

// This file has the fault table: every fault at every request of every play.

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/etcd"
	"github.com/lockpool/lockpool/testing/plays"
)

var (
	faultCases = flag.Int("faults", 100, "how many cases of TestEveryFaultAtEveryRequest are played on each version, drawn at random; 0 means all")
	seed       = flag.Uint64("seed", uint64(time.Now().UnixNano()), "of what is drawn at random")
)

// fault happens to one request of the tested pool, or to the reply.
type fault struct {
	name   string
	reply  bool
	do     func(*stage, Message) Action
	effect plays.Effect // Losing or Unseen
}

func always(a Action) func(*stage, Message) Action {
	return func(*stage, Message) Action { return a }
}

var faults = []fault{
	{name: "lost", do: always(Break)},
	{name: "reply lost", reply: true, do: always(Break)},
	{name: "broken behind the reply", reply: true, do: always(BreakAfter)},
	{name: "broken twice", reply: true, do: func(s *stage, _ Message) Action { s.breaks = 1; return Break }},
	{name: "late", do: always(Late)},
	{name: "reply late", reply: true, do: always(Late)},
	{name: "expires before", do: (*stage).expire, effect: plays.Losing},
	{name: "expires after", reply: true, do: (*stage).expire, effect: plays.Losing},
	{name: "nodes removed", do: (*stage).removeNodes, effect: plays.Losing},
	{name: "frozen", do: always(Freeze), effect: plays.Losing},
	{name: "reply frozen", reply: true, do: always(Freeze), effect: plays.Losing},
}

// request is the nth request of a method in a play.
type request struct {
	method string
	nth    int
}

func (r request) String() string { return fmt.Sprintf("%s %d", r.method, r.nth+1) }

// Every fault at every request of every play: each play runs once without a fault, to
// record the requests, and then once for each request and each fault.
func TestEveryFaultAtEveryRequest(t *testing.T) {
	t.Logf("-seed %d", *seed)
	onEach(t, func(t *testing.T, version Option) {
		c := Start(t, 1, version)
		type each struct {
			play plays.Play
			r    request
			f    *fault
		}
		var all []each
		for _, p := range plays.All {
			for _, r := range record(t, c, p) {
				for f := range faults {
					all = append(all, each{p, r, &faults[f]})
				}
			}
		}
		total := len(all)
		rand.New(rand.NewPCG(*seed, 0)).Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
		if *faultCases > 0 {
			all = all[:min(*faultCases, len(all))]
		}
		var played sync.WaitGroup
		room := make(chan struct{}, 8) // plays mostly wait; more at once would end short leases
		for _, e := range all {
			room <- struct{}{}
			played.Go(func() {
				defer func() { <-room }()
				t.Run(fmt.Sprintf("%s/%s/%s", e.play.Name, e.r, e.f.name), func(t *testing.T) {
					s := newStage(t, c, e.play, e.f)
					s.target = e.r
					s.perform(e.play)
				})
			})
		}
		played.Wait()
		require.Eventually(t, func() bool { return len(plays.Running(t, fmt.Sprintf("%p-", c))) == 0 }, patience, 10*time.Millisecond, "the goroutines of the tested pools have ended")
		t.Logf("etcd %s: %d of %d cases", c.Version(), len(all), total)
	})
}

// patience is for what must happen at some time.
const patience = 30 * time.Second

func record(t *testing.T, c *Cluster, p plays.Play) (requests []request) {
	t.Run(p.Name+"/without a fault", func(t *testing.T) {
		s := newStage(t, c, p, nil)
		s.record = func(r request) { requests = append(requests, r) }
		s.perform(p)
		require.NotEmpty(t, requests)
	})
	return requests // none if -run leaves the play out
}

// stage is where a play is performed.
type stage struct {
	*plays.Stage
	cluster   *Cluster
	relay     *Relay // to the member, for the tested pool only
	prefix    string
	giveUpNow atomic.Pointer[func()] // called at the next request

	// For the relay, called for one message at a time.
	fault  *fault
	target request
	record func(request)
	begun  bool
	seen   map[string]int // by method
	call   int            // of the target
	breaks int            // how many more connections break
	fired  atomic.Bool
}

var stages atomic.Int64

func newStage(t *testing.T, c *Cluster, p plays.Play, f *fault) *stage {
	n := stages.Add(1)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	s := &stage{
		Stage: &plays.Stage{TB: t, Ctx: ctx, Label: fmt.Sprintf("%p-%d", c, n)}, cluster: c, prefix: fmt.Sprint("stage-", n),
		fault: f, seen: map[string]int{},
	}
	s.AtNext = func(do func()) { s.giveUpNow.Store(&do) }
	ttl := 10 * time.Second // longer than any unseen fault
	if f != nil {
		s.Effect, s.Fired = f.effect, s.fired.Load
		if f.effect == plays.Losing {
			ttl = 3 * time.Second
		}
	}
	var err error
	s.relay, err = newRelay(c.members[0].client)
	require.NoError(t, err)
	t.Cleanup(s.relay.Close)
	s.Others = s.open(c.members[0].client, 10*time.Second, p.Opts)
	s.AsSubject(func() { s.Pool = s.open(s.relay.Addr(), ttl, p.Opts) })
	s.Prepare(p)
	return s
}

func (s *stage) open(address string, ttl time.Duration, opts []lockpool.Option) *lockpool.Pool {
	connector, err := etcd.NewConnector(etcd.Config{Endpoints: []string{address}, Prefix: s.prefix, TTL: ttl})
	require.NoError(s, err)
	p, err := lockpool.OpenConnector(connector, append([]lockpool.Option{lockpool.WithLogger(slog.New(slog.DiscardHandler))}, opts...)...)
	require.NoError(s, err)
	s.Cleanup(func() { _ = p.Close() })
	return p
}

// passes decides about a message of the tested pool. The proofs of the lease come at any
// time, and the end of the session is not part of a play.
func (s *stage) passes(m Message) Action {
	switch {
	case s.breaks > 0 && s.fired.Load() && m.Call != s.call:
		s.breaks--
		return Break
	case m.IsProof() || m.Method == "LeaseRevoke" || !s.begun:
		return Pass
	}
	if !m.Reply {
		if giveUp := s.giveUpNow.Swap(nil); giveUp != nil {
			(*giveUp)()
		}
		r := request{m.Method, s.seen[m.Method]}
		s.seen[m.Method]++
		if s.record != nil {
			s.record(r)
		}
		if s.fault == nil || r != s.target || s.fired.Load() {
			return Pass
		}
		if s.call = m.Call; s.fault.reply {
			return Pass
		}
	} else if s.fault == nil || m.Call != s.call || !s.fault.reply || s.fired.Load() {
		return Pass
	}
	s.fired.Store(true)
	return s.fault.do(s, m)
}

// expire ends the session of the tested pool.
func (s *stage) expire(m Message) Action {
	if id, err := strconv.ParseInt(m.Session, 16, 64); err == nil {
		_, _ = s.cluster.admin.Revoke(s.Ctx, clientv3.LeaseID(id))
	}
	return Pass
}

// removeNodes removes the nodes of the tested pool's session.
func (s *stage) removeNodes(m Message) Action {
	if m.Session == "" {
		return Pass
	}
	id, err := strconv.ParseInt(m.Session, 16, 64)
	got, listErr := s.cluster.admin.Get(s.Ctx, s.prefix+"/", clientv3.WithPrefix())
	if err == nil && listErr == nil {
		for _, kv := range got.Kvs {
			if kv.Lease == id && !strings.Contains(string(kv.Key), "/.sessions/") {
				_, _ = s.cluster.admin.Delete(s.Ctx, string(kv.Key))
			}
		}
	}
	return Pass
}

func (s *stage) perform(p plays.Play) {
	s.relay.SetFault(func(m Message) Action { return s.passes(m) })
	s.relay.mu.Lock()
	s.begun = true
	s.relay.mu.Unlock()
	s.Perform(p, func() { s.relay.SetFault(nil) })
	require.NoError(s, s.Others.Shutdown(s.Ctx)) // waits for resting locks
	require.NoError(s, s.Pool.Shutdown(s.Ctx))
	for keys := s.keys(s.Ctx); len(keys) > 0; keys = s.keys(context.Background()) {
		require.NoError(s, s.Ctx.Err(), "keys are left: %v", keys)
		time.Sleep(time.Millisecond)
	}
}

// keys returns the keys left, beside records and lasting keys.
func (s *stage) keys(ctx context.Context) (names []string) {
	got, err := s.cluster.admin.Get(ctx, s.prefix+"/", clientv3.WithPrefix()) // etcd 3.7 tells no lease of keys alone
	require.NoError(s, err)
	for _, kv := range got.Kvs {
		if kv.Lease != 0 && !strings.Contains(string(kv.Key), "/.done/") {
			names = append(names, string(kv.Key))
		}
	}
	return names
}
