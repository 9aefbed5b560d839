package docs

// This file runs the shell blocks of the pages.

import (
	"context"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// otherLanguages are the languages of blocks only to be read.
var otherLanguages = []string{"java", "promql", "properties", "python", "sql", "text"}

func TestEveryBlockIsRunOrExcused(t *testing.T) {
	t.Parallel()
	for _, p := range manual(t) {
		for _, fault := range notRunnable(p) {
			t.Error(fault)
		}
	}
}

func TestBlocksThatAreNotRunAreFound(t *testing.T) {
	t.Parallel()
	p := scratch(t, "```go\nreturn nil\n```\n\n```\ntrue\n```\n\n```cobol\nSTOP RUN.\n```\n\n    true\n\n```text\nhello\n```\n\n<!-- not run: no such compiler -->\n```cobol\nSTOP RUN.\n```\n\n<!-- not run: too long -->\n```go\nreturn nil\n```\n")
	require.Equal(t, []string{
		"scratch.md:13: an indented block: use a fence, and say the language",
		`scratch.md:6: a block that is neither run nor marked (language "")`,
		`scratch.md:10: a block that is neither run nor marked (language "cobol")`,
		"scratch.md:26: a Go block has no excuse",
	}, notRunnable(p))
}

// notRunnable returns the blocks of a page not run by any test, without a reason.
func notRunnable(p *page) []string {
	faults := slices.Clone(p.broken)
	for _, b := range p.blocks {
		if b.excuse != "" && b.language == "go" {
			faults = append(faults, fmt.Sprintf("%s: a Go block has no excuse", b))
		}
		if b.excuse == "" && b.language != "go" && b.language != "sh" && !slices.Contains(otherLanguages, b.language) {
			faults = append(faults, fmt.Sprintf("%s: a block that is neither run nor marked (language %q)", b, b.language))
		}
	}
	return faults
}

func TestShellBlocksRun(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs a Unix shell")
	}
	// Most blocks run the examples, so the cached result depends on the examples (see
	// root).
	require.NoError(t, filepath.WalkDir(filepath.Join(root, "examples"), func(_ string, _ fs.DirEntry, err error) error { return err }))
	for _, p := range manual(t) {
		for _, b := range p.blocks {
			if b.language == "sh" && b.excuse == "" {
				t.Run(b.String(), func(t *testing.T) {
					out, err := runShell(t.Context(), b)
					require.NoError(t, err, "%s", out)
				})
			}
		}
	}
}

func TestBrokenShellBlockIsFound(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("needs a Unix shell")
	}
	p := scratch(t, "```sh\ntest -e README.md\n```\n\n```sh\nfalse\ntrue\n```\n")
	_, err := runShell(t.Context(), p.blocks[0])
	require.NoError(t, err)
	_, err = runShell(t.Context(), p.blocks[1])
	require.Error(t, err)
}

// runShell runs a block in the root of the repository, and returns the output.
func runShell(ctx context.Context, b block) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute) // most of the time for compiling
	defer cancel()
	dir, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "sh", "-ec", b.code)
	cmd.Dir, cmd.WaitDelay = dir, 5*time.Second
	return cmd.CombinedOutput()
}
