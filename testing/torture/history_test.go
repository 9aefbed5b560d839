//go:build linux

package main

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What a client was in the middle of when it was killed ends with it.
func TestTheHistoryOfAClientThatIsKilled(t *testing.T) {
	t.Parallel()
	h := newHistory(io.Discard)
	lines := strings.Join([]string{
		`{"Kind":"asked","At":10,"ID":1,"Op":"lock","Lock":"a","Limit":5,"Permits":1,"Of":1}`,
		`{"Kind":"answered","At":20,"ID":1}`,
		`{"Kind":"token","At":21,"Hold":1,"Token":77}`,
		`{"Kind":"accessing","At":22,"ID":2,"Op":"write","Lock":"a","Token":77,"Value":5}`,
		`{"Kind":"accessed","At":9000000000000000000,"ID":2}`,
		`{"Kind":"accessing","At":24,"ID":3,"Op":"read","Lock":"a"}`,
		`{"Kind":"asked","At":25,"ID":4,"Op":"verify","Lock":"a"}`,
		`{"Kind":"asked","At":26,"ID":5,"Op":"loc`,
	}, "\n")
	var answers strings.Builder
	h.listen("x", strings.NewReader(lines), &answers, func() instant {
		require.Equal(t, "x", h.longestHolder())
		return 30
	})
	require.Empty(t, h.longestHolder())
	require.Equal(t, []*hold{{process: "x", lock: "a", token: 77, asked: 10, begin: 20, end: 30, portion: portion{1, 1}}}, h.record.holds)
	require.Equal(t, []string{"lock  20", "verify unanswered 30"}, []string{
		fmt.Sprint(h.record.calls[0].op, " ", h.record.calls[0].err, " ", int64(h.record.calls[0].end)),
		fmt.Sprint(h.record.calls[1].op, " ", h.record.calls[1].err, " ", int64(h.record.calls[1].end)),
	})
	require.Len(t, h.record.accesses, 2)
	require.True(t, h.record.accesses[0].accepted)
	require.EqualValues(t, 9000000000000000000, h.record.accesses[0].end)
	require.EqualValues(t, 5, h.record.accesses[1].value)
	require.NotEqual(t, never, h.record.accesses[1].end, "it was read, whether or not the client lived to know")
	require.Equal(t, 2, strings.Count(answers.String(), "\n"))
}

func TestTheHistoryOfALockThatIsShared(t *testing.T) {
	t.Parallel()
	h := newHistory(io.Discard)
	lines := strings.Join([]string{
		`{"Kind":"asked","At":10,"ID":1,"Op":"lock","Lock":"a","Limit":5,"Permits":1048576,"Of":1048576,"Listens":true}`,
		`{"Kind":"answered","At":20,"ID":1}`,
		`{"Kind":"token","At":21,"Hold":1,"Token":77}`,
		`{"Kind":"told","At":22,"Hold":1}`,
		`{"Kind":"shared","At":23,"Hold":1}`,
		`{"Kind":"reentered","At":24,"Hold":1,"Token":77}`,
		`{"Kind":"ended","At":25,"Hold":1,"Lost":true}`,
		`{"Kind":"shared","At":26,"Hold":1}`,
	}, "\n")
	h.listen("x", strings.NewReader(lines), io.Discard, func() instant { return 30 })
	require.Empty(t, h.longestHolder())
	writer := hold{process: "x", lock: "a", token: 77, asked: 10, begin: 20, end: 23, portion: portion{many, many}, listens: true, told: 22}
	reader := writer
	reader.begin, reader.granted, reader.end, reader.permits, reader.inner, reader.lost = 23, 20, 25, 1, []int64{77}, true
	require.Equal(t, []*hold{&writer, &reader}, h.record.holds)
}

func TestARegisterRefusesOldTokens(t *testing.T) {
	t.Parallel()
	var g register
	require.True(t, g.write(5, 1))
	require.True(t, g.write(5, 2))
	require.False(t, g.write(4, 3))
	require.True(t, g.write(6, 4))
	require.Equal(t, register{6, 4}, g)
}
