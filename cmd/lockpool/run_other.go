//go:build !unix

package main

// This file has the command run on systems other than Unix, where it is not available.

import "github.com/spf13/cobra"

// runCommand says that run needs Unix, for process groups and signals.
func runCommand(*connection) *cobra.Command {
	return &cobra.Command{
		Use:                "run",
		Short:              "Run a command while holding a lock (Unix only)",
		DisableFlagParsing: true,
		RunE: classified(func(*cobra.Command, []string) error {
			return misused("run needs process groups and signals, which this system does not have")
		}),
	}
}

func guardCommand() *cobra.Command { return &cobra.Command{Use: "guard", Hidden: true} }
