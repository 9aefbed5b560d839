package docs

// This file compiles and runs the Go blocks of the pages.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/zktest"

	// Imported only by the pages: go.mod must require them, and cached results depend on
	// them.
	_ "github.com/go-co-op/gocron/v2"
	_ "github.com/go-zookeeper/zk"
	_ "github.com/golang-migrate/migrate/v4"
	_ "github.com/golang-migrate/migrate/v4/database"
	_ "github.com/pressly/goose/v3"
	_ "go.opentelemetry.io/otel"
	_ "go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	_ "go.opentelemetry.io/otel/sdk/trace"

	_ "github.com/lockpool/lockpool"
	_ "github.com/lockpool/lockpool/adapters/gocron"
	_ "github.com/lockpool/lockpool/adapters/goose"
	_ "github.com/lockpool/lockpool/adapters/migrate"
	_ "github.com/lockpool/lockpool/driver/zookeeper"
)

func TestGoBlocksRun(t *testing.T) {
	t.Parallel()
	var blocks []block
	for _, p := range manual(t) {
		blocks = append(blocks, goBlocks(p)...)
	}
	require.NotEmpty(t, blocks)
	require.NoError(t, runGo(t, blocks))
}

func TestBrokenGoBlocksAreFound(t *testing.T) {
	t.Parallel()
	for fault, c := range map[string]struct{ code, want string }{
		"not compiled":   {"lock, err := pool.Loock(ctx, \"a\")", "scratch.md:2:"},
		"unused":         {"lock, err := pool.Lock(ctx, \"a\")\nif err != nil {\n\treturn err\n}", "scratch.md:2:"},
		"fails":          {"return errors.New(\"as it must\")", "as it must"},
		"not formatted":  {"return  nil", "scratch.md:2: not gofmt-ed"},
		"no Go":          {"lock := ...", "scratch.md:2:"},
		"failing test":   {"func TestIt(t *testing.T) {\n\tt.Fatal(\"as it must\")\n}", "as it must"},
		"broken program": {"package main\n\nfunc main() {\n\tpanic(\"as it must\")\n}", "as it must"},
	} {
		t.Run(fault, func(t *testing.T) {
			require.ErrorContains(t, runGo(t, goBlocks(scratch(t, "```go\n"+c.code+"\n```\n"))), c.want)
		})
	}
}

func goBlocks(p *page) []block {
	return slices.DeleteFunc(slices.Clone(p.blocks), func(b block) bool { return b.language != "go" || b.excuse != "" })
}

// addresses are the addresses of servers on the pages. An existing server takes their
// place.
var addresses = []string{"127.0.0.1:2181", "zk1:2181,zk2:2181,zk3:2181"}

// importPaths are the paths of the packages used by blocks without an import.
var importPaths = map[string]string{}

func init() {
	for _, path := range []string{
		"context", "crypto/tls", "crypto/x509", "database/sql", "errors", "fmt", "io/fs", "log", "log/slog", "net/http", "os", "os/signal",
		"strings", "syscall", "testing", "time",
		"github.com/go-zookeeper/zk", "github.com/golang-migrate/migrate/v4/database",
		"github.com/lockpool/lockpool", "github.com/lockpool/lockpool/driver/zookeeper", "github.com/lockpool/lockpool/testing/zktest",
		"go.opentelemetry.io/otel", "go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp",
	} {
		importPaths[path[strings.LastIndex(path, "/")+1:]] = path
	}
	maps.Copy(importPaths, map[string]string{ // with other names than their directories
		"sdktrace": "go.opentelemetry.io/otel/sdk/trace",
		"gocron":   "github.com/go-co-op/gocron/v2", "lockgocron": "github.com/lockpool/lockpool/adapters/gocron",
		"goose": "github.com/pressly/goose/v3", "lockgoose": "github.com/lockpool/lockpool/adapters/goose",
		"migrate": "github.com/golang-migrate/migrate/v4", "lockmigrate": "github.com/lockpool/lockpool/adapters/migrate",
	})
}

// runGo compiles and runs blocks. All but the programs become one test binary.
func runGo(t *testing.T, blocks []block) error {
	server := zktest.Start(t)
	code := make([]string, len(blocks))
	for i, b := range blocks {
		code[i] = b.code
		for _, address := range addresses {
			code[i] = strings.ReplaceAll(code[i], address, server.Addr())
		}
	}
	tests, programs := tree{}, map[block]tree{}
	for i, b := range blocks {
		source, program, err := goFile(b, code[i])
		switch {
		case err != nil:
			return err
		case program:
			programs[b] = tree{"main.go": source}
		default:
			tests[fmt.Sprintf("block%d_test.go", i)] = source
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute) // most of the time for compiling
	defer cancel()
	var errs []error
	if len(tests) > 0 {
		errs = append(errs, tests.run(ctx, t.TempDir(), "testdata/blocks", "test", "-count=1", "-timeout=2m"))
	}
	for b, program := range programs {
		if err := program.run(ctx, t.TempDir(), "testdata", "run"); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", b, err))
		}
	}
	return errors.Join(errs...)
}

// goFile returns the Go file made of a block, and whether the file is a program. The
// compiler takes the page for the file.
func goFile(b block, code string) (source []byte, program bool, err error) {
	if formatted, err := format.Source([]byte(b.code)); err != nil {
		return nil, false, fmt.Errorf("%s: %w", b, err)
	} else if !bytes.Equal(formatted, []byte(b.code)) {
		return nil, false, fmt.Errorf("%s: not gofmt-ed; it is\n%s", b, formatted)
	}
	fset := token.NewFileSet()
	position := fmt.Sprintf("//line %s\n", b)
	if _, err := parser.ParseFile(fset, "", code, parser.PackageClauseOnly); err == nil {
		return []byte(position + code), true, nil
	}
	const head = "package blocks\n"
	text := head + position + code
	if _, err := parser.ParseFile(fset, "", text, 0); err != nil { // not declarations
		text = fmt.Sprintf("%sfunc init() {\nblocks[%q] = func(ctx context.Context) error {\n%s%s\nreturn nil\n}\n}\n", head, b, position, code)
	}
	file, err := parser.ParseFile(fset, "", text, 0)
	if err != nil {
		return nil, false, err
	}
	imports := head
	for _, name := range packages(file) {
		imports += fmt.Sprintf("import %s %q\n", name, importPaths[name])
	}
	return []byte(imports + strings.TrimPrefix(text, head)), false, nil
}

// packages returns the names of the packages used but not imported by a file.
func packages(file *ast.File) (names []string) {
	imported := map[string]bool{}
	for _, spec := range file.Imports {
		path := strings.Trim(spec.Path.Value, `"`)
		imported[path[strings.LastIndex(path, "/")+1:]] = true
	}
	for _, id := range file.Unresolved {
		if importPaths[id.Name] != "" && !imported[id.Name] {
			names = append(names, id.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// tree is files by name, put into a directory of this module for one run of the go command.
type tree map[string][]byte

// run writes the files to temp and runs the go command on the package in dir, files
// included.
func (files tree) run(ctx context.Context, temp, dir string, command ...string) error {
	there, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for name, source := range files {
		path := filepath.Join(temp, name)
		if err := os.WriteFile(path, source, 0o666); err != nil {
			return err
		}
		overlay.Replace[filepath.Join(there, name)] = path
	}
	list, err := json.Marshal(overlay)
	if err != nil {
		return err
	}
	overlayFile := filepath.Join(temp, "overlay.json")
	if err := os.WriteFile(overlayFile, list, 0o666); err != nil {
		return err
	}
	args := append(slices.Clone(command), "-overlay", overlayFile, "./"+dir)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.WaitDelay = 5 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", command[0], err, out)
	}
	return nil
}
