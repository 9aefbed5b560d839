// Command bugs plants bugs in the library, one at a time, and runs the simulation to see
// whether they are found. The list is in bugs.txt.
//
//	go run ./testing/lab/simulate/bugs [-run REGEXP] [-years 0.01] [-seed 1] [-parallel N] [further flags of simulate]
//
// Run the command in the root of the repository. The files there are not changed: the go
// command replaces them in building the simulation (go build -overlay). For each bug the
// command prints the violation found first, and the virtual and the real time of the
// bubbles until then. The last line is
//
//	bugs=... found=... missed=...
//
// The exit code is 1 if a bug is missed without a reason in the list.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/lockpool/lockpool/internal/plant"
)

//go:embed bugs.txt
var bugsText string

// readBugs returns the bugs of the list. Each says where the idea comes from.
func readBugs(root string) ([]plant.Bug, error) { return plant.Read(root, bugsText, "source") }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	flags := flag.NewFlagSet("bugs", flag.ExitOnError)
	run := flags.String("run", "", "only the bugs whose names match the `regexp`")
	years := flags.Float64("years", 0.01, "virtual time for each bug, in years of 365 days")
	seed := flags.Uint64("seed", 1, "seed of the simulation")
	parallel := flags.Int("parallel", 1, "bubbles at the same time")
	_ = flags.Parse(os.Args[1:]) // exits on failure
	ok, err := findBugs(ctx, os.Stdout, *run, append([]string{
		"-years", strconv.FormatFloat(*years, 'g', -1, 64), "-seed", strconv.FormatUint(*seed, 10), "-parallel", strconv.Itoa(*parallel),
	}, flags.Args()...))
	if err != nil {
		fmt.Fprintln(os.Stderr, "bugs:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

// findBugs runs the simulation with each bug whose name matches. It reports whether all
// bugs were found, except the bugs listed as missed.
func findBugs(ctx context.Context, out io.Writer, match string, flags []string) (ok bool, err error) {
	bugs, err := readBugs(".")
	if err != nil {
		return false, err
	}
	pattern, err := regexp.Compile(match)
	if err != nil {
		return false, err
	}
	table := tabwriter.NewWriter(out, 34, 0, 2, ' ', 0)
	ok = true
	tried, found := 0, 0
	for _, b := range bugs {
		if !pattern.MatchString(b.Name) {
			continue
		}
		o, err := simulate(ctx, b, flags)
		if err != nil {
			return false, fmt.Errorf("%s: %w", b.Name, err)
		}
		tried++
		if o.violation != "" {
			found++
		} else {
			o.violation = "MISSED"
			missed := b.Notes["missed"]
			if missed != "" {
				o.violation = "missed: " + missed
			}
			ok = ok && missed != ""
		}
		fmt.Fprintf(table, "%s\tvirtual=%s real=%s\t%s\n", b.Name, o.virtual, o.real, o.violation)
		table.Flush() // a run takes hours
	}
	fmt.Fprintf(out, "bugs=%d found=%d missed=%d\n", tried, found, tried-found)
	return ok, ctx.Err()
}

// outcome is what the simulation says.
type outcome struct {
	violation     string // the first; "" if there is none
	virtual, real string // time
}

// simulate runs the simulation with a bug.
func simulate(ctx context.Context, b plant.Bug, flags []string) (o outcome, err error) {
	root, err := os.Getwd()
	if err != nil {
		return o, err
	}
	dir, err := os.MkdirTemp("", "bug")
	if err != nil {
		return o, err
	}
	defer os.RemoveAll(dir)
	overlay, err := plant.Overlay(root, dir, b)
	if err != nil {
		return o, err
	}
	program := filepath.Join(dir, "simulate")
	if text, err := exec.CommandContext(ctx, "go", "build", "-overlay", overlay, "-o", program, "./testing/lab/simulate").CombinedOutput(); err != nil {
		return o, fmt.Errorf("%w: %s", err, text)
	}
	cmd := exec.CommandContext(ctx, program, append([]string{"-stop-at-first", "-out", dir}, flags...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // the simulation ends its own processes
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	const violated = 1 // the exit code
	if exit := new(exec.ExitError); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != violated) {
		return o, err
	}
	if o = readOutcome(string(text)); (err != nil) != (o.violation != "") || o.virtual == "" {
		return o, fmt.Errorf("the output of the simulation is not understood: %s", text)
	}
	return o, nil
}

// violationLine is the line of the simulation's output with the finding.
var violationLine = regexp.MustCompile(`(?m)^(VIOLATION|LEFT|STUCK) in bubble \d+ of seed \d+: (.*)$`)

func readOutcome(text string) (o outcome) {
	if found := violationLine.FindStringSubmatch(text); found != nil {
		const most = 160
		o.violation = found[1] + ": " + found[2][:min(len(found[2]), most)]
	}
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for field := range strings.FieldsSeq(lines[len(lines)-1]) {
		switch key, value, _ := strings.Cut(field, "="); key {
		case "virtual":
			o.virtual = value
		case "real":
			o.real = value
		}
	}
	return o
}
