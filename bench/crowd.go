package main

// This file has the scenarios of many goroutines waiting in one process.

import (
	"bytes"
	"context"
	"encoding/gob"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// cost is the cost, for a process, of many waiting goroutines.
type cost struct {
	Time  time.Duration // until all wait
	Heap  int64         // bytes of the heap and of stacks
	Bytes int64         // from the server
}

// gather starts goroutines at once, each to call wait, and returns when all of them are
// queued. No other goroutines may wait at the server.
func gather(kind string, clients []client, n *network, count int, wait func()) cost {
	heap, bytes := inUse(), n.received.Load()
	start := time.Now()
	for range count {
		go callDeep(wait) // ends when the waiter has had the lock, or with the process
	}
	for !queued(kind, clients, count) {
		time.Sleep(5 * time.Millisecond)
	}
	took := time.Since(start)
	return cost{took, inUse() - heap, n.received.Load() - bytes}
}

// callDeep calls f with 1 kB of the stack in use, as programs have.
//
//go:noinline
func callDeep(f func()) {
	var frame [1000]byte
	f()
	runtime.KeepAlive(&frame)
}

// queued reports whether count goroutines wait: in the pools and, unless their turns are
// local, at the server.
func queued(kind string, clients []client, count int) bool {
	if kind != zkLock {
		inPools := 0
		for _, c := range clients {
			inPools += c.(poolClient).Stats().Waiting
		}
		if local := kind == ours && len(clients) == 1; local || inPools < count {
			return inPools == count
		}
	}
	return mntr("zk_watch_count") >= count
}

func inUse() int64 {
	runtime.GC()
	runtime.GC() // what finalizers and pools had kept
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// awaitNoWatches returns when the server has forgotten the clients of earlier turns.
func awaitNoWatches() {
	for mntr("zk_watch_count") > 0 {
		time.Sleep(10 * time.Millisecond)
	}
}

// waiters returns the scenario of count waiters of an otherwise idle process.
func waiters(count int) scenario {
	return scenario{fmt.Sprintf("waiters-%d", count), turns, []line{
		{fmt.Sprintf("%d waiters under 1 kB of frames: heap with stacks for each, kB", count), zkLock, false, "5, off: 14"},
		{"from the server until all wait, MB", zkLock, false, map[int]string{5000: "off: 10"}[count]},
		{"time until all wait, ms", zkLock, false, ""},
	}, func(kind string) []float64 {
		awaitNoWatches()
		holder := open(floor, &network{}, 1)
		defer holder.close()
		lock := newLock()
		check(holder.worker(lock).lock())
		cmd := exec.Command(must(os.Executable()), "-child", kind, "-zookeeper", *server, "-path", lock, "-wait", fmt.Sprint(count))
		cmd.Stderr = os.Stderr
		out := gob.NewDecoder(must(cmd.StdoutPipe()))
		check(cmd.Start())
		var cost cost
		check(out.Decode(&cost))
		check(cmd.Wait())
		return []float64{float64(cost.Heap) / 1000 / float64(count), float64(cost.Bytes) / 1e6, millis(cost.Time)}
	}}
}

// crowded is the main function of the processes whose waiters are measured.
func crowded(count int) {
	n := &network{}
	c := open(*child, n, 4)
	workers := make(chan worker, count)
	for range count {
		workers <- c.worker(*path)
	}
	var closing atomic.Bool
	cost := gather(*child, []client{c}, n, count, func() {
		if err := (<-workers).lock(); !closing.Load() {
			log.Fatalf("a waiter has stopped waiting: %v", err)
		}
	})
	closing.Store(true)
	c.close()
	check(gob.NewEncoder(os.Stdout).Encode(cost))
}

// burn is the child keeping a processor busy.
const burn = "burn"

func burnUntilTold() {
	var told atomic.Bool
	go func() { // ends with the input
		must(io.ReadAll(os.Stdin))
		told.Store(true)
	}()
	for !told.Load() {
	}
}

// besideOtherWork calls f while a process for each processor is busy.
func besideOtherWork(f func()) {
	for range 2 {
		cmd := exec.Command(must(os.Executable()), "-child", burn)
		stop := must(cmd.StdinPipe())
		check(cmd.Start())
		defer func() {
			check(stop.Close())
			check(cmd.Wait())
		}()
	}
	f()
}

// tenThousandHandles has a pool with default options use all handles.
func tenThousandHandles(kind string) (figures []float64) {
	const count = 10_000 - 2 // besides the holder, and an unrelated lock
	awaitNoWatches()
	ctx := context.Background()
	n := &network{}
	c := openPool(kind, n, 0)
	defer c.close()
	lock := newLock()
	holder := must(c.Lock(ctx, lock[1:]))
	unrelated := must(c.Lock(ctx, newLock()[1:]))
	var lost atomic.Int64
	var done sync.WaitGroup
	done.Add(count)
	besideOtherWork(func() {
		cost := gather(kind, []client{c}, n, count, func() {
			defer done.Done()
			l, err := c.Lock(ctx, lock[1:])
			check(err)
			if err := l.Unlock(ctx); err != nil {
				lost.Add(1)
			}
		})
		start := time.Now()
		if err := holder.Unlock(ctx); err != nil {
			lost.Add(1)
		}
		done.Wait()
		figures = []float64{cost.Time.Seconds(), time.Since(start).Seconds()}
	})
	if err := unrelated.Unlock(ctx); err != nil {
		lost.Add(1)
	}
	return append([]float64{float64(lost.Load())}, figures...)
}

// holdMany holds locks for longer than it takes until their nodes are watched.
func holdMany(kind string) []float64 {
	const count = 10_000
	c := open(kind, &network{}, 1)
	defer c.close()
	lock := newLock()
	w := c.worker(lock)
	check(w.lock()) // connects
	check(w.unlock())
	heap, goroutines := inUse(), runtime.NumGoroutine()
	workers := make([]worker, count)
	for i := range workers {
		workers[i] = c.worker(fmt.Sprintf("%s-%d", lock, i))
	}
	all := func(do func(w worker) error) {
		var done sync.WaitGroup
		for i := range 64 {
			done.Go(func() {
				for ; i < count; i += 64 {
					check(do(workers[i]))
				}
			})
		}
		done.Wait()
	}
	all(worker.lock)
	time.Sleep(time.Second)
	figures := []float64{float64(inUse()-heap) / 1000 / count, float64(runtime.NumGoroutine()-goroutines) / count}
	all(worker.unlock)
	return figures
}

// stayIdle opens sessions, and measures what they cost while unused.
func stayIdle(kind string) []float64 {
	const count, settle = 100, 45 * time.Second
	for range count {
		c := open(kind, &network{}, 1)
		defer c.close()
		w := c.worker(newLock())
		check(w.lock())
		check(w.unlock())
	}
	time.Sleep(settle)
	runtime.GC()
	before, began := processorTime(), time.Now()
	time.Sleep(sessionTimeout)
	return []float64{float64((processorTime() - before).Microseconds()) / time.Since(began).Seconds() / count}
}

// processorTime returns the processor time used by this process, to a hundredth of a second.
func processorTime() time.Duration {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		log.Fatal("this row needs Linux: ", err)
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')'):]))
	var ticks time.Duration
	for _, field := range fields[12:14] { // in user code and in the system
		n, err := strconv.Atoi(field)
		check(err)
		ticks += time.Duration(n)
	}
	return ticks * 10 * time.Millisecond
}

// keepMany has a pool keep locks.
func keepMany(kind string) []float64 {
	const count = 100_000
	c := openPool(kind, &network{}, sessionTimeout)
	defer c.close()
	lock := newLock()
	useUntilKept(c.worker(lock)) // connects
	heap, goroutines := inUse(), runtime.NumGoroutine()
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			for ; i < count; i += 64 {
				useUntilKept(c.worker(fmt.Sprintf("%s-%d", lock, i)))
			}
		})
	}
	all.Wait()
	if kept := c.Stats().Kept; kept != count+1 {
		log.Fatalf("the pool keeps %d locks of %d", kept, count+1)
	}
	return []float64{float64(inUse()-heap) / 1000 / count, float64(runtime.NumGoroutine()-goroutines) / count}
}
