package recipes_test

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/recipes"
)

// One instance of many does what only one may do.
func ExampleElection() {
	settleDaily := func(ctx context.Context, client *zookeeper.Client, name string, settle func(context.Context, driver.Fence) error) {
		election := recipes.MustNewElection(client, "/payments/settlement", name)
		for ctx.Err() == nil {
			err := election.RunAsLeader(ctx, func(ctx context.Context, fence driver.Fence) error {
				return settle(ctx, fence) // the ledger checks the fence
			})
			slog.Info("no longer the leader", "error", err)
			select {
			case <-time.After(time.Second): // where settle fails at once, it would do so again
			case <-ctx.Done():
			}
		}
	}
	_ = settleDaily // it needs servers
}

// A long job lets go of its lock if an operator, or a caller in more of a hurry, asks for it.
func ExampleMutex() {
	reconcile := func(ctx context.Context, client *zookeeper.Client, accounts []string, one func(context.Context, string, driver.Fence) error) error {
		lease, err := recipes.MustNewMutex(client, "/payments/reconciliation").Acquire(ctx)
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
	_ = reconcile // it needs servers
}

// At most three imports run at once, over all machines.
func ExampleSemaphore() {
	limited := func(ctx context.Context, client *zookeeper.Client, load func(context.Context) error) error {
		lease, err := recipes.MustNewSemaphore(client, "/imports", 3).Acquire(ctx, 1)
		if err != nil {
			return err
		}
		defer lease.ReleaseInBackground()
		return load(lease.Context(ctx)) // this context ends with the lease
	}
	_ = limited // it needs servers
}

// Readers share the lock, and a writer has it alone.
func ExampleRWMutex() {
	report := func(ctx context.Context, client *zookeeper.Client, read func(context.Context) error) error {
		lease, err := recipes.MustNewRWMutex(client, "/payments/books").AcquireRead(ctx)
		if err != nil {
			return err
		}
		defer lease.ReleaseInBackground()
		return read(lease.Context(ctx))
	}
	_ = report // it needs servers
}

// A step takes the lock that its request already has.
func ExampleReentrantMutex() {
	closeAccount := func(ctx context.Context, client *zookeeper.Client, request string, parts []string, one func(context.Context, string, driver.Fence) error) error {
		mutex := recipes.MustNewReentrantMutex(client, "/accounts/alice")
		closePart := func(part string) error {
			hold, err := mutex.Acquire(ctx, request) // at once, because this request has the lock
			if err != nil {
				return err
			}
			defer hold.ReleaseInBackground()
			return one(ctx, part, hold.Fence())
		}
		hold, err := mutex.Acquire(ctx, request)
		if err != nil {
			return err
		}
		defer hold.ReleaseInBackground()
		for _, part := range parts {
			if err := closePart(part); err != nil {
				return err
			}
		}
		return nil
	}
	_ = closeAccount // it needs servers
}

// A setting that all instances share. No change overwrites one that it has not seen.
func ExampleRegister() {
	change := func(ctx context.Context, client *zookeeper.Client, edit func([]byte) []byte) error {
		limits := recipes.MustNewRegister(client, "/settings/limits")
		for {
			data, version, err := limits.Load(ctx)
			if err != nil {
				return err
			}
			if err := limits.Save(ctx, edit(data), version); !errors.Is(err, recipes.ErrConflict) {
				return err
			}
		}
	}
	_ = change // it needs servers
}
