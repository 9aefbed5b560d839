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
