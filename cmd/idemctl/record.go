package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/idemkeeper/idemkeeper/idem"
)

func (a *app) record() *cobra.Command {
	cmd := &cobra.Command{Use: "record", Short: "See what the token store knows", Args: cobra.NoArgs, RunE: subcommandWanted}
	cmd.AddCommand(a.recordShow(), a.recordList())
	return cmd
}

func (a *app) recordShow() *cobra.Command {
	var scope string
	var body bool
	cmd := &cobra.Command{
		Use:   "show --scope SCOPE KEY",
		Short: "Show the record of a key",
		Long: `Show the record of a key. SCOPE is whose key it is, as the service's policy
says: in the sample, the merchant. Exits with 75 where nothing is known of it.`,
		Example: `  idemctl --redis redis://127.0.0.1:6379 record show --scope merchant_demo order-17
  idemctl --json record show --scope merchant_demo '"a key with spaces, in quotes"'`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("scope") {
				return wrongUse("record show needs --scope")
			}
			key, err := idem.ParseKey(args)
			if err != nil {
				return usageError{fmt.Errorf("KEY: %w", err)}
			}
			store, done, err := a.openStore(cmd.Context())
			if err != nil {
				return err
			}
			defer done()
			id := idem.NewKeyID(scope, key)
			rec, err := store.Get(cmd.Context(), id)
			if err != nil {
				return err
			}
			if rec.State == idem.StateNone {
				return fmt.Errorf("no record of key ID %s: %w", id, errNothing)
			}
			return a.writeRecord(id, &rec, body)
		},
	}
	cmd.Flags().StringVar(&scope, "scope", "", "whose key it is (required)")
	cmd.Flags().BoolVar(&body, "body", false, "show the stored response, too")
	return cmd
}

func (a *app) recordList() *cobra.Command {
	var state string
	var olderThan time.Duration
	var limit int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List records whose outcome is open, oldest first",
		Long: `List records whose outcome is open, oldest first: pending ones, whose execution
runs or was interrupted, and unknown ones, which wait for a decision. Settled
records are not listed; show one by its key. An empty list is a success.`,
		Example: `  idemctl --redis redis://127.0.0.1:6379 record list --state unknown --older-than 1m
  idemctl --redis redis://127.0.0.1:6379 --json record list`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			q := idem.OpenQuery{OlderThan: olderThan, Limit: limit}
			if state != "" {
				s, err := idem.ParseState(state)
				if err != nil || !s.Open() {
					return wrongUse("--state %q is neither pending nor unknown", state)
				}
				q.State = s
			}
			if olderThan < 0 || limit < 1 {
				return wrongUse("--older-than is negative, or --limit below 1")
			}
			store, done, err := a.openStore(cmd.Context())
			if err != nil {
				return err
			}
			defer done()
			list, err := store.Open(cmd.Context(), q)
			if err != nil {
				return err
			}
			if len(list) == limit {
				fmt.Fprintf(a.stderr, "idemctl: there may be more than these %d; see --limit\n", limit)
			}
			return a.writeList(list)
		},
	}
	cmd.Flags().StringVar(&state, "state", "", "pending or unknown; default: both")
	cmd.Flags().DurationVar(&olderThan, "older-than", 0, "only attempts that began so long ago, by the store's clock")
	cmd.Flags().IntVar(&limit, "limit", 1000, "at most so many")
	return cmd
}
