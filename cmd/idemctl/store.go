package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func (a *app) store() *cobra.Command {
	cmd := &cobra.Command{Use: "store", Short: "Settle what became of a whole store, or of a whole lock domain", Args: cobra.NoArgs, RunE: subcommandWanted}
	cmd.AddCommand(&cobra.Command{
		Use:   "accept",
		Short: "Accept that Redis lost its records",
		Long: `Accept that Redis lost its records: services serve new keys again.

What was executed before and is not remembered any more can be executed again
by a client that retries. Look first which operations may be affected; the
operation ID of a key is the same as it was.`,
		Example: `  idemctl --redis redis://127.0.0.1:6379 --zookeeper 127.0.0.1:2181 store accept`,
		Args:    cobra.NoArgs,
		RunE:    a.accept,
	}, a.storeRetire())
	return cmd
}

func (a *app) accept(cmd *cobra.Command, _ []string) error {
	if a.redis != "" && a.zookeeper == "" {
		return wrongUse("store accept needs --zookeeper: that is where the services remember their Redis")
	}
	store, done, err := a.openStore(cmd.Context())
	if err != nil {
		return err
	}
	defer done()
	n, err := store.AcceptLoss(cmd.Context())
	if err != nil {
		return err
	}
	switch {
	case a.json:
		return writeJSON(a.stdout, map[string]int{"accepted_shards": n})
	case n == 0:
		_, err = fmt.Fprintln(a.stdout, "nothing was lost; nothing to accept")
	default:
		_, err = fmt.Fprintf(a.stdout, "accepted the loss of %d shards; services serve new keys again within seconds\n", n)
	}
	return err
}
