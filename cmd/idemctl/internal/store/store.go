// Package store has the commands about a token store as a whole: its tables, a loss of its records,
// and the lock domains of its fences.
package store

import (
	"github.com/spf13/cobra"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/servers"
)

// Command is the group of commands about the store.
func Command(io *cli.Streams, flags *servers.Flags) *cobra.Command {
	loss, domain, tables := losses{io, flags}, domains{io, flags}, migrations{io, &flags.Database}
	return cli.Group("store", "Migrate a database, accept a loss of records, or retire a lock domain",
		loss.acceptCommand(), domain.retireCommand(), tables.migrateCommand(), tables.grantsCommand())
}
