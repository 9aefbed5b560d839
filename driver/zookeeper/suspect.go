package zookeeper

// This file finds the requests for which servers close the connection instead of answering.

import (
	"errors"
	"time"
)

// A server closes the connection if a request is longer than its jute.maxbuffer, or of a kind
// that the server does not know. Repeating such a request would break the connection each time,
// for all users of the session. So a request is sent alone after two connections have broken
// while its answer was awaited, and fails if further connections break. The repetition of a
// call is another request, so requests of one kind and size are judged together: a server
// treats them alike. An answer acquits them. Only what creates or changes nodes is suspected: servers read all
// other requests, which are short.

// suspect is what a server may refuse to read.
type suspect struct {
	op   int32
	size int // in bytes
}

func (q *request) suspect() suspect { return suspect{q.op, q.size} }

// suspicion is what has happened to the requests since the last answer to one of them.
type suspicion struct {
	broken int           // connections on which an answer was awaited
	alone  int           // of them, to this request only
	until  time.Duration // until when no such request is sent, by the clock of the lease
}

const (
	mostUnanswered = 2 // of several requests; then one is sent alone
	mostAlone      = 3
	mostBroken     = 5
	guiltyFor      = 10 * time.Second
)

var errClosedEachTime = errors.New("the servers close the connection instead of answering")

// suspects has what is suspected of requests on the session's connections.
type suspects map[suspect]suspicion

// isGuilty reports whether a request must not be sent now. If the request is under suspicion,
// isGuilty arranges for the request to be sent alone.
func (s suspects) isGuilty(q *request, now time.Duration) bool {
	known := s[q.suspect()]
	if known.broken >= mostUnanswered {
		q.answer = maxAnswers
	}
	return now < known.until
}

// broke is called with the requests that were pending when a connection broke. It returns the
// guilty.
func (s suspects) broke(pending []*request, now time.Duration) (guilty map[suspect]bool) {
	guilty = map[suspect]bool{}
	for _, q := range pending {
		if q.writes {
			guilty[q.suspect()] = false
		}
	}
	for of := range guilty {
		known := s[of]
		if known.broken++; len(guilty) == 1 {
			known.alone++
		}
		if known.broken >= mostBroken && known.alone >= mostAlone {
			known.until = now + guiltyFor
			guilty[of] = true
		}
		s[of] = known
	}
	return guilty
}
