package interop

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

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	_ "github.com/lockpool/lockpool/driver/zookeeper"
)

// forever is to wait as long as the context allows.
const forever time.Duration = -1

// client uses one lock. It does one thing at a time.
type client interface {
	// enter reports false if the lock was not to be had in time; for 0, at once.
	enter(ctx context.Context, kind string, atMost time.Duration) (bool, error)
	leave(ctx context.Context, kind string) error
}

// pool is one of lockpool, in this process.
type pool struct {
	testing.TB
	*lockpool.Pool
	name string
}

// openPool returns a pool of one session whose locks are laid out for certain
// others.
func openPool(t testing.TB, name, layout string) *pool {
	dsn := server.Addr() + chroot + "?session_timeout=15s"
	if layout != "" {
		dsn += "&layout=" + layout
	}
	p, err := lockpool.Open("zookeeper", dsn, lockpool.WithMaxSessions(1))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return &pool{t, p, name}
}

// holder returns one more holder of the pool's locks.
func (p *pool) holder(ctx context.Context) client {
	session, err := p.Handle(ctx)
	require.NoError(p, err)
	return &holder{session, p.name, map[string][]*lockpool.Lock{}}
}

// holder locks as "alone" or as "read".
type holder struct {
	session *lockpool.Handle
	name    string
	held    map[string][]*lockpool.Lock
}

func (h *holder) enter(ctx context.Context, kind string, atMost time.Duration) (bool, error) {
	lock, try := h.session.Lock, h.session.TryLock
	if kind == "read" {
		lock, try = h.session.RLock, h.session.TryRLock
	}
	if atMost > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, atMost)
		defer cancel()
	}
	if atMost == 0 {
		lock = try
	}
	l, err := lock(ctx, h.name)
	if tooLate(err, atMost) {
		return false, nil
	}
	h.held[kind] = append(h.held[kind], l)
	return err == nil, err
}

// tooLate reports whether an error of lockpool says that what it was asked for
// was not to be had in time.
func tooLate(err error, atMost time.Duration) bool {
	return atMost == 0 && errors.Is(err, lockpool.ErrLocked) || atMost > 0 && errors.Is(err, context.DeadlineExceeded)
}

func (h *holder) leave(ctx context.Context, kind string) error {
	last := len(h.held[kind]) - 1
	l := h.held[kind][last]
	h.held[kind] = h.held[kind][:last]
	return l.Unlock(ctx)
}

// goLock is go-zookeeper's Lock, which can not give up.
type goLock struct{ *zk.Lock }

func newGoLock(t testing.TB, path string) client {
	return goLock{zk.NewLock(dial(t), path, zk.WorldACL(zk.PermAll))}
}

func (l goLock) enter(ctx context.Context, _ string, atMost time.Duration) (bool, error) {
	if atMost != forever {
		return false, errors.New("go-zookeeper's Lock can not give up")
	}
	locked := make(chan error, 1)
	go func() { locked <- l.Lock.Lock() }() // ends with the connection if not before
	select {
	case err := <-locked:
		return err == nil, err
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

func (l goLock) leave(context.Context, string) error { return l.Unlock() }

// process is a peer in a process of its own.
type process struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	answers chan string   // closed at the end of stdout
	ended   chan struct{} // closed when it has ended
	err     error         // how

	mu     sync.Mutex
	stderr bytes.Buffer
}

// startCurator starts one who uses Curator's "mutex", "write", "read" and
// "permit", of so many.
func startCurator(t testing.TB, path string, limit int) *process {
	return start(t, "java", "-Xmx64m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xshare:auto",
		"-XX:TieredStopAtLevel=1", // it does not run long enough for the better compiler
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", classes+":"+curatorJars,
		"Peer", server.Addr(), milliseconds(afterDeath), path, strconv.Itoa(limit))
}

// startKazoo starts one who uses kazoo's "lock", "seeing-lock" (which has been
// told of Curator's nodes), "write" and "read".
func startKazoo(t testing.TB, path string) *process {
	return start(t, debianPython, "testdata/peer.py", server.Addr(), milliseconds(afterDeath), path)
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// start starts a program, which is killed when the test ends.
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

// Write keeps what the program has to say beside its answers.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stderr.Write(b)
}

// kill kills the program and returns when it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // fails if it has ended
	for range p.answers {    // nobody else may want them any more
	}
	<-p.ended
}

// finish lets the program end by itself.
func (p *process) finish(ctx context.Context) error {
	if err := p.stdin.Close(); err != nil {
		return err
	}
	select {
	case <-p.ended:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("the program does not end: %w", ctx.Err())
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

func (p *process) ask(ctx context.Context, format string, args ...any) (string, error) {
	if _, err := fmt.Fprintf(p.stdin, format+"\n", args...); err != nil {
		return "", err
	}
	return p.answer(ctx)
}

func (p *process) enter(ctx context.Context, kind string, atMost time.Duration) (bool, error) {
	ms := int64(-1)
	if atMost != forever {
		ms = atMost.Milliseconds()
	}
	switch answer, err := p.ask(ctx, "enter %s %d", kind, ms); {
	case err != nil:
		return false, err
	case answer == "in", answer == "timeout" && atMost != forever:
		return answer == "in", nil
	default:
		return false, errors.New(answer)
	}
}

func (p *process) leave(ctx context.Context, kind string) error {
	answer, err := p.ask(ctx, "leave %s", kind)
	if err == nil && answer != "out" {
		err = errors.New(answer)
	}
	return err
}
