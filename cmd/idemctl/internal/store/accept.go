package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/servers"
	"github.com/idemkeeper/idemkeeper/internal/operate"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

// losses are the commands about records that Redis lost.
type losses struct {
	io      *cli.Streams
	servers *servers.Flags
}

func (c *losses) acceptCommand() *cobra.Command {
	var noZooKeeper bool
	cmd := &cobra.Command{
		Use:   "accept",
		Short: "Accept that Redis lost its records",
		Long: `Accept that Redis lost its records, so that the services serve new keys again.

If a client retries a request whose record is lost, the request is executed again.
First find the operations that may be affected. The operation ID of a key is the
same as before.

The command names the store, its Redis and its znode before and after it accepts.
If the services have moved to another Redis, those that still use the old one
refuse new keys from then on.

Services without ZooKeeper have no such znode. Then give --no-zookeeper, which
accepts a clock of Redis that jumped ahead, and restart the services.`,
		Example: `  idemctl --redis redis://127.0.0.1:6379 --zookeeper 127.0.0.1:2181 store accept`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case c.servers.Redis.URL == "" && c.servers.Database.URL != "":
				return cli.WrongUse("store accept is about Redis: a database that came back with older records does not tell, and there is nothing to accept")
			case noZooKeeper && c.servers.ZooKeeper.Servers != "":
				return servers.ErrBothWays
			case c.servers.Redis.URL != "" && c.servers.ZooKeeper.Servers == "" && !noZooKeeper:
				return cli.WrongUse("store accept needs --zookeeper, where the services remember their Redis, or --no-zookeeper if they use no ZooKeeper")
			}
			return c.accept(cmd.Context())
		},
	}
	cmd.Flags().BoolVar(&noZooKeeper, "no-zookeeper", false, "the services use no ZooKeeper, so that only Redis remembers the loss")
	return cmd
}

func (c *losses) accept(ctx context.Context) error {
	b, err := c.servers.Open(ctx, servers.Need{Ensemble: true})
	if err != nil {
		return err
	}
	defer b.Close()
	row, err := c.aboutToAccept(ctx, b)
	if err != nil {
		return err
	}
	if row.Accepted, err = b.Store.AcceptLoss(ctx); err != nil {
		return err
	}
	switch {
	case c.io.JSON:
		return c.io.WriteJSON(row)
	case row.Accepted == 0:
		_, err = fmt.Fprintf(c.io.Out, "nothing was lost in %s, so there is nothing to accept\n", row)
	case b.ZooKeeper == nil:
		_, err = fmt.Fprintf(c.io.Out, "accepted the loss of %d shards of %s; restart its services, which then serve new keys again\n", row.Accepted, row)
	default:
		_, err = fmt.Fprintf(c.io.Out, "accepted the loss of %d shards of %s; its services serve new keys again within seconds\n", row.Accepted, row)
	}
	return err
}

// acceptedRow is an accepted loss in JSON.
type acceptedRow struct {
	Accepted int    `json:"accepted_shards"`
	Prefix   string `json:"prefix"`
	Redis    string `json:"redis"`
	Witness  string `json:"witness"` // the znode, with the chroot, or ""
}

// String says whose store it is.
func (r acceptedRow) String() string {
	if r.Witness == "" {
		return fmt.Sprintf("the store with the prefix %q in Redis %s", r.Prefix, r.Redis)
	}
	return fmt.Sprintf("the store with the prefix %q in Redis %s, which its services remember in the znode %s", r.Prefix, r.Redis, r.Witness)
}

// aboutToAccept tells the operator whose loss is about to be accepted, and whom the witness
// remembers.
func (c *losses) aboutToAccept(ctx context.Context, b *servers.Backends) (acceptedRow, error) {
	row := acceptedRow{Prefix: c.servers.Redis.Prefix, Redis: redisserver.Name(b.Redis)}
	if row.Redis == "" { // the primary has no name of its own, so the Sentinels stand for it
		_, row.Redis, _ = strings.Cut(c.servers.Redis.URL, "://")
		row.Redis = row.Redis[strings.LastIndexByte(row.Redis, '@')+1:]
	}
	if b.ZooKeeper != nil {
		_, chroot, err := c.servers.ZooKeeper.Ensemble()
		if err != nil {
			return row, err
		}
		row.Witness = chroot + c.servers.Redis.WitnessPath()
	}
	c.io.Sayf("accepting what was lost in %s", row)
	if b.ZooKeeper == nil {
		return row, nil
	}
	data, _, err := c.servers.Redis.Witness(b.ZooKeeper).Load(ctx)
	if err != nil {
		return row, err
	}
	var remembered struct{ Server string }
	if json.Unmarshal(data, &remembered) == nil && remembered.Server != "" && remembered.Server != row.Redis {
		c.io.Sayf("the znode was written for the Redis at %s; if that is another one, its services refuse new keys from now on", operate.OneLine(remembered.Server))
	}
	return row, nil
}
