// Fencing shows what a lock alone cannot do, and how the fencing token helps. A worker is
// paused under a lock, for longer than its session lasts. The lock is granted to another
// worker. The first worker resumes, unaware of the loss, and writes. The database refuses
// the write, because the database has seen a larger token.
//
//	go run ./examples/fencing
//
// The part to copy is account.go. The workers, in worker.go, are processes, copies of this
// program. This file starts them and an embedded ZooKeeper server, and pauses one of them
// with SIGSTOP, on a Unix system.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/lockpool/lockpool/examples/internal/demo"
	"github.com/lockpool/lockpool/testing/zktest"
)

const (
	workerArg      = "worker"        // the first argument of a worker
	timeout        = time.Minute     // for the whole story of about 5 s
	sessionTimeout = 4 * time.Second // of A, short: the story waits for the whole timeout
)

func main() {
	if len(os.Args) == 5 && os.Args[1] == workerArg {
		slog.SetDefault(slog.New(slog.DiscardHandler)) // lockpool would log the lost session
		amount, err := strconv.ParseInt(os.Args[4], 10, 64)
		demo.Exit("fencing", errors.Join(err, work(os.Args[2], os.Args[3], amount)))
	}
	if len(os.Args) > 1 {
		fmt.Fprintln(os.Stderr, "usage: fencing")
		os.Exit(2)
	}
	demo.Main("fencing", run)
}

func run(ctx context.Context) (err error) {
	ctx, stop := context.WithTimeout(ctx, timeout)
	defer stop()
	server, err := zktest.Run(ctx, zktest.Logger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	dir, err := os.MkdirTemp("", "fencing")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s := &story{ctx, time.Now(), server.Addr(), filepath.Join(dir, "bank.db")}
	return s.run()
}

type story struct {
	ctx      context.Context
	begin    time.Time
	address  string // of ZooKeeper
	database string
}

// run returns an error if the story does not happen as expected.
func (s *story) run() error {
	db, err := openDatabase(s.database)
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.ExecContext(s.ctx, schema); err != nil {
		return err
	}
	if _, err := db.ExecContext(s.ctx, `INSERT INTO account (id, balance) VALUES (?, 100)`, account); err != nil {
		return err
	}

	a, err := s.start("A", -30, sessionTimeout)
	if err != nil {
		return err
	}
	defer a.kill()
	if err := a.await(asks, hasRead); err != nil {
		return err
	}
	b, err := s.start("B", +50, 15*time.Second) // for work on any machine
	if err != nil {
		return err
	}
	defer b.kill()
	if err := b.await(asks); err != nil {
		return err
	}
	if err := pause(a.cmd.Process); err != nil {
		return err
	}
	s.printf("A", "is PAUSED by SIGSTOP, for longer than its session timeout of %s", sessionTimeout)

	if err := b.finishWork(); err != nil {
		return err
	}
	if err := b.await(hasRead, hasWritten); err != nil {
		return err
	}

	// A, while paused, is told that the work is finished. So the first thing A does on
	// resuming is the write.
	if err := a.finishWork(); err != nil {
		return err
	}
	s.printf("A", "RESUMES by SIGCONT, unaware of its loss")
	if err := resume(a.cmd.Process); err != nil {
		return err
	}
	if err := a.await(isRefused, hasLost); err != nil {
		return err
	}
	if err := errors.Join(a.cmd.Wait(), b.cmd.Wait()); err != nil {
		return err
	}

	var balance, token int64
	err = db.QueryRowContext(s.ctx, `SELECT balance, token FROM account WHERE id = ?`, account).Scan(&balance, &token)
	if err != nil {
		return err
	}
	s.printf("", "The balance is %d, with token %d: what B wrote.", balance, token)
	if balance != 150 || token != b.token || b.token <= a.token {
		return fmt.Errorf("the balance should be 150, from B with token %d, larger than A's token %d", b.token, a.token)
	}
	return nil
}

func (s *story) printf(worker, format string, args ...any) {
	fmt.Printf("%5.2f s  %1s  %s\n", time.Since(s.begin).Seconds(), worker, fmt.Sprintf(format, args...))
}

// worker is a process, as seen by the starting process.
type worker struct {
	*story
	name    string
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	reports *json.Decoder
	token   int64
}

func (s *story) start(name string, amount int64, timeout time.Duration) (*worker, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dsn := fmt.Sprintf("%s?session_timeout=%s", s.address, timeout)
	cmd := exec.CommandContext(s.ctx, exe, workerArg, dsn, s.database, strconv.FormatInt(amount, 10))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &worker{s, name, cmd, stdin, json.NewDecoder(stdout), 0}, cmd.Start()
}

// await prints the worker's reports until the worker has been in the given states, in this
// order and in no others.
func (w *worker) await(states ...string) error {
	for len(states) > 0 {
		var r report
		if err := w.reports.Decode(&r); err != nil {
			return fmt.Errorf("%s ended before it %s: %w", w.name, states[0], errors.Join(context.Cause(w.ctx), err))
		}
		w.printf(w.name, "%s", r.Text)
		switch r.State {
		case "":
		case states[0]:
			states = states[1:]
			w.token = r.Token
		default:
			return fmt.Errorf("%s %s before it %s", w.name, r.State, states[0])
		}
	}
	return nil
}

// finishWork tells the worker that the work before the write is finished.
func (w *worker) finishWork() error { return w.stdin.Close() }

// kill ends a running worker, in particular a paused one.
func (w *worker) kill() {
	if w.cmd.ProcessState == nil {
		_ = w.cmd.Process.Kill()
		_ = w.cmd.Wait()
	}
}
