package zookeeper

// This file tests the reads of Inspect: their number at once, lost connections, and a
// contender that changes meanwhile.

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/testing/zktest"
	"github.com/lockpool/lockpool/testing/zktest/bubble"
)

// inspecting runs test in a bubble, with a session and 200 contenders in the queue a/0 and
// one in each of a/1 to a/200; b/0 to b/99 are empty.
func inspecting(t *testing.T, test func(t *testing.T, server *zktest.Server, s *session)) {
	bubble.Parallel(t)
	synctest.Test(t, func(t *testing.T) {
		server := zktest.StartBubble(t)
		s := open(t, server, Config{})
		create := func(path string) { require.NoError(t, server.Create(path, nil)) }
		for _, path := range []string{"/a", "/b", "/a/0"} {
			create(path)
		}
		for i := range 200 {
			create(fmt.Sprintf("/a/0/x-lock-%010d", i))
			create(fmt.Sprint("/a/", i+1))
			create(fmt.Sprintf("/a/%d/x-lock-%010d", i+1, 0))
			if i < 100 {
				create(fmt.Sprint("/b/", i))
			}
		}
		test(t, server, s)
	})
}

func inspectAll(t *testing.T, s *session) {
	t.Helper()
	found, others, err := s.Inspect(t.Context(), "a/0", nil)
	require.NoError(t, err)
	require.Empty(t, others)
	require.Len(t, found, 200)
	for i, c := range found {
		require.EqualValues(t, i, c.Seq)
	}
}

func listAll(t *testing.T, s *session) {
	t.Helper()
	names, err := s.Queues(t.Context(), "")
	require.NoError(t, err)
	require.Len(t, names, 201)
	require.True(t, slices.IsSorted(names))
	require.Equal(t, "a/0", names[0])
}

// unanswered returns how many requests of the session are sent or wait.
func (r *requests) unanswered() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.link.pending) + len(r.waiting)
}

// Many reads are under way at a time, but not more than leave room for other calls. They
// end with their context.
func TestReadsOfOneCallAreBounded(t *testing.T) {
	for name, c := range map[string]struct {
		ops  []zktest.Op
		skip int
		read func(ctx context.Context, s *session) error
	}{
		"Inspect": {[]zktest.Op{zktest.OpGetData}, 0, func(ctx context.Context, s *session) error {
			_, _, err := s.Inspect(ctx, "a/0", nil)
			return err
		}},
		"Queues": {zktest.Lists, 3, func(ctx context.Context, s *session) error {
			_, err := s.Queues(ctx, "")
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inspecting(t, func(t *testing.T, server *zktest.Server, s *session) {
				held := server.Inject(zktest.Rule{Match: zktest.Match{Ops: c.ops}, Skip: c.skip, Do: zktest.HoldReply()})
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- c.read(ctx, s) }()
				synctest.Wait()
				require.Greater(t, s.requests.unanswered(), maxReads/2)
				require.LessOrEqual(t, s.requests.unanswered(), maxReads)
				cancel()
				require.ErrorIs(t, <-done, context.Canceled)
				held.Release()
				synctest.Wait()
				require.Zero(t, s.requests.unanswered())
				inspectAll(t, s)
				listAll(t, s)
			})
		})
	}
}

// The connection is lost in the middle of many reads.
func TestReadsSurviveALostConnection(t *testing.T) {
	for name, cut := range map[string]zktest.Action{"before": zktest.DropBeforeApply(), "after": zktest.DropAfterApply()} {
		t.Run(name, func(t *testing.T) {
			inspecting(t, func(t *testing.T, server *zktest.Server, s *session) {
				lost := server.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpGetData}}, Skip: 70, Do: cut})
				inspectAll(t, s)
				require.NoError(t, lost.Wait(t.Context()))
				lost = server.Inject(zktest.Rule{Match: zktest.Match{Ops: zktest.Lists}, Skip: 70, Do: cut})
				listAll(t, s)
				require.NoError(t, lost.Wait(t.Context()))
			})
		})
	}
}

// A contender that is downgraded after it was listed, and before it is read, is found.
func TestInspectFindsAContenderThatIsDowngradedMeanwhile(t *testing.T) {
	inspecting(t, func(t *testing.T, server *zktest.Server, s *session) {
		other := open(t, server, Config{})
		old, err := other.Join(t.Context(), "w", driver.Request{Data: []byte("writer")})
		require.NoError(t, err)
		reading := server.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpGetData}, Prefix: "/w/"}, Do: zktest.HoldApply()})
		var found []driver.Contender
		done := make(chan error, 1)
		go func() {
			var err error
			found, _, err = s.Inspect(t.Context(), "w", nil)
			done <- err
		}()
		require.NoError(t, reading.Wait(t.Context()))
		read, err := other.Downgrade("w", old.Node, []byte("reader"))
		require.NoError(t, err)
		reading.Release()
		require.NoError(t, <-done)
		require.Len(t, found, 1)
		require.Equal(t, read, found[0].Node)
		require.Equal(t, "reader", string(found[0].Data))
		require.NoError(t, other.Leave(t.Context(), "w", read))
	})
}
