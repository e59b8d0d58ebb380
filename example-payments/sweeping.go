package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/queue"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/recipes"
	"github.com/idemkeeper/idemkeeper/sweeper"
)

// The sweeper's znodes.
const (
	sweeperPath = "/idem/sweeper" // elects the instance that sweeps
	inboxPath   = "/idem/inbox"   // queue of outcomes for a person to settle
)

const markerChore = 10 * time.Minute // between two removals of old markers

// makeSweeper makes the sweeper. It settles all routes by the same resolver.
// ZooKeeper elects its leader, keeps its inbox, and has old markers to remove. In
// joined mode without ZooKeeper the database elects the leader.
func (a *App) makeSweeper(resolver idem.Resolver) (err error) {
	a.policy, err = idem.Policy{Scope: payments.Scope, InDoubt: idem.AskResolver(resolver)}.WithDefaults()
	if err != nil {
		return err
	}
	opts := []sweeper.Option{a.telemetry.Observer.Sweeper()}
	if len(a.cfg.Operators) > 0 { // the console is made later
		opts = append(opts, sweeper.WithObserver(func(ctx context.Context, p sweeper.Pass) { a.console.Swept(ctx, p) }))
	}
	switch {
	case a.zookeeper != nil:
		election, err := recipes.NewElection(a.zookeeper, sweeperPath, candidate())
		if err != nil {
			return err
		}
		inbox, err := queue.New(a.zookeeper, inboxPath)
		if err != nil {
			return err
		}
		opts = append(opts,
			sweeper.WithLead(func(ctx context.Context, term func(context.Context) error) error {
				return election.RunAsLeader(ctx, func(ctx context.Context, _ driver.Fence) error { return term(ctx) })
			}),
			sweeper.WithInbox(inbox))
	case a.engine.Joined():
		opts = append(opts, sweeper.WithLead(a.ledger.Lead))
	default:
		opts = append(opts, sweeper.WithLead(sweeper.ByLock(a.engine.Locker(), "example-payments")))
	}
	if a.markers != nil {
		opts = append(opts, sweeper.WithChore(min(markerChore, a.cfg.MarkerRetention), a.removeMarkers))
	}
	a.sweeper, err = sweeper.New(a.engine, []idem.Policy{a.policy}, opts...)
	return err
}

// candidate is the name of this instance for observers of the election.
func candidate() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}

// removeMarkers removes old markers, also those of other instances and earlier
// builds. Markers of unknown outcomes stay until the outcomes are settled.
func (a *App) removeMarkers(ctx context.Context) error {
	settled := func(ctx context.Context, id driver.KeyID, m *driver.Marker) (bool, error) {
		rec, err := a.engine.Store().Get(ctx, id)
		if err == nil && rec.State == driver.StateNone { // Redis has lost it, so it is restored from the marker for people to see
			rec, err = a.engine.Resolve(ctx, id, &a.policy)
		}
		return m.SettledBy(&rec), err
	}
	_, err := a.markers.RemoveMarkers(ctx, zookeeper.MarkerRemoval{Retention: a.cfg.MarkerRetention, Settled: settled})
	return err
}
