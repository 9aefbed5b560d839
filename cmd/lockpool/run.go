package main

import (
	"github.com/spf13/cobra"
)

func runCommand(c *connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "run [flags] NAME -- COMMAND [ARGUMENT]...",
		Short:   "Run a command while holding a lock",
		Example: "  lockpool run cron/backup -- ./backup.sh",
		Args:    cobra.MinimumNArgs(2),
		RunE: classified(func(cmd *cobra.Command, args []string) error {
			pool, err := c.open()
			if err != nil {
				return err
			}
			return pool.Close()
		}),
	}
	registerExitCodes(cmd.Flags())
	return cmd
}
