// Package record has the commands about the records of a token store: they look, settle one or many open outcomes, and
// remove stored answers.
package record

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/servers"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/operate"
	"github.com/idemkeeper/idemkeeper/tokenstore/sealed"
)

// Command is the group of commands about records.
func Command(io *cli.Streams, flags *servers.Flags) *cobra.Command {
	look := looks{printer{io}, flags}
	decide := decisions{printer{io}, flags}
	return cli.Group("record", "Look into the token store, and settle open outcomes", look.show(), look.list(), decide.resolve(),
		look.export(), decide.decideFile(), decide.forget())
}

// looks are the commands that only read.
type looks struct {
	print   printer
	servers *servers.Flags
}

func (c *looks) show() *cobra.Command {
	var which whichKey
	var operation string
	var body bool
	cmd := &cobra.Command{
		Use:   "show --scope SCOPE KEY | show --key-id HEX | show --operation OP",
		Short: "Show the record of a key",
		Long: `Show the record of a key. SCOPE is the owner of the key, as in the service's
policy. In the sample it is the merchant. Instead of the key you can give its ID,
which is in lists, logs and events, or the operation ID, which is in the systems that
the service calls. An operation ID is a hash, so idemctl may have to read the ID of
every record for it. Exits with 75 if there is no record.

"attempt" is the number for "record resolve --attempt". "decided by" names the
person or part of the services that settled the attempt in place of its holder.
Each "decision" line is a decision of a person about the key, newest first, also
about earlier attempts. Unprintable characters are shown as escapes (\n, \u202e).

"holder" says whether the process of an open attempt lives, and which one it is. For
this idemctl looks at the lock, so give --zookeeper if the services lock there. "next"
says what happens without a person, and "settle" is the command for a person.

An unreadable record has the state "unreadable" and a reason. It was written by a
newer build, or it is corrupt. An unreadable response has a reason in place of its
status.

It writes nothing. If the ensemble of --zookeeper does not answer, it says so, and
cannot tell whether Redis has lost records.`,
		Example: `  idemctl --redis redis://127.0.0.1:6379 record show --scope merchant_demo order-17
  idemctl --redis redis://127.0.0.1:6379 record show --key-id 5f6c…
  idemctl --json record show --scope merchant_demo '"a key with spaces, in quotes"'`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			byOperation := cmd.Flags().Changed("operation")
			var id driver.KeyID
			var err error
			switch {
			case !byOperation:
				id, err = which.id(cmd, args)
			case cmd.Flags().Changed("scope") || cmd.Flags().Changed("key-id") || len(args) > 0:
				err = cli.WrongUse("%s wants --operation, or a key, not both", cmd.CommandPath())
			}
			if err != nil {
				return err
			}
			look, done, err := c.open(cmd.Context())
			if err != nil {
				return err
			}
			defer done()
			if byOperation {
				var found bool
				if id, found, err = look.FindOperation(cmd.Context(), operation); err == nil && !found {
					err = fmt.Errorf("no record of operation %s: %w", operate.OneLine(operation), cli.ErrNothing)
				}
				if err != nil {
					return err
				}
			}
			facts, err := look.Get(cmd.Context(), id)
			if err != nil {
				return err
			}
			rec := &facts.Record
			if errors.Is(rec.ResponseErr, sealed.ErrUnreadable) {
				c.print.io.Sayf("the response is left out: %s", operate.OneLine(rec.ResponseErr.Error()))
				rec.ResponseErr = nil
			}
			if facts.Err == nil && rec.State == driver.StateNone {
				return noRecord(id)
			}
			decided, err := look.Decisions(cmd.Context(), id)
			if err != nil {
				return err
			}
			return c.print.record(facts, decided, body)
		},
	}
	which.flags(cmd)
	cmd.Flags().StringVar(&operation, "operation", "", "operation ID, in place of --scope and KEY")
	cmd.Flags().BoolVar(&body, "body", false, "also show the stored response")
	return cmd
}

// noRecord means that the store has no record of a key.
func noRecord(id driver.KeyID) error {
	return fmt.Errorf("no record of key ID %s: %w", id, cli.ErrNothing)
}

// whichKey names a key by scope and key, or by its ID.
type whichKey struct{ scope, keyID string }

func (w *whichKey) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&w.scope, "scope", "", "owner of the key; needed with KEY")
	cmd.Flags().StringVar(&w.keyID, "key-id", "", "ID of the key, in place of --scope and KEY")
}

func (w *whichKey) id(cmd *cobra.Command, args []string) (driver.KeyID, error) {
	byScope, byID := cmd.Flags().Changed("scope"), cmd.Flags().Changed("key-id")
	switch {
	case byID && (byScope || len(args) > 0):
		return driver.KeyID{}, cli.WrongUse("%s wants --key-id, or --scope and KEY, not both", cmd.CommandPath())
	case byID:
		id, err := driver.ParseKeyID(w.keyID)
		if err != nil {
			return id, cli.UsageError{Err: fmt.Errorf("--key-id: %w", err)}
		}
		return id, nil
	case !byScope:
		return driver.KeyID{}, cli.WrongUse("%s needs --scope and KEY, or --key-id", cmd.CommandPath())
	case len(args) != 1:
		return driver.KeyID{}, cli.WrongUse("%s needs KEY", cmd.CommandPath())
	}
	key, err := idem.ParseKey(args)
	if err != nil {
		return driver.KeyID{}, cli.UsageError{Err: fmt.Errorf("KEY: %w", err)}
	}
	return idem.NewKeyID(w.scope, key), nil
}

func (c *looks) list() *cobra.Command {
	var flags filterFlags
	var olderThan time.Duration
	var after string
	var limit int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List records with an open outcome, oldest first",
		Long: `List records with an open outcome, oldest first. A pending record has an execution
that runs or was interrupted. An unknown record waits for a decision. To see a
settled record, use "record show" with its key. An empty list is a success. It
writes nothing. If ZooKeeper does not answer, it says so and goes on without.

Each line tells how old the state is, and whether the holder of the attempt is alive,
gone, or not to be seen from here. "record show --key-id" has the rest: the process
that holds the lock, what happens next by itself, and the command that settles the
attempt. With --json each line has all of it.

If there are more than --limit, standard error has the --after for the next page.

An unreadable record, written by a newer build or corrupt, is listed as
"unreadable" with the reason, with every --state and --route.`,
		Example: `  idemctl --redis redis://127.0.0.1:6379 record list --state unknown --older-than 1m
  idemctl --redis redis://127.0.0.1:6379 record list --route "POST /v1/payments" --since 2h --limit 50
  idemctl --redis redis://127.0.0.1:6379 --json record list`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			q, err := flags.filter(time.Now())
			if err != nil {
				return err
			}
			if olderThan < 0 || limit < 1 {
				return cli.WrongUse("--older-than is negative, or --limit below 1")
			}
			if after != "" {
				place, err := operate.ParseCursor(after)
				if err != nil {
					return cli.UsageError{Err: fmt.Errorf("--after: %w", err)}
				}
				q.After = &place
			}
			look, done, err := c.open(cmd.Context())
			if err != nil {
				return err
			}
			defer done()
			now, err := look.Clock(cmd.Context())
			if err != nil {
				return err
			}
			times, err := flags.filter(now) // durations are by the clock of the store
			if err != nil {
				return err
			}
			q.From, q.Until = times.From, times.Until
			if end := now.Add(-olderThan); olderThan > 0 && (q.Until.IsZero() || end.Before(q.Until)) {
				q.Until = end
			}
			var list []driver.OpenRecord
			err = q.Each(cmd.Context(), look.Store, min(limit+1, servers.Page), func(r *driver.OpenRecord) bool {
				if len(list) == limit {
					c.print.io.Sayf("there are more than %d; go on with --after %s", limit, operate.FormatCursor(list[limit-1].Cursor()))
					return false
				}
				list = append(list, *r)
				return true
			})
			if err != nil {
				return err
			}
			facts, err := look.Look(cmd.Context(), list)
			if err != nil {
				return err
			}
			return c.print.list(facts)
		},
	}
	flags.add(cmd, "", "pending or unknown (default: both)")
	cmd.Flags().DurationVar(&olderThan, "older-than", 0, "only attempts at least this old, by the store's clock")
	cmd.Flags().IntVar(&limit, "limit", 1000, "greatest number of records to list")
	cmd.Flags().StringVar(&after, "after", "", "go on after the `PLACE` that the page before has told")
	return cmd
}
