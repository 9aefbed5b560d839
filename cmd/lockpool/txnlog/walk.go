package txnlog

// This file finds the files, and walks through them from a known state.

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// File is a log that begins with the transaction Zxid, or a snapshot begun after it.
type File struct {
	Path string
	Zxid int64
}

// Files are the files of one server, the oldest first.
type Files struct{ Logs, Snapshots []File }

// Find finds the files in ZooKeeper's dataLogDir and dataDir, or their version-2. Without a
// directory of snapshots, both are one.
func Find(logs, snapshots string) (f Files, err error) {
	if f.Logs, err = find(logs, "log."); err == nil && len(f.Logs) == 0 {
		err = fmt.Errorf("there are no files log.* in %s: give the server's dataLogDir or, without one, dataDir", logs)
	}
	if err == nil {
		f.Snapshots, err = find(cmp.Or(snapshots, logs), "snapshot.")
	}
	return f, err
}

func find(dir, prefix string) (found []File, err error) {
	entries, err := os.ReadDir(filepath.Join(dir, "version-2"))
	if dir = filepath.Join(dir, "version-2"); err != nil {
		dir = filepath.Dir(dir)
		entries, err = os.ReadDir(dir)
	}
	for _, e := range entries {
		number, ok := strings.CutPrefix(e.Name(), prefix)
		number, _, _ = strings.Cut(number, ".") // of the compression
		if zxid, err := strconv.ParseInt(number, 16, 64); ok && err == nil {
			found = append(found, File{filepath.Join(dir, e.Name()), zxid})
		}
	}
	slices.SortFunc(found, byZxid)
	return found, err
}

// Last returns the time of the last transaction, or zero without one.
func (f Files) Last() (last time.Time) {
	for i := len(f.Logs) - 1; i >= 0 && last.IsZero(); i-- {
		_ = ReadLog(f.Logs[i].Path, func(t Txn) bool { last = t.Time; return true }) // Walk tells
	}
	return last
}

// Walk calls apply with the newest snapshot that was certainly complete at a time, and then the
// later transactions, until apply returns false. The notes say what is unknown or lost.
func (f Files) Walk(from time.Time, apply func(Txn) (more bool)) (notes []string, err error) {
	w := &walk{Files: f, apply: apply}
	w.begin(from)
	for i, log := range f.Logs {
		if !w.ended && w.err == nil && (i+1 == len(f.Logs) || f.Logs[i+1].Zxid > w.last+1) {
			w.check(ReadLog(log.Path, w.txn))
		}
	}
	return w.notes, w.err
}

type walk struct {
	Files
	apply func(Txn) (more bool)
	last  int64 // transaction applied
	lost  int64 // if not 0, the state lacks transactions, this one the last
	ended bool
	notes []string
	err   error
}

// check notes damage. Any other error ends the walk.
func (w *walk) check(err error) (ok bool) {
	if errors.Is(err, ErrDamaged) {
		w.notes = append(w.notes, err.Error())
	} else {
		w.err = cmp.Or(w.err, err)
	}
	return err == nil
}

// begin loads a snapshot that was begun before from: not the last, which the server may have
// been writing still.
func (w *walk) begin(from time.Time) {
	oldest, missing, begun := w.Logs[0], "", 0
	w.Snapshots = slices.DeleteFunc(slices.Clone(w.Snapshots), func(s File) bool { return s.Zxid < oldest.Zxid && !follows(s.Zxid, oldest.Zxid) })
	for i := len(w.Logs) - 1; i >= 0 && begun == 0; i-- {
		if first := firstTime(w.Logs[i]); !first.IsZero() && !first.After(from) {
			begun, _ = slices.BinarySearchFunc(w.Snapshots, w.Logs[i], byZxid)
		}
	}
	for i := min(max(begun-2, 0), len(w.Snapshots)-1); i >= 0 && w.err == nil && missing == ""; i-- {
		if w.last = w.Snapshots[i].Zxid; begun == 0 && w.last >= oldest.Zxid {
			w.last, missing = oldest.Zxid-1, " and left before "+filepath.Base(w.Snapshots[i].Path)
		}
		if w.load(w.Snapshots[i]) && missing == "" {
			return
		}
	}
	if w.last = oldest.Zxid - 1; !follows(0, oldest.Zxid) {
		w.notes = append(w.notes, fmt.Sprintf("contenders that joined before %s%s are missing, and others may be shown as holders in their place",
			firstTime(oldest).Local().Format(time.DateTime), missing))
	}
}

// load applies the part of a snapshot that was created until last. The logs create the rest again.
func (w *walk) load(s File) (ok bool) {
	t, err := ReadSnapshot(s.Path, w.last)
	return w.check(err) && w.apply(t)
}

// txn applies a transaction of a log.
func (w *walk) txn(t Txn) (more bool) {
	if t.Zxid <= w.last {
		return true
	}
	if !follows(w.last, t.Zxid) {
		w.notes = append(w.notes, fmt.Sprintf("the transactions between %#x and %#x (%s) are missing", w.last, t.Zxid, t.Time.Local().Format(time.DateTime)))
		w.lost = t.Zxid - 1
	}
	for i, _ := slices.BinarySearchFunc(w.Snapshots, File{Zxid: t.Zxid}, byZxid); w.lost > 0 && i > 0 && w.Snapshots[i-1].Zxid >= w.lost; i-- {
		if w.last = t.Zxid - 1; w.load(w.Snapshots[i-1]) {
			w.lost = 0
		}
		w.Snapshots = slices.Delete(w.Snapshots, i-1, i) // read once
	}
	w.last, w.ended = t.Zxid, w.err != nil || !w.apply(t)
	return !w.ended
}

// follows reports whether no transaction is between two. The numbers count up, and from 1 in
// each epoch.
func follows(a, b int64) bool { return b == a+1 || b > a && b&(1<<32-1) == 1 }

func byZxid(a, b File) int { return cmp.Compare(a.Zxid, b.Zxid) }

// firstTime returns the time of the first transaction, or zero without one.
func firstTime(log File) (first time.Time) {
	_ = ReadLog(log.Path, func(t Txn) bool { first = t.Time; return false }) // Walk tells
	return first
}
