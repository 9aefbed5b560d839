package zookeeper

// This file walks a session and a queue at random, and compares what fastpaths concludes from
// numbers with the truth.

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
)

// fastpathWalk is one session and one queue, which others join and leave as well, and which
// the server removes when it is empty. The session's requests are carried out late, and what
// comes of them is heard late, in order; its callers go on late, in any order. What the
// session concludes from the numbers is decided by fastpaths, and compared with the truth.
type fastpathWalk struct {
	random *rand.Rand
	most   int // of the session's nodes and requests
	paths  fastpaths
	told   []string
	err    error

	// The server.
	exists    bool
	queues    int           // that there have been
	next      int64         // number
	children  []walkNode    // contenders, and directories of a semaphore
	watchedBy *watch        // that is set on the queue
	requests  []func()      // on their way
	stream    []func()      // answers and events on their way back
	callers   []func()      // that may go on
	own       []driver.Node // the session's nodes that it has not removed

	watch *watch // as the session knows it: armed, and not fired
}

type walkNode struct {
	node driver.Node
	own  bool
}

const walkDir = "/q"

func (w *fastpathWalk) tell(format string, args ...any) {
	w.told = append(w.told, fmt.Sprintf(format, args...))
}

// create adds a child, and the queue if necessary, and reports whether it was missing.
func (w *fastpathWalk) create(own bool, kind driver.Kind) (n walkNode, wasMissing bool) {
	if wasMissing = !w.exists; wasMissing {
		w.exists, w.next = true, 0
		w.queues++
	}
	n = walkNode{driver.Node{Name: fmt.Sprintf("%d-%d", w.queues, w.next), Kind: kind, Seq: w.next}, own}
	w.next++
	w.children = append(w.children, n)
	return n, wasMissing
}

func (w *fastpathWalk) remove(n driver.Node) {
	w.children = slices.DeleteFunc(w.children, func(c walkNode) bool { return c.node == n })
}

// event ends a watch on the queue.
func (w *fastpathWalk) event(e driver.Event) {
	if at := w.watchedBy; at != nil {
		w.watchedBy = nil
		w.stream = append(w.stream, func() { w.fire(at, e) })
	}
}

func (w *fastpathWalk) fire(at *watch, e driver.Event) {
	if w.watch == at {
		w.watch = nil
	}
	at.Fire(e)
}

func (w *fastpathWalk) request(serve func()) { w.requests = append(w.requests, serve) }

// join is beginJoin and endJoin.
func (w *fastpathWalk) join() {
	watched := w.watch
	lists := !w.paths.expects(walkDir, watched)
	w.tell("joins, lists %v", lists)
	var self walkNode
	var before []walkNode // contenders, and directories of a semaphore, when it was created
	w.request(func() {
		before = slices.Clone(w.children)
		var wasMissing bool
		if self, wasMissing = w.create(true, driver.Exclusive); wasMissing {
			watched = nil // the create failed, and another one creates the queue as well
			before = nil
		}
		w.stream = append(w.stream, func() {
			w.own = append(w.own, self.node)
			alone := w.paths.created(walkDir, self.node, watched)
			w.tell("%v was created: alone %v", self.node.Name, alone)
			if (alone || isFirst(self.node)) && len(before) > 0 && w.err == nil {
				w.err = fmt.Errorf("%s is not alone", self.node.Name)
			}
			if !lists && !alone && !isFirst(self.node) {
				w.list(self.node)
			}
			if alone || isFirst(self.node) {
				w.callers = append(w.callers, func() { w.paths.listed(walkDir, self.node, true, false) })
			}
		})
	})
	if lists {
		w.request(func() { w.serveList(func() driver.Node { return self.node }) })
	}
}

func (w *fastpathWalk) list(self driver.Node) {
	w.request(func() { w.serveList(func() driver.Node { return self }) })
}

func (w *fastpathWalk) serveList(self func() driver.Node) {
	children := slices.Clone(w.children)
	w.stream = append(w.stream, func() {
		w.callers = append(w.callers, func() {
			place := slices.IndexFunc(children, func(c walkNode) bool { return c.node == self() })
			if place < 0 {
				return // as if somebody had removed it
			}
			isDirectory := func(c walkNode) bool { return c.node.Kind == driver.Guard }
			contenders := slices.DeleteFunc(slices.Clone(children[:place]), isDirectory)
			shared := slices.ContainsFunc(children, isDirectory)
			w.tell("a listing shows %v behind %d, shared %v", self().Name, len(contenders), shared)
			w.paths.listed(walkDir, self(), len(contenders) == 0, shared)
		})
	})
}

// step does one thing that may happen next.
func (w *fastpathWalk) step() {
	var all []func()
	add := func(may bool, do func()) {
		if may {
			all = append(all, do)
		}
	}
	add(len(w.requests) > 0, func() { w.requests[0](); w.requests = w.requests[1:] })
	add(len(w.stream) > 0, func() { w.stream[0](); w.stream = w.stream[1:] })
	add(len(w.callers) > 0, func() {
		i := w.random.IntN(len(w.callers))
		next := w.callers[i]
		w.callers = slices.Delete(w.callers, i, i+1)
		next()
	})
	add(len(w.own)+len(w.requests) < w.most, w.join)
	add(len(w.own) > 0, func() {
		i := w.random.IntN(len(w.own))
		n := w.own[i]
		w.own = slices.Delete(w.own, i, i+1)
		w.request(func() {
			w.remove(n)
			w.stream = append(w.stream, func() {
				w.callers = append(w.callers, func() { w.tell("%v has left", n.Name); w.paths.left(walkDir, n) })
			})
		})
	})
	add(w.watch == nil, func() {
		set := new(watch)
		w.request(func() {
			if !w.exists || w.watchedBy != nil {
				return
			}
			w.watchedBy = set
			w.stream = append(w.stream, func() {
				if set.Fired() == 0 {
					w.tell("the queue is watched")
					w.watch = set
				}
			})
		})
	})
	rarely := w.random.IntN(20) == 0
	refills := w.queues > 0 && w.next < 4 // so that numbers of an earlier queue come again
	add(rarely || refills, func() { w.create(false, driver.Exclusive); w.tell("another joins") })
	add(rarely, func() { w.create(false, driver.Guard); w.tell("a semaphore's directory is created") })
	add(rarely && w.exists, func() { w.event(driver.Changed) })
	if i := slices.IndexFunc(w.children, func(c walkNode) bool { return !c.own }); i >= 0 {
		add(true, func() {
			w.tell("%v of another leaves", w.children[i].node.Name)
			w.children = slices.Delete(w.children, i, i+1)
		})
	}
	add(w.exists && len(w.children) == 0 && w.random.IntN(4) == 0, func() {
		w.tell("the server removes the queue")
		w.exists = false
		w.event(driver.Deleted)
	})
	add(rarely && len(w.stream) > 0, func() {
		w.tell("the connection breaks")
		w.stream = nil // a node whose reply is lost is found, and tells fastpaths nothing
		w.requests = nil
		w.watchedBy = nil
		if w.watch != nil {
			w.fire(w.watch, driver.Interrupted)
		}
		for _, c := range w.children {
			if c.own && !slices.Contains(w.own, c.node) {
				w.own = append(w.own, c.node)
			}
		}
	})
	all[w.random.IntN(len(all))]()
}

// What the number of a node is said to show is true, whatever others do, and also if the
// queue is removed and created again.
func TestNumbersShowNoMoreThanIsTrue(t *testing.T) {
	t.Parallel()
	shown := 0
	for seed := range uint64(3_000) {
		w := &fastpathWalk{random: rand.New(rand.NewPCG(seed, 0)), most: 1 + int(seed%3), paths: fastpaths{byDir: map[string]fastpath{}}}
		for range 200 {
			w.step()
		}
		require.NoError(t, w.err, "seed %d, after\n%s", seed, strings.Join(w.told, "\n"))
		for _, told := range w.told {
			if strings.Contains(told, "alone true") {
				shown++
			}
		}
	}
	t.Log(shown)
	require.Positive(t, shown)
}
