package zookeeper

// This file tests the handler that logs in the background.

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// slowHandler blocks in its first record.
type slowHandler struct{ entered, release, records chan string }

func (h slowHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h slowHandler) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "first" {
		close(h.entered)
		<-h.release
		return nil
	}
	text := r.Message
	r.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
	h.records <- text
	return nil
}
func (h slowHandler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h slowHandler) WithGroup(string) slog.Handler      { return h }

func TestAsyncHandlerKeepsOrderAndDropsWhatIsTooMuch(t *testing.T) {
	t.Parallel()
	h := slowHandler{make(chan string), make(chan string), make(chan string, maxPendingRecords+1)}
	async := &asyncHandler{to: h}
	log := slog.New(async)
	log.Info("first")
	<-h.entered
	for i := range maxPendingRecords + 500 {
		log.Info(fmt.Sprint(i))
	}
	close(h.release)
	async.flush(10 * time.Second)
	close(h.records)
	for i := range maxPendingRecords {
		require.Equal(t, fmt.Sprint(i), <-h.records)
	}
	require.Equal(t, "lockpool: log records were dropped because the handler is slow records=500", <-h.records)
}
