package main

// This file has the scenarios, one for each group of rows.

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
)

var (
	all      = []string{floor, zkLock, ours}
	peers    = []string{zkLock, ours}
	turns    = []string{zkLock, ours, off}
	ourTurns = []string{ours, off}
	ourKept  = []string{ours, keeps}
)

var scenarios = []scenario{
	{"alone", all, []line{
		{"one goroutine alone: take a free lock, p50, µs", floor, false, "1.1"},
		{"release it, p50, µs", floor, false, "1.05"},
	}, alone},
	{"processes-2", peers, []line{
		{"2 processes of one goroutine, one lock, nothing done under it: turns/s", zkLock, true, "1.1"},
	}, func(client string) []float64 { return rate(client, 2) }},
	{"processes-4", peers, []line{
		{"4 processes of one goroutine, one lock, nothing done under it: turns/s", zkLock, true, "1.1"},
	}, func(client string) []float64 { return rate(client, 4) }},
	{"held-2", peers, []line{
		{"2 processes, each holds the lock for 3 ms: from `Unlock` to the next grant, p50, µs", zkLock, false, ""},
	}, func(client string) []float64 { return handOver(client, 2, 0) }},
	{"held-4", peers, []line{
		{"4 processes, each holds the lock for 3 ms: from `Unlock` to the next grant, p50, µs", zkLock, false, ""},
	}, func(client string) []float64 { return handOver(client, 4, 0) }},
	{"held-4-distant", all, []line{
		{"the same, 1 ms from the server (floor: a delete), p50, µs", floor, false, "1"},
	}, func(client string) []float64 { return handOver(client, 4, time.Millisecond) }},
	{"goroutines-64", turns, []line{
		{"64 goroutines of one process, one lock: turns/s", zkLock, true, "100, off: 1.2"},
	}, goroutinesOfOneProcess},
	{"processes-4x50", turns, []line{
		{"4 processes of 50 goroutines, one lock: turns/s", off, true, "50"},
		{"the process with the fewest turns, % of all", "", true, "20"},
	}, shares},
	{"fifth-process", []string{ours}, []line{
		{"and a fifth process, with one goroutine and `zk.Lock`: its turns for each tenancy of another process", "", true, "1"},
	}, fifthProcess},
	{"loner", peers, []line{
		{"a process of one goroutine beside one of 4, each holds the lock for 1 ms: its wait, p50, ms", zkLock, false, "2"},
		{"turns/s of the 4", zkLock, true, ""},
	}, loner},
	overloads(1, "one pool"), overloads(4, "four pools"),
	{"drain", turns, []line{
		{"1000 waiters of one session: time until all have had the lock, ms", zkLock, false, "off: 0.5"},
		{"requests for each", zkLock, false, "off: 1"},
		{"kB from the server for each", zkLock, false, "off: 0.2 kB"},
	}, func(client string) []float64 { return drainSessionsOfOne(client, 1) }},
	{"drain-4", []string{zkLock, off}, []line{
		{"1000 waiters of four sessions, the default: time until all have had the lock, ms", zkLock, false, "off: 0.5"},
		{"requests for each", zkLock, false, "off: 1"},
	}, func(client string) []float64 { return drainSessionsOfOne(client, 4)[:2] }},
	manySessions(100), manySessions(1000),
	{"sessions-100-distant", all, []line{
		{"the same, 1 ms from the server (floor: a delete): from `Unlock` to the next grant, p50, µs", floor, false, "1"},
	}, func(client string) []float64 { return drainSessions(client, 100, time.Millisecond)[3:] }},
	// lockpool goes first: the others have as many connections as lockpool opened.
	{"locks-64", []string{ours, floor, zkLock}, []line{
		{"64 goroutines started at once on 64 locks: locks/s", floor, true, "0.95"},
	}, manyLocks},
	waiters(100), waiters(1000), waiters(5000),
	{"handles-10000", ourTurns, []line{
		{"10,000 handles of one process with default options, beside other work: sessions lost", "", false, "0"},
		{"time until all wait, s", "", false, "linear"},
		{"time until all have had the lock, s", "", false, "linear"},
	}, tenThousandHandles},
	{"again", []string{ours}, []line{
		{"lock again and unlock, ns", "", false, "50"},
		{"allocations", "", false, "0"},
	}, lockAgain},
	{"kept", ourKept, []line{
		{"one goroutine alone: lock and unlock, p50, µs", ours, false, "1.5 µs"},
		{"requests", ours, false, "0"},
		{"allocations", ours, false, "3"},
	}, useAgain},
	manyOwners(1, "one goroutine"), manyOwners(16, "16 goroutines"),
	newcomer("newcomer", "a newcomer takes a lock that was free, or kept and unused (floor: a delete), p50, µs", "1.6", 0),
	newcomer("newcomer-distant", "the same, 1 ms from the server, p50, µs", "free + floor + 1000 µs", time.Millisecond),
	{"idle", peers, []line{
		{"100 idle sessions of one process: processor time of each, µs/s", zkLock, false, "300 µs"},
	}, stayIdle},
	{"held-10000", peers, []line{
		{"10,000 held locks of one process: heap with stacks for each, kB", zkLock, false, "1"},
		{"goroutines for each", "", false, "0"},
	}, holdMany},
	{"new-name", peers, []line{
		{"requests to take a lock with a name that was never locked, and to release it", zkLock, false, "3 requests"},
	}, newName},
	{"queue-5000", []string{floor, ours}, []line{
		{"`Queue` with 5000 contenders (floor: one read after the other), ms", floor, false, "0.1"},
	}, readQueue},
	{"list-10000", []string{floor, ours}, []line{
		{"`List` with 10,000 locks (floor: one listing after the other), ms", floor, false, "0.1"},
	}, listLocks},
	// Last on the shared server, which has half a million directories then.
	{"kept-100000", []string{keeps}, []line{
		{"100,000 kept locks of one process: heap with stacks for each, kB", "", false, "1"},
		{"goroutines for each", "", false, "0"},
	}, keepMany},
	{"fleet", peers, []line{
		{"sessions of three servers: requests of each in a session timeout", zkLock, false, "3"},
		{"writes", "", false, "0"},
		{"the leader dies: time until all are connected again, s", zkLock, false, ""},
		{"attempts of each to connect", zkLock, false, ""},
		{"writes of each", zkLock, false, "2"},
		{"a tenth lock at once: time, s", zkLock, false, ""},
		{"writes of each", zkLock, false, "2"},
	}, fleet},
}

// overloads returns the scenario of ten times the load that a lock can serve.
func overloads(pools int, ofMany string) scenario {
	return scenario{fmt.Sprintf("overload-%d", pools), []string{ours}, []line{
		{"10 times the calls that a lock can serve, by " + ofMany + ", with deadlines of 50 ms: calls done in time, % of what the lock can serve", "", true, ""},
		{fmt.Sprintf("with `MaxWaiters(%d)`, %%", 16/pools), "", true, "90"},
		{"with `InTime`, %", "", true, "90"},
		{"a refusal, p99, ms", "", false, "2"},
	}, func(string) []float64 { return overloaded(pools) }}
}

var locks int

// newLock returns the path of a never used lock.
func newLock() string {
	locks++
	return fmt.Sprintf("/bench-%d", locks)
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// alone has one goroutine take and release one lock.
func alone(client string) []float64 {
	c := open(client, &network{}, 1)
	defer c.close()
	w := c.worker(newLock())
	var acquire, release []float64
	end := time.Now().Add(*duration)
	for again := true; again; again = time.Now().Before(end) {
		t0 := time.Now()
		check(w.lock())
		t1 := time.Now()
		check(w.unlock())
		acquire, release = append(acquire, micros(t1.Sub(t0))), append(release, micros(time.Since(t1)))
	}
	return []float64{middle(acquire), middle(release)}
}

// rate has processes contend for one lock, without work under the lock.
func rate(client string, processes int) []float64 {
	holds := contend(contest{clients: slices.Repeat([]string{client}, processes), goroutines: 1})
	return []float64{float64(len(holds)) / duration.Seconds()}
}

// manyOwners returns the scenario of processes with locks of their own, seldom used by others.
func manyOwners(goroutines int, ofEach string) scenario {
	return scenario{fmt.Sprintf("owners-4x%d", goroutines), ourKept, []line{
		{"4 processes of " + ofEach + ", 250 locks each, 5 % of the uses by another process: turns/s", ours, true, "15"},
	}, func(client string) []float64 {
		holds := contend(contest{clients: slices.Repeat([]string{client}, owners), goroutines: goroutines, owned: 250})
		return []float64{float64(len(holds)) / duration.Seconds()}
	}}
}

// handOver has processes hold one lock long enough for all others to queue before the
// Unlock.
func handOver(client string, processes int, delay time.Duration) []float64 {
	if client == floor {
		return bareDelete(delay)
	}
	holds := contend(contest{clients: slices.Repeat([]string{client}, processes), goroutines: 1, work: 3*time.Millisecond + 4*delay, delay: delay})
	return []float64{micros(middle(handOvers(holds)))}
}

// bareDelete measures what the fastest hand-over needs: a request goes to the server, is
// written, and something comes back.
func bareDelete(delay time.Duration) []float64 {
	c := open(floor, &network{delay: delay}, 1)
	defer c.close()
	w := c.worker(newLock())
	var times []float64
	for range 200 {
		check(w.lock())
		start := time.Now()
		check(w.unlock())
		times = append(times, micros(time.Since(start)))
	}
	return []float64{middle(times)}
}

// goroutinesOfOneProcess has goroutines contend on as many sessions as lockpool opens.
func goroutinesOfOneProcess(client string) []float64 {
	c := open(client, &network{}, 2)
	defer c.close()
	holds := fight(c, newLock(), 64, 0)
	return []float64{float64(len(holds)) / duration.Seconds()}
}

// shares has processes of many goroutines contend.
func shares(client string) []float64 {
	const processes = 4
	holds := contend(contest{clients: slices.Repeat([]string{client}, processes), goroutines: 50})
	counts := make([]float64, processes)
	for _, h := range holds {
		counts[h.Process]++
	}
	total := float64(len(holds))
	return []float64{total / duration.Seconds(), 100 * slices.Min(counts) / total}
}

// fifthProcess counts tenancies: the holds of one process between the holds of others.
func fifthProcess(client string) []float64 {
	const others = 4
	holds := contend(contest{clients: append(slices.Repeat([]string{client}, others), zkLock), goroutines: 50})
	tenancies, turns := 0, 0
	for i, h := range holds {
		switch {
		case h.Process == others:
			turns++
		case i == 0 || holds[i-1].Process != h.Process:
			tenancies++
		}
	}
	return []float64{float64(turns) * others / float64(tenancies)}
}

// loner has one goroutine contend with a crowd.
func loner(client string) []float64 {
	var waits []time.Duration
	turns, unlocked := 0, int64(0)
	for _, h := range contend(contest{clients: []string{client, client}, goroutines: 4, work: time.Millisecond, loner: true}) {
		switch {
		case h.Process == 0:
			turns++
		default:
			if unlocked != 0 {
				waits = append(waits, time.Duration(h.Granted-unlocked))
			}
			unlocked = h.Unlocked
		}
	}
	return []float64{micros(middle(waits)) / 1000, float64(turns) / duration.Seconds()}
}

// drained is the cost of emptying a queue of waiters, each unlocking as soon as granted the
// lock.
type drained struct {
	time                      time.Duration
	requests, wakeups, kBytes float64 // for each waiter
	handOver                  float64 // the median from Unlock to the next grant, µs
}

// drain has waiters queue on the clients behind a holder, and measures from the holder's
// release.
func drain(kind string, clients []client, n *network, waiters int) drained {
	awaitNoWatches()
	lock := newLock()
	holder := clients[0].worker(lock)
	check(holder.lock())
	workers := make(chan worker, waiters)
	for i := range waiters {
		workers <- clients[i%len(clients)].worker(lock)
	}
	var done sync.WaitGroup
	done.Add(waiters)
	var mu sync.Mutex // held by the lock's holder, and so hardly contended
	var released time.Time
	var gaps []float64
	gather(kind, clients, n, waiters, func() {
		defer done.Done()
		w := <-workers
		check(w.lock())
		mu.Lock()
		gaps = append(gaps, micros(time.Since(released)))
		released = time.Now()
		mu.Unlock()
		check(w.unlock())
	})
	received, sent, bytes := mntr("zk_packets_received"), mntr("zk_packets_sent"), n.received.Load()
	start := time.Now()
	released = start
	check(holder.unlock())
	done.Wait()
	took := time.Since(start)
	received, sent = mntr("zk_packets_received")-received, mntr("zk_packets_sent")-sent
	each := 1 / float64(waiters)
	return drained{
		took, float64(received) * each,
		float64(sent-received) * each, // each request has one reply
		float64(n.received.Load()-bytes) / 1000 * each, middle(gaps),
	}
}

// drainSessionsOfOne has waiters of one client with the given number of sessions.
func drainSessionsOfOne(kind string, sessions int) []float64 {
	n := &network{}
	c := open(kind, n, sessions)
	defer c.close()
	d := drain(kind, []client{c}, n, 1000)
	return []float64{millis(d.time), d.requests, d.kBytes}
}

// manySessions returns the scenario of many processes waiting for one lock. If each release
// woke all waiters, the lines for each would grow with their number.
func manySessions(waiters int) scenario {
	return scenario{fmt.Sprintf("sessions-%d", waiters), peers, []line{
		{fmt.Sprintf("%d waiters with a session each: time until all have had the lock, ms", waiters), zkLock, false, "0.9"},
		{"requests for each", zkLock, false, ""},
		{"wake-ups for each", zkLock, false, ""},
	}, func(client string) []float64 { return drainSessions(client, waiters, 0)[:3] }}
}

// drainSessions has waiters with a session each.
func drainSessions(kind string, waiters int, delay time.Duration) []float64 {
	if kind == floor {
		return append(make([]float64, 3), bareDelete(delay)...)
	}
	n := &network{delay: delay}
	var clients []client
	for range waiters + 1 {
		c := open(kind, n, 1)
		defer c.close()
		clients = append(clients, c)
	}
	d := drain(kind, clients, n, waiters)
	return []float64{millis(d.time), d.requests, d.wakeups, d.handOver}
}

// mntr returns one of the server's counters.
func mntr(key string) int {
	conn := must(net.Dial("tcp", *server))
	defer conn.Close()
	check(conn.SetDeadline(time.Now().Add(time.Minute)))
	must(io.WriteString(conn, "mntr"))
	for line := range strings.Lines(string(must(io.ReadAll(conn)))) {
		if fields := strings.Fields(line); len(fields) == 2 && fields[0] == key {
			return must(strconv.Atoi(fields[1]))
		}
	}
	log.Fatalf("%s does not report %s; is mntr in its 4lw.commands.whitelist?", *server, key)
	return 0
}

var sessionsOpened int // by the latest turn of lockpool in manyLocks

// manyLocks has goroutines, all started at once, take locks of their own.
func manyLocks(kind string) []float64 {
	var c client
	if kind == ours {
		c = openPool(kind, &network{}, sessionTimeout)
	} else {
		c = open(kind, &network{}, sessionsOpened)
	}
	defer c.close()
	var workers []worker
	for i := range 64 {
		workers = append(workers, c.worker(fmt.Sprintf("/bench-%s-%d", kind, i)))
	}
	counts := make([]int, len(workers))
	var done sync.WaitGroup
	end := time.Now().Add(*duration)
	for i, w := range workers {
		done.Go(func() {
			for again := true; again; again = time.Now().Before(end) {
				check(w.lock())
				check(w.unlock())
				counts[i]++
			}
		})
	}
	done.Wait()
	if pool, ok := c.(poolClient); ok {
		sessionsOpened = pool.Stats().OpenSessions
	}
	total := 0
	for _, n := range counts {
		total += n
	}
	return []float64{float64(total) / duration.Seconds()}
}

// lockAgain has a holder take the lock again and again.
func lockAgain(kind string) []float64 {
	c := openPool(kind, &network{}, sessionTimeout)
	defer c.close()
	ctx := context.Background()
	handle := must(c.Handle(ctx))
	name := newLock()[1:]
	outer := must(handle.Lock(ctx, name))
	result := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			inner, err := handle.Lock(ctx, name)
			check(err)
			check(inner.Unlock(ctx))
		}
	})
	check(outer.Unlock(ctx))
	check(handle.Close(ctx))
	return []float64{float64(result.T.Nanoseconds()) / float64(result.N), float64(result.AllocsPerOp())}
}

// useAgain has one goroutine use one lock again and again.
func useAgain(client string) []float64 {
	c := open(client, &network{}, 1)
	defer c.close()
	w := c.worker(newLock())
	useUntilKept(w)
	var times []float64
	before := mntr("zk_packets_received")
	end := time.Now().Add(*duration)
	for start := time.Now(); start.Before(end); {
		check(w.lock())
		check(w.unlock())
		now := time.Now()
		times = append(times, micros(now.Sub(start)))
		start = now
	}
	requests := float64(mntr("zk_packets_received")-before) / float64(len(times))
	return []float64{middle(times), requests, testing.AllocsPerRun(100, func() {
		check(w.lock())
		check(w.unlock())
	})}
}

// newcomer returns the scenario of a pool that takes locks which another pool has just used.
func newcomer(name, what, target string, delay time.Duration) scenario {
	return scenario{name, []string{floor, ours, keeps}, []line{{what, ours, false, target}}, func(client string) []float64 {
		if client == floor {
			return bareDelete(delay)
		}
		n := &network{delay: delay}
		owner, other := open(client, n, 1), open(ours, n, 1)
		defer owner.close()
		defer other.close()
		var times []float64
		for range 200 {
			lock := newLock()
			useUntilKept(owner.worker(lock))
			w := other.worker(lock)
			start := time.Now()
			check(w.lock())
			times = append(times, micros(time.Since(start)))
			check(w.unlock())
		}
		return []float64{middle(times)}
	}}
}

// newName counts the requests for never used locks.
func newName(kind string) []float64 {
	const names = 20
	c := open(kind, &network{}, 1)
	defer c.close()
	first := c.worker(newLock())
	check(first.lock()) // opens the session
	check(first.unlock())
	before := mntr("zk_packets_received")
	query := mntr("zk_packets_received") - before
	for range names {
		w := c.worker(newLock())
		check(w.lock())
		check(w.unlock())
	}
	received := mntr("zk_packets_received") - before - 2*query
	return []float64{float64(received) / names}
}

// contenders creates contending nodes for a lock, in transactions of 500.
func contenders(conn *zk.Conn, count int, create func(i int) []any) {
	for begin := 0; begin < count; begin += 500 {
		var ops []any
		for i := range 500 {
			ops = append(ops, create(begin+i)...)
		}
		must(conn.Multi(ops...))
	}
}

const contenderName = "/_c_00000000-0000-0000-0000-000000000000-lock-"

// readQueue reads a queue: lockpool with Queue, the floor with one read after the other.
func readQueue(kind string) []float64 {
	const count = 5000
	c := openConns(floor, &network{}, 1)
	defer c.close()
	conn := c.conns[0]
	lock := newLock()
	must(conn.Create(lock, nil, 0, worldACL))
	contenders(conn, count, func(int) []any {
		return []any{&zk.CreateRequest{Path: lock + contenderName, Acl: worldACL, Flags: zk.FlagEphemeral | zk.FlagSequence}}
	})
	if kind == floor {
		start := time.Now()
		names, _, err := conn.Children(lock)
		check(err)
		for _, name := range names {
			_, _, err := conn.Get(lock + "/" + name)
			check(err)
		}
		return []float64{millis(time.Since(start))}
	}
	pool := openPool(kind, &network{}, sessionTimeout)
	defer pool.close()
	must(pool.List(context.Background(), "none")) // connects
	start := time.Now()
	queue := must(pool.Queue(context.Background(), lock[1:]))
	took := time.Since(start)
	if len(queue.Contenders) != count {
		log.Fatalf("Queue returned %d contenders of %d", len(queue.Contenders), count)
	}
	return []float64{millis(took)}
}

// listLocks lists the locks in use: lockpool with List, the floor with one listing after
// the other.
func listLocks(kind string) []float64 {
	const count = 10_000
	c := openConns(floor, &network{}, 1)
	defer c.close()
	conn := c.conns[0]
	parent := newLock()
	must(conn.Create(parent, nil, 0, worldACL))
	contenders(conn, count, func(i int) []any {
		lock := fmt.Sprintf("%s/%d", parent, i)
		return []any{
			&zk.CreateRequest{Path: lock, Acl: worldACL},
			&zk.CreateRequest{Path: lock + contenderName, Acl: worldACL, Flags: zk.FlagEphemeral | zk.FlagSequence},
		}
	})
	if kind == floor {
		start := time.Now()
		names, _, err := conn.Children(parent)
		check(err)
		for _, name := range names {
			_, _, err := conn.Children(parent + "/" + name)
			check(err)
		}
		return []float64{millis(time.Since(start))}
	}
	pool := openPool(kind, &network{}, sessionTimeout)
	defer pool.close()
	must(pool.List(context.Background(), "none")) // connects
	start := time.Now()
	names := must(pool.List(context.Background(), parent[1:]))
	took := time.Since(start)
	if len(names) != count {
		log.Fatalf("List returned %d locks of %d", len(names), count)
	}
	return []float64{millis(took)}
}
