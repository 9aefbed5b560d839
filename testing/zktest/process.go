package zktest

// This file has the process of a real server.

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
)

const logTailBytes = 4096

// errPortTaken is in the error chain of a process ended because another program had the
// port.
var errPortTaken = errors.New("the port is taken")

// process is one run of a server.
type process struct {
	cmd      *exec.Cmd
	log      string        // the path of the log file
	logStart int64         // the offset of this run in the log
	done     chan struct{} // closed when the process has ended
}

// startProcess runs argv in dir and appends the output to the file log.
func startProcess(dog *watchdog, dir, log string, argv []string) (*process, error) {
	// A file, not a pipe: Wait must not depend on other holders of a pipe.
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	info, err := out.Stat()
	if err != nil {
		return nil, err
	}

	// The shell waits until the watchdog knows the shell's pid, later java's. If this
	// process ends earlier, read fails and the shell exits.
	cmd := exec.Command("sh", append([]string{"-c", `read -r line && exec "$@" </dev/null`, "sh"}, argv...)...)
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = out, out
	in, err := startInGroup(cmd)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, log: log, logStart: info.Size(), done: make(chan struct{})}
	err = dog.guard(cmd.Process.Pid)
	if err == nil {
		_, err = io.WriteString(in, "go\n")
	}
	_ = in.Close()
	go func() { // ends with the process
		_ = cmd.Wait() // the result is in cmd.ProcessState
		dog.release()
		close(p.done)
	}()
	if err != nil {
		return nil, fmt.Errorf("starting under the watchdog: %w", errors.Join(err, p.kill()))
	}
	return p, nil
}

// startInGroup starts cmd in a new process group and returns the standard input. In the
// group, cmd survives a Ctrl-C in the terminal, so a program can still use the server while
// shutting down.
func startInGroup(cmd *exec.Cmd) (in io.WriteCloser, err error) {
	cmd.SysProcAttr = ownGroup()
	if in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	return in, cmd.Start()
}

func (p *process) alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// kill kills the process, even a paused one, and returns after reaping the process.
func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.done
	return nil
}

// exitError returns how the process ended. The process must not be alive.
func (p *process) exitError() error {
	if bytes.Contains(p.logTail(), []byte("java.net.BindException")) {
		return fmt.Errorf("the server exited (%s): %w", p.cmd.ProcessState, errPortTaken)
	}
	return fmt.Errorf("the server exited (%s)", p.cmd.ProcessState)
}

// logTail returns the last lines of this run.
func (p *process) logTail() []byte {
	f, err := os.Open(p.log)
	if err != nil {
		return []byte(err.Error())
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return []byte(err.Error())
	}
	from := max(p.logStart, info.Size()-logTailBytes)
	tail, err := io.ReadAll(io.NewSectionReader(f, from, info.Size()-from))
	if err != nil {
		return []byte(err.Error())
	}
	if from > p.logStart { // probably in the middle of a line
		_, tail, _ = bytes.Cut(tail, []byte("\n"))
	}
	return tail
}
