package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
)

func (a *app) semaphore() *cobra.Command {
	var permits int
	var w wait
	cmd := &cobra.Command{
		Use:   "semaphore --permits N [--timeout 5s] PATH -- CMD ARG…",
		Short: "Run a command while holding one of N permits",
		Long: `Run CMD while holding one of the N permits that there are on PATH, a znode below
the chroot. They are had in the order in which they were asked for, over all
machines. All who use a path have to name the same N: it is kept with the path
while that is in use, and another one fails.
` + underLease,
		Example: `  idemctl --zookeeper 127.0.0.1:2181 semaphore --permits 3 /jobs/imports -- ./import.sh part-17
  idemctl --zookeeper 127.0.0.1:2181 semaphore --permits 3 --timeout 5s /jobs/imports -- ./import.sh part-18`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			path, argv, err := pathAndCommand(cmd, args)
			if err != nil {
				return err
			}
			if err := w.check(); err != nil {
				return err
			}
			if permits < 1 {
				return wrongUse("semaphore needs --permits, of 1 or more")
			}
			return a.hold(cmd.Context(), "semaphore "+path, argv, func(ctx context.Context, client *zookeeper.Client) (*zookeeper.Lease, error) {
				sem := client.Semaphore(path, permits)
				return w.get(ctx, one(sem.Acquire), one(sem.TryAcquire))
			})
		},
	}
	cmd.Flags().IntVar(&permits, "permits", 0, "how many permits there are on PATH (required)")
	w.flag(cmd)
	return cmd
}

// one permit is what each command has.
func one(n func(context.Context, int) (*zookeeper.Lease, error)) acquire {
	return func(ctx context.Context) (*zookeeper.Lease, error) { return n(ctx, 1) }
}
