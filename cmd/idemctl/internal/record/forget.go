package record

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/servers"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/driver/rules"
	"github.com/idemkeeper/idemkeeper/internal/operate"
	"github.com/idemkeeper/idemkeeper/tokenstore/sealed"
)

func (c *decisions) forget() *cobra.Command {
	var which whichKey
	var who cli.Author
	cmd := &cobra.Command{
		Use:   "forget --scope SCOPE KEY | forget --key-id HEX",
		Short: "Remove the stored answer of a key, and leave the key",
		Long: `Remove the stored answer of a key before its time, for data that must go. The key
stays, so nothing runs again. Repeats of a completed request get 409
result-unavailable. An outcome in doubt stays in doubt, without the answer that was
kept for the operator.

Who, when and why is kept, and "record show" has it. The fingerprint of the request
stays too. It is a hash, which tells nothing if the services key it.

Idemkeeper has no other copy. Replicas follow at once, and what Redis or the database
keep in logs, in files that they have not yet rewritten, and in backups has its own
end. docs/security.md has a paragraph on it.

Prints the record like "record show". Exits with 75 if there is no record, or no
stored answer.`,
		Example: `  idemctl --redis redis://127.0.0.1:6379 record forget --scope merchant_demo order-17 --reason "erasure, ticket 4713"`,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := which.id(cmd, args)
			if err != nil {
				return err
			}
			d, err := who.Decision(cmd)
			if err != nil {
				return err
			}
			return c.forgetAnswer(cmd.Context(), id, d)
		},
	}
	which.flags(cmd)
	who.Flags(cmd)
	return cmd
}

func (c *decisions) forgetAnswer(ctx context.Context, id driver.KeyID, d driver.Decision) error {
	b, err := c.servers.Open(ctx, servers.Need{})
	if err != nil {
		return err
	}
	defer b.Close()
	rec, err := b.Store.Get(ctx, id)
	switch {
	case err != nil && !errors.Is(err, sealed.ErrUnreadable): // an answer that cannot be read can be removed
		return err
	case rec.State == driver.StateNone:
		return noRecord(id)
	case err == nil && rules.Forgotten(rec) == nil:
		return settledError{fmt.Sprintf("key ID %s has no stored answer: it is %v since %s; nothing was changed", id, rec.State, operate.Stamp(rec.Since()))}
	}
	if rec, err = b.Store.Forget(ctx, id, d); err != nil {
		return err
	}
	decided, err := b.Store.Decisions(ctx, id)
	if err != nil {
		return err
	}
	return c.print.record(&operate.Facts{OpenRecord: driver.OpenRecord{ID: id, Record: rec}, Now: rec.Since()}, decided, false)
}
