// Package token has the commands about one-time tokens.
package token

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/servers"
	"github.com/idemkeeper/idemkeeper/idem"
)

// row is a token in JSON.
type row struct {
	Token     string    `json:"token"`
	ExpiresAt time.Time `json:"expires_at"`
}

// Command is the group of commands about tokens.
func Command(io *cli.Streams, flags *servers.Flags) *cobra.Command {
	c := command{io, flags}
	return cli.Group("token", "Issue one-time tokens", c.issue())
}

type command struct {
	io      *cli.Streams
	servers *servers.Flags
}

func (c *command) issue() *cobra.Command {
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
				return cli.WrongUse("token issue needs --scope")
			}
			if ttl < time.Millisecond {
				return cli.WrongUse("--ttl %v is less than a millisecond", ttl)
			}
			b, err := c.servers.Open(cmd.Context(), servers.Need{Ensemble: true})
			if err != nil {
				return err
			}
			defer b.Close()
			token, err := idem.IssueToken(cmd.Context(), b.Store, scope, ttl)
			if err != nil {
				return err
			}
			return c.write(row{string(token.Value), token.ExpiresAt.UTC()})
		},
	}
	cmd.Flags().StringVar(&scope, "scope", "", "owner of the token (required)")
	cmd.Flags().DurationVar(&ttl, "ttl", idem.DefaultTokenTTL, "how long it can be used, by the store's clock")
	return cmd
}

func (c *command) write(t row) error {
	if c.io.JSON {
		return c.io.WriteJSON(t)
	}
	if _, err := fmt.Fprintln(c.io.Out, t.Token); err != nil {
		return err
	}
	c.io.Sayf("the token expires at %s", t.ExpiresAt.Format(time.RFC3339))
	return nil
}
