package workload

// This file tests the building of a record from events.

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOpenCallsAndHoldsEndWithTheKilledClient(t *testing.T) {
	t.Parallel()
	h := NewHistory(func() Instant { return 25 }, nil)
	lines := strings.Join([]string{
		`{"Kind":"call","At":10,"ID":1,"Op":"lock","Lock":"a","Limit":5,"Permits":1,"Of":1}`,
		`{"Kind":"return","At":20,"ID":1}`,
		`{"Kind":"token","At":21,"Hold":1,"Token":77}`,
		`{"Kind":"access","At":22,"ID":2,"Op":"write","Lock":"a","Token":77,"Value":5}`,
		`{"Kind":"accessed","At":9000000000000000000,"ID":2}`,
		`{"Kind":"access","At":24,"ID":3,"Op":"read","Lock":"a"}`,
		`{"Kind":"call","At":25,"ID":4,"Op":"verify","Lock":"a"}`,
		`{"Kind":"call","At":26,"ID":5,"Op":"loc`,
	}, "\n")
	var answers strings.Builder
	h.Collect("x", strings.NewReader(lines), &answers, func() Instant {
		require.Equal(t, "x", h.LongestHolder())
		return 30
	})
	require.Empty(t, h.LongestHolder())
	require.Equal(t, []*hold{{process: "x", lock: "a", token: 77, requested: 10, begin: 20, end: 30, portion: portion{1, 1}}}, h.record.holds)
	var calls []string
	for _, c := range h.record.calls {
		calls = append(calls, fmt.Sprint(c.op, " ", c.err, " ", int64(c.end)))
	}
	require.Equal(t, []string{"lock  20", "verify unanswered 30"}, calls)
	require.Len(t, h.record.accesses, 2)
	require.True(t, h.record.accesses[0].accepted)
	require.EqualValues(t, 9000000000000000000, h.record.accesses[0].end)
	require.EqualValues(t, 5, h.record.accesses[1].value)
	require.NotEqual(t, Never, h.record.accesses[1].end, "the register was read, even if the client did not learn the result")
	require.Equal(t, 2, strings.Count(answers.String(), "\n"))
}

func TestDowngradeBeginsAnotherHoldOfTheSameGrant(t *testing.T) {
	t.Parallel()
	h := NewHistory(func() Instant { return 25 }, nil)
	lines := strings.Join([]string{
		`{"Kind":"call","At":10,"ID":1,"Op":"lock","Lock":"a","Limit":5,"Permits":1048576,"Of":1048576,"Revocable":true}`,
		`{"Kind":"return","At":20,"ID":1}`,
		`{"Kind":"token","At":21,"Hold":1,"Token":77}`,
		`{"Kind":"revoke","At":22,"Hold":1}`,
		`{"Kind":"downgrade","At":23,"Hold":1}`,
		`{"Kind":"reenter","At":24,"Hold":1,"Token":77}`,
		`{"Kind":"end","At":25,"Hold":1,"Lost":true}`,
		`{"Kind":"downgrade","At":26,"Hold":1}`,
	}, "\n")
	h.Collect("x", strings.NewReader(lines), io.Discard, func() Instant { return 30 })
	require.Empty(t, h.LongestHolder())
	writer := hold{process: "x", lock: "a", token: 77, requested: 10, begin: 20, end: 23, portion: portion{many, many}, revocable: true, revokedAt: 22}
	reader := writer
	reader.begin, reader.restOf, reader.end, reader.permits, reader.reentries, reader.lost = 23, &writer, 25, 1, []int64{77}, true
	require.Equal(t, []*hold{&writer, &reader}, h.record.holds)
}

// The token learned after a downgrade is also the token of the exclusive hold.
func TestTokenAfterDowngradeIsThatOfTheGrant(t *testing.T) {
	t.Parallel()
	h := NewHistory(func() Instant { return 25 }, nil)
	lines := strings.Join([]string{
		`{"Kind":"call","At":10,"ID":1,"Op":"lock","Lock":"a","Limit":5,"Permits":1048576,"Of":1048576}`,
		`{"Kind":"return","At":20,"ID":1}`,
		`{"Kind":"downgrade","At":23,"Hold":1}`,
		`{"Kind":"token","At":24,"Hold":1,"Token":77}`,
		`{"Kind":"end","At":25,"Hold":1}`,
		`{"Kind":"call","At":26,"ID":2,"Op":"unlock","Lock":"a","Hold":1}`,
		`{"Kind":"return","At":27,"ID":2}`,
	}, "\n")
	h.Collect("x", strings.NewReader(lines), io.Discard, func() Instant { return 30 })
	require.Len(t, h.record.holds, 2)
	writer, reader := h.record.holds[0], h.record.holds[1]
	require.EqualValues(t, 77, writer.token)
	require.EqualValues(t, 77, reader.token)
	require.Same(t, writer, reader.restOf)
	require.Same(t, reader, h.record.calls[1].releases)
}

func TestRegisterRefusesOlderTokens(t *testing.T) {
	t.Parallel()
	var g register
	require.True(t, g.write(5, 1))
	require.True(t, g.write(5, 2))
	require.False(t, g.write(4, 3))
	require.True(t, g.write(6, 4))
	require.Equal(t, register{6, 4}, g)
}
