// Command bench compares lockpool with go-zookeeper's own Lock and with the
// floor, a bare create and delete on the same client, on a real ZooKeeper.
//
//	go run ./bench [-zookeeper HOST:PORT] [-d 4s] [-runs 5] [-only TEXT]
//
// The clients take turns on one server (A B C A B C ...), because only ratios
// between turns that follow each other are comparable. Each row shows the median
// and the range of a client's turns, the ratio of its median to the reference
// client's, and the worst ratio of any single turn. Without -zookeeper, the
// command starts the packaged server in its default configuration, with fsync.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/lockpool/lockpool/testing/zktest"
)

var (
	server   = flag.String("zookeeper", "", "`host:port` of a server; if empty, the packaged one is started")
	duration = flag.Duration("d", 4*time.Second, "duration of each turn")
	runs     = flag.Int("runs", 5, "turns of each client in each scenario")
	only     = flag.String("only", "", "run only the scenarios whose names contain `text`")
	child    = flag.String("child", "", "internal: contend as this client")
	path     = flag.String("path", "", "internal: the lock to contend for")
	work     = flag.Duration("work", 0, "internal: how long to hold the lock")
)

func main() {
	flag.Parse()
	log.SetFlags(0)
	log.SetPrefix("bench: ")
	if flag.NArg() > 0 || *duration <= 0 || *runs < 1 {
		log.Fatal("only flags are allowed, and -d and -runs must be positive; -help lists them")
	}
	if *child != "" {
		contender()
		return
	}
	if *server == "" {
		s, err := zktest.RunReal(context.Background(), zktest.TickTime(2*time.Second),
			zktest.Properties(map[string]string{"maxClientCnxns": "0", "forceSync": "yes"}),
			zktest.JVMFlags("-Xmx1g", "-XX:TieredStopAtLevel=4", "-XX:-UseSerialGC"))
		if err != nil {
			log.Fatal(err)
		}
		defer s.Close()
		*server = s.Addr()
	}
	fmt.Fprintf(out, "%d turns of %s for each client, on the server's own fsync setting\n\n", *runs, *duration)
	fmt.Fprint(out, header)
	for _, s := range scenarios {
		if strings.Contains(s.name, *only) {
			s.run(s.name)
		}
	}
}

var scenarios = []struct {
	name string
	run  func(name string)
}{
	{"uncontended", uncontended},
	{"hand-over between 2 processes", func(n string) { handOver(n, 2, "at least 1.3") }},
	{"hand-over between 4 processes", func(n string) { handOver(n, 4, "at least 1.0") }},
	{"contention of 2 processes", func(n string) { contention(n, 2) }},
	{"contention of 4 processes", func(n string) { contention(n, 4) }},
	{"drain of 1000 waiters", drain},
	{"64 goroutines on 64 locks", manyLocks},
	{"reentry", reentry},
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
