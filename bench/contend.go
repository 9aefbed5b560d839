package main

// This file has processes contend for one lock.

import (
	"cmp"
	"encoding/gob"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"
)

// hold is one hold of a lock, in nanoseconds of the machine's wall clock.
type hold struct {
	Process           int
	Granted, Unlocked int64
}

// contest is what processes contend for.
type contest struct {
	clients    []string // one for each process
	goroutines int      // of each process; zk.Lock has one beside the others, and so has a loner
	loner      bool     // the last process
	work       time.Duration
	delay      time.Duration // of the network, in each direction
	owned      int           // locks that each process owns; 0 if all contend for one lock
}

// contend returns the holds, in their order. Processes start at the same moment, and so
// do all goroutines of each.
func contend(c contest) []hold {
	var starts []io.Closer
	var outs []*gob.Decoder
	var cmds []*exec.Cmd
	lock := newLock()
	for i, client := range c.clients {
		goroutines := c.goroutines
		if client != c.clients[0] || c.loner && i == len(c.clients)-1 {
			goroutines = 1
		}
		cmd := exec.Command(must(os.Executable()), "-child", client, "-zookeeper", *server, "-path", lock,
			"-d", duration.String(), "-work", c.work.String(), "-delay", c.delay.String(), "-goroutines", fmt.Sprint(goroutines),
			"-owned", fmt.Sprint(c.owned), "-process", fmt.Sprint(i))
		cmd.Stderr = os.Stderr
		starts = append(starts, must(cmd.StdinPipe()))
		outs = append(outs, gob.NewDecoder(must(cmd.StdoutPipe())))
		check(cmd.Start())
		cmds = append(cmds, cmd)
	}
	for _, out := range outs { // until all are connected
		var ready string
		check(out.Decode(&ready))
	}
	for _, start := range starts {
		check(start.Close())
	}
	var all []hold
	for i, out := range outs {
		var holds []hold
		check(out.Decode(&holds))
		check(cmds[i].Wait())
		for j := range holds {
			holds[j].Process = i
		}
		all = append(all, holds...)
	}
	slices.SortFunc(all, func(a, b hold) int { return cmp.Compare(a.Granted, b.Granted) })
	return all
}

// contender is the main function of the processes started by the function contend.
func contender() {
	c := open(*child, &network{delay: *delay}, 1)
	defer c.close()
	first := c.worker(*path)
	check(first.lock()) // connects, and creates the lock's parent
	check(first.unlock())
	for i := range *owned {
		useUntilKept(c.worker(ownedLock(*process, i)))
	}
	out := gob.NewEncoder(os.Stdout)
	check(out.Encode("ready"))
	must(io.ReadAll(os.Stdin))
	check(out.Encode(fight(c, *path, *goroutines, *work)))
}

const owners = 4 // processes

func ownedLock(process, i int) string { return fmt.Sprintf("%s-%d-%d", *path, process, i) }

// ownerWorker uses locks of all processes, 95 % of them its own.
type ownerWorker struct {
	client client
	used   worker
}

func (w *ownerWorker) lock() error {
	of := *process
	if rand.IntN(20) == 0 {
		of = (of + 1 + rand.IntN(owners-1)) % owners
	}
	w.used = w.client.worker(ownedLock(of, rand.IntN(*owned)))
	return w.used.lock()
}

func (w *ownerWorker) unlock() error { return w.used.unlock() }

// useUntilKept uses a lock until a pool that keeps locks keeps the lock.
func useUntilKept(w worker) {
	for range 3 {
		check(w.lock())
		check(w.unlock())
	}
}

// fight lets goroutines, all started at once, take one lock, or the locks of owners, again
// and again. It returns the holds of all of them.
func fight(c client, path string, goroutines int, work time.Duration) []hold {
	holds := make([][]hold, goroutines)
	var all sync.WaitGroup
	end := time.Now().Add(*duration)
	for i := range goroutines {
		w := c.worker(path)
		if *owned > 0 {
			w = &ownerWorker{client: c}
		}
		all.Go(func() {
			for again := true; again; again = time.Now().Before(end) {
				check(w.lock())
				h := hold{Granted: time.Now().UnixNano()}
				if work > 0 {
					time.Sleep(work)
				}
				h.Unlocked = time.Now().UnixNano()
				check(w.unlock())
				// The holds in emptying the queue are hand-overs, but no turns of the
				// duration.
				if work > 0 || h.Granted < end.UnixNano() {
					holds[i] = append(holds[i], h)
				}
			}
		})
	}
	all.Wait()
	return slices.Concat(holds...)
}

// handOvers returns the times from the call of Unlock to the grant to another process
// or, with one process, to another goroutine.
func handOvers(all []hold) (times []time.Duration) {
	for i, next := range all[1:] {
		if all[i].Process != next.Process {
			times = append(times, time.Duration(next.Granted-all[i].Unlocked))
		}
	}
	return times
}
