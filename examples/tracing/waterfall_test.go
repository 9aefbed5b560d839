package main

// This file tests the drawing and the words.

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/examples/internal/spans"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// newSpan returns a span from one millisecond to another.
func newSpan(service, trace, id, parent, name string, from, to int, attrs ...string) spans.Span {
	s := spans.Span{Service: service, Name: name, Trace: trace, ID: id, Parent: parent,
		Start: noon.Add(time.Duration(from) * time.Millisecond), End: noon.Add(time.Duration(to) * time.Millisecond),
		Attrs: map[string]string{}}
	for i := 0; i < len(attrs); i += 2 {
		s.Attrs[attrs[i]] = attrs[i+1]
	}
	return s
}

// twoRequests returns the spans of two requests for locks, in no order. With 36
// columns for 360 ms, a column stands for 10 ms.
func twoRequests() []spans.Span {
	wait := newSpan("a", "2", "22", "21", spans.Wait, 30, 200)
	wait.Links = []spans.Link{{Trace: "9", ID: "99", Role: "predecessor"}, {Trace: "1", ID: "11", Role: spans.Holder}} // 9 is unknown
	return []spans.Span{
		wait,
		newSpan("a", "2", "21", "20", spans.Acquire, 20, 200, spans.KeyLock, "x", spans.KeyOutcome, "acquired"),
		newSpan("b", "1", "11", "10", spans.Acquire, 0, 0, spans.KeyLock, "x", spans.KeyOutcome, "acquired"),
		newSpan("b", "1", "12", "10", spans.Hold, 0, 200, spans.KeyLock, "x"),
		newSpan("a", "2", "20", "", "PUT <x>", 10, 360),
		newSpan("a", "2", "23", "20", spans.Hold, 200, 350, spans.KeyLock, "x"),
		newSpan("b", "1", "10", "", "POST /x", 0, 220),
		newSpan("b", "3", "30", "", "no locks", 0, 300),
	}
}

func TestWaterfallExplainsWaits(t *testing.T) {
	t.Parallel()
	requests := analyze(twoRequests())
	require.Equal(t, ""+
		"process    request           lock        0 s                            0.4 s\n"+
		"b          POST /x           x           ████████████████████··\n"+
		"a          PUT <x>           x            ··░░░░░░░░░░░░░░░░░███████████████·\n"+
		"           waited 170 ms for x behind POST /x in process b (trace 1)\n"+
		"                                         ░ waits   █ holds   · the request\n", chart(requests).Text())
	require.Equal(t, "2 requests, 1 waits, 0 of them in vain: 170 ms spent waiting.\n"+
		"Most of it, 170 ms, began behind POST /x in process b (trace 1).\n", summary(requests))
	require.Contains(t, chart(requests).SVG(), ">PUT &lt;x&gt;<")
	require.NotEmpty(t, summary(nil))
	require.NotEmpty(t, chart(nil).SVG())
}

func TestWaitWithoutLinksNamesTheOwner(t *testing.T) {
	t.Parallel()
	all := twoRequests()
	all[0].Links = nil
	all[0].Attrs[spans.KeyWaitingFor] = "process 7 on h"
	require.Contains(t, chart(analyze(all)).Text(), "waited 170 ms for x behind process 7 on h\n")
}
