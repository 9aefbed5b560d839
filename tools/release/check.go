package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// program is what a user of the library writes.
const program = `package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/lockpool/lockpool"
	_ "github.com/lockpool/lockpool/driver/zookeeper"
)

func main() {
	pool, err := lockpool.Open("zookeeper", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	err = pool.Do(context.Background(), "orders/42", func(context.Context) error {
		_, err := fmt.Println("locked")
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
}
`

// commands are the programs of the modules, which users install by their paths.
// Some are only resolved, because building their dependencies takes a minute on a
// new machine; and examples/fencing is left out, whose database takes 20 s to
// unpack.
var commands = []struct {
	path  string
	build bool
}{
	{"cmd/lockpool", true},
	{"testing/zktest/zkserve", true},
	{"examples/quickstart", true},
	{"examples/tracing", false},
	{"examples/metrics", false},
	{"bench/...", false},
	{"testing/simulate", false},
	{"testing/torture", false},
}

// check uses the modules outside the repository and its workspace.
func check(ctx context.Context, r *release) error {
	if err := checkVersions(ctx, r); err != nil {
		return err
	}
	if err := r.pack(ctx); err != nil {
		return err
	}

	// A program that uses the library.
	user := filepath.Join(r.temp, "user")
	if err := os.Mkdir(user, 0o777); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(user, "main.go"), []byte(program), 0o666); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"mod", "init", "example.com/user"},
		{"get", library + "@" + r.version},
		{"vet", "./..."},
		{"build", "-o", filepath.Join(r.temp, "bin") + string(filepath.Separator), "./..."},
	} {
		if err := r.goIn(ctx, user, args...); err != nil {
			return err
		}
	}

	for _, command := range commands {
		args := []string{"install", library + "/" + command.path + "@" + r.version}
		if !command.build {
			args = slices.Insert(args, 1, "-n")
		}
		if err := r.goIn(ctx, user, args...); err != nil {
			return err
		}
	}
	if err := checkPrograms(ctx, r); err != nil {
		return err
	}
	var tags []string
	for _, dir := range r.dirs {
		tags = append(tags, r.tag(dir))
	}
	fmt.Println("The release can be tagged:", strings.Join(tags, " "))
	return nil
}

// checkVersions finds what would work in this workspace and not for users: a
// module that replaces others, one that requires another version of one of them,
// and tests that run with newer dependencies than users get.
func checkVersions(ctx context.Context, r *release) error {
	var problems []error
	for _, dir := range r.dirs {
		text, err := output(ctx, filepath.Join(r.root, dir), nil, "go", "mod", "edit", "-json")
		if err != nil {
			return err
		}
		var mod struct {
			Module  struct{ Path string }
			Replace []struct{ Old struct{ Path string } }
			Require []struct{ Path, Version string }
		}
		if err := json.Unmarshal([]byte(text), &mod); err != nil {
			return err
		}
		if want := r.module(dir); mod.Module.Path != want {
			problems = append(problems, fmt.Errorf("%s/go.mod is of module %s, and its directory stands for %s", dir, mod.Module.Path, want))
		}
		for _, replace := range mod.Replace {
			problems = append(problems, fmt.Errorf("%s/go.mod replaces %s; put that into go.work", dir, replace.Old.Path))
		}
		for _, require := range mod.Require {
			if ours(require.Path) && require.Version != r.version {
				problems = append(problems, fmt.Errorf("%s/go.mod requires %s %s instead of %s; run make tidy", dir, require.Path, require.Version, r.version))
			}
		}
	}
	if len(problems) > 0 {
		return errors.Join(problems...)
	}

	const direct = `{{if and (not .Main) (not .Indirect)}}{{.Path}}{{end}}`
	paths, err := output(ctx, r.root, []string{"GOWORK=off"}, "go", "list", "-m", "-f", direct, "all")
	if err != nil {
		return err
	}
	list := append([]string{"list", "-m"}, strings.Fields(paths)...)
	got, err := output(ctx, r.root, []string{"GOWORK=off"}, "go", list...)
	if err != nil {
		return err
	}
	tested, err := output(ctx, r.root, []string{"GOWORK="}, "go", list...)
	if err != nil {
		return err
	}
	if got != tested {
		return fmt.Errorf("users get other versions than the tests run with; raise those in go.mod.\nUsers:\n%sTests:\n%s", got, tested)
	}
	return nil
}

// checkPrograms lets the user's program lock something, on the server that
// zkserve starts.
func checkPrograms(ctx context.Context, r *release) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	bin := filepath.Join(r.temp, "bin")
	server := exec.CommandContext(ctx, filepath.Join(bin, "zkserve"))
	var stderr strings.Builder
	server.Stderr = &stderr
	stdout, err := server.StdoutPipe()
	if err != nil {
		return err
	}
	if err := server.Start(); err != nil {
		return err
	}
	defer func() {
		_ = server.Process.Kill()
		_ = server.Wait() // it was killed
	}()
	address, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return fmt.Errorf("zkserve did not print where it serves: %w\n%s", err, stderr.String())
	}
	out, err := output(ctx, r.temp, nil, filepath.Join(bin, "user"), strings.TrimSpace(address))
	if err == nil && out != "locked\n" {
		err = fmt.Errorf("the user's program printed %q", out)
	}
	return err
}
