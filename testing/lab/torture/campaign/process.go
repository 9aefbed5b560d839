//go:build linux

package campaign

// This file starts, watches and ends the processes of clients.

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/lockpool/lockpool/testing/lab/simulate/workload"
)

// process is a process of a client, from the campaign's side.
type process struct {
	campaign *Campaign
	name     string
	cmd      *exec.Cmd
	stderr   *tail
	done     chan struct{} // closed when the process has ended and the last event was read

	mu       sync.Mutex
	signaled bool             // told to end
	killed   workload.Instant // just before the kill
}

func (c *Campaign) client(i int) *process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.clients[i]
}

// clockRates are the clock rates of the first clients. A lease tolerates a
// difference of 5 % between a client and a server.
var clockRates = []float64{1.03, 0.97}

// localTurns returns the turns of the pools of client i in memory: half of the clients with
// even numbers, and half of the others, pass locks on among their workers.
func localTurns(i int) int { return []int{1000, 0}[i/2%2] }

// startClient starts a process of client i.
func (c *Campaign) startClient(i int) error {
	c.mu.Lock()
	c.starts++
	seed := c.Seed<<32 + uint64(c.starts)
	c.mu.Unlock()
	config := Client{Config: c.Config, Workers: c.Workers, ClockRate: 1, LocalTurns: localTurns(i)}
	config.Seed, config.Reads, config.Process = seed, c.Reads(i), i
	switch {
	case c.ClockRate != 0:
		config.ClockRate = c.ClockRate
	case i < len(clockRates):
		config.ClockRate = clockRates[i]
	}
	for _, l := range c.links[i] {
		config.Servers = append(config.Servers, l.Addr())
	}
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), clientEnv+"="+string(text))
	return c.launch(i, cmd)
}

// launch starts a command as a process of client i.
func (c *Campaign) launch(i int, cmd *exec.Cmd) error {
	p := &process{campaign: c, cmd: cmd, stderr: new(tail), done: make(chan struct{})}
	cmd.Stderr = p.stderr
	// A client ends with its standard input, but not while paused.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if _, err := cmd.StdinPipe(); err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	p.name = fmt.Sprintf("client %d (pid %d)", i, cmd.Process.Pid)
	if localTurns(i) > 0 {
		c.history.Update(func(rec *workload.Record) { rec.PassesOn = append(rec.PassesOn, p.name) })
	}
	c.mu.Lock()
	c.clients[i] = p
	c.mu.Unlock()
	go func() { // ends with the process
		defer close(p.done)
		c.history.Collect(p.name, stdout, p.wait)
	}()
	return nil
}

// wait waits until the process has ended, and returns until when the process's holds may
// have lasted.
func (p *process) wait() workload.Instant {
	err := p.cmd.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.killed != workload.Never:
		return p.killed
	case !p.signaled || err != nil:
		p.campaign.history.Update(func(rec *workload.Record) {
			rec.Crashes = append(rec.Crashes, fmt.Sprintf("%s ended by itself (%s): %s", p.name, p.cmd.ProcessState, p.stderr))
		})
	}
	return now()
}

// end ends the process by a signal, or kills it after the campaign's Grace.
func (p *process) end(sig syscall.Signal) {
	p.mu.Lock()
	p.signaled = true
	if sig == syscall.SIGKILL && p.killed == workload.Never {
		p.killed = now()
	}
	_ = p.cmd.Process.Signal(sig) // fails if the process has ended
	p.mu.Unlock()
	select {
	case <-p.done:
	case <-time.After(p.campaign.Grace):
		p.endHung(sig)
	}
}

// endHung ends and reports a process still running after a signal.
func (p *process) endHung(sig syscall.Signal) {
	p.mu.Lock()
	p.killed = now()
	p.mu.Unlock()
	_ = p.cmd.Process.Signal(syscall.SIGQUIT) // prints the goroutines
	select {
	case <-p.done:
	case <-time.After(Tick):
	}
	_ = p.cmd.Process.Kill()
	<-p.done
	p.campaign.history.Update(func(rec *workload.Record) {
		rec.Hung = append(rec.Hung, fmt.Sprintf("%s did not end within %s after the signal %q: %s", p.name, p.campaign.Grace, sig, p.stderr))
	})
}

// endClients ends all clients at the same time.
func (c *Campaign) endClients(sig syscall.Signal) {
	var wg sync.WaitGroup
	for i := range c.Clients {
		if p := c.client(i); p != nil {
			wg.Go(func() { p.end(sig) })
		}
	}
	wg.Wait()
}

// tail keeps the end of the written text.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailLength = 64 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	t.text = t.text[max(0, len(t.text)-tailLength):]
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
