// Package exampletest runs an example's program in its tests. The program is the test
// binary itself, with the race detector if used for the tests.
package exampletest

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

const programEnv = "LOCKPOOL_EXAMPLE_TEST"

// Main is for TestMain. In a process prepared by [New], Main calls program, the main
// function of the example; otherwise Main runs the tests.
func Main(m *testing.M, program func(), opts ...goleak.Option) {
	if os.Getenv(programEnv) != "" { // also in processes started by the program
		program()
		return
	}
	goleak.VerifyTestMain(m, opts...)
}

// Program is a run of the example.
type Program struct {
	*exec.Cmd
	Stdout, Stderr *Output
	Temp           string // the temporary directory of this program only
}

// New prepares a run with no other programs on its PATH and no settings for
// OpenTelemetry.
func New(t *testing.T, args ...string) *Program {
	exe, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	p := &Program{exec.CommandContext(ctx, exe, args...), new(Output), new(Output), t.TempDir()}
	for _, env := range os.Environ() {
		if !strings.HasPrefix(env, "OTEL_") {
			p.Env = append(p.Env, env)
		}
	}
	p.Env = append(p.Env, programEnv+"=1", "TMPDIR="+p.Temp, "PATH=")
	// Wait waits until nothing can write there any more, and fails if a process
	// outlives the program.
	p.Cmd.Stdout, p.Cmd.Stderr = p.Stdout, p.Stderr
	p.WaitDelay = 10 * time.Second
	return p
}

// RequireSuccess runs the program, which must report no error and leave nothing behind.
func (p *Program) RequireSuccess(t *testing.T) {
	err := p.Run()
	t.Logf("\n%s", p.Stdout)
	require.NoError(t, err, p.Stderr)
	require.Empty(t, p.Stderr.String())
	p.RequireClean(t)
}

// StartUntil starts the program, and returns when the program has printed a text.
func (p *Program) StartUntil(t *testing.T, text string) {
	require.NoError(t, p.Start())
	require.Eventually(t, func() bool { return strings.Contains(p.Stdout.String(), text) }, time.Minute, time.Millisecond)
}

// RequireInterrupted interrupts the program, which must report an error that matches the
// pattern, and leave nothing behind.
func (p *Program) RequireInterrupted(t *testing.T, pattern string) {
	require.NoError(t, p.Process.Signal(os.Interrupt))
	p.RequireExit(t, 1)
	require.Regexp(t, pattern, p.Stderr)
	p.RequireClean(t) // at once: the server is stopped before the program ends
}

// RequireExit waits for the started program and requires the exit code.
func (p *Program) RequireExit(t *testing.T, code int) {
	var exit *exec.ExitError
	require.ErrorAs(t, p.Wait(), &exit)
	require.Equal(t, code, exit.ExitCode())
}

// RequireClean requires an empty temporary directory of the program.
func (p *Program) RequireClean(t *testing.T) {
	entries, err := os.ReadDir(p.Temp)
	require.NoError(t, err)
	require.Empty(t, entries)
}

// Output holds the text printed by a program so far.
type Output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// Misuse is an impossible command line.
type Misuse struct {
	Name  string
	Args  []string
	Code  int    // 2 if the command line is invalid in itself
	Error string // part of the printed error
	Logs  bool   // the program may log to standard output first
}

// RequireErrors requires the program to exit with a clear error for each command line, and
// with the usage if the command line is invalid in itself.
func RequireErrors(t *testing.T, usage string, misuses []Misuse) {
	for _, misuse := range misuses {
		t.Run(misuse.Name, func(t *testing.T) {
			t.Parallel()
			p := New(t, misuse.Args...)
			require.NoError(t, p.Start())
			p.RequireExit(t, misuse.Code)
			require.Contains(t, p.Stderr.String(), misuse.Error)
			if !misuse.Logs {
				require.Empty(t, p.Stdout.String())
			}
			if misuse.Code == 2 {
				require.Contains(t, p.Stderr.String(), usage)
			}
		})
	}
}
