package main

// This file has the command man, which writes the manual pages.

import (
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func manCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:     "man DIR",
		Short:   "Write the manual pages into a directory",
		Example: "  lockpool man /usr/local/share/man/man1",
		Args:    cobra.ExactArgs(1),
		RunE: classified(func(_ *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o777); err != nil {
				return err
			}
			root.DisableAutoGenTag = true // the date would make each copy another one
			return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "lockpool", Manual: "Lockpool's manual"}, args[0])
		}),
	}
}
