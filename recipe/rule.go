package recipe

// This file has the rules: which contenders block which.

import "github.com/lockpool/lockpool/driver"

// A Rule decides which contenders block the one at index self of the queue, and returns
// them in order. If none blocks, the lock is granted. A rule is a pure function.
type Rule func(queue []driver.Node, self int) (obstacles []driver.Node)

// Blocks reports whether a contender blocks another one behind it in the same queue by the
// rule of the latter's kind, other than Permit.
func Blocks(ahead, behind driver.Node) bool {
	return behind.Kind != driver.Shared || blocksReader(ahead, behind)
}

func blocksReader(n, reader driver.Node) bool {
	return n.Kind != driver.Shared && n.Seq < reader.Seq
}

// Exclusive is the rule of the exclusive lock: all earlier contenders block, of any kind.
func Exclusive(queue []driver.Node, self int) []driver.Node { return queue[:self] }

// Shared is the rule of a reader: earlier contenders block unless they are readers. (A Shared
// node with the number of a Convertible node is the same holder, downgraded by Curator.)
func Shared(queue []driver.Node, self int) (obstacles []driver.Node) {
	for _, n := range queue[:self] {
		if blocksReader(n, queue[self]) {
			obstacles = append(obstacles, n)
		}
	}
	return obstacles
}

// FirstWaiter returns the place of the first waiter in the queue of an exclusive or shared lock, or
// the length of the queue. All contenders behind the first waiter wait.
func FirstWaiter(queue []driver.Node) int {
	for i, n := range queue {
		if len(RuleOf(n.Kind)(queue, i)) > 0 {
			return i
		}
	}
	return len(queue)
}

// Within is the rule of a semaphore: the permits of the contender and of all earlier ones
// must not exceed the limit, nor the limit stated by any of them. Any of the earlier ones
// may make room by leaving. The contender must not request more permits than the limit.
func Within(limit int) Rule {
	return func(queue []driver.Node, self int) []driver.Node {
		used, limit := queue[self].Permits, limit
		for _, n := range queue[:self] {
			used += n.Permits
			if n.Limit > 0 {
				limit = min(limit, n.Limit)
			}
		}
		if used <= limit {
			return nil
		}
		return queue[:self]
	}
}

// RuleOf returns the rule for nodes of the kind.
func RuleOf(k driver.Kind) Rule {
	if k == driver.Shared {
		return Shared
	}
	return Exclusive
}
