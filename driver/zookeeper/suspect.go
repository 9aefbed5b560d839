package zookeeper

// This file finds the requests for which servers close the connection instead of answering.

import (
	"errors"
	"time"
)

// A server closes the connection if a request is longer than its jute.maxbuffer, or of a kind
// that the server does not know. Repeating such a request would break the connection each time,
// for all users of the session. So a request is sent alone after two connections have broken
// while its answer was awaited, and fails if further connections are closed at once. The
// repetition of a call is another request, and other calls may meet the same fate, so requests of
// one kind and size are judged together: a server treats them alike.
//
// An answer acquits the requests about one directory. A connection that breaks while no such
// answer is awaited acquits all: then the network is to blame, or the server.
type suspect struct {
	op   int32
	size int // in bytes
}

func (q *request) suspect() suspect { return suspect{q.op, q.size} }

// suspicion is what has happened to such requests lately.
type suspicion struct {
	broken   int             // connections on which an answer was awaited
	alone    int             // of them, closed at once after only this request had been sent
	last     time.Duration   // when one of them broke, by the clock of the lease
	innocent map[string]bool // directories about which such requests were answered
}

const (
	mostUnanswered = 2 // of several requests; then one is sent alone
	mostAlone      = 3
	guiltyFor      = 10 * time.Second // during which no such request is sent
	suspectedFor   = time.Minute
)

var errClosedEachTime = errors.New("the servers close the connection instead of answering")

// suspects has what is suspected of a session's requests.
type suspects struct {
	accepted int // the size of the longest answered request
	known    map[suspect]*suspicion
}

// of returns what is suspected of a request: nil if nothing is, or if servers certainly read
// the request.
func (s *suspects) of(q *request) *suspicion {
	if what := s.known[q.suspect()]; what != nil && s.isSuspicious(q, what) {
		return what
	}
	return nil
}

// isSuspicious reports whether a server may refuse to read the request. Servers read what is
// short and changes nothing, and the proofs of the lease.
func (s *suspects) isSuspicious(q *request, what *suspicion) bool {
	const long = 1 << 10
	return q.answer > 0 && (q.size > long || q.writes != "" && !what.innocent[parent(q.writes)])
}

// judge reports whether a request must not be sent now. If the request is under suspicion, judge
// arranges for the request to be sent alone.
func (s *suspects) judge(q *request, now time.Duration) (guilty bool) {
	if len(s.known) == 0 || q.answer == 0 {
		return false
	}
	for of, what := range s.known {
		isGuilty := what.alone >= mostAlone
		if age := now - what.last; age >= suspectedFor || isGuilty && age >= guiltyFor {
			delete(s.known, of)
			continue
		}
		tooLong := s.accepted < of.size && of.size < q.size
		guilty = guilty || isGuilty && (tooLong || what == s.of(q))
	}
	if what := s.of(q); what != nil && what.broken >= mostUnanswered {
		q.answer = maxAnswers
	}
	return guilty
}

// closed records that a server has closed the connection with the pending requests, or the
// network has.
func (s *suspects) closed(pending []*request, now, soon time.Duration) {
	of := map[*suspicion]*request{}
	for _, q := range pending {
		what := s.known[q.suspect()]
		if what == nil {
			what = &suspicion{innocent: map[string]bool{}}
		}
		if s.isSuspicious(q, what) {
			s.known[q.suspect()] = what
			of[what] = q
		}
	}
	if len(of) == 0 {
		clear(s.known)
	}
	for what, q := range of {
		if what.broken++; len(of) == 1 && what.broken > mostUnanswered && now-q.at <= soon {
			what.alone++
		}
		what.last = now
	}
}

// answered acquits the requests like q.
func (s *suspects) answered(q *request) {
	s.accepted = max(s.accepted, q.size)
	if what := s.known[q.suspect()]; what != nil && q.writes != "" {
		what.innocent[parent(q.writes)] = true
	}
}
