package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/example-payments/ledger"
	"github.com/idemkeeper/idemkeeper/lock/memory"
	"github.com/idemkeeper/idemkeeper/lock/redis"
	sqllock "github.com/idemkeeper/idemkeeper/lock/sql"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/recipes"
	"github.com/idemkeeper/idemkeeper/tokenstore/memory"
	"github.com/idemkeeper/idemkeeper/tokenstore/redis"
	"github.com/idemkeeper/idemkeeper/tokenstore/sealed"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
)

const (
	replicaTimeout = 500 * time.Millisecond // for Redis replicas to acknowledge an attempt
	idleLimit      = time.Minute            // for a joined transaction in which nothing happens, beside the latency
)

// openLedger opens the ledger. It claims the ledger if another instance would not know
// the keys and would pay again.
func (a *App) openLedger(ctx context.Context) error {
	sharing := ledger.Shared
	if a.cfg.ledgerIsOwn() {
		sharing = ledger.Exclusive
	}
	if a.cfg.TokenStore == storeMemory && a.cfg.Database != "" {
		a.log.WarnContext(ctx, "the keys are lost at exit and the ledger is not, so a retry after a restart pays again; use --token-store sql")
	}
	if a.cfg.lockIsSharedAlone() {
		a.log.WarnContext(ctx, "the lock is shared, and neither the keys nor the ledger is, so each instance would pay once; run one instance, or use --database or --token-store redis")
	}
	if a.cfg.ledgerIsPrivate() {
		a.log.WarnContext(ctx, "the keys are shared and the ledger is not, so payments of other instances cannot be looked up and stay unknown; use --database")
	}
	l, err := ledger.Open(ctx, a.cfg.Database, sharing, ledger.WithTLS(a.cfg.TLSFiles))
	if errors.Is(err, ledger.ErrClaimed) {
		return fmt.Errorf("--database: %w; instances that share it all need postgres:// or mysql:// and --token-store sql, or --redis", err)
	}
	if err != nil {
		return fmt.Errorf("--database: %w", err)
	}
	a.ledger, a.books = l, l
	if a.cfg.joined() {
		a.books = ledger.Joined{Ledger: l}
	}
	a.closers = append(a.closers, l.Close)
	for _, m := range a.cfg.APIKeys.Merchants() {
		if err := l.AddMerchant(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// openBackends connects the lock and the token store. ZooKeeper opens before Redis,
// because its witness remembers which Redis it was. It also closes after Redis.
func (a *App) openBackends(ctx context.Context) (err error) {
	if a.cfg.ZooKeeper != "" {
		if err := a.openZooKeeper(ctx); err != nil {
			return fmt.Errorf("--zookeeper: %w", err)
		}
	}
	if a.cfg.Redis != "" && a.cfg.TokenStore == storeSQL {
		a.log.WarnContext(ctx, "Redis is not used, because of --token-store sql")
	} else if a.cfg.Redis != "" && (a.cfg.TokenStore == storeRedis || a.locker == nil) {
		if err := a.openRedis(ctx); err != nil {
			return fmt.Errorf("--redis: %w", err)
		}
	}
	if a.cfg.TokenStore == storeSQL {
		if err := a.openSQL(ctx); err != nil {
			return fmt.Errorf("--database: %w", err)
		}
	}
	if a.locker == nil && a.joined == nil {
		a.locker, a.lockName = memorylock.New(), "memory"
	}
	if a.store == nil {
		a.store = memorystore.New()
	}
	if a.cfg.ResponseKeys != nil {
		opts := []sealed.Option{sealed.WithLogger(a.log)}
		if a.cfg.PlainResponses {
			opts = append(opts, sealed.WithPlain())
		}
		if a.joined != nil {
			a.joined, err = sealed.NewJoined(a.joined, a.cfg.ResponseKeys, opts...)
			a.store = a.joined
		} else {
			a.store, err = sealed.New(a.store, a.cfg.ResponseKeys, opts...)
		}
		if err != nil {
			return fmt.Errorf("--response-keys: %w", err)
		}
	}
	return nil
}

func (a *App) openZooKeeper(ctx context.Context) error {
	servers, chroot, err := zookeeper.ParseConnectString(a.cfg.ZooKeeper)
	if err != nil {
		return err
	}
	cfg := zookeeper.Config{Servers: servers, Chroot: chroot, SessionTimeout: a.cfg.SessionTimeout,
		TickTime: a.cfg.ZooKeeperTick, Logger: a.log}
	if a.cfg.ZooKeeperAuth != "" {
		cfg.Credentials = []zookeeper.Credential{{Scheme: "digest", Secret: []byte(a.cfg.ZooKeeperAuth)}}
	}
	if a.cfg.ZooKeeperTLS {
		cfg.TLS = a.cfg.TLS
	}
	if a.zookeeper, err = zookeeper.Open(ctx, cfg); err != nil {
		return err
	}
	a.closers = append(a.closers, closing(a.zookeeper.Close))
	a.abandon = a.zookeeper.Abandon
	var markers zookeeper.LockerOption
	if a.cfg.DurableMarkers {
		markers = zookeeper.WithDurableMarkers()
	}
	a.markers = a.zookeeper.Locker(markers)
	a.locker, a.lockName = a.markers, "zookeeper"
	return nil
}

// openRedis opens the token store with --token-store redis, and the lock if
// ZooKeeper does not have it.
func (a *App) openRedis(ctx context.Context) error {
	goredis.SetLogger(debugLog{a.log}) // the client library has one logger for the process
	client, err := redisstore.Connect(a.cfg.Redis, redisstore.WithTLS(a.cfg.TLS))
	if err != nil {
		return err
	}
	a.closers = append(a.closers, client.Close)
	if a.cfg.TokenStore == storeRedis {
		opts := []redisstore.Option{redisstore.WithLogger(a.log)}
		if a.zookeeper != nil {
			opts = append(opts, redisstore.WithWitness(recipes.Registers(a.zookeeper)))
		}
		if a.cfg.RedisReplicas > 0 {
			opts = append(opts, redisstore.WithReplicas(a.cfg.RedisReplicas, replicaTimeout))
		}
		if a.cfg.DurableMarkers && a.cfg.AcceptLoss {
			opts = append(opts, redisstore.WithLossAcceptance(func(ctx context.Context, shards int) {
				a.log.ErrorContext(ctx, "Redis lost its records; the durable markers protect the used keys", "shards", shards)
			}))
		}
		store, err := redisstore.New(ctx, client, opts...)
		if err != nil {
			return err
		}
		a.store = store
		if a.cfg.ResponseKeys != nil { // idemctl then asks operators for the keys
			if err := store.DeclareSealed(ctx); err != nil {
				return err
			}
		}
	}
	if a.locker != nil {
		return nil
	}
	locker, err := redislock.New(ctx, client, redislock.WithTTL(a.cfg.SessionTimeout), redislock.WithLogger(a.log))
	if err != nil {
		return err
	}
	a.closers = append(a.closers, closing(locker.Close))
	a.abandon = locker.Abandon
	a.locker, a.lockName = locker, "redis"
	return nil
}

// openSQL opens the token store in the ledger's database. Unless keys are marked in
// ZooKeeper, or the database has the lock, its records commit together with the payments.
func (a *App) openSQL(ctx context.Context) error {
	db := a.ledger.Database()
	if err := sqlstore.Migrate(ctx, db.Write, db.Dialect); err != nil {
		return err
	}
	opts := append(db.StoreOptions(), sqlstore.WithLogger(a.log))
	if a.cfg.ledgerIsOwn() {
		opts = append(opts, sqlstore.WithSoleProcess())
	}
	store, err := sqlstore.New(ctx, db.Write, db.Dialect, opts...)
	if err != nil {
		return err
	}
	a.closers = append(a.closers, store.Close)
	a.store = store
	if a.cfg.ResponseKeys != nil { // idemctl then asks operators for the keys
		if err := store.DeclareSealed(ctx); err != nil {
			return err
		}
	}
	if a.cfg.Lock == lockSQL {
		return a.openSQLLock(ctx)
	}
	if !a.cfg.joined() {
		a.log.WarnContext(ctx, "the records do not commit together with the payments, because of --durable-markers")
		return nil
	}
	joinedOpts := []sqlstore.JoinedOption{sqlstore.WithIdleLimit(idleLimit + a.cfg.ProcessorLatency)}
	if !a.cfg.ledgerIsOwn() { // a payment that has waited for an account sees its new balance
		joinedOpts = append(joinedOpts, sqlstore.WithIsolation(sql.LevelReadCommitted))
	}
	joined, err := store.Joined(joinedOpts...)
	if err != nil {
		return err
	}
	a.store, a.joined, a.lockName = joined, joined, "joined"
	return nil
}

// openSQLLock takes the locks in the ledger's database. So no transaction is open while the card network is called.
func (a *App) openSQLLock(ctx context.Context) error {
	db := a.ledger.Database()
	locker, err := sqllock.New(ctx, db.Write, db.Dialect, sqllock.WithTTL(a.cfg.SessionTimeout),
		sqllock.WithUnreplicated(db.Unreplicated), sqllock.WithLogger(a.log))
	if err != nil {
		return err
	}
	a.closers = append(a.closers, closing(locker.Close))
	a.abandon = locker.Abandon
	a.locker, a.lockName = locker, "sql"
	return nil
}
