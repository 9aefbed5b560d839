package main

// This file has the commands break and revoke.

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"

	"github.com/lockpool/lockpool"
)

// A demand on contenders is to break their lock or to revoke it.
type demand struct {
	question, done string // about a lock and a contender
	make           func(pool *lockpool.Pool, ctx context.Context, name, node string) error
}

var (
	breaking = demand{"Take %s from %s?", "%s is taken from %s", (*lockpool.Pool).Break}
	revoking = demand{
		"Ask for %s back from %s?", "%s is asked back from %s",
		func(pool *lockpool.Pool, ctx context.Context, name, node string) error {
			return pool.Revoke(ctx, name, node)
		},
	}
)

func breakCommand(c *connection) *cobra.Command {
	return demandCommand(c, breaking, &cobra.Command{
		Args:  cobra.RangeArgs(1, 2),
		Use:   "break NAME [NODE]",
		Short: "Take a lock from its holders by force",
		Long: `Break removes the nodes of the lock's holders, or the given node of a holder or waiter
(lockpool show prints their names). A holder that uses lockpool is told that it has lost
the lock, and a waiter queues again. A holder that does not listen works on beside the
next holder: prefer lockpool revoke, or end its process.`,
		Example: "  lockpool break orders/42\n  lockpool break --yes orders/42",
	})
}

func revokeCommand(c *connection) *cobra.Command {
	return demandCommand(c, revoking, &cobra.Command{
		Args:  cobra.MinimumNArgs(1),
		Use:   "revoke NAME [NODE...]",
		Short: "Ask the holders of a lock to release it",
		Long: `Revoke asks the lock's holders, or the contenders with the given nodes (lockpool show
prints their names), to release the lock. It does not wait for them. A holder that does
not listen for such requests keeps the lock.`,
		Example: "  lockpool revoke orders/42\n  lockpool revoke --yes orders/42",
	})
}

func demandCommand(c *connection, d demand, cmd *cobra.Command) *cobra.Command {
	var yes bool
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask first")
	cmd.ValidArgsFunction = c.complete
	cmd.RunE = classified(func(cmd *cobra.Command, args []string) error {
		if !yes && !term.IsTerminal(os.Stdin.Fd()) {
			return misused("there is no terminal to ask on; give --yes to %s without being asked", cmd.Name())
		}
		pool, err := c.visit()
		if err != nil {
			return err
		}
		defer pool.Close()
		targets, err := d.targets(pool, args[0], args[1:])
		if err != nil {
			return missed(cmd, err)
		}
		if !yes {
			for _, t := range targets {
				fmt.Fprintln(cmd.ErrOrStderr(), d.ask(args[0], t))
			}
			if !confirmed(cmd.InOrStdin(), cmd.ErrOrStderr()) {
				return exitStatus(1)
			}
		}
		for _, t := range targets {
			switch one := d.carryOut(pool, args[0], t); {
			case one == nil:
				fmt.Fprintln(cmd.OutOrStdout(), d.report(args[0], t))
			case err == nil || errors.As(err, new(exitStatus)):
				err = missed(cmd, one)
			default:
				err = errors.Join(err, one)
			}
		}
		return err
	})
	return cmd
}

// notThere is the error of a demand on no contender.
type notThere struct{ error }

// missed prints an error that is a notThere, and returns the exit code instead.
func missed(cmd *cobra.Command, err error) error {
	if !errors.As(err, new(notThere)) {
		return err
	}
	fmt.Fprintln(cmd.ErrOrStderr(), "lockpool: "+oneLine(err))
	return exitStatus(1)
}

// targets returns the contenders with the nodes, or the holders if none are given.
func (d demand) targets(pool *lockpool.Pool, name string, nodes []string) (targets []lockpool.Contender, err error) {
	var q lockpool.Queue
	err = reaching(pool, func(ctx context.Context) error {
		q, err = pool.Queue(ctx, name)
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(nodes) == 0 {
		targets = holders(q)
		if len(targets) == 0 {
			return nil, notThere{fmt.Errorf("nobody holds %s", quoted(name))}
		}
	}
	for _, node := range nodes {
		i := slices.IndexFunc(q.Contenders, func(c lockpool.Contender) bool { return c.Node == node })
		if i < 0 {
			return nil, notThere{fmt.Errorf("%s has no holder or waiter with the node %s", quoted(name), quoted(node))}
		}
		targets = append(targets, q.Contenders[i])
	}
	return targets, nil
}

func holders(q lockpool.Queue) (found []lockpool.Contender) {
	for _, c := range q.Contenders {
		if c.Holds {
			found = append(found, c)
		}
	}
	return found
}

func (d demand) ask(name string, c lockpool.Contender) string {
	return fmt.Sprintf(d.question, quoted(name), target(c))
}

func (d demand) report(name string, c lockpool.Contender) string {
	return fmt.Sprintf(d.done, quoted(name), target(c))
}

func target(c lockpool.Contender) string {
	if !c.Holds {
		return who(c) + ", which waits"
	}
	return who(c)
}

func (d demand) carryOut(pool *lockpool.Pool, name string, c lockpool.Contender) error {
	err := reaching(pool, func(ctx context.Context) error { return d.make(pool, ctx, name, c.Node) })
	if errors.Is(err, lockpool.ErrNotHeld) {
		return notThere{fmt.Errorf("%s has no longer anything of %s", who(c), quoted(name))}
	}
	return err
}

// reaching calls f when the service has answered. The answer must be prompt, but large
// requests of f may take longer.
func reaching(pool *lockpool.Pool, f func(ctx context.Context) error) error {
	const patience = 10 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := pool.Ping(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return &failure{failed, fmt.Errorf("%w; %w", err, errNoAnswer)}
	case err != nil:
		return err
	}
	return f(context.Background())
}

// confirmed asks, and reports whether the answer is yes.
func confirmed(in io.Reader, out io.Writer) bool {
	fmt.Fprint(out, "[y/N] ")
	answer, _ := bufio.NewReader(in).ReadString('\n') // none is no
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes"
}
