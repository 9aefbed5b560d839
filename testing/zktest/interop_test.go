//go:build unix

package zktest_test

// This file has the tests of other clients: kazoo, Curator and zkCli.

import (
	"bytes"
	"context"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/zktest"
)

var updateInterop = flag.Bool("update-interop", false, "rewrite testdata/zkcli.golden with the output for the real server")

// interopClients are unmodified ZooKeeper clients. Each uses its own part of the
// tree.
var interopClients = []struct {
	name string
	run  func(t *testing.T, connect string)
}{
	{"kazoo", func(t *testing.T, connect string) { startKazoo(t, connect).wait(t) }},
	{"Curator", func(t *testing.T, connect string) { startCurator(t, connect).wait(t) }},
	{"zkCli", runZKCli},
	{"go-zookeeper", runGoZookeeper},
}

func TestInterop(t *testing.T) {
	for _, target := range serverKinds {
		t.Run(target.name, func(t *testing.T) {
			t.Parallel()
			connect := target.start(t, zktest.ExtendedTypes()).Addr()
			for _, client := range interopClients {
				t.Run(client.name, func(t *testing.T) {
					t.Parallel()
					client.run(t, connect)
				})
			}
		})
	}
}

const (
	interopTimeout = time.Minute           // for what happens soon
	interopPoll    = 10 * time.Millisecond // between two checks
	programTimeout = 6 * time.Minute       // the scripts give up earlier, with a stack trace

	clientJar    = "/usr/share/java/zookeeper.jar"
	curatorJar   = "/usr/share/java/curator-recipes.jar"
	debianPython = "/usr/bin/python3" // not another one from the PATH: this one has kazoo
)

// startKazoo runs testdata/kazoo_interop.py.
func startKazoo(t *testing.T, connect string) *program {
	needFile(t, debianPython, "python3-kazoo")
	return startProgram(t, debianPython, "testdata/kazoo_interop.py", connect)
}

// startCurator runs testdata/CuratorInterop.java, compiled by java itself.
func startCurator(t *testing.T, connect string) *program {
	needFile(t, curatorJar, "libcurator-recipes-java")
	_, err := exec.LookPath("javac")
	require.NoError(t, err, "apt-get install default-jdk-headless")
	return startJava(t, []string{curatorJar, "/usr/share/java/slf4j-simple.jar"},
		"testdata/CuratorInterop.java", connect)
}

// startJava runs a program with Debian's jars, whose manifests name the jars they
// need. The version of ZooKeeper's client is therefore Debian's, regardless of
// ZOOKEEPER_HOME.
func startJava(t *testing.T, jars []string, args ...string) *program {
	java, err := exec.LookPath("java")
	require.NoError(t, err, "apt-get install default-jdk-headless")
	return startProgram(t, slices.Concat([]string{
		java, "-Xmx256m", "-XX:-UsePerfData", "-Djava.io.tmpdir=" + t.TempDir(),
		"-XX:TieredStopAtLevel=1", // too short a run for the optimizing compiler
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
		"-cp", strings.Join(jars, ":"),
	}, args)...)
}

func needFile(t *testing.T, path, debianPackage string) {
	t.Helper()
	require.FileExists(t, path, "apt-get install %s", debianPackage)
}

// runZKCli compares what zkCli.sh prints for the commands in testdata/zkcli.txt
// with testdata/zkcli.golden.
func runZKCli(t *testing.T, connect string) {
	const (
		// marker prints markerOutput and changes nothing. It shows where the output
		// of a command ends: without a terminal there is no prompt.
		marker       = "printwatches"
		markerOutput = "printwatches is on\n"
		// Another thread prints watch events; they are lost if zkCli quits too soon.
		lastEvent = "type:NodeDeleted path:/zkcli\n"
		golden    = "testdata/zkcli.golden"
	)
	input, err := os.ReadFile("testdata/zkcli.txt")
	require.NoError(t, err)
	commands := strings.FieldsFunc(string(input), func(r rune) bool { return r == '\n' })

	needFile(t, clientJar, "zookeeper")
	// zkCli.sh does the same.
	zkCli := startJava(t, []string{clientJar, "/usr/share/java/slf4j-nop.jar"}, "org.apache.zookeeper.ZooKeeperMain", "-server", connect)
	zkCli.writeLine(t, strings.Join(commands, "\n"+marker+"\n")+"\n"+marker)
	zkCli.waitFor(t, lastEvent)
	zkCli.writeLine(t, "quit")
	output, events := maskZKCli(zkCli.wait(t))

	var got strings.Builder
	answers := strings.Split(output, markerOutput)
	require.Len(t, answers, len(commands)+1, "answers:\n%s", output)
	for i, command := range commands {
		answer := answers[i]
		if command == "whoami" { // in the order of a hash table
			answer = sortLines(answer)
		}
		got.WriteString("> " + command + "\n" + answer)
	}
	got.WriteString("\nEvents:\n" + events)
	if *updateInterop && t.Name() == "TestInterop/"+serverKinds[0].name+"/zkCli" {
		require.NoError(t, os.WriteFile(golden, []byte(got.String()), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), got.String())
}

var (
	zkCliNoise  = regexp.MustCompile(`^(WATCHER::|Connecting to .*|Welcome to ZooKeeper!|JLine support is .*|Not connected|)\n`)
	zkCliEvent  = regexp.MustCompile(`^WatchedEvent state:(\w+) type:(\w+) path:(.*\n)`)
	zkCliMasked = []*regexp.Regexp{
		regexp.MustCompile(`^([cmp]Zxid = 0x)[0-9a-f]+`),
		regexp.MustCompile(`^([cm]time = ).*`),
		regexp.MustCompile(`^(ephemeralOwner = 0x)[0-9a-f]{2,}`), // 0x0 stays
	}
)

// maskZKCli replaces anything different from run to run, and separates the watch events:
// they are printed in order but at random times.
func maskZKCli(output string) (answers, events string) {
	for line := range strings.Lines(output) {
		if zkCliNoise.MatchString(line) {
			continue
		}
		if event := zkCliEvent.FindStringSubmatch(line); event != nil {
			if event[2] != "None" { // about the connection
				events += event[2] + " " + event[3]
			}
			continue
		}
		for _, mask := range zkCliMasked {
			line = mask.ReplaceAllString(line, "$1*")
		}
		answers += line
	}
	return answers, events
}

func sortLines(s string) string {
	return strings.Join(slices.Sorted(strings.Lines(s)), "")
}

// program is a client in another process.
type program struct {
	name  string
	stdin io.Writer
	ended chan struct{}
	err   error // valid when ended is closed

	mu  sync.Mutex
	out bytes.Buffer // stdout and stderr
}

// startProgram starts a program. The program is killed when the test ends, or after too
// long a time.
func startProgram(t *testing.T, argv ...string) *program {
	ctx, cancel := context.WithTimeout(t.Context(), programTimeout)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.WaitDelay = time.Second
	p := &program{name: filepath.Base(argv[0]), ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p, p
	var err error
	p.stdin, err = cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	go func() {
		defer close(p.ended)
		defer cancel()
		p.err = cmd.Wait()
	}()
	t.Cleanup(func() {
		<-p.ended
		if t.Failed() {
			t.Logf("%s printed:\n%s", p.name, p.output())
		}
	})
	return p
}

// Write records the program's output.
func (p *program) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

func (p *program) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// writeLine writes lines to the program's input.
func (p *program) writeLine(t *testing.T, lines string) {
	_, err := io.WriteString(p.stdin, lines+"\n")
	require.NoError(t, err, p.name)
}

// waitFor waits until the program has printed text.
func (p *program) waitFor(t *testing.T, text string) {
	t.Helper()
	for printed := false; !printed; {
		ended := false
		select {
		case <-p.ended:
			ended = true
		case <-time.After(interopPoll):
		}
		printed = strings.Contains(p.output(), text)
		require.True(t, printed || !ended, "%s ended without %q", p.name, text)
	}
}

// wait waits until the program has ended, successfully, and returns the output.
func (p *program) wait(t *testing.T) string {
	t.Helper()
	<-p.ended
	require.NoError(t, p.err, p.name)
	return p.output()
}
