package main

// This file has the command check.

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

// commands are the programs of the modules, installed by users by their paths. Some are
// only resolved, because building their dependencies takes a minute on a new machine;
// examples/fencing is left out, because its database takes 20 s to unpack.
var commands = []struct {
	path  string
	build bool
}{
	{"cmd/lockpool", true},
	{"testing/zktest/zkserve", true},
	{"examples/quickstart", true},
	{"examples/tracing", false},
	{"examples/metrics", false},
	{"bench", false},
	{"testing/lab/simulate", false},
	{"testing/lab/torture", false},
}

// check uses the modules outside the repository and its workspace.
func check(ctx context.Context, r *release) error {
	if err := checkRequirements(ctx, r); err != nil {
		return err
	}
	if err := r.pack(ctx); err != nil {
		return err
	}
	if err := checkVersions(ctx, r); err != nil {
		return err
	}

	user, err := r.program(ctx, "user", program, library)
	if err != nil {
		return err
	}
	if err := r.goIn(ctx, user, "build", "-o", filepath.Join(r.temp, "bin")+string(filepath.Separator), "./..."); err != nil {
		return err
	}
	if err := checkAdapter(ctx, r); err != nil {
		return err
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

// program writes a program using a package, in a separate module, and returns the
// directory.
func (r *release) program(ctx context.Context, name, text, uses string) (dir string, err error) {
	dir = filepath.Join(r.temp, name)
	if err := os.Mkdir(dir, 0o777); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(text), 0o666); err != nil {
		return "", err
	}
	for _, args := range [][]string{{"mod", "init", "example.com/" + name}, {"get", uses + "@" + r.version}, {"vet", "./..."}} {
		if err := r.goIn(ctx, dir, args...); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// checkAdapter checks that a program with one adapter does not require the libraries of the
// others.
func checkAdapter(ctx context.Context, r *release) error {
	const adapter = library + "/adapters/gocron"
	dir, err := r.program(ctx, "adapted", "package main\n\nimport _ \""+adapter+"\"\n\nfunc main() {}\n", adapter)
	if err != nil {
		return err
	}
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	for _, other := range []string{"goose", "migrate", "sqlite"} {
		if err == nil && strings.Contains(string(mod), other) {
			err = fmt.Errorf("a program that imports %s requires %s:\n%s", adapter, other, mod)
		}
	}
	return err
}

// checkRequirements finds requirements working in this workspace and not for users: a
// module replacing others, and a module requiring another version of one of them.
func checkRequirements(ctx context.Context, r *release) error {
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
	return errors.Join(problems...)
}

// checkVersions checks that tests of the library do not run with newer dependencies than
// users get.
func checkVersions(ctx context.Context, r *release) error {
	dir := filepath.Join(r.temp, "library") // needs only the file
	if err := os.Mkdir(dir, 0o777); err != nil {
		return err
	}
	mod, err := os.ReadFile(filepath.Join(r.root, "go.mod"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), mod, 0o666); err != nil {
		return err
	}
	const direct = `{{if and (not .Main) (not .Indirect)}}{{.Path}}{{end}}`
	paths, err := output(ctx, dir, r.env, "go", "list", "-m", "-f", direct, "all")
	if err != nil {
		return err
	}
	list := append([]string{"list", "-m"}, slices.DeleteFunc(strings.Fields(paths), ours)...)
	got, err := output(ctx, dir, r.env, "go", list...)
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

// checkPrograms lets the user's program lock something, on a server started by zkserve.
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
		_ = server.Wait() // killed
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
