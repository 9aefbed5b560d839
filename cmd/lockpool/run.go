//go:build unix

package main

// This file has the command run: flags, waiting for the lock, and exit codes.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver"
)

// tryTimeout bounds how long run --try waits for the service, unless --timeout does.
const tryTimeout = 10 * time.Second

// run is one lockpool run.
type run struct {
	timeout, holdAtLeast, maxHold, grace time.Duration

	try, shared, revocable, quiet, verbose bool

	permits, once, owner string

	connection *connection
	name       string
	command    []string

	job  *job
	code int // the child's exit code, if the job was started
}

func runCommand(c *connection) *cobra.Command {
	r := &run{connection: c}
	cmd := &cobra.Command{
		Use:   "run [flags] NAME -- COMMAND [ARGUMENT]...",
		Short: "Run a command while holding a lock",
		Long: `Run waits for the lock NAME, runs COMMAND while it holds it, and ends with the
command's exit code, or 128 plus the number of the signal that ended it. Signals are
passed on to the command and its children, its process group. They are killed before the
session can expire, and at once if the lock is lost in another way, such as a removal.

The command finds LOCKPOOL_NAME, LOCKPOOL_TOKEN (the fencing token, a number that grows
with each holder) and, if tracing is configured, TRACEPARENT in its environment.

Exit codes other than the command's, each with a flag to change it:

` + exitCodeTable(),
		Example: `  lockpool run cron/backup -- ./backup.sh                           one at a time, on all machines
  lockpool run --try cron/backup -- ./backup.sh                     not at all if it runs already
  lockpool run --once "$(date +%F)" cron/report -- ./report.sh      once a day, on whichever machine
  lockpool run --permits 1/3 gpu -- ./train.sh                      three at a time
  lockpool run --timeout 1m deploy -- sh -c 'echo "$LOCKPOOL_TOKEN"'`,
		RunE: classified(func(cmd *cobra.Command, args []string) error {
			dash := cmd.ArgsLenAtDash()
			if dash == 0 && len(args) > 1 && args[1] == "--" { // run -- -NAME -- COMMAND
				dash, args = 1, slices.Delete(args, 1, 2)
			}
			if dash != 1 || len(args) < 2 {
				return misused("write a name, --, and a command: lockpool run NAME -- COMMAND; see lockpool run --help")
			}
			r.name, r.command = args[0], args[1:]
			return r.run(cmd)
		}),
	}
	flags := cmd.Flags()
	flags.DurationVarP(&r.timeout, "timeout", "w", 0, "give up if the lock is not acquired within this `duration` (default: wait)")
	flags.BoolVarP(&r.try, "try", "n", false, "give up if the lock is not free; wait at most --timeout for the service (default 10s)")
	flags.BoolVarP(&r.shared, "shared", "s", false, "share the lock with other commands that share it")
	flags.StringVar(&r.permits, "permits", "", "take N of LIMIT permits of a semaphore, as `N/LIMIT`")
	flags.StringVar(&r.once, "once", "", "run only if no run with this `key`, such as a date, has succeeded before")
	flags.DurationVar(&r.holdAtLeast, "hold-at-least", 0, "keep the lock at least for this `duration`, even if the command ends earlier")
	flags.DurationVar(&r.maxHold, "max-hold", 0, "warn when the command has held the lock for this `duration`, and with --revocable send SIGTERM")
	flags.DurationVar(&r.grace, "grace", 0, "`duration` between SIGTERM and SIGKILL if the lock runs out (default: a fifteenth of the session timeout)")
	flags.BoolVar(&r.revocable, "revocable", false, "send SIGTERM when someone asks for the lock (lockpool revoke)")
	flags.BoolVarP(&r.quiet, "quiet", "q", false, "print nothing if the lock is not acquired or the run is done")
	flags.BoolVarP(&r.verbose, "verbose", "v", false, "say who holds the lock after two seconds of waiting, even if standard error is no terminal")
	flags.StringVar(&r.owner, "owner", "", "`name` shown to others that look at the lock (default: the command's)")
	cmd.MarkFlagsMutuallyExclusive("quiet", "verbose")
	cmd.MarkFlagsMutuallyExclusive("shared", "permits", "once")
	cmd.MarkFlagsMutuallyExclusive("once", "hold-at-least")
	registerExitCodes(flags)
	cmd.ValidArgsFunction = r.connection.complete
	return cmd
}

func (r *run) run(cmd *cobra.Command) error {
	service, err := r.connection.service()
	if err != nil {
		return err
	}
	// The session leaves a server silent for a quarter of the timeout, and the lease is
	// then at least 0.4 of the timeout. The grace period takes from the time left for the
	// next server.
	margin := max(service.timeout/30, 200*time.Millisecond)
	if !cmd.Flags().Changed("grace") {
		r.grace = service.timeout / 15
	}
	if longest := service.timeout * 3 / 10; r.grace < 0 || r.grace > longest {
		return misused("--grace must be at most %s, three tenths of the session timeout; raise --session-timeout", longest)
	}
	if r.timeout < 0 || r.holdAtLeast < 0 || r.maxHold < 0 {
		return misused("--timeout, --hold-at-least and --max-hold cannot be negative")
	}
	path, err := exec.LookPath(r.command[0])
	if err != nil {
		return r.cannotStart(err)
	}

	defer func() {
		if r.job != nil {
			r.job.dieOfCtrlC()
		}
	}()
	ctx, endTracing := startTracing(context.Background())
	defer endTracing() // when the pool's last span has ended
	opts := []lockpool.Option{lockpool.WithOwner(cmp.Or(r.owner, ownerOf(path))), lockpool.WithMaxSessions(1)}
	if r.maxHold > 0 {
		opts = append(opts, lockpool.WithMaxHold(r.maxHold, r.revocable))
	}
	pool, err := service.open(opts...)
	if err != nil {
		return misused("%w", err)
	}
	defer pool.Close()
	take, err := r.take(pool, cmd.Flags().Changed)
	if err != nil {
		return err
	}
	if r.job, err = newJob(path, r.command, service.timeout, r.grace, margin); err != nil {
		return err
	}
	defer r.job.close()

	ctx, span := tracer.Start(ctx, "lockpool run", trace.WithAttributes(attribute.String("lockpool.lock.name", r.name)))
	defer span.End()
	err = r.outcome(ctx, pool, take)
	if err != nil {
		span.SetStatus(codes.Error, oneLine(err))
	}
	return err
}

// ownerOf returns the name of a file, as far as an owner may have the name.
func ownerOf(path string) string {
	name := filepath.Base(path)
	return strings.ToValidUTF8(name[:min(len(name), 200)], "")
}

// take returns the call to take the lock and call a function under the lock.
func (r *run) take(pool *lockpool.Pool, given func(flag string) bool) (func(context.Context, func(context.Context) error) error, error) {
	var opts []lockpool.LockOption
	switch {
	case r.try || given("timeout") && r.timeout == 0:
		r.try = true
		opts = append(opts, lockpool.WaitAtMost(0))
	case given("timeout"):
		opts = append(opts, lockpool.WaitAtMost(r.timeout))
	}
	if r.shared {
		opts = append(opts, lockpool.Shared())
	}
	if r.revocable {
		opts = append(opts, lockpool.Revocable())
	}
	switch {
	case given("permits"):
		n, limit, ok := parsePermits(r.permits)
		if !ok {
			return nil, misused("--permits %q is not of the form N/LIMIT, such as 1/3", r.permits)
		}
		return func(ctx context.Context, fn func(context.Context) error) error {
			return pool.Semaphore(r.name, limit).Do(ctx, n, fn, opts...)
		}, nil
	case given("once"):
		return func(ctx context.Context, fn func(context.Context) error) error {
			return pool.Once(ctx, r.name, r.once, fn, opts...)
		}, nil
	}
	return func(ctx context.Context, fn func(context.Context) error) error {
		return pool.Do(ctx, r.name, fn, opts...)
	}, nil
}

func parsePermits(s string) (n, limit int, ok bool) {
	before, after, _ := strings.Cut(s, "/")
	n, err := strconv.Atoi(before)
	limit, err2 := strconv.Atoi(after)
	return n, limit, err == nil && err2 == nil && n > 0 && n <= limit
}

// outcome waits for the lock, runs the job, and returns how the job ended.
func (r *run) outcome(ctx context.Context, pool *lockpool.Pool, take func(context.Context, func(context.Context) error) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	signals := make(chan os.Signal, 16)
	notify(signals)
	defer signal.Stop(signals)

	// Until the job runs, a signal ends the wait, and so does silence in a call without
	// waiting.
	stopWaiting := endBy(signals, cancel)
	var patience *time.Timer
	if r.try {
		patience = time.AfterFunc(cmp.Or(r.timeout, tryTimeout), func() { cancel(errNoAnswer) })
	}
	waiting := func() bool { return true }
	if r.verbose || !r.quiet && term.IsTerminal(os.Stderr.Fd()) {
		waiting = r.tellOfWait(ctx, pool)
	}
	started := false
	err := take(ctx, func(held context.Context) error {
		waiting()
		stopWaiting()
		if patience != nil {
			patience.Stop()
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		started = true
		granted := time.Now()
		err := r.hold(held, signals)
		// The child has ended; a signal now ends the rest of the hold, and another one the wait
		// for the service to confirm the release.
		if d := r.holdAtLeast - time.Since(granted); err == nil && !r.job.late && d > 0 {
			rest(held, signals, d)
		} else {
			drain(signals)
		}
		stopWaiting = endBy(signals, cancel)
		if err != nil {
			return err
		}
		if r.code != 0 {
			return exitStatus(r.code) // and with --once, the run is not done
		}
		return nil
	})
	waiting()
	stopWaiting()

	var status exitStatus
	switch cause := context.Cause(ctx); {
	case err == nil:
		return nil
	case !started && errors.As(cause, &status):
		if status == exitStatus(128+syscall.SIGINT) && r.job.inForeground() {
			r.job.ctrlC = os.Getpid()
		}
		return status
	case !started && cause == errNoAnswer:
		if errors.Is(err, errNoAnswer) {
			return &failure{failed, err}
		}
		return &failure{failed, fmt.Errorf("%w: %w", errNoAnswer, err)}
	case !started:
		if f := classify(err); r.quiet && (f.outcome == busy || f.outcome == done) {
			return exitStatus(*exitCodes[f.outcome].code)
		}
		if errors.Is(err, lockpool.ErrLocked) {
			ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
			defer cancel()
			if holders, failed := r.holders(ctx, pool); failed == nil && holders != "" {
				return &failure{busy, fmt.Errorf("%s is held by %s", quoted(r.name), holders)}
			}
		}
		return err
	case errors.As(err, new(*failure)):
		return err
	case errors.Is(err, lockpool.ErrLockLost):
		return &failure{lost, fmt.Errorf("the lock was lost when %s had ended; another holder may have been beside it: %v", r.command[0], err)} // without the command's exit code
	case errors.As(err, &status):
		return status
	}
	return err
}

// readTimeout is how long a read may take whose result is only told.
const readTimeout = 5 * time.Second

// holders names the holders of the lock. Each key of --once has a lock of its own.
func (r *run) holders(ctx context.Context, pool *lockpool.Pool) (string, error) {
	name := r.name
	if r.once != "" {
		name += "/" + lockpool.Escape(driver.RunPrefix+r.once)
	}
	q, err := pool.Queue(ctx, name)
	var all []string
	for _, c := range holders(q) {
		all = append(all, who(c))
	}
	return strings.Join(all, ", "), err
}

// tellOfWait says who holds the lock if stop is not called soon.
func (r *run) tellOfWait(ctx context.Context, pool *lockpool.Pool) (stop func() bool) {
	const silence = 2 * time.Second
	ctx, cancel := context.WithTimeout(ctx, silence+readTimeout)
	timer := time.AfterFunc(silence, func() {
		switch holders, err := r.holders(ctx, pool); {
		case errors.Is(err, context.Canceled):
		case err != nil:
			fmt.Fprintf(os.Stderr, "lockpool: waiting for %s: %s\n", quoted(r.name), oneLine(err))
		case holders != "":
			fmt.Fprintf(os.Stderr, "lockpool: waiting for %s, which is held by %s\n", quoted(r.name), holders)
		}
	})
	return func() bool {
		cancel()
		return timer.Stop()
	}
}

// rest waits for the time d, until the lock of ctx is lost, or until a signal arrives. A
// revocation ends no rest.
func rest(ctx context.Context, signals <-chan os.Signal, d time.Duration) {
	lock, _ := lockpool.LockFromContext(ctx)
	for over := time.After(d); ; {
		select {
		case <-over:
			return
		case <-lock.Lost():
			return
		case sig := <-signals:
			if ends(sig) {
				return
			}
		}
	}
}

// drain forgets the signals that came before the child's end.
func drain(signals <-chan os.Signal) {
	for len(signals) > 0 {
		<-signals
	}
}

// endBy ends a wait when a signal arrives, until stop is called.
func endBy(signals <-chan os.Signal, cancel context.CancelCauseFunc) (stop func()) {
	stopped, ended := make(chan struct{}), make(chan struct{})
	go func() { // ends with stop
		defer close(ended)
		for {
			select {
			case sig := <-signals:
				if ends(sig) {
					cancel(exitStatus(128 + int(sig.(syscall.Signal))))
				}
			case <-stopped:
				return
			}
		}
	}()
	return func() {
		select {
		case <-stopped:
		default:
			close(stopped)
		}
		<-ended
	}
}

// hold runs the job under the lock in ctx.
func (r *run) hold(ctx context.Context, signals <-chan os.Signal) error {
	lock, _ := lockpool.LockFromContext(ctx)
	token, err := lock.Token(context.WithoutCancel(ctx)) // a revocation is for the command
	if err != nil {
		return err
	}
	ctx, span := tracer.Start(ctx, "run "+filepath.Base(r.command[0]))
	defer span.End()
	env := append(os.Environ(), "LOCKPOOL_NAME="+r.name, "LOCKPOOL_TOKEN="+strconv.FormatInt(token, 10))
	if span.SpanContext().IsValid() {
		carrier := propagation.MapCarrier{}
		propagation.TraceContext{}.Inject(ctx, carrier)
		for key, value := range carrier {
			env = append(env, strings.ToUpper(key)+"="+value)
		}
	}
	var reason string
	r.code, reason, err = r.job.run(ctx, lock, r.revocable, env, signals)
	switch {
	case errors.As(err, new(*failure)):
		return err
	case err != nil:
		return r.cannotStart(err)
	case reason != "":
		err = told{&failure{lost, fmt.Errorf("%s; %s was ended", reason, r.command[0])}}
		fmt.Fprintln(os.Stderr, "lockpool:", oneLine(err)) // at once: the release waits for the service
		span.SetStatus(codes.Error, reason)
	}
	span.SetAttributes(attribute.Int("process.exit.code", r.code))
	return err
}

// cannotStart returns the error of a command that cannot be started, with the exit code as
// in shells.
func (r *run) cannotStart(err error) error {
	cause := err
	if e := (*exec.Error)(nil); errors.As(err, &e) { // e repeats the name
		cause = e.Err
	}
	fmt.Fprintf(os.Stderr, "lockpool: cannot run %s: %s\n", r.command[0], oneLine(cause))
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return exitStatus(127)
	}
	return exitStatus(126)
}
