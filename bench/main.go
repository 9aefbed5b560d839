// Command bench compares lockpool with go-zookeeper's own Lock and with the floor, a
// bare create and delete with the same client, on a real ZooKeeper.
//
//	go run ./bench [-row NAME] [-d 2s] [-runs 5] [-zookeeper HOST:PORT] [-write]
//
// The clients take turns on one server (A B C A B C ...), because only ratios between
// consecutive turns are comparable. The table shows the median of a client's turns and, in
// parentheses, the worst of them; the ratios are treated alike. The first turn of each
// client is not counted. Without -zookeeper, the command starts the packaged server in its
// default configuration, with fsync. With -write, the command puts the table into README.md
// and docs/performance.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/lockpool/lockpool/testing/zktest"
)

var (
	server   = flag.String("zookeeper", "", "`host:port` of a server without other clients; if empty, the packaged one is started")
	duration = flag.Duration("d", 2*time.Second, "duration of each turn, where a turn is not a fixed amount of work")
	runs     = flag.Int("runs", 5, "turns of each client in each scenario")
	only     = flag.String("row", "", "measure only the rows with this `name`: "+strings.Join(names(), ", "))
	write    = flag.Bool("write", false, "write the table into "+readme+" and "+performance)

	child      = flag.String("child", "", "internal: contend as this client")
	path       = flag.String("path", "", "internal: the lock to contend for")
	wait       = flag.Int("wait", 0, "internal: measure how many goroutines wait for it")
	owned      = flag.Int("owned", 0, "internal: how many locks each process owns")
	process    = flag.Int("process", 0, "internal: the number of this process")
	goroutines = flag.Int("goroutines", 1, "internal: how many goroutines contend")
	work       = flag.Duration("work", 0, "internal: how long to hold the lock")
	delay      = flag.Duration("delay", 0, "internal: how long everything takes on the network")
)

// The pages with a table. The first has only the first line of each scenario in brief.
const (
	readme      = "README.md"
	performance = "docs/performance.md"
)

// apart are the scenarios that only -row runs.
var apart = []string{"fleet"}

var brief = []string{"alone", "processes-2", "held-4", "goroutines-64", "sessions-100"}

func main() {
	flag.Parse()
	log.SetFlags(0)
	log.SetPrefix("bench: ")
	if flag.NArg() > 0 || *duration <= 0 || *runs < 1 {
		log.Fatal("only flags are allowed, and -d and -runs must be positive; -help lists them")
	}
	switch {
	case *child == burn:
		burnUntilTold()
	case *child != "" && *wait > 0:
		crowded(*wait)
	case *child != "":
		contender()
	default:
		compare()
	}
}

// compare prints the table.
func compare() {
	chosen := slices.DeleteFunc(slices.Clone(scenarios), func(s scenario) bool {
		return s.name != *only && (*only != "" || slices.Contains(apart, s.name))
	})
	if len(chosen) == 0 {
		log.Fatalf("-row must be one of %s", strings.Join(names(), ", "))
	}
	if *write && *only != "" {
		log.Fatal("-write needs all rows")
	}
	if *server == "" {
		s, err := zktest.RunReal(context.Background(), zktest.TickTime(2*time.Second),
			zktest.Properties(map[string]string{"maxClientCnxns": "0", "forceSync": "yes"}),
			zktest.JVMFlags("-Xmx1g", "-XX:TieredStopAtLevel=4", "-XX:-UseSerialGC"))
		check(err)
		defer s.Close()
		*server = s.Addr()
	}
	var full, short strings.Builder
	check(writeTables(io.MultiWriter(os.Stdout, &full), &short, chosen, *runs))
	if *write {
		after := fmt.Sprintf("\nMedians of %d turns, with the worst in parentheses; bold is worse than the reference.\n\n", *runs)
		check(replaceBlock(readme, "\n"+short.String()+after))
		check(replaceBlock(performance, "\n"+full.String()+after))
	}
}

// names returns the names of the scenarios.
func names() (names []string) {
	for _, s := range scenarios {
		names = append(names, s.name)
	}
	return names
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func must[T any](v T, err error) T {
	check(err)
	return v
}
