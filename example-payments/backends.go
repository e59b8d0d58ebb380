package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	goredis "github.com/redis/go-redis/v9"

	idemredis "github.com/idemkeeper/idemkeeper/engine/redis"
	idemsql "github.com/idemkeeper/idemkeeper/engine/sql"
	idemzk "github.com/idemkeeper/idemkeeper/engine/zookeeper"
	"github.com/idemkeeper/idemkeeper/example-payments/ledger"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/memory"
	"github.com/idemkeeper/idemkeeper/lock/redis"
	sqllock "github.com/idemkeeper/idemkeeper/lock/sql"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
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
	if a.cfg.Redis != "" && a.cfg.TokenStore == storeSQL {
		a.log.WarnContext(ctx, "Redis is not used, because of --token-store sql")
	}
	if a.cfg.ledgerIsPrivate() {
		a.log.WarnContext(ctx, "the keys are shared and the ledger is not, so payments of other instances cannot be looked up and stay unknown; use --database")
	}
	l, err := ledger.Open(ctx, a.cfg.Database, sharing, ledger.WithTLS(a.cfg.TLSFiles), ledger.WithWrappers(a.cfg.wrap.database))
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

// openEngine connects lock and store and makes the engine. Each set-up that docs/choosing.md recommends is one call. The others are for trying
// things out.
func (a *App) openEngine(ctx context.Context) (err error) {
	open, flags := a.byHand, "--token-store "+a.cfg.TokenStore
	switch {
	case a.cfg.TokenStore == storeRedis && a.cfg.ZooKeeper == "":
		open, flags = a.onRedis, "--redis"
	case a.cfg.TokenStore == storeRedis:
		open, flags = a.onZooKeeperAndRedis, "--zookeeper, --redis"
	case a.cfg.Lock == lockSQL || a.cfg.joined():
		open, flags = a.onDatabase, "--database"
	}
	if a.cfg.TokenStore == storeSQL {
		if err := sqlstore.Migrate(ctx, a.ledger.Database().Write, a.ledger.Database().Dialect); err != nil {
			return fmt.Errorf("--database: %w", err)
		}
	}
	if a.engine, err = open(ctx, a.options()); err != nil {
		return fmt.Errorf("%s: %w", flags, err)
	}
	a.closers = append(a.closers, closing(a.engine.Close))
	return nil
}

func (a *App) onRedis(ctx context.Context, opts []idem.SetupOption) (*idem.Engine, error) {
	client, err := a.redisClient()
	if err != nil {
		return nil, err
	}
	a.lockName = "redis"
	return idemredis.New(ctx, client, append(opts, a.replicas(), idemredis.WithLogger(a.log), redislock.WithTTL(a.cfg.SessionTimeout))...)
}

func (a *App) onZooKeeperAndRedis(ctx context.Context, opts []idem.SetupOption) (*idem.Engine, error) {
	ensemble, err := a.ensemble()
	if err != nil {
		return nil, err
	}
	client, err := a.redisClient()
	if err != nil {
		return nil, err
	}
	markers := idemzk.WithoutDurableMarkers()
	if a.cfg.DurableMarkers {
		markers = idemzk.WithDurableMarkers(a.cfg.MarkerRetention)
	}
	if a.cfg.DurableMarkers && a.cfg.AcceptLoss {
		opts = append(opts, redisstore.WithLossAcceptance(func(ctx context.Context, shards int) {
			a.log.ErrorContext(ctx, "Redis lost its records; the durable markers protect the used keys", "shards", shards)
		}))
	}
	engine, err := idemzk.New(ctx, ensemble, client, append(opts, a.replicas(), markers)...)
	if err == nil {
		a.lockName, a.zookeeper = "zookeeper", engine.Locker().(*zookeeper.Locker).Client()
	}
	return engine, err
}

// onDatabase has the records in the ledger's database. They commit together with the payments. With --lock sql the locks are there too, and no
// transaction is open while the card network is called.
func (a *App) onDatabase(ctx context.Context, opts []idem.SetupOption) (*idem.Engine, error) {
	db := a.ledger.Database()
	if a.cfg.Lock == lockSQL {
		a.lockName = "sql"
		return idemsql.New(ctx, db.Write, db.Dialect, append(opts, idemsql.WithLogger(a.log), sqllock.WithTTL(a.cfg.SessionTimeout), sqllock.WithUnreplicated(db.Unreplicated))...)
	}
	if a.cfg.ZooKeeper != "" { // it elects the instance that sweeps
		if err := a.openZooKeeper(ctx); err != nil {
			return nil, err
		}
	}
	opts = append(opts, sqlstore.WithIdleLimit(idleLimit+a.cfg.ProcessorLatency))
	for _, opt := range a.storeOptions() {
		opts = append(opts, opt)
	}
	if a.cfg.ledgerIsOwn() {
		opts = append(opts, idem.WithLockTimeout(sqliteTurn), idem.WithStoreTimeout(sqliteTurn))
	} else { // a payment that has waited for an account sees its new balance
		opts = append(opts, sqlstore.WithIsolation(sql.LevelReadCommitted))
	}
	a.lockName = "joined"
	return sqlstore.Join(ctx, db.Write, db.Dialect, opts...)
}

// byHand has the records in this process, or marks the keys of records in SQL in ZooKeeper.
func (a *App) byHand(ctx context.Context, _ []idem.SetupOption) (_ *idem.Engine, err error) {
	opts := a.engineOptions()
	if a.cfg.ledgerIsOwn() { // the ledger is claimed, so a second instance does not start
		opts = append(opts, idem.WithSingleInstance())
	}
	var locker driver.Locker = memorylock.New()
	a.lockName = "memory"
	switch {
	case a.cfg.ZooKeeper != "":
		if err := a.openZooKeeper(ctx); err != nil {
			return nil, err
		}
		var markers zookeeper.LockerOption
		if a.cfg.DurableMarkers {
			markers = zookeeper.WithDurableMarkers()
		}
		a.markers = a.zookeeper.Locker(markers)
		a.lockName, locker, opts = "zookeeper", a.markers, append(opts, idem.WithLockSession(a.zookeeper))
	case a.cfg.Redis != "" && a.cfg.TokenStore == storeMemory:
		client, err := a.redisClient()
		if err != nil {
			return nil, err
		}
		l, err := redislock.New(ctx, client, redislock.WithTTL(a.cfg.SessionTimeout), redislock.WithLogger(a.log))
		if err != nil {
			return nil, err
		}
		a.lockName, locker, opts = "redis", l, append(opts, idem.WithLockSession(l))
	}
	var store driver.Store = memorystore.New()
	if a.cfg.TokenStore == storeSQL {
		a.log.WarnContext(ctx, "the records do not commit together with the payments, because of --durable-markers")
		records, err := sqlstore.New(ctx, a.ledger.Database().Write, a.ledger.Database().Dialect, a.storeOptions()...)
		if err != nil {
			return nil, err
		}
		store, opts = records, append(opts, idem.WithCloser(records))
	}
	if store, err = a.sealing().Over(ctx, store); err != nil {
		return nil, err
	}
	return idem.New(locker, store, opts...)
}

// storeOptions are those of a store in the ledger's database.
func (a *App) storeOptions() []sqlstore.Option {
	opts := append(a.ledger.Database().StoreOptions(), sqlstore.WithLogger(a.log))
	if a.cfg.ledgerIsOwn() {
		opts = append(opts, sqlstore.WithSoleProcess())
	}
	return opts
}

// replicas has attempts wait for the replicas of --redis-replicas.
func (a *App) replicas() redisstore.Option {
	if a.cfg.RedisReplicas == 0 {
		return nil
	}
	return redisstore.WithReplicas(a.cfg.RedisReplicas, replicaTimeout)
}

// sealing encrypts responses with --response-keys.
func (a *App) sealing() sealed.Sealing {
	opts := []sealed.Option{sealed.WithLogger(a.log)}
	if a.cfg.PlainResponses {
		opts = append(opts, sealed.WithPlain())
	}
	if a.cfg.ResponseKeys == nil {
		return sealed.Sealing{}
	}
	return sealed.Responses(a.cfg.ResponseKeys, opts...)
}

func (a *App) redisClient() (goredis.UniversalClient, error) {
	goredis.SetLogger(debugLog{a.log}) // the client library has one logger for the process
	client, err := redisstore.Connect(a.cfg.Redis, redisstore.WithTLS(a.cfg.TLS))
	if err != nil {
		return nil, err
	}
	if a.cfg.wrap.redis != nil {
		a.cfg.wrap.redis(client)
	}
	a.closers = append(a.closers, client.Close)
	return client, nil
}

func (a *App) ensemble() (zookeeper.Config, error) {
	servers, chroot, err := zookeeper.ParseConnectString(a.cfg.ZooKeeper)
	cfg := zookeeper.Config{Servers: servers, Chroot: chroot, SessionTimeout: a.cfg.SessionTimeout, TickTime: a.cfg.ZooKeeperTick,
		Dial: a.cfg.wrap.zookeeper, Logger: a.log}
	if a.cfg.ZooKeeperAuth != "" {
		cfg.Credentials = []zookeeper.Credential{{Scheme: "digest", Secret: []byte(a.cfg.ZooKeeperAuth)}}
	}
	if a.cfg.ZooKeeperTLS {
		cfg.TLS = a.cfg.TLS
	}
	return cfg, err
}

func (a *App) openZooKeeper(ctx context.Context) error {
	cfg, err := a.ensemble()
	if err != nil {
		return err
	}
	if a.zookeeper, err = zookeeper.Open(ctx, cfg); err != nil {
		return err
	}
	a.closers = append(a.closers, closing(a.zookeeper.Close))
	return nil
}
