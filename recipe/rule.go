package recipe

import (
	"slices"

	"github.com/lockpool/lockpool/driver"
)

// A Rule decides, from the queue in order and one's own place in it, who is in
// the way; nobody means that the lock is granted.
//
// It returns those of whom the first to go is a reason to look again. enough
// reports that the going of any of them grants the lock. A rule is a pure
// function.
type Rule func(queue []driver.Node, self int) (obstacles []driver.Node, enough bool)

// Exclusive is the rule of the exclusive lock: everyone who came earlier is in
// the way, whatever they ask for, and the nearest is the one to wait for.
func Exclusive(queue []driver.Node, self int) (obstacles []driver.Node, enough bool) {
	return queue[max(self-1, 0):self], self == 1
}

// Shared is the rule of the lock that is shared by those who read: only who
// asked earlier to be alone is in the way, and the nearest of them is the one to
// wait for. (A Read with the number of a Write is Curator's, of one holder.)
func Shared(queue []driver.Node, self int) (obstacles []driver.Node, enough bool) {
	others := 0
	for i, n := range queue[:self] {
		if n.Kind != driver.Read && n.Seq < queue[self].Seq {
			obstacles, others = queue[i:i+1], others+1
		}
	}
	return obstacles, others == 1
}

// Within is the rule of a semaphore: the permits of everyone who came earlier
// and one's own must not be more than the limit, nor than what any of them states
// to be the limit. Whoever goes may make room. Nobody may ask for more than the
// limit.
func Within(limit int) Rule {
	return func(queue []driver.Node, self int) (obstacles []driver.Node, enough bool) {
		used, limit := queue[self].Permits, limit
		for _, n := range queue[:self] {
			used += n.Permits
			if n.Limit > 0 {
				limit = min(limit, n.Limit)
			}
		}
		over := used - limit
		if over <= 0 {
			return nil, false
		}
		return queue[:self], !slices.ContainsFunc(queue[:self], func(n driver.Node) bool { return n.Permits < over })
	}
}

// RuleOf returns the rule by which a node of the kind is granted a lock.
func RuleOf(k driver.Kind) Rule {
	if k == driver.Read {
		return Shared
	}
	return Exclusive
}
