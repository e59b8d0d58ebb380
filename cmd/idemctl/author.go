package main

import (
	"os/user"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Limits of an [idem.Decision], in bytes.
const (
	maxAuthor = 128
	maxReason = 512
)

// machines are those who decide without anybody, as [idem.Decision] tells.
var machines = []string{"resolver", "engine", "marker", "sweeper"}

// reserved says that a name would pass for a machine's.
func reserved(by string) bool {
	return slices.ContainsFunc(machines, func(name string) bool { return strings.EqualFold(strings.TrimSpace(by), name) })
}

// author is who decides something, and why: kept with what was decided.
type author struct{ by, reason string }

func (w *author) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&w.by, "by", "", "who decides, kept and shown (default: the system user)")
	cmd.Flags().StringVar(&w.reason, "reason", "", "why, kept and shown")
}

func (w *author) decision(cmd *cobra.Command) (idem.Decision, error) {
	d := idem.Decision{By: w.by, Reason: w.reason}
	if !cmd.Flags().Changed("by") {
		me, err := user.Current()
		if err != nil {
			return d, wrongUse("give --by: the system does not tell who you are: %w", err)
		}
		d.By = me.Username
		for len(d.By) > maxAuthor { // nobody can give another one
			_, n := utf8.DecodeLastRuneInString(d.By)
			d.By = d.By[:len(d.By)-n]
		}
	}
	switch {
	case d.By == "":
		return d, wrongUse("--by is empty")
	case len(d.By) > maxAuthor:
		return d, wrongUse("--by has %d bytes, at most %d", len(d.By), maxAuthor)
	case len(d.Reason) > maxReason:
		return d, wrongUse("--reason has %d bytes, at most %d", len(d.Reason), maxReason)
	case reserved(d.By):
		return d, wrongUse("--by %s is the name of a part of the services, not of a person", oneLine(d.By))
	case !utf8.ValidString(d.By) || !utf8.ValidString(d.Reason):
		return d, wrongUse("--by or --reason is not UTF-8")
	}
	return d, nil
}
