// Command scale shows what it costs a process that many of its goroutines wait for one
// lock: the time until all of them wait, the memory, and what the server sends
// meanwhile, with local turns and without them.
//
//	go run ./bench/scale [-waiters 100,1000,...] [-runs 3] [-zookeeper HOST:PORT] [-o docs/scale.svg]
//
// Each of the costs must grow in a straight line with the number of waiters. If one does
// not, the command says so, and fails.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/bench/internal/crowd"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/zktest"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("scale: ")
	server := flag.String("zookeeper", "", "`host:port` of a server; if empty, the packaged one is started")
	list := flag.String("waiters", "100,1000,2000,4000,6000,8000,10000", "comma-separated `numbers` of waiters, in ascending order")
	runs := flag.Int("runs", 3, "`number` of runs, of whose costs the medians count")
	output := flag.String("o", "docs/scale.svg", "`file` for the plot")
	flag.Parse()
	numbers, err := parse(*list)
	if err != nil || flag.NArg() > 0 || *runs < 1 {
		log.Fatalf("wrong flags (%v); -help lists them", err)
	}
	ctx := context.Background()
	if *server == "" {
		s, err := zktest.RunReal(ctx, zktest.MaxClientConns(0), zktest.TickTime(2*time.Second), zktest.JVMFlags("-Xmx1g"))
		if err != nil {
			log.Fatal(err)
		}
		defer s.Close()
		*server = s.Addr()
	}
	lines, err := measure(ctx, *server, numbers, *runs)
	if err != nil {
		log.Fatal(err)
	}
	if err := errors.Join(writeTable(os.Stdout, lines), writePlot(*output, lines)); err != nil {
		log.Fatal(err)
	}
	if bent := bent(lines); len(bent) > 0 {
		log.Fatalf("not in a straight line with the number of waiters: %s", strings.Join(bent, "; "))
	}
}

func parse(list string) (numbers []int, err error) {
	for text := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || len(numbers) > 0 && n <= numbers[len(numbers)-1] {
			return nil, fmt.Errorf("%q is not a number of waiters, larger than the one before", text)
		}
		numbers = append(numbers, n)
	}
	if len(numbers) < 3 {
		return nil, errors.New("three numbers of waiters, at least, make a line")
	}
	return numbers, nil
}

// line is how the costs grow with the number of waiters.
type line struct {
	name   string
	points []point
}

type point struct {
	waiters int
	crowd.Cost
}

// kinds are the pools that are compared.
var kinds = []struct {
	name string
	opts []lockpool.Option
}{
	{"local turns", nil},
	{"without local turns", []lockpool.Option{lockpool.WithLocalTurns(0)}},
}

func measure(ctx context.Context, server string, numbers []int, runs int) (lines []line, err error) {
	for _, kind := range kinds {
		l := line{name: kind.name}
		for _, n := range numbers {
			var costs []crowd.Cost
			for range runs {
				cost, err := queue(ctx, server, n, kind.opts)
				if err != nil {
					return nil, fmt.Errorf("%s, %d waiters: %w", kind.name, n, err)
				}
				costs = append(costs, cost)
			}
			l.points = append(l.points, point{n, crowd.Cost{
				Time:  median(costs, func(c crowd.Cost) time.Duration { return c.Time }),
				Heap:  median(costs, func(c crowd.Cost) int64 { return c.Heap }),
				Bytes: median(costs, func(c crowd.Cost) int64 { return c.Bytes }),
			}})
		}
		lines = append(lines, l)
	}
	return lines, nil
}

func median[T int64 | time.Duration](costs []crowd.Cost, of func(crowd.Cost) T) T {
	var values []T
	for _, c := range costs {
		values = append(values, of(c))
	}
	slices.Sort(values)
	return values[len(values)/2]
}

var queues atomic.Int32

// queue measures n waiters of a pool behind a holder of another pool.
func queue(ctx context.Context, server string, n int, opts []lockpool.Option) (cost crowd.Cost, err error) {
	name := fmt.Sprintf("scale-%d-%d", os.Getpid(), queues.Add(1))
	var received atomic.Int64
	holders, err := open(server, nil)
	if err != nil {
		return cost, err
	}
	defer func() { err = errors.Join(err, holders.Close()) }()
	if _, err := holders.Lock(ctx, name); err != nil {
		return cost, err
	}
	pool, err := open(server, &received, opts...)
	if err != nil {
		return cost, err
	}
	waiting, giveUp := context.WithCancelCause(ctx)
	var all sync.WaitGroup
	all.Add(n)
	cost = crowd.Gather(n, func() {
		defer all.Done()
		if _, err := pool.Lock(waiting, name); context.Cause(waiting) == nil {
			giveUp(fmt.Errorf("a waiter has stopped waiting: %w", err))
		}
	}, func() bool { return pool.Stats().Waiting == n || waiting.Err() != nil }, received.Load)
	giveUp(errDone)
	all.Wait()
	if err := context.Cause(waiting); err != errDone {
		return cost, errors.Join(err, pool.Close())
	}
	return cost, pool.Close()
}

var errDone = errors.New("measured")

// open opens a pool, and counts what it receives if received is not nil.
func open(server string, received *atomic.Int64, opts ...lockpool.Option) (*lockpool.Pool, error) {
	connector, err := zookeeper.NewConnector(zookeeper.Config{
		Servers: []string{server}, Logger: slog.New(slog.DiscardHandler),
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
			if err != nil || received == nil {
				return conn, err
			}
			return countingConn{conn, received}, nil
		},
	})
	if err != nil {
		return nil, err
	}
	return lockpool.OpenConnector(connector, opts...)
}

type countingConn struct {
	net.Conn
	received *atomic.Int64
}

func (c countingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.received.Add(int64(n))
	return n, err
}

// costs are the costs that are shown.
var costs = []struct {
	name string
	of   func(crowd.Cost) float64
	// noise is a cost for each waiter that is too small to be told from chance.
	noise float64
}{
	{"time until all wait, s", func(c crowd.Cost) float64 { return c.Time.Seconds() }, 20e-6},
	{"heap with stacks, MB", func(c crowd.Cost) float64 { return float64(c.Heap) / 1e6 }, 500e-6},
	{"bytes from the server, MB", func(c crowd.Cost) float64 { return float64(c.Bytes) / 1e6 }, 50e-6},
}

// bent returns the costs that grow faster in the upper half of the numbers of waiters
// than in the lower half.
func bent(lines []line) (bent []string) {
	for _, l := range lines {
		for _, cost := range costs {
			slope := func(from, to point) float64 {
				return (cost.of(to.Cost) - cost.of(from.Cost)) / float64(to.waiters-from.waiters)
			}
			first, middle, last := l.points[0], l.points[len(l.points)/2], l.points[len(l.points)-1]
			lower, upper := slope(first, middle), slope(middle, last)
			if upper > 1.5*lower+cost.noise {
				bent = append(bent, fmt.Sprintf("%s, %s: %.2g for each waiter up to %d, and %.2g above", l.name, cost.name, lower, middle.waiters, upper))
			}
		}
	}
	return bent
}

func writeTable(out io.Writer, lines []line) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', tabwriter.AlignRight)
	for _, l := range lines {
		fmt.Fprintf(w, "%s\twaiters\t", l.name)
		for _, cost := range costs {
			fmt.Fprintf(w, "%s\t", cost.name)
		}
		fmt.Fprintf(w, "kB of heap each\t\n")
		for _, p := range l.points {
			fmt.Fprintf(w, "\t%d\t", p.waiters)
			for _, cost := range costs {
				fmt.Fprintf(w, "%.3f\t", cost.of(p.Cost))
			}
			fmt.Fprintf(w, "%.1f\t\n", float64(p.Heap)/1000/float64(p.waiters))
		}
	}
	return w.Flush()
}
