package interop

// This file has the test of downgrades beside other clients.

import (
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// Curator's writer acquires the read lock, too, and releases the write lock; then lockpool
// does the same. (Before 5.5 Curator would lose the read lock if any writer were queued
// behind.)
func TestDowngradedWriterSharesWithReaders(t *testing.T) {
	t.Parallel()
	c := newContest(t)
	write, read := mode{"write", all}, mode{"read", 1}
	curator := c.peers(contender{name: "Curator", modes: []mode{write, read}}, c.curator, 1)[0]
	lockpool := c.lockpool("curator-rw", exclusiveOrRead("exclusive"))[0]
	c.contenders = []*contender{curator, lockpool}
	c.ready(curator)
	downgrade := func(p, other *contender) {
		write, otherWrite := p.modes[0], other.modes[0]
		c.mustAcquire(p, write)
		read, err := c.downgrade(c.Ctx, p, write)
		require.NoError(t, err)
		c.mustAcquire(other, read)
		c.mustRelease(other, read)
		ok, err := c.acquire(c.Ctx, other, otherWrite, 100*time.Millisecond)
		require.NoError(t, err)
		require.False(t, ok)
		c.mustRelease(p, read)
		c.mustAcquire(other, otherWrite)
		c.mustRelease(other, otherWrite)
	}
	downgrade(curator, lockpool)
	downgrade(lockpool, curator)
	c.finish()
}

// Since 5.5 a downgraded writer of Curator has two nodes with the same sequence number, and
// is one contender. This test creates both nodes by hand.
func TestDowngradedWriterWithTwoNodesIsOneContender(t *testing.T) {
	t.Parallel()
	c := newContest(t)
	c.contenders = c.lockpool("curator-rw", exclusiveOrRead("exclusive"))
	reader, writer := c.contenders[0], c.contenders[1]
	write, read := writer.modes[0], reader.modes[1]
	_, err := c.Admin.Create(c.path, nil, 0, zk.WorldACL(zk.PermAll)) // a container would be removed between two steps
	require.NoError(t, err)
	create := func(suffix string, flags int32) string {
		path, err := c.Admin.Create(c.path+"/_c_"+uuid.NewString()+"-"+suffix, nil, flags, zk.WorldACL(zk.PermAll))
		require.NoError(t, err)
		return path
	}
	writeNode := func() string { return create("__WRIT__", zk.FlagEphemeral|zk.FlagSequence) }
	readNode := func(writeNode string) string {
		return create("__READ__"+writeNode[len(writeNode)-10:], zk.FlagEphemeral)
	}
	remove := func(path string) { require.NoError(t, c.Admin.Delete(path, -1)) }
	waitsFor := func(writes <-chan error, node string) {
		c.watched(node)
		require.Empty(t, writes)
		remove(node)
		require.NoError(t, <-writes)
		c.mustRelease(writer, write)
	}

	// A writer queued when both nodes exist waits for both.
	first := writeNode()
	second := readNode(first)
	writes := c.enqueue(writer, write)
	remove(first)
	waitsFor(writes, second)

	// A writer queued before the second node existed waits for the second node, too.
	first = writeNode()
	writes = c.enqueue(writer, write)
	c.watched(first)
	second = readNode(first)
	remove(first)
	waitsFor(writes, second)

	// A reader waits for the first node only; a writer behind it for the second.
	first = writeNode()
	second = readNode(first)
	reads := c.enqueue(reader, read)
	c.watched(first)
	writes = c.enqueue(writer, write)
	require.Empty(t, reads)
	remove(first)
	require.NoError(t, <-reads)
	c.mustRelease(reader, read)
	waitsFor(writes, second)
	c.finish()
}
