//go:build unix

package main

// This file runs the command of lockpool run in a process group, and ends the group in
// time.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/lockpool/lockpool"
)

// A job is a command and its children, in a separate process group. The group's leader is
// the guard, a copy of lockpool. The guard only waits for the end of lockpool itself, by
// any cause, and then kills the group. So no other group can get the number of the group
// while lockpool runs.
//
// If lockpool runs in the foreground of a terminal, so does the group, and the terminal's
// signals go to the group and not to lockpool. (In a pipeline, the reader of the output may be
// a pager, so the group comes to the foreground only if a process there reads the terminal.)
// When the child is stopped (Ctrl-Z), lockpool stops everything in the group, because a stopped
// lockpool can kill nothing, and then itself, for the shell to see. A continued lockpool
// continues the group once the lock is known to be still held. (If another process stops
// lockpool, the guard stops the group, on systems where the guard can see the stop.)
type job struct {
	path          string
	args          []string
	grace, margin time.Duration
	timeout       time.Duration // of the session

	guard   *exec.Cmd
	alive   *os.File // closed when lockpool ends
	tty     *os.File // nil without a terminal
	shown   bool     // the group has been put into the foreground
	process *os.Process
	states  chan syscall.WaitStatus // of the child
	reason  string                  // why lockpool has ended the job
	late    bool                    // a signal to end the job came after the child's end
	passed  bool                    // a signal has been passed on
	ctrlC   int                     // whom a typed Ctrl-C ends at last: a process, a negative group, or nobody
	closed  bool
}

// passed are the signals passed on to the group.
var passed = []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2}

// ends reports whether a signal ends a wait.
func ends(sig os.Signal) bool {
	switch sig {
	case syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM:
		return true
	}
	return false
}

// notify relays signals, except signals ignored from the start, as by nohup.
func notify(signals chan<- os.Signal) {
	for _, sig := range passed {
		if !signal.Ignored(sig) {
			signal.Notify(signals, sig)
		}
	}
}

// newJob starts the guard.
func newJob(path string, args []string, timeout, grace, margin time.Duration) (_ *job, err error) {
	j := &job{path: path, args: args, timeout: timeout, grace: grace, margin: margin, states: make(chan syscall.WaitStatus)}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat("/proc/self/exe"); err == nil {
		self = "/proc/self/exe" // even if the file was replaced since
	}
	j.guard = exec.Command(self, "guard")
	j.guard.Args[0] = os.Args[0]
	j.guard.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var stdin *os.File
	if stdin, j.alive, err = os.Pipe(); err != nil {
		return nil, err
	}
	defer stdin.Close()
	j.guard.Stdin = stdin
	ready, err := j.guard.StdoutPipe()
	if err == nil {
		err = j.guard.Start()
	}
	if err == nil {
		_, err = io.ReadFull(ready, make([]byte, 1))
	}
	if err != nil {
		j.close()
		return nil, fmt.Errorf("start the guard: %w", err)
	}
	if j.tty, err = os.OpenFile("/dev/tty", os.O_RDWR, 0); err != nil {
		j.tty = nil // no terminal, or a terminal that sends no signals
	}
	return j, nil
}

// guardCommand is what the guard runs.
func guardCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "guard",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: classified(func(*cobra.Command, []string) error {
			if syscall.Getpgrp() != os.Getpid() {
				return misused("guard is for lockpool itself")
			}
			signal.Ignore() // all signals sent to the group
			go func() {     // ends with the process
				for range time.Tick(100 * time.Millisecond) {
					if isStopped(os.Getppid()) {
						_ = syscall.Kill(0, syscall.SIGSTOP)
					}
				}
			}()
			if _, err := os.Stdout.Write([]byte{'.'}); err != nil {
				return err
			}
			_, _ = io.Copy(io.Discard, os.Stdin)    // until lockpool ends
			return syscall.Kill(0, syscall.SIGKILL) // the group, with the guard
		}),
	}
}

// close kills what is left of the group, and the guard, and takes the terminal back.
func (j *job) close() {
	if j.closed {
		return
	}
	j.closed = true
	if j.guard.Process != nil {
		_ = syscall.Kill(-j.guard.Process.Pid, syscall.SIGKILL)
		_ = j.guard.Wait() // killed
	}
	_ = j.alive.Close()
	if j.tty != nil {
		j.hide()
		_ = j.tty.Close()
	}
}

// run runs the command to the end, or until lockpool has to end the command because of the
// lock, for the returned reason. Then the rest of the group is killed.
func (j *job) run(ctx context.Context, lock *lockpool.Lock, revocable bool, env []string, signals <-chan os.Signal) (code int, reason string, err error) {
	defer j.close()
	lost := lock.Lost()
	expiring, err := j.healthy(ctx, lock)
	if err != nil {
		return 0, "", err
	}
	expired := lock.Expiring(j.margin)
	var revoked <-chan struct{}
	if revocable {
		revoked = lock.Revoked()
	}
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, syscall.SIGCONT)
	defer signal.Stop(continued)
	err = j.start(env)
	// Taking the terminal back must not stop lockpool, nor an unread warning end lockpool.
	// The child has been started, and inherits neither.
	signal.Ignore(syscall.SIGTTOU, syscall.SIGPIPE)
	if err != nil {
		return 0, "", err
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx)) // a revocation does not end the job
	defer stop()

	const outage = "the service does not answer, and the lock was about to expire"
	var notStopped <-chan time.Time // received when the group has not stopped, although asked to
	var held <-chan struct{}        // closed when the job of a continued lockpool can go on
	for {
		select {
		case status := <-j.states:
			switch {
			case status.Exited():
				return status.ExitStatus(), j.reason, nil
			case status.Signaled():
				if j.shown && !j.passed && status.Signal() == syscall.SIGINT {
					j.ctrlC = -syscall.Getpgrp() // which the terminal did not ask
				}
				return 128 + int(status.Signal()), j.reason, nil
			case (status.StopSignal() == syscall.SIGTTIN || status.StopSignal() == syscall.SIGTTOU) && j.inForeground():
				j.bringForward()
				j.signal(syscall.SIGCONT)
			case status.StopSignal() != syscall.SIGSTOP: // else not by a terminal
				j.signal(syscall.SIGSTOP) // also what has ignored the other signal
				j.hide()
				_ = syscall.Kill(0, syscall.SIGTSTP)
				notStopped = time.After(100 * time.Millisecond)
			}
		case <-lost:
			lost = nil
			j.end(syscall.SIGKILL, whyLost(ctx, lock).Error())
		case <-expired:
			expired = nil
			if whyLost(ctx, lock) == nil { // else lost, about to be closed, says more
				j.end(syscall.SIGKILL, outage)
			}
		case <-expiring:
			expiring = nil
			if !closed(expired) && whyLost(ctx, lock) == nil {
				j.end(syscall.SIGTERM, outage)
			}
		case <-revoked:
			revoked = nil
			j.signal(syscall.SIGTERM)
		case sig := <-signals:
			j.passed, j.late = true, j.late || ends(sig) && isOver(j.process.Pid)
			j.signal(sig.(syscall.Signal))
		case <-continued:
			notStopped, held = nil, verified(running, lock)
		case <-notStopped: // no process could continue lockpool: the group is orphaned
			notStopped, held = nil, verified(running, lock)
		case <-held:
			held = nil
			j.resume()
		}
	}
}

// healthy waits until the lease is longer than the time to end the job: a lock granted at
// the end of an outage has little of the lease left. It returns the channel closed when the
// job is to end.
func (j *job) healthy(ctx context.Context, lock *lockpool.Lock) (expiring <-chan struct{}, err error) {
	const step = 50 * time.Millisecond
	for tries := range j.timeout / 2 / step {
		// A channel stays closed, and there is one for each duration.
		expiring = lock.Expiring(j.margin + j.grace - tries)
		switch {
		case closed(lock.Lost()):
			return nil, &failure{lost, whyLost(ctx, lock)}
		case !closed(expiring):
			return expiring, nil
		}
		time.Sleep(step)
	}
	return nil, &failure{misuse, errors.New("the servers grant a session timeout that is too short for --grace; ask for a shorter one")}
}

// start starts the command.
func (j *job) start(env []string) error {
	_ = j.guard.Process.Signal(syscall.SIGCONT) // stopped if lockpool was, during the wait
	cmd := &exec.Cmd{
		Path: j.path, Args: j.args, Env: env,
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true, Pgid: j.guard.Process.Pid},
	}
	if j.inForeground() && !inPipeline() {
		cmd.SysProcAttr.Foreground, cmd.SysProcAttr.Ctty = true, int(j.tty.Fd())
		j.shown = true
	}
	dieWithParent(cmd.SysProcAttr)
	started := make(chan error)
	go func() { // ends with the child
		// For the kernel, the parent is this thread. The thread ends with the goroutine.
		runtime.LockOSThread()
		err := cmd.Start()
		j.process = cmd.Process
		started <- err
		for ended := err != nil; !ended; {
			var status syscall.WaitStatus
			if _, err := syscall.Wait4(j.process.Pid, &status, syscall.WUNTRACED, nil); err == nil {
				j.states <- status
				ended = status.Exited() || status.Signaled()
			} else if err != syscall.EINTR {
				panic(err) // there is a child, and only this process waits for the child
			}
		}
	}()
	return <-started
}

// whyLost returns why the lock was lost, or nil.
func whyLost(ctx context.Context, lock *lockpool.Lock) error {
	_, err := lock.Token(context.WithoutCancel(ctx)) // known, and asks nobody
	return errors.Unwrap(err)                        // without the name
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// end ends the job because of the lock.
func (j *job) end(sig syscall.Signal, reason string) {
	if j.reason == "" && !isOver(j.process.Pid) { // else the command has ended without lockpool
		j.reason = reason
	}
	j.signal(sig)
}

// signal sends a signal to the group, and to a child that has left the group, as
// interactive shells do.
func (j *job) signal(sig syscall.Signal) {
	group := j.guard.Process.Pid
	_ = syscall.Kill(-group, sig)
	if of, err := syscall.Getpgid(j.process.Pid); err == nil && of != group {
		_ = j.process.Signal(sig)
	}
}

// verified returns a channel closed as soon as the service says that the lock is held.
func verified(ctx context.Context, lock *lockpool.Lock) <-chan struct{} {
	held := make(chan struct{})
	go func() { // ends with ctx, or with the lock
		for {
			verify, cancel := context.WithTimeout(ctx, time.Second)
			err := lock.Verify(verify)
			cancel()
			if err == nil {
				close(held)
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-lock.Lost():
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	return held
}

// resume continues the job after lockpool was stopped.
func (j *job) resume() {
	if j.inForeground() && !inPipeline() {
		j.bringForward()
	}
	j.signal(syscall.SIGCONT)
}

// inPipeline reports whether another process of lockpool's group, perhaps a pager, reads the
// output.
func inPipeline() bool {
	info, err := os.Stdout.Stat()
	return err == nil && info.Mode()&os.ModeNamedPipe != 0
}

// dieOfCtrlC ends lockpool by SIGINT, if Ctrl-C has ended the child or the wait: a shell goes on
// with a script after an exit code.
func (j *job) dieOfCtrlC() {
	if j.ctrlC != 0 {
		signal.Reset(syscall.SIGINT)
		_ = syscall.Kill(j.ctrlC, syscall.SIGINT)
		time.Sleep(time.Second) // another thread dies
	}
}

// inForeground reports whether lockpool's own group is in the foreground of a terminal.
func (j *job) inForeground() bool {
	if j.tty == nil {
		return false
	}
	group, err := unix.IoctlGetInt(int(j.tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == syscall.Getpgrp()
}

// bringForward puts the group into the foreground.
func (j *job) bringForward() {
	j.show(j.guard.Process.Pid)
	j.shown = true
}

// hide takes the terminal back from the group.
func (j *job) hide() {
	if j.shown {
		j.show(syscall.Getpgrp())
		j.shown = false
	}
}

// show puts a group into the foreground.
func (j *job) show(group int) {
	_ = unix.IoctlSetPointerInt(int(j.tty.Fd()), unix.TIOCSPGRP, group) // the terminal may be gone
}
