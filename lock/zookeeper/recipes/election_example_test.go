package recipes_test

import (
	"context"
	"log/slog"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/recipes"
)

// settleDaily shows how one instance of many does what only one may do. It is
// only compiled: it would need servers.
func settleDaily(ctx context.Context, client *zookeeper.Client, name string, settle func(context.Context, idem.Fence) error) {
	election := recipes.NewElection(client, "/payments/settlement", name)
	for ctx.Err() == nil {
		err := election.RunAsLeader(ctx, func(ctx context.Context, fence idem.Fence) error {
			return settle(ctx, fence) // the ledger checks the fence
		})
		slog.Info("no longer the leader", "error", err)
		select {
		case <-time.After(time.Second): // where settle fails at once, it would do so again
		case <-ctx.Done():
		}
	}
}

// reconcile lets go of a lock that an operator, or somebody in more of a hurry,
// asks for. It is only compiled.
func reconcile(ctx context.Context, client *zookeeper.Client, accounts []string, one func(context.Context, string, idem.Fence) error) error {
	lease, err := recipes.NewMutex(client, "/payments/reconciliation").Acquire(ctx)
	if err != nil {
		return err
	}
	defer lease.ReleaseInBackground()
	for _, account := range accounts {
		select {
		case <-lease.Revoked():
			return nil // the rest next time
		case <-lease.Done():
			return lease.Err()
		default:
		}
		if err := one(ctx, account, lease.Fence()); err != nil {
			return err
		}
	}
	return nil
}

var _, _ = settleDaily, reconcile
