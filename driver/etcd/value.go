package etcd

// This file has the values of keys.

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// The value of a contender's key is a mark, the time of its creation by the clock of the
// client, a random number, and the data. When a node is downgraded or revoked, the key gets
// another mark, and keeps the revision of creation, and so the place.
const (
	markShared  = 1 << iota // was exclusive
	markRevoked             // was asked to go
	markOurs    = 'H'       // set in every mark; keys of other programs have no mark
	header      = 1 + 8 + 8
)

// newValue returns the value of a new node. No two values are the same.
func newValue(at time.Time, data []byte) []byte {
	v := binary.BigEndian.AppendUint64([]byte{markOurs}, uint64(at.UnixNano()))
	return append(binary.BigEndian.AppendUint64(v, rand.Uint64()), data...)
}

// value is a decoded one.
type value struct {
	mark   byte
	at     time.Time
	number uint64
	data   []byte
}

func decodeValue(kv *mvccpb.KeyValue) value {
	v := kv.Value
	if len(v) < header || v[0]&^(markShared|markRevoked) != markOurs {
		return value{data: v}
	}
	return value{v[0], time.Unix(0, int64(binary.BigEndian.Uint64(v[1:]))), binary.BigEndian.Uint64(v[9:]), v[header:]}
}

func isShared(kv *mvccpb.KeyValue) bool { return decodeValue(kv).mark&markShared != 0 }

// marked returns the value with a further mark, and other data if data is not nil. If another
// program has overwritten the value, the node counts as gone.
func marked(kv *mvccpb.KeyValue, mark byte, data []byte) ([]byte, error) {
	old := decodeValue(kv)
	if old.mark == 0 {
		return nil, errGone
	}
	v := slices.Clone(kv.Value[:header])
	v[0] |= mark
	if data == nil {
		data = old.data
	}
	return append(v, data...), nil
}

// recordValue returns the value of a record.
func recordValue(at time.Time, data []byte) []byte {
	return append(binary.BigEndian.AppendUint64(nil, uint64(at.UnixNano())), data...)
}
