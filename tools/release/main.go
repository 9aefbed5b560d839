// Release does what the go command cannot do for a release of this repository's modules:
// the modules require each other at an unpublished version.
//
//	release tidy    sets that version in every module, and tidies them
//	release check   uses the modules as a user will when they are published
//
// The version is the one replaced in go.work. Both commands serve the modules of the
// working tree from a temporary GOPROXY made of files, to a temporary module cache, so that
// no other cache ever keeps an unpublished version.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

const library = "github.com/lockpool/lockpool" // the module required by the others

func main() {
	commands := map[string]func(context.Context, *release) error{"tidy": tidy, "check": check}
	var command func(context.Context, *release) error
	if len(os.Args) == 2 {
		command = commands[os.Args[1]]
	}
	if command == nil {
		fmt.Fprintln(os.Stderr, "usage: release tidy|check")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, command)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, command func(context.Context, *release) error) (err error) {
	temp, err := os.MkdirTemp("", "lockpool-release-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	r, err := newRelease(ctx, temp)
	if err != nil {
		return err
	}
	return command(ctx, r)
}

// release is the modules of the working tree at the version to be published.
type release struct {
	root    string   // of the repository
	version string   // such as v0.1.0
	dirs    []string // of the modules in the workspaces, relative to root; "." is the library
	temp    string   // removed at the end
	env     []string // what makes the go command take the modules from temp
}

func newRelease(ctx context.Context, temp string) (*release, error) {
	r := &release{temp: temp}
	root, err := output(ctx, ".", nil, "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return nil, err
	}
	r.root = strings.TrimSpace(root)

	for _, workspace := range []string{".", "driver/etcd"} {
		text, err := output(ctx, filepath.Join(r.root, workspace), []string{"GOWORK="}, "go", "work", "edit", "-json")
		if err != nil {
			return nil, err
		}
		var work struct {
			Use     []struct{ DiskPath string }
			Replace []struct {
				Old struct{ Path, Version string }
			}
		}
		if err := json.Unmarshal([]byte(text), &work); err != nil {
			return nil, err
		}
		for _, use := range work.Use {
			if dir := filepath.Join(workspace, use.DiskPath); !slices.Contains(r.dirs, dir) {
				r.dirs = append(r.dirs, dir)
			}
		}
		for _, replace := range work.Replace {
			if replace.Old.Path == library {
				r.version = replace.Old.Version
			}
		}
	}
	if r.version == "" {
		return nil, fmt.Errorf("go.work does not say which version of %s to release: it has no replace directive with a version", library)
	}

	var settings struct{ GOMODCACHE, GOPROXY, GONOSUMDB string }
	text, err := output(ctx, r.root, nil, "go", "env", "-json", "GOMODCACHE", "GOPROXY", "GONOSUMDB")
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal([]byte(text), &settings); err != nil {
		return nil, err
	}
	r.env = []string{
		"GOWORK=off",
		// -trimpath keeps the path of the module cache out of the build cache's
		// keys: what was built once need not be built at the next run.
		"GOFLAGS=-mod=mod -modcacherw -trimpath",
		"GOMODCACHE=" + filepath.Join(temp, "mod"),
		"GOBIN=" + filepath.Join(temp, "bin"),
		// A module cache can itself be used as a proxy of files.
		"GOPROXY=" + strings.Join([]string{fileURL(r.proxy()), fileURL(filepath.Join(settings.GOMODCACHE, "cache", "download")), cmp.Or(settings.GOPROXY, "off")}, ","),
		"GONOSUMDB=" + strings.Trim(settings.GONOSUMDB+","+library, ","),
	}
	return r, nil
}

// module returns the path of the module in dir.
func (r *release) module(dir string) string {
	if dir == "." {
		return library
	}
	return library + "/" + filepath.ToSlash(dir)
}

// tag returns what the module in dir is tagged with in the repository.
func (r *release) tag(dir string) string {
	if dir == "." {
		return r.version
	}
	return filepath.ToSlash(dir) + "/" + r.version
}

// ours reports whether the path is a module's of this repository.
func ours(module string) bool { return module == library || strings.HasPrefix(module, library+"/") }

// tidy sets the required version of the library and of each other in the nested modules,
// and tidies all modules.
func tidy(ctx context.Context, r *release) error {
	for _, dir := range r.dirs {
		if dir == "." {
			continue
		}
		file, err := os.ReadFile(filepath.Join(r.root, dir, "go.mod"))
		if err != nil {
			return err
		}
		for _, required := range r.dirs {
			if required != "." && !strings.Contains(string(file), "\t"+r.module(required)+" v") {
				continue
			}
			if err := r.goIn(ctx, filepath.Join(r.root, dir), "mod", "edit", "-require="+r.module(required)+"@"+r.version); err != nil {
				return err
			}
		}
	}
	if err := r.pack(ctx); err != nil {
		return err
	}
	for _, dir := range append(r.dirs, "tools") {
		if err := r.goIn(ctx, filepath.Join(r.root, dir), "mod", "tidy"); err != nil {
			return err
		}
		if err := forgetSums(filepath.Join(r.root, dir, "go.sum")); err != nil {
			return err
		}
	}
	return nil
}

// forgetSums removes the hashes of our modules from a go.sum: they change with
// every line of them. In the workspace nothing asks for them.
func forgetSums(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var kept strings.Builder
	for line := range strings.Lines(string(text)) {
		if path, _, _ := strings.Cut(line, " "); !ours(path) {
			kept.WriteString(line)
		}
	}
	if kept.Len() == len(text) {
		return nil
	}
	return os.WriteFile(file, []byte(kept.String()), 0o666)
}

// goIn runs the go command in a directory, with the modules of the working tree.
func (r *release) goIn(ctx context.Context, dir string, args ...string) error {
	_, err := output(ctx, dir, r.env, "go", args...)
	return err
}

// output runs a command and returns the output. The error has the command's message.
func output(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s%s", name, strings.Join(args, " "), err, out, stderr.String())
	}
	return string(out), nil
}
