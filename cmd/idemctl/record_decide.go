package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

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
	withoutLock   = "no lock was taken"
	domainOfLocks = "the attempt ran under the lock domain"
)

// decide settles an open record under the lock of its key. It settles an unknown
// outcome without the lock if the lock cannot be taken.
func (a *app) decide(ctx context.Context, b *backends, id driver.KeyID, rec *driver.Record, v *verdict) (driver.Record, error) {
	response, err := v.response(rec) // before anything is changed, because FILE may be wrong
	if err != nil {
		return driver.Record{}, err
	}
	if rec.Attempt.Fence.Domain == driver.JoinedDomain && b.redis == nil {
		if err := b.notHeld(ctx, id); err != nil {
			return driver.Record{}, err
		}
		return decideWithoutLock(ctx, b.store, id, rec, response, v)
	}
	locker, end, why, err := a.lockerFor(ctx, b, id, rec, v)
	switch {
	case err != nil:
		return driver.Record{}, err
	case locker != nil:
		defer end()
		return decideUnderLock(ctx, b.store, locker, id, rec.Attempt, response, v)
	case rec.State == driver.StatePending:
		return driver.Record{}, fmt.Errorf("the attempt is pending and may be running: %w", why)
	}
	fmt.Fprintf(a.stderr, "idemctl: %s: %s\n", withoutLock, operate.OneLine(why.Error()))
	return decideWithoutLock(ctx, b.store, id, rec, response, v)
}

// lockerFor returns the lock service of the open attempt. If the attempt's domain was
// retired, it is the lock service that the services use now, which is Redis's only
// with --no-zookeeper. If l is nil, why says what the operator can do.
func (a *app) lockerFor(ctx context.Context, b *backends, id driver.KeyID, rec *driver.Record, v *verdict) (l driver.Locker, end func(), why, err error) {
	domain := rec.Attempt.Fence.Domain
	domains, err := a.redisDomains(ctx, b.redis)
	if err != nil {
		return nil, nil, nil, err
	}
	retired, err := b.store.DomainRetired(ctx, domain)
	if err != nil {
		return nil, nil, nil, err
	}
	inRedis := b.redis != nil && domains[redisShard(id)] == domain
	if b.zookeeper != nil && !inRedis && (retired || b.zookeeper.Domain() == domain) {
		var opts []zookeeper.LockerOption
		if v.marking {
			opts = append(opts, zookeeper.WithDurableMarkers())
		}
		locker := b.zookeeper.Locker(opts...)
		ctx, cancel := context.WithTimeout(ctx, lockTimeout)
		defer cancel()
		if err := locker.Ping(ctx); err != nil {
			return nil, nil, fmt.Errorf("ZooKeeper does not answer: %w", err), nil
		}
		return locker, func() {}, nil, nil
	}
	if inRedis || retired && v.noZooKeeper && b.redis != nil {
		locker, err := redislock.New(ctx, b.redis, redislock.WithPrefix(a.prefix))
		if err != nil {
			return nil, nil, nil, err
		}
		return locker, func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
			defer cancel()
			_ = locker.Close(ctx) // otherwise the lock times out
		}, nil, nil
	}
	return nil, nil, a.whyNoLock(b, domain, retired), nil
}

// whyNoLock explains why the lock of a domain could not be taken.
func (a *app) whyNoLock(b *backends, domain string, retired bool) error {
	name := operate.OneLine(domain)
	switch {
	case a.zookeeper == "" && retired:
		return wrongUse("%s %s, which was retired: give --zookeeper with the ensemble that the services use now, or --no-zookeeper if they no longer use ZooKeeper", domainOfLocks, name)
	case a.zookeeper == "":
		return fmt.Errorf("%s %s, which is not in this %s: give --zookeeper; %s", domainOfLocks, name, b.place(), retireHint)
	case b.zookeeper == nil:
		return fmt.Errorf("%s %s, and ZooKeeper is left out: %w", domainOfLocks, name, b.noEnsemble)
	case ofEnsemble(domain, b.zookeeper.Domain()):
		return fmt.Errorf("%s %s, with locks under a root other than /lock, and idemctl does not take those", domainOfLocks, name)
	}
	return fmt.Errorf("%s %s, which is neither in --zookeeper (%s) nor in this %s; %s",
		domainOfLocks, name, b.zookeeper.Domain(), b.place(), retireHint)
}

// decideUnderLock has the engine take the lock and settle the attempt.
func decideUnderLock(ctx context.Context, store driver.Store, locker driver.Locker, id driver.KeyID, attempt driver.Attempt, response *idem.Response, v *verdict) (driver.Record, error) {
	engine, err := idem.New(locker, store, idem.WithStoreTimeout(storeTimeout), idem.WithLockTimeout(lockTimeout))
	if err != nil {
		return driver.Record{}, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_ = engine.Close(ctx)
	}()
	policy, err := idem.Policy{AllowGlobalKeys: true, ResultTTL: v.resultTTL, KeyTTL: v.keyTTL}.WithDefaults()
	if err != nil {
		return driver.Record{}, usageError{err}
	}
	resolution := idem.NotApplied()
	if response != nil {
		resolution = idem.Applied(*response)
	}
	rec, err := engine.Decide(ctx, id, attempt, resolution, v.decision, &policy)
	switch {
	case errors.Is(err, driver.ErrLocked):
		return rec, fmt.Errorf("the lock of key ID %s is held: its holder runs, or the holder's session has not timed out yet: %w", id, errNotAcquired)
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
	s := driver.Settlement{Attempt: rec.Attempt, ID: driver.NewNonce(), State: driver.StateReleased,
		ResultTTL: v.resultTTL, KeyTTL: max(v.keyTTL, v.resultTTL), Decision: v.decision}
	if response != nil {
		s.State, s.Response = driver.StateCompleted, (*driver.Response)(response)
	}
	got, err := store.Settle(ctx, id, s)
	switch {
	case errors.Is(err, driver.ErrResponseInvalid):
		return got.Record, usageError{fmt.Errorf("--applied: %w", err)}
	case err != nil:
		return got.Record, err
	case !got.Settled && got.Record.State == driver.StateNone:
		return got.Record, noRecord(id)
	case !got.Settled:
		return got.Record, notOpen(id, &got.Record, rec.Attempt.Number)
	}
	return got.Record, nil
}

// redisDomains reads the lock domains of Redis's locks, one for each shard, "" for a
// shard without locks so far. All are "" without a client. Package lock/redis documents the
// layout.
func (a *app) redisDomains(ctx context.Context, client goredis.UniversalClient) (domains [redislock.Shards]string, err error) {
	if client == nil {
		return domains, nil
	}
	cmds := make([]*goredis.SliceCmd, len(domains))
	_, err = client.Pipelined(ctx, func(pipe goredis.Pipeliner) error {
		for shard := range cmds {
			cmds[shard] = pipe.HMGet(ctx, fmt.Sprintf("%s:{%02x}:fences", a.prefix, shard), "domain") // a missing field is no error
		}
		return nil
	})
	if err != nil {
		return domains, fmt.Errorf("%w: lock domains of Redis: %w", driver.ErrUnavailable, err)
	}
	for shard, cmd := range cmds {
		domains[shard], _ = cmd.Val()[0].(string)
	}
	return domains, nil
}

// redisShard is the shard of a key's lock.
func redisShard(id driver.KeyID) int { return int(id[0]) % redislock.Shards }

// ofEnsemble reports whether a lock domain belongs to an ensemble. own is the
// ensemble's domain for the default root. Other roots are appended to it.
func ofEnsemble(domain, own string) bool {
	return domain == own || strings.HasPrefix(domain, own+"/")
}
