package recipe

import "github.com/lockpool/lockpool/driver"

// A Rule decides, from the queue in order and one's own place in it, who is in
// the way.
//
// It returns the index of the node to wait for, or -1 if nobody is and the lock
// is granted. last reports that this node is the only one in the way, so that
// its going grants the lock. A rule is a pure function.
type Rule func(queue []driver.Node, self int) (obstacle int, last bool)

// Exclusive is the rule of the exclusive lock: everyone who came earlier is in
// the way, whatever they ask for, and the nearest is the one to wait for.
func Exclusive(_ []driver.Node, self int) (obstacle int, last bool) {
	return self - 1, self == 1
}

// Shared is the rule of the lock that is shared by those who read: only who
// asked earlier to be alone is in the way, and the nearest of them is the one to
// wait for.
func Shared(queue []driver.Node, self int) (obstacle int, last bool) {
	obstacle, others := -1, 0
	for i, n := range queue[:self] {
		if n.Kind != driver.Read {
			obstacle, others = i, others+1
		}
	}
	return obstacle, others == 1
}

// RuleOf returns the rule by which a node of the kind is granted.
func RuleOf(k driver.Kind) Rule {
	if k == driver.Read {
		return Shared
	}
	return Exclusive
}
