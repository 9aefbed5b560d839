// Package plant plants bugs in the code, one at a time, for tests to find.
package plant

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Bug is a change of one line of the code.
//
// A list of bugs has, for each, a line with "bug" and the name, one with "file" and the
// path, and a hunk without line numbers: "-" precedes the replaced line, "+" the line in
// the same place (none if the line is deleted), and a space the lines around, for
// uniqueness in the file. Indentation does not count. Further lines are notes, of a word
// and a text; "breaks" says what no longer holds. Lines beginning with "#" are comments.
type Bug struct {
	Name  string
	File  string            // from the root of the repository
	Notes map[string]string // by their first words

	before []string // lines before the replaced one, without indentation
	old    string
	new    string // "" if the line is deleted
	after  []string
}

var bugName = regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`)

// Read reads a list of bugs, each with the required notes besides "breaks". A note "missed"
// is allowed, too. Each bug must apply to its file below root.
func Read(root, text string, notes ...string) (bugs []Bug, err error) {
	if bugs, err = parse(text, notes...); err != nil {
		return nil, err
	}
	for _, b := range bugs {
		code, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(b.File)))
		if err != nil {
			return nil, err
		}
		if _, err := b.apply(string(code)); err != nil {
			return nil, err
		}
	}
	return bugs, nil
}

func parse(text string, notes ...string) (bugs []Bug, err error) {
	notes = append(notes, "breaks")
	for n, line := range strings.Split(text, "\n") {
		fail := func(problem string) ([]Bug, error) {
			return nil, fmt.Errorf("line %d of the list of bugs: %s: %q", n+1, problem, line)
		}
		if line == "" || line[0] == '#' {
			continue
		}
		key, value, _ := strings.Cut(line, " ")
		if key == "bug" {
			if !bugName.MatchString(value) || slices.ContainsFunc(bugs, func(b Bug) bool { return b.Name == value }) {
				return fail("not a new name in lower case with hyphens")
			}
			bugs = append(bugs, Bug{Name: value, Notes: map[string]string{}})
			continue
		}
		if len(bugs) == 0 {
			return fail("no bug begins here")
		}
		b, code := &bugs[len(bugs)-1], strings.TrimSpace(line[1:])
		switch {
		case key == "file":
			b.File = value
		case key == "missed", slices.Contains(notes, key):
			b.Notes[key] = value
		case line[0] == '-' && b.old == "":
			b.old = code
		case line[0] == '+' && b.old != "" && b.new == "":
			b.new = code
		case line[0] == ' ' && b.old == "":
			b.before = append(b.before, code)
		case line[0] == ' ':
			b.after = append(b.after, code)
		default:
			return fail("not understood")
		}
	}
	for _, b := range bugs {
		lacks := func(note string) bool { return b.Notes[note] == "" }
		if b.File == "" || b.old == "" || slices.ContainsFunc(notes, lacks) {
			return nil, fmt.Errorf("the bug %s lacks its file, its line, or one of the notes %q", b.Name, notes)
		}
	}
	return bugs, nil
}

// apply returns a text of b.File with the bug.
func (b Bug) apply(text string) (string, error) {
	lines := strings.Split(text, "\n")
	hunk := slices.Concat(b.before, []string{b.old}, b.after)
	found := -1
	for i := range len(lines) - len(hunk) + 1 {
		if !slices.EqualFunc(lines[i:i+len(hunk)], hunk, func(line, wanted string) bool { return strings.TrimSpace(line) == wanted }) {
			continue
		}
		if found >= 0 {
			return "", fmt.Errorf("%s: the lines of the bug %s are there more than once: add lines around them", b.File, b.Name)
		}
		found = i + len(b.before)
	}
	if found < 0 {
		return "", fmt.Errorf("%s: the lines of the bug %s are not there any more: adapt the bug", b.File, b.Name)
	}
	indentation, _, _ := strings.Cut(lines[found], b.old)
	lines[found] = indentation + b.new
	return strings.Join(lines, "\n"), nil
}

// SameLine reports whether both bugs are in the same line, so only one can be planted at a
// time.
func (b Bug) SameLine(other Bug) bool { return b.File == other.File && b.old == other.old }

// Overlay writes the files of the bugs, with the bugs, below dir. It returns the name of a
// file there, for go build -overlay, to put them in the place of the files in root.
func Overlay(root, dir string, bugs ...Bug) (overlay string, err error) {
	changed := map[string]string{} // by path
	for _, b := range bugs {
		path := filepath.Join(root, filepath.FromSlash(b.File))
		if changed[path] == "" {
			text, err := os.ReadFile(path)
			if err != nil {
				return "", err
			}
			changed[path] = string(text)
		}
		if changed[path], err = b.apply(changed[path]); err != nil {
			return "", err
		}
	}
	replace := map[string]string{}
	for path, text := range changed {
		replace[path] = filepath.Join(dir, fmt.Sprintf("%d-%s", len(replace), filepath.Base(path)))
		if err := os.WriteFile(replace[path], []byte(text), 0o666); err != nil {
			return "", err
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, text, 0o666)
}

// Test runs a file of tests in root with bugs planted there, and returns the output. A
// program with no other tests, and without the race detector, is soon built, in dir.
func Test(ctx context.Context, root, dir, file string, flags []string, bugs ...Bug) (out string, err error) {
	if root, err = filepath.Abs(root); err != nil {
		return "", err
	}
	overlay, err := Overlay(root, dir, bugs...)
	if err != nil {
		return "", err
	}
	program := filepath.Join(dir, "bugs.test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-ldflags=-s", "-overlay", overlay, "-o", program, file)
	build.Dir = root
	text, err := build.CombinedOutput()
	if err == nil {
		text, err = exec.CommandContext(ctx, program, append(flags, "-test.timeout=10m")...).CombinedOutput()
	}
	return string(text), err
}
