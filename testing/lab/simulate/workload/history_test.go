package workload

// This file tests the building of a record from events.

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOpenCallsAndHoldsEndWithTheKilledClient(t *testing.T) {
	t.Parallel()
	h := NewHistory(nil)
	lines := strings.Join([]string{
		`{"Kind":"call","At":10,"ID":1,"Op":"lock","Lock":"a","Limit":5,"Permits":1,"Of":1}`,
		`{"Kind":"return","At":20,"ID":1}`,
		`{"Kind":"token","At":21,"Hold":1,"Token":77}`,
		`{"Kind":"call","At":25,"ID":4,"Op":"verify","Lock":"a"}`,
		`{"Kind":"call","At":26,"ID":5,"Op":"loc`,
	}, "\n")
	h.Collect("x", strings.NewReader(lines), func() Instant {
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
}

func TestDowngradeBeginsAnotherHoldOfTheSameGrant(t *testing.T) {
	t.Parallel()
	h := NewHistory(nil)
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
	h.Collect("x", strings.NewReader(lines), func() Instant { return 30 })
	require.Empty(t, h.LongestHolder())
	writer := hold{process: "x", lock: "a", token: 77, requested: 10, begin: 20, end: 23, portion: portion{many, many}, revocable: true, revokedAt: 22}
	reader := writer
	reader.begin, reader.restOf, reader.end, reader.permits, reader.reentries, reader.lost = 23, &writer, 25, 1, []int64{77}, true
	require.Equal(t, []*hold{&writer, &reader}, h.record.holds)
}

// The token learned after a downgrade is also the token of the exclusive hold.
func TestTokenAfterDowngradeIsThatOfTheGrant(t *testing.T) {
	t.Parallel()
	h := NewHistory(nil)
	lines := strings.Join([]string{
		`{"Kind":"call","At":10,"ID":1,"Op":"lock","Lock":"a","Limit":5,"Permits":1048576,"Of":1048576}`,
		`{"Kind":"return","At":20,"ID":1}`,
		`{"Kind":"downgrade","At":23,"Hold":1}`,
		`{"Kind":"token","At":24,"Hold":1,"Token":77}`,
		`{"Kind":"end","At":25,"Hold":1}`,
		`{"Kind":"call","At":26,"ID":2,"Op":"unlock","Lock":"a","Hold":1}`,
		`{"Kind":"return","At":27,"ID":2}`,
	}, "\n")
	h.Collect("x", strings.NewReader(lines), func() Instant { return 30 })
	require.Len(t, h.record.holds, 2)
	writer, reader := h.record.holds[0], h.record.holds[1]
	require.EqualValues(t, 77, writer.token)
	require.EqualValues(t, 77, reader.token)
	require.Same(t, writer, reader.restOf)
	require.Same(t, reader, h.record.calls[1].releases)
}
