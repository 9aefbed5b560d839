package main

// This file has the history of locks by ZooKeeper's own files.

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool/cmd/lockpool/txnlog"
	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/nodedata"
	"github.com/lockpool/lockpool/internal/waitgraph"
	"github.com/lockpool/lockpool/internal/znode"
)

// fileHistory follows locks through ZooKeeper's files.
type fileHistory struct {
	*history
	chroot   string
	nodes    map[string]map[string]*lockNode // by queue and name; a plain lock's has no name
	sessions map[int64]map[place]bool        // nodes
	last     txnlog.Header                   // of a transaction
}

type lockNode struct {
	raw    []byte
	stat   zk.Stat
	record nodedata.Record
}

func newFileHistory(chroot string, names []string) *fileHistory {
	return &fileHistory{newHistory(names), strings.TrimRight(chroot, "/"), map[string]map[string]*lockNode{}, map[int64]map[place]bool{}, txnlog.Header{}}
}

// readFiles returns the history that the files of a server tell.
func readFiles(logs, snapshots, chroot string, names []string, from, to string) (*history, error) {
	files, err := txnlog.Find(logs, snapshots)
	if err != nil {
		return nil, err
	}
	h, last := newFileHistory(chroot, names), files.Last()
	if last.IsZero() {
		return nil, fmt.Errorf("no transaction can be read in %s; give the server's dataLogDir", logs)
	}
	if err := h.between(from, to, last); err != nil {
		return nil, err
	}
	notes, err := files.Walk(h.From, h.apply)
	h.finish(append(notes, "times are by the clock of ZooKeeper's leader, and the newest transactions may yet be withdrawn"))
	return h.history, err
}

// locate finds the place of a node, if the node may be a contender's for a wanted lock.
func (h *fileHistory) locate(path string) (at place, ok bool) {
	at.queue, ok = strings.CutPrefix(path, h.chroot+"/")
	first, _, _ := strings.Cut(at.queue, "/")
	if first == driver.Records || first == driver.Waits || first == "zookeeper" && h.chroot == "" {
		return at, false
	}
	if i := strings.LastIndexByte(at.queue, '/'); znode.IsContender(at.queue[i+1:]) {
		at = place{at.queue[:max(i, 0)], at.queue[i+1:]}
	}
	return at, ok && at.queue != "" && h.wants(driver.LockOf(at.queue))
}

// apply takes in a transaction, or a snapshot.
func (h *fileHistory) apply(t txnlog.Txn) (more bool) {
	if t.Time.After(h.To) {
		return false
	}
	changed := map[string]bool{} // locks
	if t.Zxid == 0 {
		for queue := range h.nodes {
			changed[driver.LockOf(queue)] = true
		}
		clear(h.nodes)
		clear(h.sessions)
	} else {
		h.last = t.Header
	}
	for _, op := range t.Ops {
		if at, ok := h.locate(op.Path); ok && h.change(at, op) {
			changed[driver.LockOf(at.queue)] = true
		}
	}
	if t.Ends {
		for at := range h.sessions[t.Session] {
			changed[driver.LockOf(at.queue)] = h.change(at, txnlog.Op{Kind: txnlog.Delete})
		}
		delete(h.sessions, t.Session)
	}
	p := &instant{order: h.last.Zxid << 1, at: h.last.Time, latest: h.last.Time, unseen: t.Zxid == 0}
	if p.unseen {
		p.order++
	}
	for lock := range changed {
		h.see(p, lock, h.queue(lock), ending(t))
	}
	return true
}

// ending says how the transaction has ended a hold or wait, and whose session removed the node
// of another.
func ending(t txnlog.Txn) func(*interval) (how, by string) {
	return func(i *interval) (how, by string) {
		switch by := znode.SessionID(t.Session); {
		case by != i.Session:
			return "removed", by
		case t.Ends && t.Cxid == 0: // asked by the server
			return "session expired", ""
		case t.Ends:
			return "session closed", ""
		}
		return i.left(), ""
	}
}

// change changes a node, if the node is a contender's.
func (h *fileHistory) change(at place, op txnlog.Op) bool {
	n := h.nodes[at.queue][at.name]
	if n == nil && (op.Kind != txnlog.Create || at.name == "" && !op.Ephemeral) { // unknown, or a directory
		return false
	}
	if n != nil && op.Kind != txnlog.SetData {
		delete(h.sessions[n.stat.EphemeralOwner], at)
		delete(h.nodes[at.queue], at.name)
	}
	if op.Kind == txnlog.Delete {
		return true
	}
	if op.Kind == txnlog.Create {
		n = &lockNode{stat: zk.Stat{Czxid: op.Zxid, Ctime: op.Time.UnixMilli()}}
		if op.Ephemeral {
			n.stat.EphemeralOwner = op.Session
		}
		insert(h.nodes, at.queue, at.name, n)
		insert(h.sessions, n.stat.EphemeralOwner, at, true)
	}
	n.raw, n.stat.Version = bytes.Clone(op.Data), op.Version
	_, stored := znode.CutPlainData(n.raw)
	n.record = nodedata.Parse(stored)
	return true
}

// queue returns the contenders of a lock, as lockpool.Pool.Queue does.
func (h *fileHistory) queue(lock string) []*waitgraph.Contender {
	return shown(lock, func(name string) (all []waitgraph.Contender) {
		nodes := h.nodes[name]
		contenders := znode.Contenders(slices.Collect(maps.Keys(nodes)))
		if n := nodes[""]; n != nil {
			contenders = append(contenders, znode.PlainNode(n.raw, &n.stat))
		}
		for _, node := range contenders {
			n := cmp.Or(nodes[node.Name], nodes[""])
			all = append(all, waitgraph.Contender{Contender: znode.NewContender(node, n.raw, &n.stat), Record: n.record})
		}
		return all
	})
}
