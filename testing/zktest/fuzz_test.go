package zktest

// This file has the fuzz tests.

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// encodeRequest encodes a request.
func encodeRequest(xid int32, op Op, record func(*encoder)) []byte {
	e := newPacket()
	e.int(xid)
	e.int(int32(op))
	if record != nil {
		record(&e)
	}
	return e.packet()
}

var handshakePacket = func() []byte {
	e := newPacket()
	e.int(0)
	e.long(0)
	e.int(5000)
	e.long(0)
	e.buffer(make([]byte, 16))
	e.bool(false)
	return e.packet()
}()

// seedPackets returns one request of each operation.
func seedPackets() (all [][]byte) {
	create := func(e *encoder) {
		e.string("/a")
		e.buffer([]byte("x"))
		e.acl([]acl{{identity: worldAnyone, perms: permAll}})
		e.int(1)
	}
	header := func(e *encoder, op Op) {
		e.int(int32(op))
		e.bool(op == -1)
		e.int(-1)
	}
	path := func(e *encoder) { e.string("/a"); e.bool(true); e.int(3) }
	for op, record := range map[Op]func(*encoder){
		OpCreate: create, OpCreate2: create, OpCreateContainer: create,
		OpCreateTTL: func(e *encoder) { create(e); e.long(1000) },
		OpDelete:    func(e *encoder) { e.string("/a"); e.int(-1) },
		OpSetData:   func(e *encoder) { e.string("/a"); e.buffer(nil); e.int(-1) },
		OpSetACL:    func(e *encoder) { e.string("/a"); e.acl([]acl{{identity: identity{"auth", ""}, perms: 1}}); e.int(-1) },
		OpMulti: func(e *encoder) {
			header(e, OpCreate)
			create(e)
			header(e, OpDelete)
			e.string("/a")
			e.int(7)
			header(e, -1)
		},
		OpMultiRead: func(e *encoder) {
			header(e, OpGetData)
			e.string("/")
			e.bool(false)
			header(e, -1)
		},
		OpAuth: func(e *encoder) { e.int(0); e.string("digest"); e.buffer([]byte("u:p")) },
		OpSetWatches2: func(e *encoder) {
			e.long(0)
			e.strings([]string{"/a"})
			e.strings(nil)
			e.strings([]string{"/"})
			e.strings(nil)
			e.strings(nil)
		},
		OpExists: path, OpGetData: path, OpGetChildren: path, OpGetChildren2: path, OpGetACL: path, OpSync: path,
		OpCheckWatches: path, OpRemoveWatches: path, OpAddWatch: path, OpGetEphemerals: path, OpGetAllChildrenNumber: path,
		OpPing: nil, OpWhoAmI: nil, OpReconfig: nil, OpSASL: nil, OpCloseSession: nil, 55: nil,
	} {
		all = append(all, encodeRequest(1, op, record))
	}
	return all
}

// FuzzConnection sends any bytes to a server, at the beginning of a connection or
// after a handshake. The connection must end, the server must not, and other
// connections must not be affected.
func FuzzConnection(f *testing.F) {
	for _, seed := range seedPackets() {
		f.Add(seed, true)
		f.Add(append(bytes.Clone(handshakePacket), seed...), false)
		f.Add(seed[:len(seed)-1], true)
	}
	f.Add([]byte("ruok"), false)
	f.Add(binary.BigEndian.AppendUint32(nil, 0xfffff+1), true)
	f.Add(binary.BigEndian.AppendUint32(nil, 0xffffffff), false)

	s := Start(f, ExtendedTypes(), MaxClientConns(0), SessionTimeouts(time.Hour, time.Hour)) // for the bystander
	bystander, err := net.Dial("tcp", s.Addr())
	require.NoError(f, err)
	defer bystander.Close()
	send := func(conn net.Conn, packet []byte) error {
		_, err := conn.Write(packet)
		return err
	}
	receive := func(conn net.Conn) ([]byte, error) {
		head := make([]byte, 4)
		if _, err := io.ReadFull(conn, head); err != nil {
			return nil, err
		}
		body := make([]byte, binary.BigEndian.Uint32(head))
		_, err := io.ReadFull(conn, body)
		return body, err
	}
	require.NoError(f, send(bystander, handshakePacket))
	_, err = receive(bystander)
	require.NoError(f, err)
	ping := encodeRequest(-2, OpPing, nil)

	f.Fuzz(func(t *testing.T, input []byte, handshake bool) {
		conn, err := net.Dial("tcp", s.Addr())
		require.NoError(t, err)
		defer conn.Close()
		require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
		if handshake {
			require.NoError(t, send(conn, handshakePacket))
		}
		_ = send(conn, input) // fails if the server closes the connection early
		_ = conn.(*net.TCPConn).CloseWrite()
		_, err = io.Copy(io.Discard, conn)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the connection does not end")
		require.NoError(t, send(bystander, ping))
		reply, err := receive(bystander)
		require.NoError(t, err)
		require.Equal(t, []byte{0xff, 0xff, 0xff, 0xfe}, reply[:4])
		require.NoError(t, s.Invariants())
		s.reset()
	})
}

// reset removes the nodes and sessions of an input, so that inputs do not depend
// on each other and the tree does not grow.
func (s *Server) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ss := range s.sessions {
		if ss.conn == nil {
			s.expire(ss)
		}
	}
	s.tree = newTree(1)
}

// FuzzDecoder decodes any bytes as every operation. The result must not be larger
// than the input.
func FuzzDecoder(f *testing.F) {
	for _, seed := range seedPackets() {
		f.Add(seed[4:])
	}
	f.Add(handshakePacket[4:])
	f.Fuzz(func(t *testing.T, packet []byte) {
		parseConnect(packet)
		r, _ := parseRequest(packet)
		size := 0
		for _, path := range r.Paths {
			size += len(path)
		}
		for op := range opNames {
			p := decodePart(&decoder{rest: packet}, op)
			size = max(size, len(p.path)+len(p.data)+len(p.acl))
		}
		require.LessOrEqual(t, size, len(packet))
		d := &decoder{rest: packet}
		require.LessOrEqual(t, 4*len(d.strings()), len(packet))
	})
}

// The length of a list must not exceed what the packet has room for.
func TestDecoderRefusesImpossibleLengths(t *testing.T) {
	d := &decoder{rest: []byte{0x7f, 0xff, 0xff, 0xff, 0}}
	require.Empty(t, d.strings())
	require.True(t, d.malformed)
	d = &decoder{rest: []byte{0x7f, 0xff, 0xff, 0xff, 0}}
	require.Empty(t, d.acl())
	require.True(t, d.malformed)
}
