package cli

import (
	"os/user"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/operate"
)

// Author is the person who decides, and the reason. Both are kept with the decision.
type Author struct{ by, reason string }

// Flags adds --by and --reason.
func (w *Author) Flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&w.by, "by", "", "name of the person who decides, kept with the decision (default: the system user)")
	cmd.Flags().StringVar(&w.reason, "reason", "", "reason, kept with the decision")
}

// Decision reads the flags.
func (w *Author) Decision(cmd *cobra.Command) (driver.Decision, error) {
	d := driver.Decision{By: w.by, Reason: w.reason}
	if !cmd.Flags().Changed("by") {
		me, err := user.Current()
		if err != nil {
			return d, WrongUse("give --by, because the system user is not known: %w", err)
		}
		d.By = me.Username
		for len(d.By) > driver.MaxAuthorBytes { // shorten it, because the user cannot change it
			_, n := utf8.DecodeLastRuneInString(d.By)
			d.By = d.By[:len(d.By)-n]
		}
	}
	if err := operate.CheckDecision(d, "--by", "--reason"); err != nil {
		return d, UsageError{err}
	}
	return d, nil
}
