package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// bug is a change of one line of the library.
type bug struct {
	name   string
	file   string   // from the root of the repository
	before []string // lines before the one that is replaced, without indentation
	old    string
	new    string // "" if the line is deleted
	after  []string
	breaks string // what no longer holds
	source string // where the idea comes from
	missed string // why the simulation does not find it; "" if it does
}

//go:embed bugs.txt
var bugsText string

var bugName = regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`)

// parseBugs parses a list of bugs, whose format bugs.txt explains.
func parseBugs(text string) (bugs []bug, err error) {
	for n, line := range strings.Split(text, "\n") {
		fail := func(problem string) ([]bug, error) {
			return nil, fmt.Errorf("line %d of the list of bugs: %s: %q", n+1, problem, line)
		}
		if line == "" || line[0] == '#' {
			continue
		}
		key, value, _ := strings.Cut(line, " ")
		if key == "bug" {
			if !bugName.MatchString(value) || slices.ContainsFunc(bugs, func(b bug) bool { return b.name == value }) {
				return fail("not a new name in lower case with hyphens")
			}
			bugs = append(bugs, bug{name: value})
			continue
		}
		if len(bugs) == 0 {
			return fail("no bug begins here")
		}
		b, code := &bugs[len(bugs)-1], strings.TrimSpace(line[1:])
		switch {
		case key == "file":
			b.file = value
		case key == "breaks":
			b.breaks = value
		case key == "source":
			b.source = value
		case key == "missed":
			b.missed = value
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
		if b.file == "" || b.old == "" || b.breaks == "" || b.source == "" {
			return nil, fmt.Errorf("the bug %s lacks its file, its line, what it breaks, or its source", b.name)
		}
	}
	return bugs, nil
}

// apply returns a text of b.file with the bug.
func (b bug) apply(text string) (string, error) {
	lines := strings.Split(text, "\n")
	hunk := slices.Concat(b.before, []string{b.old}, b.after)
	found := -1
	for i := range len(lines) - len(hunk) + 1 {
		if !slices.EqualFunc(lines[i:i+len(hunk)], hunk, func(line, wanted string) bool { return strings.TrimSpace(line) == wanted }) {
			continue
		}
		if found >= 0 {
			return "", fmt.Errorf("%s: the lines of the bug %s are there more than once: add lines around them", b.file, b.name)
		}
		found = i + len(b.before)
	}
	if found < 0 {
		return "", fmt.Errorf("%s: the lines of the bug %s are not there any more: adapt the bug", b.file, b.name)
	}
	indentation, _, _ := strings.Cut(lines[found], b.old)
	lines[found] = indentation + b.new
	return strings.Join(lines, "\n"), nil
}

// plant writes the files of the bugs, with the bugs, below dir. It returns the name of
// a file there that puts them in the place of the files in root (go build -overlay).
func plant(root, dir string, bugs ...bug) (overlay string, err error) {
	changed := map[string]string{} // by path
	for _, b := range bugs {
		path := filepath.Join(root, filepath.FromSlash(b.file))
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
