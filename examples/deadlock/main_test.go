package main

// This file tests the example, and its picture on the pages.

import (
	"encoding/xml"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/examples/internal/exampletest"
	"github.com/lockpool/lockpool/testing/zktest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

func requireStory(t *testing.T, p *exampletest.Program) {
	p.RequireSuccess(t)
	const (
		pay    = `\w+\.\(\*teller\)\.pay\S* \(transfer\.go:\d+\)`
		refund = `\w+\.\(\*teller\)\.refund\S* \(transfer\.go:\d+\)`
	)
	for _, part := range []string{
		`(?m)^(└─ )?billing holds accounts/customer, and waits for accounts/shop in ` + pay + `$`,
		`(?m)^(└─ )?refunds holds accounts/shop, and waits for accounts/customer in ` + refund + `$`,
		`(?m)^   └─ (billing|refunds), as above$`,
		`is the victim: lockpool: lock "accounts/\S+": deadlock: this call \((billing|refunds), process \d+ on .*` + pay,
		`is the victim: .*` + refund,
		`has unlocked everything, and begins again\n`,
		`Both transfers have been made, each once\.\n$`,
	} {
		require.Regexp(t, part, p.Stdout)
	}
	require.Equal(t, 1, strings.Count(p.Stdout.String(), "is the victim"))
	require.Equal(t, 2, strings.Count(p.Stdout.String(), "is done"))
}

// differing is what differs from run to run in a picture.
var differing = regexp.MustCompile(`process \d+ on [^<]+|\w+\.\(\*teller\)`)

// requirePicture requires a picture of the deadlock, and returns the texts.
func requirePicture(t *testing.T, file string) []string {
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var svg struct {
		XMLName xml.Name `xml:"http://www.w3.org/2000/svg svg"`
		Inner   string   `xml:",innerxml"`
	}
	require.NoError(t, xml.Unmarshal(text, &svg))
	require.Less(t, len(text), 6_000)
	for _, part := range []string{">billing<", ">refunds<", ">holds accounts/shop<", "waits for accounts/customer", `fill="white"`} {
		require.Contains(t, svg.Inner, part)
	}
	return regexp.MustCompile(`>[^<\n]+<`).FindAllString(differing.ReplaceAllString(svg.Inner, ""), -1)
}

func TestStoryOnEmbeddedServer(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "picture.svg")
	p := exampletest.New(t, "-svg", file)
	p.Env = append(p.Env, "PATH="+os.Getenv("PATH")) // of Graphviz
	requireStory(t, p)
	require.ElementsMatch(t, requirePicture(t, file), requirePicture(t, "deadlock.svg"), "the guide's picture is current")
}

func TestStoryOnRunningServer(t *testing.T) {
	t.Parallel()
	requireStory(t, exampletest.New(t, "-zookeeper", zktest.StartReal(t).Addr()))
}

func TestFailedWithdrawalPaysNobody(t *testing.T) {
	t.Parallel()
	teller := &teller{dir: t.TempDir()}
	require.NoError(t, write(teller.dir, shop, 100))
	require.ErrorIs(t, teller.move(30, customer, shop), os.ErrNotExist)
	balance, err := teller.balance(shop)
	require.NoError(t, err)
	require.Equal(t, 100, balance)
}

func TestInterruptDuringTheDeadlockLeavesNothing(t *testing.T) {
	t.Parallel()
	server := zktest.Start(t)
	server.Inject(zktest.Rule{Times: zktest.Always, Do: zktest.FailWith(zktest.ErrBadVersion), Match: zktest.Match{
		Ops: []zktest.Op{zktest.OpMulti}, Where: func(r zktest.Request) bool { return len(r.Paths) == 4 }, // the end of the deadlock
	}})
	p := exampletest.New(t, "-zookeeper", server.Addr())
	p.StartUntil(t, "as above")
	p.RequireInterrupted(t, `^deadlock: stopped: .+\n$`)
}

func TestMisuseIsAClearError(t *testing.T) {
	t.Parallel()
	exampletest.RequireErrors(t, "usage: deadlock [-zookeeper HOST:PORT] [-svg FILE]", []exampletest.Misuse{
		{Name: "an argument", Args: []string{"127.0.0.1:2181"}, Code: 2, Error: `unexpected argument "127.0.0.1:2181"`},
		{Name: "no file", Args: []string{"-svg", ""}, Code: 2, Error: "the name of the file is empty"},
		{Name: "no server", Args: []string{"-zookeeper", "127.0.0.1:1"}, Code: 1, Error: "connection refused"},
	})
}
