package etcdtest

// This file has a relay for single messages, and the faults of messages.

import (
	"context"
	"errors"
	"net"
	"regexp"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Relay passes the messages of clients on to a member, and the member's messages back. A
// relay knows the borders of messages, and the names of methods, and nothing else of them:
// the name of a session's key tells which session sends on a connection.
type Relay struct {
	listener net.Listener
	server   *grpc.Server
	member   *grpc.ClientConn

	mu       sync.Mutex
	resumed  *sync.Cond
	paused   map[string]bool // by session
	closed   bool
	frozen   map[string]bool // by the client's address
	calls    int
	fault    func(Message) Action
	conns    map[string]net.Conn // by the client's address
	sessions map[string]string   // by the client's address
}

// Message is a passing message.
type Message struct {
	Session string // in hexadecimal; empty before the session is known
	Method  string // such as Txn or Watch
	Call    int    // a number of the call, kept by a stream
	Reply   bool
	Data    []byte
}

// IsProof reports whether the message is a part of a proof of the session's lease.
func (m Message) IsProof() bool {
	return m.Method == "LeaseKeepAlive" || m.Method == "Range" && strings.Contains(string(m.Data), "/.sessions/")
}

// Action is what becomes of a message.
type Action int

const (
	Pass       Action = iota
	Break             // the message is lost, and the connection breaks
	BreakAfter        // the connection breaks just after the message
	Lose              // the message is lost
	Late              // the message, and those behind it in the call, are late
	Freeze            // neither this message nor any other one of the connection passes any longer
	Full              // the reply to the call is the error of a full database
)

var sessionKey = regexp.MustCompile(`/\.sessions/([0-9a-f]{1,16})`)

// newRelay starts a relay in front of a member.
func newRelay(target string) (*Relay, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &Relay{conns: map[string]net.Conn{}, sessions: map[string]string{}, paused: map[string]bool{}, frozen: map[string]bool{}}
	r.resumed = sync.NewCond(&r.mu)
	r.listener = relayListener{l, r}
	if r.member, err = grpc.NewClient("passthrough:///"+target, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		_ = l.Close()
		return nil, err
	}
	r.server = grpc.NewServer(grpc.ForceServerCodec(rawCodec{}), grpc.UnknownServiceHandler(r.serve))
	go r.server.Serve(r.listener) //nolint:errcheck // ends with Close
	return r, nil
}

// Addr returns the address of the relay.
func (r *Relay) Addr() string { return r.listener.Addr().String() }

// Close stops the relay.
func (r *Relay) Close() {
	r.mu.Lock()
	r.closed = true
	r.resumed.Broadcast()
	r.mu.Unlock()
	r.server.Stop()
	_ = r.member.Close()
}

// SetFault has a function decide about every message, or none if fault is nil. fault is
// called for one message at a time.
func (r *Relay) SetFault(fault func(Message) Action) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fault = fault
}

// Pause stops all messages of a session until resume is called. They are kept.
func (r *Relay) Pause(session string) (resume func()) {
	set := func(paused bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.paused[session] = paused
		r.resumed.Broadcast()
	}
	set(true)
	return func() { set(false) }
}

// relayListener keeps the connections, to break them later.
type relayListener struct {
	net.Listener
	relay *Relay
}

func (l relayListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.relay.mu.Lock()
		l.relay.conns[c.RemoteAddr().String()] = c
		l.relay.mu.Unlock()
	}
	return c, err
}

// lateness is the delay of late messages.
const lateness = 15 * time.Millisecond

// decide returns what becomes of a message, nil for passing. It waits for a late message,
// and breaks the connection if so decided.
func (r *Relay) decide(client, method string, call int, reply bool, data []byte) error {
	action := r.action(client, method, call, reply, data)
	switch action {
	case Break, Lose, Freeze:
		return errLost
	case Full:
		return rpctypes.ErrGRPCNoSpace
	case Late:
		time.Sleep(lateness)
	case BreakAfter:
		r.mu.Lock()
		conn := r.conns[client]
		r.mu.Unlock()
		time.AfterFunc(2*time.Millisecond, func() { _ = conn.Close() }) // after the sending
	}
	return nil
}

func (r *Relay) action(client, method string, call int, reply bool, data []byte) Action {
	r.mu.Lock()
	defer r.mu.Unlock()
	if found := sessionKey.FindSubmatch(data); found != nil && !reply {
		r.sessions[client] = string(found[1])
	}
	wait := func() {
		for (r.paused[r.sessions[client]] || r.frozen[client]) && !r.closed {
			r.resumed.Wait()
		}
	}
	wait()
	if r.fault == nil {
		return Pass
	}
	action := r.fault(Message{r.sessions[client], method, call, reply, data})
	switch action {
	case Break:
		_ = r.conns[client].Close()
	case Freeze:
		r.frozen[client] = true
		wait()
	}
	return action
}

var errLost = errors.New("a message is lost")

// serve passes on the messages of one call.
func (r *Relay) serve(_ any, client grpc.ServerStream) error {
	full, _ := grpc.MethodFromServerStream(client)
	method := full[strings.LastIndexByte(full, '/')+1:]
	from, _ := peer.FromContext(client.Context())
	address := from.Addr.String()
	r.mu.Lock()
	r.calls++
	call := r.calls
	r.mu.Unlock()
	ctx, cancel := context.WithCancel(client.Context())
	defer cancel()
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, md)
	}
	member, err := r.member.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, full, grpc.ForceCodec(rawCodec{}))
	if err != nil {
		return err
	}
	requests := make(chan error, 1)
	go func() { // ends with the call
		for {
			m := new(raw)
			if err := client.RecvMsg(m); err != nil {
				_ = member.CloseSend()
				requests <- nil
				return
			}
			if err := r.decide(address, method, call, false, *m); err != nil {
				requests <- err
				cancel()
				return
			}
			if err := member.SendMsg(m); err != nil {
				requests <- nil
				return
			}
		}
	}()
	for {
		m := new(raw)
		if err := member.RecvMsg(m); err != nil {
			select {
			case lost := <-requests:
				if lost == errLost {
					<-client.Context().Done()
				} else if lost != nil {
					return lost
				}
			default:
			}
			if errors.Is(err, context.Canceled) || err.Error() == "EOF" {
				return nil
			}
			return err
		}
		if err := r.decide(address, method, call, true, *m); err != nil {
			if err == errLost {
				<-client.Context().Done()
				err = status.Error(codes.Unavailable, errLost.Error())
			}
			return err
		}
		if err := client.SendMsg(m); err != nil {
			return err
		}
	}
}

// raw is a message as sent.
type raw []byte

// rawCodec leaves messages as they are.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error) { return *v.(*raw), nil }
func (rawCodec) Unmarshal(data []byte, v any) error {
	*v.(*raw) = append(raw(nil), data...)
	return nil
}
func (rawCodec) Name() string { return "proto" }
