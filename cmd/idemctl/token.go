package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/idemkeeper/idemkeeper/idem"
)

// tokenRow is a token in JSON.
type tokenRow struct {
	Token     string    `json:"token"`
	ExpiresAt time.Time `json:"expires_at"`
}

func (a *app) token() *cobra.Command {
	cmd := &cobra.Command{Use: "token", Short: "Issue one-time tokens", Args: cobra.NoArgs, RunE: subcommandWanted}
	cmd.AddCommand(a.tokenIssue())
	return cmd
}

func (a *app) tokenIssue() *cobra.Command {
	var scope string
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:   "issue --scope SCOPE [--ttl 15m]",
		Short: "Issue a one-time token",
		Long: `Issue a one-time token for SCOPE, its owner as in the service's policy. In the
sample it is the merchant. Only the owner can use the token, once, on a route for
issued tokens.

Standard output gets only the token, and standard error gets the time when it
expires. With --json one object on standard output has both. The token is a secret.
The store keeps only its hash, so it cannot be shown again.`,
		Example: `  TOKEN=$(idemctl --redis redis://127.0.0.1:6379 token issue --scope merchant_demo --ttl 15m)
  idemctl --redis redis://127.0.0.1:6379 --json token issue --scope merchant_demo`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("scope") {
				return wrongUse("token issue needs --scope")
			}
			if ttl < time.Millisecond {
				return wrongUse("--ttl %v is less than a millisecond", ttl)
			}
			store, done, err := a.openStore(cmd.Context())
			if err != nil {
				return err
			}
			defer done()
			token, err := idem.IssueToken(cmd.Context(), store, scope, ttl)
			if err != nil {
				return err
			}
			return a.writeToken(tokenRow{string(token.Value), token.ExpiresAt.UTC()})
		},
	}
	cmd.Flags().StringVar(&scope, "scope", "", "owner of the token (required)")
	cmd.Flags().DurationVar(&ttl, "ttl", idem.DefaultTokenTTL, "how long it can be used, by the store's clock")
	return cmd
}

func (a *app) writeToken(t tokenRow) error {
	if a.json {
		return writeJSON(a.stdout, t)
	}
	if _, err := fmt.Fprintln(a.stdout, t.Token); err != nil {
		return err
	}
	fmt.Fprintf(a.stderr, "idemctl: the token expires at %s\n", t.ExpiresAt.Format(time.RFC3339))
	return nil
}
