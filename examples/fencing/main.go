// Fencing shows what a lock can not do alone, and what its token is for. A
// worker is paused while it holds a lock, for longer than its session lasts.
// The lock goes to another worker, as it must. The first one wakes, knows of
// nothing, and writes; the database refuses that, because it has seen a larger
// token.
//
//	go run ./examples/fencing
//
// The part to copy is account.go. The workers, in worker.go, are processes,
// copies of this program. This file starts them and an embedded ZooKeeper, and
// does the pausing: with SIGSTOP, so it needs a Unix system.
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
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/lockpool/lockpool/testing/zktest"
)

const (
	workerArg = "worker"         // what a copy of this program is called with
	patience  = 20 * time.Second // for the whole story, which takes about 3 s
)

func main() {
	if len(os.Args) == 5 && os.Args[1] == workerArg {
		slog.SetDefault(slog.New(slog.DiscardHandler)) // lockpool warns of the lost session
		amount, err := strconv.ParseInt(os.Args[4], 10, 64)
		exit(errors.Join(err, work(os.Args[2], os.Args[3], amount)))
	}
	if len(os.Args) > 1 {
		fmt.Fprintln(os.Stderr, "usage: fencing")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	exit(demo(ctx))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "fencing:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func demo(ctx context.Context) (err error) {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	server, err := zktest.Run(ctx, zktest.TickTime(200*time.Millisecond), zktest.Logger(slog.New(slog.DiscardHandler)))
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

// run lets the story happen. It is an error if it happens otherwise.
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

	a, err := s.start("A", -30)
	if err != nil {
		return err
	}
	defer a.kill()
	if err := a.await(hasRead); err != nil {
		return err
	}
	if err := pause(a.cmd.Process); err != nil {
		return err
	}
	s.say("A", "is PAUSED, by SIGSTOP, for longer than its session timeout of %s", sessionTimeout)

	b, err := s.start("B", +50)
	if err != nil {
		return err
	}
	defer b.kill()
	if err := b.work(); err != nil { // nothing holds it up
		return err
	}
	if err := b.await(hasRead, hasWritten); err != nil {
		return err
	}

	// A's work is done, but A does not run. So this is what it does first.
	if err := a.work(); err != nil {
		return err
	}
	s.say("A", "WAKES, by SIGCONT, and knows of nothing")
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
	s.say("", "The balance is %d, with token %d: what B wrote.", balance, token)
	if balance != 150 || token != b.token || b.token <= a.token {
		return fmt.Errorf("that is not as it should be: A had token %d, and B token %d and the balance 150", a.token, b.token)
	}
	return nil
}

func (s *story) say(who, format string, args ...any) {
	fmt.Printf("%5.2f s  %1s  %s\n", time.Since(s.begin).Seconds(), who, fmt.Sprintf(format, args...))
}

// worker is a process, as seen by the one that started it.
type worker struct {
	*story
	name    string
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	reports *json.Decoder
	token   int64
}

func (s *story) start(name string, amount int64) (*worker, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(s.ctx, exe, workerArg, s.address, s.database, strconv.FormatInt(amount, 10))
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

// await prints what the worker says until it has come to these states, one
// after the other and to no other.
func (w *worker) await(states ...string) error {
	for len(states) > 0 {
		var r report
		if err := w.reports.Decode(&r); err != nil {
			return fmt.Errorf("%s ended before it %s: %w", w.name, states[0], errors.Join(context.Cause(w.ctx), err))
		}
		w.say(w.name, "%s", r.Say)
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

// work tells the worker that its work is done.
func (w *worker) work() error { return w.stdin.Close() }

// kill is for a worker that does not end by itself, as a paused one.
func (w *worker) kill() {
	if w.cmd.ProcessState == nil {
		_ = w.cmd.Process.Kill()
		_ = w.cmd.Wait()
	}
}
