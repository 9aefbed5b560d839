package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// made is a span from one millisecond to another.
func made(service, trace, id, parent, name string, from, to int, attrs ...string) span {
	s := span{Service: service, Name: name, Trace: trace, ID: id, Parent: parent,
		Start: noon.Add(time.Duration(from) * time.Millisecond), End: noon.Add(time.Duration(to) * time.Millisecond),
		Attrs: map[string]string{}}
	for i := 0; i < len(attrs); i += 2 {
		s.Attrs[attrs[i]] = attrs[i+1]
	}
	return s
}

// some are the spans of two requests. 36 columns for 360 ms make 10 ms a column.
func some() []span {
	wait := made("a", "2", "22", "21", spanWait, 30, 200)
	wait.Links = []link{{"9", "99", "predecessor"}, {"1", "11", holder}} // nobody knows 9
	return []span{
		wait, // in whatever order they come
		made("a", "2", "21", "20", spanAcquire, 20, 200, keyLock, "x", keyOutcome, "acquired"),
		made("b", "1", "11", "10", spanAcquire, 0, 0, keyLock, "x", keyOutcome, "acquired"),
		made("b", "1", "12", "10", spanHold, 0, 200, keyLock, "x"),
		made("a", "2", "20", "", "PUT <x>", 10, 360),
		made("a", "2", "23", "20", spanHold, 200, 350, keyLock, "x"),
		made("b", "1", "10", "", "POST /x", 0, 220),
		made("b", "3", "30", "", "no locks", 0, 300),
	}
}

func TestWaterfall(t *testing.T) {
	t.Parallel()
	requests := understand(some())
	require.Equal(t, ""+
		"process    request           lock        0 s                            0.4 s\n"+
		"b          POST /x           x           ████████████████████··\n"+
		"a          PUT <x>           x            ··░░░░░░░░░░░░░░░░░███████████████·\n"+
		"           waited 170 ms for x behind POST /x in process b (trace 1)\n"+
		"                                         ░ waits   █ holds   · the request\n", waterfall(requests))
	require.Equal(t, "2 requests, 1 waits, 0 of them in vain: 170 ms spent waiting.\n"+
		"Most of it, 170 ms, began behind POST /x in process b (trace 1).\n", summary(requests))
	require.Contains(t, svg(requests), ">PUT &lt;x&gt;<")

	require.Empty(t, waterfall(nil))
	require.NotEmpty(t, summary(nil))
	require.NotEmpty(t, svg(nil))
}

func TestWhoeverIsInTheWayWithoutSpansIsNamedByItsOwner(t *testing.T) {
	t.Parallel()
	spans := some()
	spans[0].Links = nil
	spans[0].Attrs[keyWhose] = "process 7 on h"
	require.Contains(t, waterfall(understand(spans)), "waited 170 ms for x behind process 7 on h\n")
}
