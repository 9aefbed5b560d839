package zktest

// This file has ensembles of real servers.

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

var errNotSeparated = errors.New("zktest: the members share one network; start the ensemble with the option Separated to isolate them")

// RealEnsemble is an ensemble of Apache ZooKeeper servers. All methods may be
// called concurrently.
type RealEnsemble struct {
	servers []*RealServer
	network *ensembleNetwork // nil unless Separated
}

// StartRealEnsemble starts n servers for a test and returns when all of them
// serve and one leads. If they do not start, the test fails at once. They are
// closed when the test ends.
func StartRealEnsemble(t testing.TB, n int, opts ...RealOption) *RealEnsemble {
	t.Helper()
	e, err := RunRealEnsemble(t.Context(), n, opts...)
	return closeWithTest(t, e, err)
}

// RunRealEnsemble starts n servers, at least 1, and returns when all of them
// serve and one leads. Call Close to release them. ctx bounds only the start,
// which takes at most a minute in any case. If a server does not start, the error
// contains the end of its log.
func RunRealEnsemble(ctx context.Context, n int, opts ...RealOption) (*RealEnsemble, error) {
	if n < 1 {
		return nil, fmt.Errorf("zktest: an ensemble cannot have %d servers", n)
	}
	members, sep, err := runReal(ctx, n, true, opts)
	if err != nil {
		return nil, err
	}
	return &RealEnsemble{members, sep}, nil
}

// ConnectString returns the addresses of all members, running or not,
// separated by commas.
func (e *RealEnsemble) ConnectString() string {
	addrs := make([]string, len(e.servers))
	for i, s := range e.servers {
		addrs[i] = s.Addr()
	}
	return strings.Join(addrs, ",")
}

// Len returns the number of members, running or not.
func (e *RealEnsemble) Len() int { return len(e.servers) }

// Member returns the member with index i, from 0 to Len()-1.
func (e *RealEnsemble) Member(i int) *RealServer { return e.servers[i] }

// Leader waits until exactly one member claims to lead, and returns this member. Paused and
// stopped members do not answer, so Leader also waits for the successor of such a leader.
// The error is ctx's.
func (e *RealEnsemble) Leader(ctx context.Context) (*RealServer, error) {
	for {
		var leaders []*RealServer
		for _, s := range e.servers {
			if mode, err := s.serving(ctx); err == nil && isLeader(mode) {
				leaders = append(leaders, s)
			}
		}
		if len(leaders) == 1 {
			return leaders[0], nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("zktest: waiting for one leader; there are %d: %w", len(leaders), ctx.Err())
		case <-time.After(pollInterval):
		}
	}
}

// Isolate cuts member i off from all other members: packets between them are
// dropped. Established connections stay open, and new ones are not refused.
// Clients still reach every member, and a member reaches itself. A member stays isolated
// over a restart. The ensemble must have been started with [Separated].
//
// The member keeps serving reads until noticing the partition, after about syncLimit ticks,
// by default 2.5 s.
func (e *RealEnsemble) Isolate(i int) error {
	if i < 0 || i >= e.Len() {
		return fmt.Errorf("zktest: there is no member %d to isolate: members are numbered from 0 to %d", i, e.Len()-1)
	}
	if e.network == nil {
		return errNotSeparated
	}
	if err := e.network.isolate(i); err != nil {
		return fmt.Errorf("zktest: isolating %s: %w", e.servers[i].Addr(), err)
	}
	return nil
}

// Heal undoes every Isolate: all members reach each other again. Packets sent
// meanwhile arrive when TCP retransmits them, unless the connection has timed
// out.
func (e *RealEnsemble) Heal() error {
	if e.network == nil {
		return errNotSeparated
	}
	if err := e.network.heal(); err != nil {
		return fmt.Errorf("zktest: healing: %w", err)
	}
	return nil
}

// Close closes all members.
func (e *RealEnsemble) Close() error {
	err := closeServers(e.servers)
	if sepErr := e.network.close(); sepErr != nil {
		err = errors.Join(err, fmt.Errorf("zktest: closing the network: %w", sepErr))
	}
	return err
}
