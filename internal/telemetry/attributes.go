package telemetry

// This file has the attributes of spans.

import (
	"net"
	"strconv"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.39.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockpool/lockpool/driver"
)

// attributes are the attributes of a span, collected for few calls of SetAttributes: each call
// locks the span, and lets the memory of the span grow.
type attributes struct{ all *[]attribute.KeyValue }

var buffers = sync.Pool{New: func() any {
	all := make([]attribute.KeyValue, 0, 16)
	return &all
}}

func (a *attributes) add(more ...attribute.KeyValue) {
	if a.all == nil {
		a.all = buffers.Get().(*[]attribute.KeyValue)
	}
	*a.all = append(*a.all, more...)
}

func (a *attributes) addLock(l Lock) { a.add(keyName.String(l.Name), keyKind.String(l.Kind.String())) }

// addSession adds the session, and the server as the connect string does. (The resolved
// address, network.peer.address, is not known.)
func (a *attributes) addSession(info driver.Info) {
	a.add(keySession.String(info.ID))
	host, digits, err := net.SplitHostPort(info.Peer)
	if err != nil {
		a.add(semconv.ServerAddress(info.Peer))
		return
	}
	a.add(semconv.ServerAddress(host))
	if port, err := strconv.Atoi(digits); err == nil {
		a.add(semconv.ServerPort(port))
	}
}

// setOn sets the attributes on a span, which copies them.
func (a *attributes) setOn(span trace.Span) {
	if a.all == nil {
		return
	}
	all := a.all
	a.all = nil
	span.SetAttributes(*all...)
	clear(*all) // not to keep the strings
	*all = (*all)[:0]
	buffers.Put(all)
}
