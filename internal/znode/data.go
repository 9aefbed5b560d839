package znode

// This file reads the data of contenders' nodes.

import (
	"bytes"
	"fmt"
	"strconv"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool/driver"
)

// CutPlainData splits the data of a node into the name of a plain lock's holder, if any,
// and the data stored by the holder, without a revocation.
func CutPlainData(data []byte) (name string, stored []byte) {
	data, _ = CutRevocation(data)
	const length = len(GUIDPrefix) + GUIDLength
	if len(data) > length && data[length] == '\n' && string(data[:len(GUIDPrefix)]) == GUIDPrefix {
		return string(data[:length]), data[length+1:]
	}
	return "", data
}

// PlainNode returns the node of a plain lock's holder, even if not ours.
func PlainNode(data []byte, stat *zk.Stat) driver.Node {
	name, _ := CutPlainData(data)
	if name == "" {
		name = fmt.Sprintf("%s%#x", ForeignPlainPrefix, stat.Czxid)
	}
	return driver.Node{Kind: driver.Plain, Name: name}
}

// ForeignPlainPrefix begins the name given to a holder whose data has none.
const ForeignPlainPrefix = "plain-"

// IsPlain reports whether a node is a plain lock's: an ephemeral node. (Containers look
// like persistent nodes to clients.)
func IsPlain(stat *zk.Stat) bool { return stat.EphemeralOwner != 0 }

// NewContender returns a contender with the content of the node.
func NewContender(node driver.Node, raw []byte, stat *zk.Stat) driver.Contender {
	_, data := CutPlainData(raw)
	return driver.Contender{
		Node: node, Session: SessionID(stat.EphemeralOwner), Created: stat.Czxid,
		Joined: time.UnixMilli(stat.Ctime), Data: data, Version: int64(stat.Version) + 1,
	}
}

// SessionID formats an ID as ZooKeeper's own tools do.
func SessionID(id int64) string { return string(strconv.AppendUint([]byte("0x"), uint64(id), 16)) }

// RevokeRequest is Curator's (org.apache.curator.framework.recipes.locks.LockInternals).
// Curator's contenders see the request only if their node contains nothing else. Nodes of
// lockpool keep their data, with the request in a line behind the data, but lockpool also
// understands the request alone.
const RevokeRequest = "__REVOKE__"

// CutRevocation splits the content of a node into the data and whether the node was
// revoked.
func CutRevocation(raw []byte) (data []byte, revoked bool) {
	if string(raw) == RevokeRequest {
		return nil, true
	}
	return bytes.CutSuffix(raw, []byte("\n"+RevokeRequest))
}
