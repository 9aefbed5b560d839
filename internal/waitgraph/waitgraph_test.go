package waitgraph

// This file tests the graph on small queues, and its cost on large ones.

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/nodedata"
)

// queue parses contenders, such as "m1" or "r2 A x:m1 y/leases:s2". A contender begins with
// a letter for the kind and a number, for the place in the order of requests. The next
// word, if any, names the asking call, and further words name the held nodes, as
// queue:node. The letters are m, w, r, g and p for the kinds, and s or S for one or two
// permits.
func queue(name string, limit int, contenders ...string) Queue {
	q := Queue{Lock: lockOf(name), Name: name, Limit: limit}
	for _, s := range contenders {
		f := strings.Fields(s)
		var c Contender
		c.Name, c.Record.PID = f[0], 1
		_, _ = fmt.Sscan(f[0][1:], &c.Seq)
		c.Created = int64(c.Seq)
		c.Node.Kind = map[byte]driver.Kind{'w': driver.Convertible, 'r': driver.Shared, 'p': driver.Plain, 's': driver.Permit, 'S': driver.Permit}[f[0][0]]
		c.Permits = map[byte]int{'s': 1, 'S': 2}[f[0][0]]
		for _, word := range f[1:] {
			if queue, node, ok := strings.Cut(word, ":"); ok {
				c.Record.Holds = append(c.Record.Holds, hold(queue, node))
			} else if was, ok := strings.CutPrefix(word, "was="); ok {
				c.Record.Was = was
			} else if word == "unchecked" {
				c.Record.Unchecked = true
			} else if word == "foreign" {
				c.Record = nodedata.Record{}
			} else {
				c.Record.Ask = word
			}
		}
		q.Contenders = append(q.Contenders, c)
	}
	return q
}

func lockOf(queue string) string {
	return strings.TrimSuffix(strings.TrimSuffix(queue, "/leases"), "/locks")
}

func hold(queue, node string) nodedata.Hold {
	lock, permits := strings.CutSuffix(queue, "/leases")
	return nodedata.Hold{Lock: lock, Node: node, Permits: permits}
}

// graphOf returns the graph of queues. In the queues of plain locks, the holder is first.
func graphOf(queues []Queue) *Graph {
	var split []Queue
	for _, q := range queues {
		if len(q.Contenders) > 0 && q.Contenders[0].Node.Kind == driver.Plain {
			split = append(split, Queue{Lock: q.Name, Name: q.Name, Contenders: q.Contenders[:1]})
			q = Queue{Lock: q.Name, Name: ".waits/" + q.Name, Contenders: q.Contenders[1:]}
		}
		split = append(split, q)
	}
	return New(split)
}

func TestFind(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		queues []Queue
		want   []string // cycles of the victims: the waiting nodes and, in brackets, the held ones; then the proof
	}{
		"two locks": {
			[]Queue{queue("x", 0, "m1", "m4 B y:m2"), queue("y", 0, "m2", "m3 A x:m1")},
			[]string{"m4[m2] m3[m1]: m1 m2 m3 m4"},
		},
		"asked at the same time": {
			[]Queue{queue("x", 0, "m1", "m3 B y:m2"), queue("y", 0, "m2", "m3 A x:m1")},
			[]string{"m3[m2] m3[m1]: m1 m2 m3 m3"},
		},
		"a path is no cycle": {
			[]Queue{queue("x", 0, "m1", "m4 B z:m9"), queue("y", 0, "m2", "m3 A x:m1"), queue("z", 0, "m9")}, nil,
		},
		"a holder's old wait does not count": {
			[]Queue{queue("x", 0, "m1 B y:m2"), queue("y", 0, "m2", "m3 A x:m1")}, nil,
		},
		"dissolved: what it held is gone": {
			[]Queue{queue("x", 0, "m1", "m4 B y:m2"), queue("y", 0, "m5", "m6 A x:m1")}, nil,
		},
		"waiting nodes are not held": {
			[]Queue{queue("x", 0, "m1", "m4 B y:m3 x:m4"), queue("y", 0, "m2", "m3 A x:m4 y:m3 x:none")}, nil,
		},
		"readers behind a waiting writer": {
			[]Queue{queue("x", 0, "r1", "w3", "r5 B y:m2"), queue("y", 0, "m2", "m4 A x:r1")},
			[]string{"r5[m2] w3 m4[r1]: m2 m4 r1 r5 w3"},
		},
		"readers do not wait for readers": {
			[]Queue{queue("x", 0, "r1", "r5 B y:m2"), queue("y", 0, "m2", "m4 A x:r1")}, nil,
		},
		"behind another client's waiter": {
			[]Queue{queue("x", 0, "r1", "w3 foreign", "r5 B y:m2"), queue("y", 0, "m2", "m4 A x:r1")}, nil,
		},
		"another client holds": {
			[]Queue{queue("x", 0, "m1 foreign", "m4 B y:m2"), queue("y", 0, "m2", "m3 A")}, nil,
		},
		"a request to release the lock hides whose node it is": {
			[]Queue{queue("x", 0, "m1 foreign", "m4 B y:m2"), queue("y", 0, "m2", "m3 A x:m1")},
			[]string{"m4[m2] m3[m1]: m1 m2 m3 m4"},
		},
		"plain": {
			[]Queue{queue("x", 0, "p1", "p8 D q:m9", "p4 B y:p2"), queue("y", 0, "p2", "p3 A x:p1")},
			[]string{"p4[p2] p3[p1]: p1 p2 p3 p4"},
		},
		"unchecked ones are no victims": {
			[]Queue{queue("x", 0, "m1", "m4 B y:m2 unchecked"), queue("y", 0, "m2", "m3 A x:m1")},
			[]string{"m3[m1] m4[m2]: m1 m2 m3 m4"},
		},
		"nobody can be told": {
			[]Queue{queue("x", 0, "m1", "m4 B y:m2 unchecked"), queue("y", 0, "m2", "m3 A x:m1 unchecked")}, nil,
		},
		"a semaphore with a holder that can go on": {
			[]Queue{queue("s/leases", 2, "s1", "s2", "s6 B y:m3"), queue("s/locks", 0, "g5 B y:m3"), queue("y", 0, "m3", "m4 A s/leases:s1")}, nil,
		},
		"all holders of a semaphore": {
			[]Queue{queue("s/leases", 2, "s1", "s2", "s8 B y:m3"), queue("s/locks", 0, "g7 B y:m3"), queue("y", 0, "m3", "m4 A s/leases:s1", "m5 C s/leases:s2")},
			[]string{"s8[m3] m4[s1]: g7 m3 m4 m5 s1 s2 s8"},
		},
		"more permits than remain": {
			[]Queue{queue("s/leases", 3, "s1", "S2", "S8 B y:m3"), queue("s/locks", 0, "g7 B y:m3"), queue("y", 0, "m3", "m4 A s/leases:S2")},
			[]string{"S8[m3] m4[S2]: S2 S8 g7 m3 m4"},
		},
		"granted before the limit was lowered": {
			[]Queue{queue("s/leases", 1, "s1", "s6 B y:m3"), queue("s/locks", 0), queue("y", 0, "m3", "m9 A s/leases:s1")}, nil,
		},
		"more permits than the limit": { // waits for the limit
			[]Queue{queue("s/leases", 1, "s1", "S8 B y:m3"), queue("s/locks", 0, "g7 B y:m3"), queue("y", 0, "m3", "m4 A s/leases:s1")}, nil,
		},
		"its own permits": {
			[]Queue{queue("s/leases", 2, "s1", "S3 A s/leases:s1"), queue("s/locks", 0, "g2 A s/leases:s1")},
			[]string{"S3[s1]: S3 g2 s1"},
		},
		"behind the guard of a wait": {
			[]Queue{queue("s/leases", 1, "s1", "s4 W"), queue("s/locks", 0, "g3 W", "g6 B y:m2"), queue("y", 0, "m2", "m5 A s/leases:s1")},
			[]string{"g6[m2] s4 m5[s1]: g3 g6 m2 m5 s1 s4"},
		},
		"the guard says when it asked, which let it join late": {
			[]Queue{queue("s/leases", 1, "s1", "s9 B y:m2"), queue("s/locks", 0, "g3 B y:m2"), queue("y", 0, "m2", "m5 A s/leases:s1")},
			[]string{"m5[s1] s9[m2]: g3 m2 m5 s1 s9"},
		},
		"a holder has another node since it was named": {
			[]Queue{queue("x", 0, "r1 was=m1", "m4 B y:m2"), queue("y", 0, "m2", "m3 A x:m1")},
			[]string{"m4[m2] m3[r1]: m2 m3 m4 r1"},
		},
		"who only stands before others hides no cycle": {
			[]Queue{queue("x", 0, "m1", "m9 C q:m8", "m10 D y:m2"), queue("y", 0, "m2", "m3 A x:m1"), queue("q", 0, "m8")},
			[]string{"m10[m2] m3[m1]: m1 m10 m2 m3"},
		},
		"overlapping cycles": { // A waits for x, held by two readers who wait for what A holds
			[]Queue{queue("x", 0, "r1", "r2", "w9 A y:m3 z:m4"), queue("y", 0, "m3", "m5 B x:r1"), queue("z", 0, "m4", "m6 C x:r2")},
			[]string{"w9[m3] m5[r1]: m3 m5 r1 w9"},
		},
		"overlapping cycles, one of which remains": {
			[]Queue{queue("x", 0, "r1", "r2", "w5 A y:m3 z:m4"), queue("y", 0, "m3", "m6 B x:r1"), queue("z", 0, "m4", "m7 C x:r2")},
			[]string{"m6[r1] w5[m3]: m3 m6 r1 w5", "m7[r2] w5[m4]: m4 m7 r2 w5"},
		},
		"permits that another deadlock may free": {
			[]Queue{
				queue("s/leases", 2, "s1", "s2", "s8 B y:m3"), queue("s/locks", 0, "g7 B y:m3"), queue("y", 0, "m3", "m4 A s/leases:s1"),
				queue("u", 0, "m11", "m13 D v:m12"), queue("v", 0, "m12", "m14 E u:m11 s/leases:s2"),
			},
			[]string{"m14[m11] m13[m12]: m11 m12 m13 m14"},
		},
		"who only stands before others is no victim": {
			[]Queue{queue("x", 0, "r1", "w7 C q:m9 x:r8", "r8 B y:m2 unchecked"), queue("y", 0, "m2", "m4 A x:r1"), queue("q", 0, "m9")},
			[]string{"m4[r1] r8[m2] w7: m2 m4 r1 r8 w7"},
		},
		"the same ask in unrelated queues": {
			[]Queue{queue("x", 0, "m1", "m4 A y:m2", "m5 A x:m5"), queue("y", 0, "m2", "m3 A x:m1", "m6 A x:m5"), queue("s/leases", 1, "s1", "s2 A"), queue("s/locks", 0, "g9 A s/locks:g9")},
			[]string{"m4[m2] m3[m1]: m1 m2 m3 m4"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asks := map[string]bool{}
			for _, q := range c.queues {
				for _, c := range q.Contenders {
					asks[c.Record.Ask] = true
				}
			}
			var got []string
			for ask := range asks {
				cycle, proof := graphOf(c.queues).Find(ask)
				if cycle == nil {
					require.Empty(t, proof)
					continue
				}
				var steps, nodes []string
				for _, s := range cycle {
					step := s.Name
					if s.Held != nil {
						step += "[" + s.Held.Name + "]"
					}
					steps = append(steps, step)
				}
				for _, c := range proof {
					nodes = append(nodes, c.Name)
				}
				slices.Sort(nodes)
				got = append(got, strings.Join(steps, " ")+": "+strings.Join(nodes, " "))
			}
			assert.ElementsMatch(t, c.want, got)
		})
	}
}

func TestDeadlocksAreToldApart(t *testing.T) {
	t.Parallel()
	var told []string
	for _, deadlock := range graphOf([]Queue{
		queue("u", 0, "m11", "m13 D v:m12", "m20 H x:r6"), queue("v", 0, "m12", "m14 E u:m11"),
		queue("x", 0, "r1", "w3", "r5 B y:m2", "w9"), queue("y", 0, "m2", "m4 A x:r1"),
		queue("a", 0, "p21", "p23 I c:m26", "p24 J b:p22"), queue("b", 0, "p22", "p25 K a:p21"), queue("c", 0, "m26"),
	}).Deadlocks() {
		var names []string
		for _, c := range deadlock {
			names = append(names, c.Lock+":"+c.Name)
		}
		told = append(told, strings.Join(names, " "))
	}
	require.Equal(t, []string{"u:m13 v:m14", "x:w3 x:r5 y:m4", "a:p24 b:p25"}, told)
}

// manyWaits returns 10,000 waits: all in cycles of two, behind a waiting one, one behind
// the other, or for permits.
func manyWaits() map[string][]Queue {
	const n = 10_000
	name := func(i int) string { return fmt.Sprint("l", i) }
	holder := func(kind driver.Kind) Contender {
		return Contender{Contender: driver.Contender{Node: driver.Node{Name: "held", Kind: kind, Permits: 1}}}
	}
	waits := func(seq int, kind driver.Kind, i int, holds ...string) Contender {
		c := Contender{Record: nodedata.Record{Origin: nodedata.Origin{PID: 1}, Ask: fmt.Sprint("ask", i)}}
		c.Node, c.Created = driver.Node{Name: fmt.Sprint("w", i), Kind: kind, Seq: int64(seq), Permits: 1}, int64(i+1)
		for _, queue := range holds {
			c.Record.Holds = append(c.Record.Holds, hold(queue, "held"))
		}
		return c
	}
	of := func(name string, limit int, contenders ...Contender) Queue {
		return Queue{lockOf(name), name, limit, contenders}
	}
	var pairs, chain, permits []Queue
	crowd := of("hot", 0, holder(driver.Exclusive))
	behind := []Queue{}
	for i := range n {
		pairs = append(pairs, of(name(i), 0, holder(driver.Exclusive), waits(1, driver.Exclusive, i, name(i^1))))
		chain = append(chain, of(name(i), 0, holder(driver.Exclusive), waits(1, driver.Exclusive, i, name((i+1)%(n+1)))))
		leases := func(i int) string { return name(i) + "/leases" }
		permits = append(permits, of(leases(i), 1, holder(driver.Permit), waits(1, driver.Permit, i, leases(i^1))),
			of(name(i)+"/locks", 0, waits(0, driver.Guard, i)))
		crowd.Contenders = append(crowd.Contenders, waits(i+1, []driver.Kind{driver.Exclusive, driver.Shared}[i%2], i, name(i)))
		behind = append(behind, of(name(i), 0, holder(driver.Exclusive)))
	}
	chain = append(chain, of(name(n), 0, holder(driver.Exclusive)))
	knot := slices.Clone(behind)
	for i := range knot { // all wait for each other: the holder of hot waits for the last waiter behind
		if i == n-1 {
			knot[i].Contenders = append(slices.Clone(knot[i].Contenders), waits(1, driver.Exclusive, n, "hot"))
		}
	}
	return map[string][]Queue{"pairs": pairs, "chain": chain, "permits": permits, "crowd": append(behind, crowd), "knot": append(knot, crowd)}
}

// The time grows with the number of waits, not with the square: 10,000 waits would take
// minutes.
func TestManyWaitsTakeLittleTime(t *testing.T) {
	deadlocks := map[string]int{"pairs": 5000, "permits": 5000, "knot": 1}
	for name, queues := range manyWaits() {
		began := time.Now()
		g := New(queues)
		assert.Len(t, g.Deadlocks(), deadlocks[name], name)
		took := time.Since(began)
		g.Find("ask0")
		g.Find("ask9999")
		g.Last("ask0")
		t.Logf("%s: %v, and with two looks %v", name, took, time.Since(began))
		assert.Less(t, time.Since(began), 30*time.Second, name)
	}
}

func BenchmarkManyWaits(b *testing.B) {
	for name, queues := range manyWaits() {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				New(queues).Find("ask9999")
			}
		})
	}
}
