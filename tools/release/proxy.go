package main

// This file makes a GOPROXY of the modules of the working tree.

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// proxy is the directory of the GOPROXY of files.
func (r *release) proxy() string { return filepath.Join(r.temp, "proxy") }

func fileURL(dir string) string {
	slashed := filepath.ToSlash(dir)
	if !strings.HasPrefix(slashed, "/") { // C:/...
		slashed = "/" + slashed
	}
	return (&url.URL{Scheme: "file", Path: slashed}).String()
}

// pack makes the GOPROXY: the modules of the working tree, as in a tag after committing all
// files not ignored by git.
func (r *release) pack(ctx context.Context) error {
	list, err := output(ctx, r.root, nil, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate")
	if err != nil {
		return err
	}
	names := strings.Split(strings.TrimSuffix(list, "\x00"), "\x00")
	names = slices.DeleteFunc(names, func(name string) bool { // removed, but not from the index
		_, err := os.Lstat(filepath.Join(r.root, name))
		return errors.Is(err, os.ErrNotExist)
	})
	for _, dir := range r.dirs {
		if err := r.packModule(dir, names); err != nil {
			return err
		}
	}
	return nil
}

// packModule writes the four files of a version in a GOPROXY.
func (r *release) packModule(dir string, names []string) error {
	escaped, err := module.EscapePath(r.module(dir))
	if err != nil {
		return err
	}
	versions := filepath.Join(r.proxy(), filepath.FromSlash(escaped), "@v")
	if err := os.MkdirAll(versions, 0o777); err != nil {
		return err
	}
	info, err := json.Marshal(struct {
		Version string
		Time    time.Time
	}{r.version, time.Now().UTC()})
	if err != nil {
		return err
	}
	mod, err := os.ReadFile(filepath.Join(r.root, dir, "go.mod"))
	if err != nil {
		return err
	}
	archive, err := os.Create(filepath.Join(versions, r.version+".zip"))
	if err != nil {
		return err
	}
	return errors.Join(
		zip.Create(archive, module.Version{Path: r.module(dir), Version: r.version}, r.files(dir, names)),
		archive.Close(),
		os.WriteFile(filepath.Join(versions, "list"), []byte(r.version+"\n"), 0o666),
		os.WriteFile(filepath.Join(versions, r.version+".info"), info, 0o666),
		os.WriteFile(filepath.Join(versions, r.version+".mod"), mod, 0o666))
}

// files returns the names below dir. zip.Create leaves out modules further below.
func (r *release) files(dir string, names []string) (files []zip.File) {
	prefix := ""
	if dir != "." {
		prefix = filepath.ToSlash(dir) + "/"
		// The go command adds the license of the repository to a module without a license.
		if !slices.Contains(names, prefix+"LICENSE") {
			files = append(files, file{filepath.Join(r.root, "LICENSE"), "LICENSE"})
		}
	}
	for _, name := range names {
		if below, ok := strings.CutPrefix(name, prefix); ok {
			files = append(files, file{filepath.Join(r.root, filepath.FromSlash(name)), path.Clean(below)})
		}
	}
	return files
}

// file implements zip.File.
type file struct{ disk, name string }

func (f file) Path() string                 { return f.name }
func (f file) Lstat() (os.FileInfo, error)  { return os.Lstat(f.disk) }
func (f file) Open() (io.ReadCloser, error) { return os.Open(f.disk) }
