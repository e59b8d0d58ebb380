package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// later are commands that scripts may know already and this build does not
// have, by the command that they belong to.
var later = []struct{ parent, name string }{
	{"", "token"}, {"", "doctor"},
	{"record", "resolve"}, {"store", "retire"},
}

// addLater adds commands that refuse with one line, whatever their arguments.
func addLater(root *cobra.Command) {
	for _, l := range later {
		parent := root
		for _, c := range root.Commands() {
			if c.Name() == l.parent {
				parent = c
			}
		}
		parent.AddCommand(&cobra.Command{
			Use:                l.name,
			Short:              "(not in this build yet)",
			DisableFlagParsing: true,
			RunE: func(cmd *cobra.Command, _ []string) error {
				return fmt.Errorf("%s: this build does not have it yet", cmd.CommandPath())
			},
		})
	}
}
