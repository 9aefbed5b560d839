package interop

// This file has a process of a client, and the lines read and written.

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// process is a client in a separate process: Curator or kazoo.
type process struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	answers chan string   // lines of stdout; closed at the end
	ended   chan struct{} // closed when the process has ended
	err     error         // of the process; set before ended is closed

	mu     sync.Mutex
	stderr bytes.Buffer
}

// startCurator starts a client with the kinds "mutex", "write", "read" and "permit". The
// limit is the semaphore's.
func startCurator(t testing.TB, path string, limit int) *process {
	return start(t, "java", "-Xmx64m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xshare:auto",
		"-XX:TieredStopAtLevel=1", // the process is too short-lived for the optimizing compiler
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", classes+":"+curatorJars,
		"Peer", server.Addr(), milliseconds(peerTimeout), path, strconv.Itoa(limit))
}

// startKazoo starts a client with the kinds "lock", "pattern-lock" (whose
// extra_lock_patterns include go-zookeeper's nodes), "write" and "read".
func startKazoo(t testing.TB, path string) *process {
	return start(t, debianPython, "testdata/peer.py", server.Addr(), milliseconds(peerTimeout), path)
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// start starts a program, killed at the end of the test.
func start(t testing.TB, argv ...string) *process {
	p := &process{cmd: exec.Command(argv[0], argv[1:]...), answers: make(chan string, 1), ended: make(chan struct{})}
	p.cmd.Stderr = p
	var err error
	p.stdin, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	go func() { // ends with the program
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			p.answers <- lines.Text()
		}
		p.err = p.cmd.Wait()
		close(p.answers)
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s: %v\n%s", argv, p.err, p.stderr.String())
		}
	})
	return p
}

// Write collects the program's standard error.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stderr.Write(b)
}

// kill kills the program and returns when the program has ended.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // fails if already ended
	for range p.answers {    // discard unawaited answers
	}
	<-p.ended
}

// finish closes the program's input and waits for the program's end.
func (p *process) finish(ctx context.Context) error {
	if err := p.stdin.Close(); err != nil {
		return err
	}
	select {
	case <-p.ended:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("the program has not ended: %w", ctx.Err())
	}
}

var errEnded = errors.New("the program has ended")

// answer waits for the program's next line.
func (p *process) answer(ctx context.Context) (string, error) {
	select {
	case line, ok := <-p.answers:
		if !ok {
			return "", errEnded
		}
		return line, nil
	case <-ctx.Done():
		return "", fmt.Errorf("no answer: %w", ctx.Err())
	}
}

// ask sends a command and returns the answer.
func (p *process) ask(ctx context.Context, format string, args ...any) (string, error) {
	if _, err := fmt.Fprintf(p.stdin, format+"\n", args...); err != nil {
		return "", err
	}
	return p.answer(ctx)
}

func (p *process) acquire(ctx context.Context, kind string, timeout time.Duration) (bool, error) {
	ms := int64(-1)
	if timeout != noTimeout {
		ms = timeout.Milliseconds()
	}
	switch answer, err := p.ask(ctx, "acquire %s %d", kind, ms); {
	case err != nil:
		return false, err
	case answer == "acquired", answer == "timeout" && timeout != noTimeout:
		return answer == "acquired", nil
	default:
		return false, errors.New(answer)
	}
}

func (p *process) release(ctx context.Context, kind string) error {
	answer, err := p.ask(ctx, "release %s", kind)
	if err == nil && answer != "released" {
		err = errors.New(answer)
	}
	return err
}
