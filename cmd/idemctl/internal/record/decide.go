package record

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/servers"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/operate"
	redislock "github.com/idemkeeper/idemkeeper/lock/redis"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/tokenstore/sealed"
)

// Time-outs of a decision. An operator can wait longer than a request.
const (
	lockTimeout   = 5 * time.Second
	storeTimeout  = 5 * time.Second
	retireHint    = `if that domain is gone for good, with all holders of its locks, see "store retire"`
	domainOfLocks = "the attempt ran under the lock domain"
)

// decide settles an open record under the lock of its key. It settles an unknown
// outcome without the lock if the lock cannot be taken.
func (c *decisions) decide(ctx context.Context, b *servers.Backends, id driver.KeyID, rec *driver.Record, v *verdict) (driver.Record, error) {
	response, err := v.response(rec) // before anything is changed, because FILE may be wrong
	if err != nil {
		return driver.Record{}, err
	}
	if rec.Attempt.Fence.Domain == driver.JoinedDomain && b.Redis == nil {
		if err := b.NotHeld(ctx, id); err != nil {
			return driver.Record{}, err
		}
		return decideWithoutLock(ctx, b.Store, id, rec, response, v)
	}
	locker, end, why, err := c.lockerFor(ctx, b, id, rec, v)
	switch {
	case err != nil:
		return driver.Record{}, err
	case locker != nil:
		defer end()
		return decideUnderLock(ctx, b.Store, locker, id, rec.Attempt, response, v)
	case rec.State == driver.StatePending:
		return driver.Record{}, fmt.Errorf("the attempt is pending and may be running: %w", why)
	}
	c.print.io.Sayf("no lock was taken: %s", operate.OneLine(why.Error()))
	return decideWithoutLock(ctx, b.Store, id, rec, response, v)
}

// lockerFor returns the lock service of the open attempt. If the attempt's domain was
// retired, it is the lock service that the services use now, which is Redis's only
// with --no-zookeeper. If l is nil, why says what the operator can do.
func (c *decisions) lockerFor(ctx context.Context, b *servers.Backends, id driver.KeyID, rec *driver.Record, v *verdict) (l driver.Locker, end func(), why, err error) {
	domain := rec.Attempt.Fence.Domain
	domains, err := c.servers.Redis.Domains(ctx, b.Redis)
	if err != nil {
		return nil, nil, nil, err
	}
	retired, err := b.Store.DomainRetired(ctx, domain)
	if err != nil {
		return nil, nil, nil, err
	}
	place, why := c.placeOf(b, domains.Of(id), domain, retired, v)
	if why != nil {
		return nil, nil, why, nil
	}
	l, end, err = c.open(ctx, b, place, v)
	return l, end, nil, err
}

// lockPlace is a kind of server that has locks.
type lockPlace uint8

const (
	inDatabase lockPlace = iota + 1
	inZooKeeper
	inRedis
)

// placeOf says where to take the lock of a key, or why that is not possible. redis is the domain of
// the key's lock in Redis.
func (c *decisions) placeOf(b *servers.Backends, redis, domain string, retired bool, v *verdict) (lockPlace, error) {
	if b.SQLLocks.Has(domain) {
		return inDatabase, nil
	}
	ofRedis := b.Redis != nil && redis == domain
	if b.ZooKeeper != nil && !ofRedis && (retired || b.ZooKeeper.Domain() == domain) {
		return inZooKeeper, nil
	}
	if ofRedis || retired && v.noZooKeeper && b.Redis != nil {
		return inRedis, nil
	}
	return 0, c.whyNoLock(b, domain, retired)
}

// open returns the locker of a place.
func (c *decisions) open(ctx context.Context, b *servers.Backends, place lockPlace, v *verdict) (l driver.Locker, end func(), err error) {
	switch place {
	case inDatabase:
		locker, err := b.SQLLocks.Open(ctx)
		if err != nil {
			return nil, nil, err
		}
		return locker, closing(ctx, locker), nil
	case inZooKeeper:
		var opts []zookeeper.LockerOption
		if v.marking {
			opts = append(opts, zookeeper.WithDurableMarkers())
		}
		locker := b.ZooKeeper.Locker(opts...)
		ctx, cancel := context.WithTimeout(ctx, lockTimeout)
		defer cancel()
		if err := locker.Ping(ctx); err != nil {
			return nil, nil, fmt.Errorf("ZooKeeper does not answer: %w", err)
		}
		return locker, func() {}, nil
	}
	locker, err := redislock.New(ctx, b.Redis, redislock.WithPrefix(c.servers.Redis.Prefix))
	if err != nil {
		return nil, nil, err
	}
	return locker, closing(ctx, locker), nil
}

// closing returns the end of a locker.
func closing(ctx context.Context, locker interface {
	Close(ctx context.Context) error
}) func() {
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), servers.CloseTimeout)
		defer cancel()
		_ = locker.Close(ctx) // otherwise the lock times out
	}
}

// whyNoLock explains why the lock of a domain could not be taken.
func (c *decisions) whyNoLock(b *servers.Backends, domain string, retired bool) error {
	name := operate.OneLine(domain)
	switch {
	case c.servers.ZooKeeper.Servers == "" && retired:
		return cli.WrongUse("%s %s, which was retired: give --zookeeper with the ensemble that the services use now, or --no-zookeeper if they no longer use ZooKeeper", domainOfLocks, name)
	case c.servers.ZooKeeper.Servers == "":
		return fmt.Errorf("%s %s, which is not in this %s: give --zookeeper; %s", domainOfLocks, name, b.Place(), retireHint)
	case b.ZooKeeper == nil:
		return fmt.Errorf("%s %s, and ZooKeeper is left out: %w", domainOfLocks, name, b.NoEnsemble)
	case servers.OfEnsemble(domain, b.ZooKeeper.Domain()):
		return cli.WrongUse("%s %s, whose locks are elsewhere in the ensemble: give --lock-root %s", domainOfLocks, name, operate.OneLine(servers.RootOf(domain)))
	}
	return fmt.Errorf("%s %s, which is neither in --zookeeper (%s) nor in this %s; %s",
		domainOfLocks, name, b.ZooKeeper.Domain(), b.Place(), retireHint)
}

// newEngine returns an engine that waits as long as a person does, and its end.
func newEngine(ctx context.Context, store driver.Store, locker driver.Locker) (engine *idem.Engine, end func(), err error) {
	engine, err = idem.New(locker, store, idem.WithStoreTimeout(storeTimeout), idem.WithLockTimeout(lockTimeout))
	if err != nil {
		return nil, nil, err
	}
	return engine, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), servers.CloseTimeout)
		defer cancel()
		_ = engine.Close(ctx)
	}, nil
}

// decideUnderLock has the engine take the lock and settle the attempt.
func decideUnderLock(ctx context.Context, store driver.Store, locker driver.Locker, id driver.KeyID, attempt driver.Attempt, response *idem.Response, v *verdict) (driver.Record, error) {
	engine, end, err := newEngine(ctx, store, locker)
	if err != nil {
		return driver.Record{}, err
	}
	defer end()
	policy, err := idem.Policy{AllowGlobalKeys: true, ResultTTL: v.resultTTL, KeyTTL: v.keyTTL}.WithDefaults()
	if err != nil {
		return driver.Record{}, cli.UsageError{Err: err}
	}
	resolution := idem.NotApplied()
	if response != nil {
		resolution = idem.Applied(*response)
	}
	rec, err := engine.Decide(ctx, id, attempt, resolution, v.decision, &policy)
	switch {
	case errors.Is(err, driver.ErrLocked):
		return rec, fmt.Errorf("the lock of key ID %s is held: its holder runs, or the holder's session has not timed out yet: %w", id, cli.ErrNotAcquired)
	case errors.Is(err, idem.ErrNotOpen), errors.Is(err, sealed.ErrUnreadable): // it was settled meanwhile
		return rec, settledElsewhere(ctx, store, id, attempt.Number)
	case err != nil:
		return rec, err
	case !v.stands(&rec):
		return rec, notOpen(id, &rec, attempt.Number)
	}
	return rec, nil
}

// stands reports whether the record has this verdict. The holder may have reported
// its own outcome meanwhile, because it needs no lock for that.
func (v *verdict) stands(rec *driver.Record) bool {
	if v.answer == nil {
		return (rec.State == driver.StateReleased || rec.State == driver.StateIssued) && rec.Decision == v.decision
	}
	return rec.State == driver.StateCompleted && rec.Decision == v.decision
}

// decideWithoutLock settles an unknown outcome by compare-and-set alone.
func decideWithoutLock(ctx context.Context, store driver.Store, id driver.KeyID, rec *driver.Record, response *idem.Response, v *verdict) (driver.Record, error) {
	got, err := settleWithoutLock(ctx, store, id, rec.Attempt, response, v.decision, v.resultTTL, v.keyTTL)
	switch {
	case errors.Is(err, driver.ErrResponseInvalid):
		return got.Record, cli.UsageError{Err: fmt.Errorf("--applied: %w", err)}
	case err != nil:
		return got.Record, err
	case !got.Settled && got.Record.State == driver.StateNone:
		return got.Record, noRecord(id)
	case !got.Settled, !v.stands(&got.Record): // another person may have said the same
		return got.Record, notOpen(id, &got.Record, rec.Attempt.Number)
	}
	return got.Record, nil
}

// settleWithoutLock settles an attempt by compare-and-set alone.
func settleWithoutLock(ctx context.Context, store driver.Store, id driver.KeyID, attempt driver.Attempt, response *idem.Response, d driver.Decision, resultTTL, keyTTL time.Duration) (res driver.SettleResult, err error) {
	s := driver.Settlement{Attempt: attempt, State: driver.StateReleased, ResultTTL: resultTTL, KeyTTL: max(keyTTL, resultTTL), Decision: d}
	if response != nil {
		s.State, s.Response = driver.StateCompleted, (*driver.Response)(response)
	}
	if s.ID, err = driver.DecisionID(id, &s); err != nil {
		return res, err
	}
	return store.Settle(ctx, id, s)
}
