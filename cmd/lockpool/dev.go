package main

// This file has the command dev, a server for development.

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/lockpool/lockpool/testing/zktest"
)

func devCommand() *cobra.Command {
	var port uint16
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a ZooKeeper server for development",
		Long: `Dev runs an embedded ZooKeeper server until it is interrupted. It keeps everything in
memory and listens on this machine only. The line that it prints when it serves is its
connect string. Do not use it in production.`,
		Example: "  lockpool dev &\n  export LOCKPOOL_SERVER=127.0.0.1:2181",
		Args:    cobra.NoArgs,
		RunE: classified(func(cmd *cobra.Command, _ []string) (err error) {
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			server, err := zktest.Run(ctx, zktest.Addr(fmt.Sprintf("127.0.0.1:%d", port)))
			if err != nil {
				return fmt.Errorf("%w; choose another port with --port, or 0 for any that is free", err)
			}
			if _, err := fmt.Fprintln(cmd.OutOrStdout(), server.ConnectString()); err != nil {
				server.Close()
				return err
			}
			<-ctx.Done()
			return server.Close()
		}),
	}
	cmd.Flags().Uint16Var(&port, "port", 2181, "`port` to listen on; 0 is any that is free")
	return cmd
}
