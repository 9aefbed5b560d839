// Command bench compares the locks of lockpool on etcd with etcd's own concurrency.Mutex,
// on one member in a separate process, in the default configuration, with fsync. In
// driver/etcd:
//
//	go run ./etcdtest/bench [-row NAME] [-d 700ms] [-runs 5]
//
// The two take turns (A B A B ...), because only ratios between consecutive turns are
// comparable. The table, in Markdown, shows the median of the turns and, in parentheses,
// the worst of them; the ratios are treated alike. The first turn of each is not counted.
// Requests are the messages counted by the member, keep-alives of the sessions included.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

var (
	duration = flag.Duration("d", 700*time.Millisecond, "duration of each turn")
	runs     = flag.Int("runs", 5, "turns of each in each row")
	only     = flag.String("row", "", "measure only the rows whose text contains this `text`")
	serving  = flag.Bool("serve", false, "internal: be the server")
)

// row is a line of the table.
type row struct {
	what string
	less bool // less is better
	// turn is one turn of a number of sessions, and returns a figure and how many locks
	// were taken and released.
	sessions int
	quiet    time.Duration // before the turn: six times as long as between two keep-alives
	turn     func(sessions []session) (figure float64, locks int)
}

var rows = []row{
	{"one goroutine alone: take a free lock and release it, p50, µs", true, 1, 0, alone},
	{"64 goroutines of one process, one lock: turns/s", false, 1, 0, contend(64)},
	{"4 processes of one goroutine, one lock: turns/s", false, 4, 0, contend(1)},
	{"4 processes of 16 goroutines, one lock: turns/s", false, 4, 0, contend(16)},
	{"64 goroutines of one process on 64 locks: locks/s", false, 1, 0, many},
	{"2 processes, each holds the lock for 3 ms: from `Unlock` to the next grant, p50, µs", true, 2, 0, handOver},
	{"1000 idle sessions: processor time of the member for each, µs/s", true, 1000, 2 * ttl, idle},
	{"a session with 10,000 locks ends: the longest lock and unlock of another, ms", true, 2, 0, sessionEnds},
}

var endpoint string // of the member

func main() {
	flag.Parse()
	log.SetFlags(0)
	log.SetPrefix("bench: ")
	if flag.NArg() > 0 || *duration <= 0 || *runs < 1 {
		log.Fatal("only flags are allowed, and -d and -runs must be positive; -help lists them")
	}
	if *serving {
		check(serve())
		return
	}
	var stop func()
	endpoint, stop = start()
	defer stop()
	fmt.Println("|  | Mutex | requests | lockpool | requests | beside |")
	fmt.Println("|---|---|---|---|---|---|")
	for _, r := range rows {
		if strings.Contains(r.what, *only) {
			fmt.Println(r.measure())
		}
	}
}

// start starts the server. The server ends at the latest with this process.
func start() (endpoint string, stop func()) {
	server := exec.Command(must(os.Executable()), "-serve")
	server.Stderr = os.Stderr
	in := must(server.StdinPipe())
	out := must(server.StdoutPipe())
	check(server.Start())
	endpoint = strings.TrimSpace(must(bufio.NewReader(out).ReadString('\n')))
	return endpoint, func() {
		check(in.Close())
		check(server.Wait())
	}
}

// figures are the figures of one client's turns.
type figures struct{ figure, requests []float64 }

func (r row) measure() string {
	clients := []func(endpoint string) session{openMutex, openPool}
	got := make([]figures, len(clients))
	for turn := range *runs + 1 {
		for i, open := range clients {
			sessions := make([]session, r.sessions)
			for j := range sessions {
				sessions[j] = open(endpoint)
				time.Sleep(r.quiet / time.Duration(6*r.sessions)) // keep-alives are not sent together
			}
			time.Sleep(r.quiet)
			before := metric(endpoint, "grpc_server_msg_received_total")
			figure, locks := r.turn(sessions)
			sent := metric(endpoint, "grpc_server_msg_received_total") - before
			for _, s := range sessions {
				s.close()
			}
			if turn > 0 {
				got[i].figure = append(got[i].figure, figure)
				got[i].requests = append(got[i].requests, sent/float64(locks))
			}
		}
	}
	mutex, pool := got[0], got[1]
	ratios := make([]float64, *runs)
	for turn := range ratios {
		ratios[turn] = pool.figure[turn] / mutex.figure[turn]
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s |", r.what, summary(mutex.figure, r.less), summary(mutex.requests, true),
		summary(pool.figure, r.less), summary(pool.requests, true), summary(ratios, r.less))
}

func summary(values []float64, less bool) string {
	sorted := slices.Sorted(slices.Values(values))
	worst := sorted[0]
	if less {
		worst = sorted[len(sorted)-1]
	}
	return fmt.Sprintf("%s (%s)", number(sorted[len(sorted)/2]), number(worst))
}

func number(f float64) string {
	switch {
	case f >= 100:
		return fmt.Sprintf("%.0f", f)
	case f >= 10:
		return fmt.Sprintf("%.1f", f)
	case f < 0.005:
		return "< 0.01"
	}
	return fmt.Sprintf("%.2f", f)
}

// alone takes a lock and releases it, again and again.
func alone(sessions []session) (p50 float64, locks int) {
	var took []time.Duration
	l := sessions[0].locker("alone")
	for began := time.Now(); time.Since(began) < *duration; {
		at := time.Now()
		check(l.lock(context.Background()))
		check(l.unlock())
		took = append(took, time.Since(at))
	}
	return median(took), len(took)
}

func median(d []time.Duration) (µs float64) {
	slices.Sort(d)
	return float64(d[len(d)/2].Nanoseconds()) / 1000
}

// contend has the given number of goroutines of each session take one lock.
func contend(goroutines int) func([]session) (float64, int) {
	return func(sessions []session) (perSecond float64, locks int) {
		return rate(sessions, goroutines, func(int) string { return "contended" })
	}
}

// many has 64 goroutines of each session take a lock of their own.
func many(sessions []session) (perSecond float64, locks int) {
	return rate(sessions, 64, func(i int) string { return fmt.Sprint("many", i) })
}

func rate(sessions []session, goroutines int, name func(i int) string) (perSecond float64, locks int) {
	ctx, cancel := context.WithTimeout(context.Background(), *duration)
	defer cancel()
	var done sync.WaitGroup
	var mu sync.Mutex
	for _, s := range sessions {
		for i := range goroutines {
			done.Go(func() {
				l, turns := s.locker(name(i)), 0
				for ctx.Err() == nil {
					if err := l.lock(ctx); ctx.Err() == nil {
						check(err)
						turns++
						check(l.unlock())
					} else if err == nil {
						check(l.unlock())
					}
				}
				mu.Lock()
				defer mu.Unlock()
				locks += turns
			})
		}
	}
	done.Wait()
	return float64(locks) / duration.Seconds(), max(locks, 1)
}

// handOver has each session hold the lock for 3 ms, and measures the time from a release
// until another session has the lock.
func handOver(sessions []session) (p50 float64, locks int) {
	ctx, cancel := context.WithTimeout(context.Background(), *duration)
	defer cancel()
	var took []time.Duration
	var released time.Time // guarded by the lock
	last := -1
	var done sync.WaitGroup
	for i, s := range sessions {
		done.Go(func() {
			for l := s.locker("handed over"); ctx.Err() == nil; {
				if err := l.lock(ctx); err != nil {
					if ctx.Err() == nil {
						log.Fatal(err)
					}
					return
				}
				if last >= 0 && last != i {
					took = append(took, time.Since(released))
				}
				locks++
				time.Sleep(3 * time.Millisecond)
				last, released = i, time.Now()
				check(l.unlock())
			}
		})
	}
	done.Wait()
	if len(took) == 0 {
		log.Fatal("the lock was never handed over")
	}
	return median(took), locks
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
