package idemzk

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/recipes"
)

const (
	// The pause between two passes is a fraction of the retention, because markers that are due stay until the next pass.
	shortestPause = time.Second
	longestPause  = 10 * time.Minute

	retryPause = 5 * time.Second // before the next candidacy
)

// remover removes markers that are older than the retention, in one instance at a time.
type remover struct {
	locker    *zookeeper.Locker
	election  *recipes.Election
	engine    *idem.Engine
	retention time.Duration
	log       *slog.Logger

	stop context.CancelFunc
	done sync.WaitGroup
}

// newRemover returns the remover of the markers below a root.
func newRemover(l *zookeeper.Locker, root string, retention time.Duration, log *slog.Logger) (*remover, error) {
	if log == nil {
		log = slog.Default()
	}
	election, err := recipes.NewElection(l.Client(), "/idem/markers"+root, "engine")
	return &remover{locker: l, election: election, retention: retention, log: log}, err
}

func (r *remover) start(ctx context.Context, e *idem.Engine) {
	r.engine = e
	ctx, r.stop = context.WithCancel(context.WithoutCancel(ctx))
	r.done.Go(func() { r.run(ctx) })
}

// Close stops the removal and waits for it.
func (r *remover) Close() error {
	r.stop()
	r.done.Wait()
	return nil
}

// run removes markers whenever this instance is elected.
func (r *remover) run(ctx context.Context) {
	for ctx.Err() == nil {
		_ = r.election.RunAsLeader(ctx, r.term) // ZooKeeper is away, or the office was lost
		sleep(ctx, retryPause)
	}
}

// term makes pass after pass.
func (r *remover) term(ctx context.Context, _ driver.Fence) error {
	for {
		_, err := r.locker.RemoveMarkers(ctx, zookeeper.MarkerRemoval{Retention: r.retention, Settled: r.settled})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			r.log.WarnContext(ctx, "idemzk: old markers were not removed", "err", err)
		}
		sleep(ctx, min(max(r.retention/4, shortestPause), longestPause))
	}
}

// asItIs leaves what is in doubt to the route's own policy.
var asItIs = idem.Policy{AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()}

// settled keeps the markers of unknown outcomes until these are settled.
func (r *remover) settled(ctx context.Context, id driver.KeyID, m *driver.Marker) (bool, error) {
	rec, err := r.engine.Store().Get(ctx, id)
	if err == nil && rec.State == driver.StateNone { // Redis has lost it, so it is restored from the marker for people to see
		rec, err = r.engine.Resolve(ctx, id, &asItIs)
	}
	return m.SettledBy(&rec), err
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
