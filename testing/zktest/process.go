package zktest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
)

const logTailBytes = 4096

// errPortTaken is in the error of a process that exited because it could not
// bind its port.
var errPortTaken = errors.New("the port is taken")

// process is one run of a server.
type process struct {
	cmd      *exec.Cmd
	log      string // the path of the log file
	logStart int64  // where in it this run starts
	done     chan struct{}
}

// startProcess runs argv in dir and appends its output to the file log.
func startProcess(dog *watchdog, dir, log string, argv []string) (*process, error) {
	// A plain file, not a pipe: Wait must not depend on who else holds it.
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	info, err := out.Stat()
	if err != nil {
		return nil, err
	}

	// The shell waits until the watchdog knows its pid, which then is java's.
	// If we vanish before, read fails and the shell exits.
	cmd := exec.Command("sh", append([]string{"-c", `read -r line && exec "$@" </dev/null`, "sh"}, argv...)...)
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = out, out
	// In a group of its own the server survives a Ctrl-C meant for us, so a
	// program can still use it while it shuts down.
	cmd.SysProcAttr = ownGroup()
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, log: log, logStart: info.Size(), done: make(chan struct{})}
	err = dog.guard(cmd.Process.Pid)
	if err == nil {
		_, err = io.WriteString(in, "go\n")
	}
	_ = in.Close()
	go func() {
		_ = cmd.Wait() // how it ended is in cmd.ProcessState
		dog.release()
		close(p.done)
	}()
	if err != nil {
		return nil, fmt.Errorf("starting under the watchdog: %w", errors.Join(err, p.kill()))
	}
	return p, nil
}

func (p *process) alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// kill ends the process, paused or not, and returns when it has been reaped.
func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.done
	return nil
}

// exitError says how the process ended. It must not be alive.
func (p *process) exitError() error {
	if bytes.Contains(p.logTail(), []byte("java.net.BindException")) {
		return fmt.Errorf("the server exited (%s): %w", p.cmd.ProcessState, errPortTaken)
	}
	return fmt.Errorf("the server exited (%s)", p.cmd.ProcessState)
}

// logTail returns the last lines that this run wrote.
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
