// Deadlock shows a deadlock between two processes, found and ended by lockpool. The
// processes transfer money between two accounts in opposite directions, and each first
// locks the account to take from. Then each waits for the account locked by the other one.
//
//	go run ./examples/deadlock
//	go run ./examples/deadlock -svg deadlock.svg
//
// The part to copy is in transfer.go: how a program begins again. This file starts the
// processes, as copies of this program, makes them meet, and shows who waits for whom
// before the deadlock ends. The picture is drawn by Graphviz: install Graphviz for -svg.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/cmd/lockpool/waitsdot"
	"github.com/lockpool/lockpool/examples/internal/demo"
	"github.com/lockpool/lockpool/examples/internal/process"
)

const usage = `usage: deadlock [-zookeeper HOST:PORT] [-svg FILE]

Shows a deadlock between two processes. Without -zookeeper they use an embedded
ZooKeeper server, which this program starts. With -svg a picture of the deadlock is
also written to a file, for which Graphviz must be installed.
`

const timeout = time.Minute // for the whole story of about 6 s

func main() {
	address := demo.ZooKeeperFlag()
	var picture string
	flag.Func("svg", "`FILE` for the picture", func(value string) error {
		picture = value
		if value == "" {
			return errors.New("the name of the file is empty")
		}
		return nil
	})
	demo.ParseFlags(usage)
	if worker := process.Self(); worker != nil {
		slog.SetDefault(slog.New(slog.DiscardHandler)) // lockpool would log the deadlock as well
		runTeller(worker, *address)
		return
	}
	demo.Main("deadlock", func(ctx context.Context) error { return run(ctx, *address, picture) })
}

func run(ctx context.Context, address, picture string) (err error) {
	server, err := demo.OpenServer(ctx, address)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	dir, err := os.MkdirTemp("", "deadlock")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	pool, err := open(ctx, server.Address, os.Getpid(), "deadlock")
	if err != nil {
		return err
	}
	defer pool.Close()
	var found lockpool.WaitGraph
	err = process.Run(ctx, timeout, func(tellers *process.Group) error {
		b := &bank{tellers: tellers, pool: pool, dir: dir, begin: time.Now()}
		err := b.story(ctx, server.Address)
		found = b.found
		return err
	})
	if err != nil || picture == "" {
		return err
	}
	svg, err := waitsdot.SVG(ctx, found)
	if err != nil {
		return err
	}
	return os.WriteFile(picture, svg, 0o666)
}

// bank is the tellers, each a process, as seen by the starting process.
type bank struct {
	tellers *process.Group
	pool    *lockpool.Pool
	dir     string
	begin   time.Time
	found   lockpool.WaitGraph // with the deadlock
}

func (b *bank) story(ctx context.Context, address string) error {
	for _, account := range []string{customer, shop} {
		if err := write(b.dir, account, 100); err != nil {
			return err
		}
	}
	jobs := map[string]string{"billing": "pay", "refunds": "refund"}
	if err := b.tellers.Start([]string{"-zookeeper", address}, "billing", "refunds"); err != nil {
		return err
	}
	if err := b.await(ready, len(jobs)); err != nil {
		return err
	}
	for name, job := range jobs {
		b.tellers.Send(name, order{b.dir, job})
	}
	if err := b.await(holding, len(jobs)); err != nil {
		return err
	}
	for name := range jobs {
		b.tellers.Send(name, "the other one holds its first lock")
	}
	if err := b.await(asking, len(jobs)); err != nil {
		return err
	}
	if err := b.look(ctx); err != nil {
		return err
	}
	if err := b.await(done, len(jobs)); err != nil {
		return err
	}
	b.tellers.Finish()
	fmt.Println()
	t := teller{dir: b.dir}
	for account, want := range map[string]int{customer: 80, shop: 120} {
		balance, err := t.balance(account)
		if err == nil && balance != want {
			err = fmt.Errorf("%s has %d, and should have %d", account, balance, want)
		}
		if err != nil {
			return err
		}
	}
	fmt.Println("Both transfers have been made, each once.")
	return nil
}

// look waits for the deadlock, and prints who waits for whom.
func (b *bank) look(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, timeout/2)
	defer stop()
	for len(b.found.Deadlocks) == 0 {
		var err error
		if b.found, err = b.pool.Waits(ctx, ""); err != nil {
			return fmt.Errorf("no deadlock was seen: %w", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	fmt.Print("\nA deadlock, as lockpool waits shows it, too:\n", tree(b.found), "\n")
	return nil
}

// tree returns the first deadlock as a tree: below each party the one waiting for the
// party.
func tree(g lockpool.WaitGraph) string {
	var b strings.Builder
	in := g.Deadlocks[0]
	at, indent, branch := in[0], "", ""
	for range in {
		p := g.Parties[at]
		place, _, _ := strings.Cut(p.Wait.At, " from ") // without the callers
		fmt.Fprintf(&b, "%s%s holds %s, and waits for %s in %s\n", branch, p.Owner, p.Holds[0].Lock, p.Wait.Lock, place)
		at = in[slices.IndexFunc(in, func(other int) bool { return slices.Contains(g.Parties[other].For, at) })]
		branch = indent + "└─ "
		indent += "   "
	}
	fmt.Fprintf(&b, "%s%s, as above\n", branch, g.Parties[at].Owner)
	return b.String()
}

// await prints what the tellers say, until n of them have reported the state.
func (b *bank) await(state string, n int) error {
	for n > 0 {
		var r report
		name, err := b.tellers.Receive(&r)
		if err != nil {
			return err
		}
		if r.Failure != "" {
			return fmt.Errorf("%s: %s", name, r.Failure)
		}
		if r.Text != "" {
			fmt.Printf("%5.2f s  %-7s  %s\n", time.Since(b.begin).Seconds(), name, r.Text)
		}
		if r.State == state {
			n--
		}
	}
	return nil
}
