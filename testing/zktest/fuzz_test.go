package zktest

// This file has the tests of the decoder.

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzDecoder decodes any bytes as every operation. The result must not be larger
// than the input.
func FuzzDecoder(f *testing.F) {
	var create, paths encoder
	create.string("/a")
	create.buffer([]byte("x"))
	create.acl([]acl{{identity: worldAnyone, perms: permAll}})
	create.int(1)
	paths.strings([]string{"/a", "/"})
	f.Add([]byte(create))
	f.Add(append([]byte{0, 0, 0, 1, 0, 0, 0, byte(OpCreate)}, create...))
	f.Add(append([]byte{0, 0, 0, 1, 0, 0, 0, byte(OpMulti), 0, 0, 0, byte(OpCreate), 0, 0, 0, 0, 0}, create...))
	f.Add([]byte(paths))
	f.Add(connectReply{timeout: 5000}.encode(true)[4:])
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
