package recipe

import (
	"slices"

	"github.com/lockpool/lockpool/driver"
)

// A Rule decides which contenders block the one at index self of the queue. If it
// returns none, the lock is granted.
//
// The contender lists the queue again when any of the obstacles is gone. sufficient
// reports that this grants the lock without another listing. A rule is a pure function.
type Rule func(queue []driver.Node, self int) (obstacles []driver.Node, sufficient bool)

// Exclusive is the rule of the exclusive lock: all earlier contenders block, whatever
// their kind, and the nearest is the one to wait for.
func Exclusive(queue []driver.Node, self int) (obstacles []driver.Node, sufficient bool) {
	return queue[max(self-1, 0):self], self == 1
}

// Shared is the rule of a lock that readers share: earlier contenders block unless they
// are readers, and the nearest of them is the one to wait for. (A Read with the number
// of a Write is the same holder, downgraded by Curator.)
func Shared(queue []driver.Node, self int) (obstacles []driver.Node, sufficient bool) {
	others := 0
	for i, n := range queue[:self] {
		if n.Kind != driver.Read && n.Seq < queue[self].Seq {
			obstacles, others = queue[i:i+1], others+1
		}
	}
	return obstacles, others == 1
}

// Within is the rule of a semaphore: the permits of the contender and of all earlier
// ones must not exceed the limit, nor the limit that any of them states. Any of the
// earlier ones may make room by leaving. The contender must not request more permits
// than the limit.
func Within(limit int) Rule {
	return func(queue []driver.Node, self int) (obstacles []driver.Node, sufficient bool) {
		used, limit := queue[self].Permits, limit
		for _, n := range queue[:self] {
			used += n.Permits
			if n.Limit > 0 {
				limit = min(limit, n.Limit)
			}
		}
		excess := used - limit
		if excess <= 0 {
			return nil, false
		}
		return queue[:self], !slices.ContainsFunc(queue[:self], func(n driver.Node) bool { return n.Permits < excess })
	}
}

// RuleOf returns the rule for nodes of the kind.
func RuleOf(k driver.Kind) Rule {
	if k == driver.Read {
		return Shared
	}
	return Exclusive
}
