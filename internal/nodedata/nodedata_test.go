package nodedata

// This file tests the encoding of holds.

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The data of a request whose handle holds other locks is JSON, names as many holds as fit,
// and leaves room for a token.
func TestWithHolds(t *testing.T) {
	owner := NewOwner("shop")
	var holds []Hold
	for i := range 200 {
		holds = append(holds, Hold{Lock: "a\"<" + strings.Repeat("x", i), Node: "node-0000000001", Permits: i%2 == 0})
	}
	for n := range holds {
		for _, most := range []int{MaxNode, MaxLease} {
			text := WithHolds(owner.Data(Request{Ask: "an-ask", At: "main.f[...] (\"ü𝒳\\.go\":1)"}), holds[:n], n%2 == 0, int64(n), most)
			data := Downgraded(text, 1<<62, strings.Repeat("n", 200))
			require.True(t, json.Valid(data), "%s", data)
			require.LessOrEqual(t, len(data), most)
			r := Parse(data)
			require.Equal(t, Record{
				Origin: Origin{Owner: "shop", Host: r.Host, PID: r.PID}, Ask: "an-ask", Token: 1 << 62, Was: r.Was, At: "main.f[...] (\"ü𝒳\\.go\":1)",
				Holds: r.Holds, Unchecked: n%2 == 0, Age: int64(n),
			}, r)
			require.Len(t, r.Was, 200)
			fit := len(r.Holds)
			require.ElementsMatch(t, holds[:fit], r.Holds)
			if fit < n {
				next, err := json.Marshal(holds[fit])
				require.NoError(t, err)
				require.Greater(t, len(text)+len(next), most-reserve, "another one fits")
			}
		}
	}
}
