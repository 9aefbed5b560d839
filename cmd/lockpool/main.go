// Lockpool locks from the shell, and shows who holds and waits for locks.
//
//	lockpool run cron/backup -- ./backup.sh
//
// The manual is docs/command.md; lockpool help lists the commands.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lockpool/lockpool"
)

func main() { os.Exit(execute(os.Args[1:], os.Stderr)) }

// execute runs the command line and returns the exit code. An error is one line.
func execute(args []string, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	err := root.Execute()
	if err == nil {
		return 0
	}
	if status := exitStatus(0); errors.As(err, &status) { // of a child, or of a signal, without words
		return int(status)
	}
	var f *failure
	if !errors.As(err, &f) { // of cobra: flags and arguments
		f = &failure{misuse, fmt.Errorf("%s; see lockpool --help", strings.TrimSpace(err.Error()))}
	}
	if !errors.As(err, new(told)) {
		fmt.Fprintln(stderr, "lockpool:", oneLine(f.err))
	}
	return int(*exitCodes[f.outcome].code)
}

// version is the module's version, or (devel) if built in a clone without tags.
func version() string {
	info, _ := debug.ReadBuildInfo() // nil only without modules
	if info == nil {
		return "(devel)"
	}
	return info.Main.Version
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "lockpool",
		Short: "Run commands under distributed locks, and see who holds them",
		Long: `Lockpool runs commands under distributed locks on ZooKeeper or etcd, and shows who holds and
waits for them. Every command connects to the server of --server or LOCKPOOL_SERVER.`,
		Example: `  export LOCKPOOL_SERVER=zk1:2181,zk2:2181,zk3:2181/locks
  lockpool run cron/backup -- ./backup.sh`,
		Version:       version(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	c := new(connection)
	c.register(root.PersistentFlags())
	root.AddCommand(runCommand(c), guardCommand(), lsCommand(c), showCommand(c), waitsCommand(c), topCommand(c), serveCommand(c), breakCommand(c),
		revokeCommand(c), devCommand(), doctorCommand(c), historyCommand(c), insightsCommand(c), manCommand(root))
	root.InitDefaultCompletionCmd()
	return root
}

// outcome is an end of the command itself, and not of a child.
type outcome int

const (
	busy outcome = iota
	lost
	done
	misuse
	failed
)

// exitCodes are the exit codes of the outcomes, by outcome. They are numbers hardly used by
// other programs: above the numbers of sysexits.h, and below the shells'. Each has a flag
// of lockpool run.
var exitCodes = [...]struct {
	code    *uint8
	name    string
	meaning string
}{
	busy:   {code(116), "busy", "the lock was not acquired: others hold it"},
	lost:   {code(117), "lost", "the lock was lost, or about to be, and the command was ended"},
	done:   {code(115), "done", "a run with the key has finished before"},
	misuse: {code(118), "misuse", "the command line is wrong"},
	failed: {code(119), "failed", "the service cannot be used, for example because no server answers"},
}

func code(n uint8) *uint8 { return &n }

// failure is an error with an outcome.
type failure struct {
	outcome outcome
	err     error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// told is an error that is on standard error already.
type told struct{ error }

func (t told) Unwrap() error { return t.error }

// misused returns an error about the command line.
func misused(format string, args ...any) error {
	return &failure{misuse, fmt.Errorf(format, args...)}
}

// exitStatus is an exit code without words.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// classified returns a RunE whose errors have an outcome.
func classified(run func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		err := run(cmd, args)
		if err == nil || errors.As(err, new(exitStatus)) || errors.As(err, new(told)) {
			return err
		}
		return classify(err)
	}
}

// classify returns err with the outcome and, if any, a hint of what to do.
func classify(err error) *failure {
	var f *failure
	if errors.As(err, &f) {
		return f
	}
	for _, h := range hints {
		if errors.Is(err, h.err) {
			if h.do != "" {
				err = fmt.Errorf("%w; %s", err, h.do)
			}
			return &failure{h.outcome, err}
		}
	}
	return &failure{failed, err}
}

// hints are the outcomes of errors, and what can be done.
var hints = []struct {
	err     error
	outcome outcome
	do      string
}{
	{lockpool.ErrLockLost, lost, ""},
	{lockpool.ErrLocked, busy, ""},
	{lockpool.ErrRevoked, busy, ""},
	{lockpool.ErrDone, done, ""},
	{lockpool.ErrInvalidName, misuse, ""},
	{lockpool.ErrKindMismatch, failed, "use another name, or lock this one as its other users do"},
	{lockpool.ErrNoPermission, failed, "ask for the right, or give (other) credentials with --credentials-file or LOCKPOOL_CREDENTIALS"},
	{lockpool.ErrUnavailable, failed, "check --server or LOCKPOOL_SERVER, and whether its servers run"},
}

var errNoAnswer = errors.New("the service did not answer in time; check --server or LOCKPOOL_SERVER, and whether its servers run")

// oneLine returns the text of err as a single line, without the library's prefix. Names in
// the text may come from other clients.
func oneLine(err error) string {
	text := strings.TrimPrefix(err.Error(), "lockpool: ")
	var lines []string
	for line := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == '\n' || r == '\r' }) {
		lines = append(lines, strings.TrimSpace(line))
	}
	return printable(strings.Join(lines, "; "))
}

// exitCodeTable lists the outcomes' exit codes.
func exitCodeTable() string {
	var b strings.Builder
	for _, e := range exitCodes {
		fmt.Fprintf(&b, "    %d  %s (--exit-%s)\n", *e.code, e.meaning, e.name)
	}
	return b.String() + "    126  the command cannot be executed; 127 if it is not found"
}

// registerExitCodes defines a flag for each outcome's exit code.
func registerExitCodes(flags *pflag.FlagSet) {
	for o, e := range exitCodes {
		short := ""
		if outcome(o) == busy {
			short = "E" // as in flock
		}
		flags.Uint8VarP(e.code, "exit-"+e.name, short, *e.code, fmt.Sprintf("exit code instead of %d", *e.code))
	}
}
