package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
)

func (a *app) lock() *cobra.Command {
	var shared bool
	var w wait
	cmd := &cobra.Command{
		Use:   "lock [--shared] [--timeout 5s] PATH -- CMD ARG…",
		Short: "Run a command while holding a lock",
		Long: `Run CMD while holding the lock on PATH, a znode below the chroot. The lock is
fair: it is had in the order in which it was asked for, over all machines. With
--shared several have it at a time, and none of them together with one that
asked without.
` + underLease,
		Example: `  idemctl --zookeeper 127.0.0.1:2181 lock /jobs/nightly -- ./nightly.sh
  idemctl --zookeeper zk1,zk2,zk3/payments lock --timeout 5s /jobs/report -- sh -c './report --fence "$IDEM_FENCE"'
  idemctl --zookeeper 127.0.0.1:2181 lock --shared --timeout 0s /jobs/nightly -- ./inspect.sh`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			path, argv, err := pathAndCommand(cmd, args)
			if err != nil {
				return err
			}
			if err := w.check(); err != nil {
				return err
			}
			return a.hold(cmd.Context(), "lock on "+path, argv, func(ctx context.Context, client *zookeeper.Client) (*zookeeper.Lease, error) {
				m := client.RWMutex(path)
				if shared {
					return w.get(ctx, m.AcquireRead, m.TryAcquireRead)
				}
				return w.get(ctx, m.AcquireWrite, m.TryAcquireWrite)
			})
		},
	}
	cmd.Flags().BoolVar(&shared, "shared", false, "share the lock with others that do")
	w.flag(cmd)
	return cmd
}
