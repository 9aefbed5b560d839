// Command bench measures lockpool against its floor, a bare create and delete
// on the same client, and against that client's own Lock, on a real ZooKeeper.
//
//	go run ./bench [-zookeeper HOST:PORT] [-d 4s] [-runs 5]
//
// What counts are the ratios within one run: all clients take turns on one
// server (A B C A B C ...), and each figure is the median of the turns. Without
// -zookeeper it starts the packaged server, with fsync on as it comes.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockpool/lockpool/testing/zktest"
)

var (
	server   = flag.String("zookeeper", "", "`host:port` of a server; empty starts the packaged one")
	duration = flag.Duration("d", 4*time.Second, "how long each turn lasts")
	runs     = flag.Int("runs", 5, "turns of each client in each scenario")
	only     = flag.String("only", "", "run only the scenarios whose names contain `text`")
	child    = flag.String("child", "", "used by the program itself: contend as this client")
	path     = flag.String("path", "", "used by the program itself: the lock to contend for")
	work     = flag.Duration("work", 0, "used by the program itself: how long to hold the lock")
)

func main() {
	flag.Parse()
	log.SetFlags(0)
	if *child != "" {
		contender()
		return
	}
	if *server == "" {
		s, err := zktest.RunReal(context.Background(), zktest.TickTime(2*time.Second),
			zktest.Properties(map[string]string{"maxClientCnxns": "0"}), zktest.JVMFlags("-Xmx1g"))
		if err != nil {
			log.Fatal(err)
		}
		defer s.Close()
		*server = s.Addr()
	}
	fmt.Printf("%d turns of %s each, medians; fsync as the server is configured\n\n", *runs, *duration)
	fmt.Println("| scenario | client | figure | ratio | target |")
	fmt.Println("|---|---|---|---|---|")
	for _, s := range scenarios {
		if strings.Contains(s.name, *only) {
			s.run(s.name)
		}
	}
}

var scenarios = []struct {
	name string
	run  func(name string)
}{
	{"uncontended", uncontended},
	{"hand-over between 2 processes", func(n string) { handOver(n, 2, "at least 1.3") }},
	{"hand-over between 4 processes", func(n string) { handOver(n, 4, "at least 1.0") }},
	{"scramble of 2 processes", func(n string) { scramble(n, 2) }},
	{"scramble of 4 processes", func(n string) { scramble(n, 4) }},
	{"drain of 1000 waiters", drain},
	{"64 goroutines on 64 locks", manyLocks},
	{"nested", nested},
}

func row(scenario, client, figure string, ratio float64, target string) {
	fmt.Printf("| %s | %s | %s | %.2f | %s |\n", scenario, client, figure, ratio, target)
}

// uncontended: one worker, one lock.
func uncontended(name string) {
	clients := []string{"floor", "zklock", "lockpool"}
	acquire, release := map[string][]time.Duration{}, map[string][]time.Duration{}
	for turn := range *runs + 1 {
		for _, kind := range clients {
			c := must(open(kind, *server, 1))
			w := c.worker("/bench-" + kind)
			var a, r []time.Duration
			for end := time.Now().Add(*duration); time.Now().Before(end); {
				t0 := time.Now()
				check(w.lock())
				t1 := time.Now()
				check(w.unlock())
				a, r = append(a, t1.Sub(t0)), append(r, time.Since(t1))
			}
			c.close()
			if turn > 0 { // the first warms up the server
				acquire[kind] = append(acquire[kind], median(a))
				release[kind] = append(release[kind], median(r))
			}
		}
	}
	for _, kind := range clients {
		a, r := median(acquire[kind]), median(release[kind])
		targetA, targetR := "", ""
		if kind == "lockpool" {
			targetA, targetR = "at most 1.15", "at most 1.1"
		}
		row(name+", acquire", kind, fmt.Sprintf("p50 %d µs", a.Microseconds()), float64(a)/float64(median(acquire["floor"])), targetA)
		row(name+", release", kind, fmt.Sprintf("p50 %d µs", r.Microseconds()), float64(r)/float64(median(release["floor"])), targetR)
	}
}

// handOver: n processes, one lock, held for a moment, so that all the others
// stand in the queue when it is unlocked. What is measured is the time from the
// call of Unlock to the grant in another process.
func handOver(name string, n int, target string) {
	clients := []string{"zklock", "lockpool"}
	times := map[string][]time.Duration{}
	for turn := range *runs {
		for _, kind := range clients {
			var all []hold
			for _, holds := range contend(kind, n, 3*time.Millisecond, turn) {
				all = append(all, holds...)
			}
			slices.SortFunc(all, func(a, b hold) int { return cmp.Compare(a.Granted, b.Granted) })
			var gaps []time.Duration
			for i, next := range all[1:] {
				if all[i].Process != next.Process {
					gaps = append(gaps, time.Duration(next.Granted-all[i].Unlocked))
				}
			}
			times[kind] = append(times[kind], median(gaps))
		}
	}
	for _, kind := range clients {
		t := ""
		if kind == "lockpool" {
			t = target
		}
		m := median(times[kind])
		row(name, kind, fmt.Sprintf("p50 %d µs", m.Microseconds()), float64(median(times["zklock"]))/float64(m), t)
	}
}

// scramble: n processes, one lock, nothing done under it. The lock is free again
// before anyone can queue for it, so the server's writes are what counts.
func scramble(name string, n int) {
	clients := []string{"zklock", "lockpool"}
	rates := map[string][]float64{}
	for turn := range *runs {
		for _, kind := range clients {
			total := 0
			for _, holds := range contend(kind, n, 0, turn) {
				total += len(holds)
			}
			rates[kind] = append(rates[kind], float64(total)/duration.Seconds())
		}
	}
	compare(name, clients, rates, "locks/s", "")
}

// hold is one turn of a process, in nanoseconds of the machine's clock.
type hold struct {
	Process           int
	Granted, Unlocked int64
}

// contend lets n processes contend for one lock and returns the holds of each.
func contend(kind string, n int, work time.Duration, turn int) [][]hold {
	lock := fmt.Sprintf("/bench-%s-%d-%s-%d", kind, n, work, turn)
	var starts []io.Closer
	var outs []*json.Decoder
	var cmds []*exec.Cmd
	for range n {
		cmd := exec.Command(must(os.Executable()), "-child", kind, "-zookeeper", *server,
			"-path", lock, "-d", duration.String(), "-work", work.String())
		cmd.Stderr = os.Stderr
		starts = append(starts, must(cmd.StdinPipe()))
		outs = append(outs, json.NewDecoder(must(cmd.StdoutPipe())))
		check(cmd.Start())
		cmds = append(cmds, cmd)
	}
	for _, out := range outs { // all are connected
		var ready string
		check(out.Decode(&ready))
	}
	for _, start := range starts {
		check(start.Close())
	}
	all := make([][]hold, n)
	for i, out := range outs {
		check(out.Decode(&all[i]))
		check(cmds[i].Wait())
		for j := range all[i] {
			all[i][j].Process = i
		}
	}
	return all
}

// contender is one process of contend.
func contender() {
	c := must(open(*child, *server, 1))
	w := c.worker(*path)
	check(w.lock()) // connected, and the lock's parent is there
	check(w.unlock())
	out := json.NewEncoder(os.Stdout)
	check(out.Encode("ready"))
	must(io.ReadAll(os.Stdin))
	var holds []hold
	for end := time.Now().Add(*duration); time.Now().Before(end); {
		check(w.lock())
		h := hold{Granted: time.Now().UnixNano()}
		if *work > 0 {
			time.Sleep(*work)
		}
		h.Unlocked = time.Now().UnixNano()
		check(w.unlock())
		holds = append(holds, h)
	}
	check(out.Encode(holds))
	c.close()
}

// drain: a queue of waiters stands, then each in turn is granted and leaves.
func drain(name string) {
	const waiters = 1000
	clients := []string{"zklock", "lockpool"}
	rates, requests, events := map[string][]float64{}, map[string][]float64{}, map[string][]float64{}
	for turn := range *runs {
		for _, kind := range clients {
			c := must(open(kind, *server, 1))
			lock := fmt.Sprintf("/bench-drain-%s-%d", kind, turn)
			holder := c.worker(lock)
			check(holder.lock())
			var wg sync.WaitGroup
			for range waiters {
				w := c.worker(lock)
				wg.Go(func() {
					check(w.lock())
					check(w.unlock())
				})
			}
			for watches := 0; watches < waiters; { // all stand in the queue
				time.Sleep(50 * time.Millisecond)
				watches = mntr("zk_watch_count")
			}
			received, sent := mntr("zk_packets_received"), mntr("zk_packets_sent")
			start := time.Now()
			check(holder.unlock())
			wg.Wait()
			took := time.Since(start)
			received, sent = mntr("zk_packets_received")-received, mntr("zk_packets_sent")-sent
			c.close()
			rates[kind] = append(rates[kind], waiters/took.Seconds())
			requests[kind] = append(requests[kind], float64(received)/waiters)
			events[kind] = append(events[kind], float64(sent-received)/waiters)
		}
	}
	compare(name, clients, rates, "hand-overs/s", "")
	for _, kind := range clients {
		row(name+", requests each", kind, fmt.Sprintf("%.2f", median(requests[kind])), median(requests[kind])/median(requests["zklock"]), "at most 2")
		row(name+", events each", kind, fmt.Sprintf("%.2f", median(events[kind])), median(events[kind])/median(events["zklock"]), "1")
	}
}

// manyLocks: throughput without contention. All have as many connections as
// lockpool opens for so many handles.
func manyLocks(name string) {
	const workers, conns = 64, 2
	clients := []string{"floor", "zklock", "lockpool"}
	rates := map[string][]float64{}
	for turn := range *runs + 1 {
		for _, kind := range clients {
			c := must(open(kind, *server, conns))
			counts := make([]int, workers)
			var wg sync.WaitGroup
			var ws []worker
			for i := range workers {
				w := c.worker(fmt.Sprintf("/bench-many-%s-%d", kind, i))
				check(w.lock())
				check(w.unlock())
				ws = append(ws, w)
			}
			end := time.Now().Add(*duration)
			for i, w := range ws {
				wg.Go(func() {
					for time.Now().Before(end) {
						check(w.lock())
						check(w.unlock())
						counts[i]++
					}
				})
			}
			wg.Wait()
			if pool, ok := c.(poolClient); ok && pool.pool.Stats().OpenSessions != conns {
				log.Fatalf("lockpool has %d connections, the others %d", pool.pool.Stats().OpenSessions, conns)
			}
			c.close()
			total := 0
			for _, n := range counts {
				total += n
			}
			if turn > 0 {
				rates[kind] = append(rates[kind], float64(total)/duration.Seconds())
			}
		}
	}
	compare(name, clients, rates, "locks/s", "at least 0.85")
}

// nested: entering and leaving a lock that is held.
func nested(name string) {
	c := must(open("lockpool", *server, 1)).(poolClient)
	defer c.close()
	ctx := context.Background()
	s := must(c.pool.Handle(ctx))
	outer := must(s.Lock(ctx, "bench-nested"))
	result := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			inner, err := s.Lock(ctx, "bench-nested")
			check(err)
			check(inner.Unlock(ctx))
		}
	})
	check(outer.Unlock(ctx))
	ns := float64(result.T.Nanoseconds()) / float64(result.N)
	row(name, "lockpool", fmt.Sprintf("%.0f ns, %d allocations", ns, result.AllocsPerOp()), ns/50, "at most 50 ns, none")
}

// compare prints a row for each client, with the ratio to the first.
func compare(name string, clients []string, rates map[string][]float64, unit, target string) {
	for _, kind := range clients {
		t := ""
		if kind == "lockpool" {
			t = target
		}
		row(name, kind, fmt.Sprintf("%.0f %s", median(rates[kind]), unit), median(rates[kind])/median(rates[clients[0]]), t)
	}
}

// mntr asks the server for one of its counters.
func mntr(key string) int {
	conn := must(net.Dial("tcp", *server))
	defer conn.Close()
	must(io.WriteString(conn, "mntr"))
	for line := range strings.Lines(string(must(io.ReadAll(conn)))) {
		if fields := strings.Fields(line); len(fields) == 2 && fields[0] == key {
			return must(strconv.Atoi(fields[1]))
		}
	}
	log.Fatalf("%s does not tell %s: is mntr in its 4lw.commands.whitelist?", *server, key)
	return 0
}

func median[T float64 | time.Duration](values []T) T {
	values = slices.Sorted(slices.Values(values))
	return values[len(values)/2]
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func must[T any](v T, err error) T {
	check(err)
	return v
}
