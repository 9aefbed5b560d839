package zookeeper

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// slowHandler is one that waits before each record.
type slowHandler struct {
	gate    chan struct{}
	records chan string
}

func (h slowHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h slowHandler) Handle(_ context.Context, r slog.Record) error {
	<-h.gate
	h.records <- r.Message
	return nil
}
func (h slowHandler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h slowHandler) WithGroup(string) slog.Handler      { return h }

func TestJournalKeepsOrderAndHasAnEnd(t *testing.T) {
	t.Parallel()
	h := slowHandler{make(chan struct{}), make(chan string, 2*mostEntries)}
	j := &journal{to: h}
	log := slog.New(j)
	for i := range mostEntries + 500 {
		log.Info(fmt.Sprint(i))
	}
	close(h.gate)
	j.finish(10 * time.Second)
	close(h.records)
	next := 0
	for message := range h.records {
		if next >= mostEntries && message != fmt.Sprint(next) { // one may have been taken before the others came
			require.Contains(t, message, "left out")
			require.Empty(t, h.records)
			return
		}
		require.Equal(t, fmt.Sprint(next), message)
		next++
	}
	require.Fail(t, "nothing says that records were left out")
}
