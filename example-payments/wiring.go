package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/console"
	"github.com/idemkeeper/idemkeeper/example-payments/ledger"
	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	"github.com/idemkeeper/idemkeeper/example-payments/rpc"
	"github.com/idemkeeper/idemkeeper/example-payments/server"
	"github.com/idemkeeper/idemkeeper/example-payments/telemetry"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/memory"
	"github.com/idemkeeper/idemkeeper/lock/redis"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/queue"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/recipes"
	"github.com/idemkeeper/idemkeeper/sweeper"
	"github.com/idemkeeper/idemkeeper/tokenstore/memory"
	"github.com/idemkeeper/idemkeeper/tokenstore/redis"
	"github.com/idemkeeper/idemkeeper/tokenstore/sealed"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
)

// The service's own znodes, beside the locks.
const (
	witnessPath = "/idem/redis"   // remembers which Redis holds the records
	sweeperPath = "/idem/sweeper" // elects the instance that sweeps
	inboxPath   = "/idem/inbox"   // queue of outcomes for a person to settle
)

const (
	startTimeout   = 11 * time.Second       // for Start, well within the 15 s of the contract
	replicaTimeout = 500 * time.Millisecond // for Redis replicas to acknowledge an attempt
	markerChore    = 10 * time.Minute       // between two removals of old markers
	idleLimit      = time.Minute            // for a joined transaction in which nothing happens, beside the latency
	sqliteTurn     = 10 * time.Second       // for a request to wait for the payments before it, because SQLite has one writer
)

// App is the service with its connections. [Start] makes it, and [App.Serve] ends
// it.
type App struct {
	cfg Config
	log *slog.Logger

	ledger    *ledger.Ledger
	books     payments.Ledger   // the ledger, as the handlers use it
	zookeeper *zookeeper.Client // nil without --zookeeper
	markers   *zookeeper.Locker // the locker, if it is ZooKeeper's
	locker    idem.Locker
	lockName  string
	store     idem.Store
	joined    idem.JoinedStore // the store, if its records commit with the payments
	telemetry *telemetry.Telemetry
	engine    *idem.Engine
	policy    idem.Policy // of the sweeper
	sweeper   *sweeper.Sweeper
	console   *console.Console // nil without operators
	timeline  *server.Timeline
	http      *http.Server
	grpc      *rpc.Server
	onHTTP    net.Listener
	onGRPC    net.Listener

	closers []func() error // in the order of opening
	abandon func()         // drops the lock's session and leaves its locks to time out
	grace   time.Duration
}

// Start connects everything and binds the ports. After an error nothing is left
// open.
func Start(ctx context.Context, cfg Config, log *slog.Logger) (_ *App, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	a := &App{cfg: cfg, log: log, grace: gracePeriod, abandon: func() {}, timeline: server.NewTimeline()}
	defer func() {
		if err != nil {
			_ = a.disconnect() // err has the cause
		}
	}()
	// The ledger opens first and closes last. Its claim must outlive everything that
	// may write to it.
	if err := a.openLedger(ctx); err != nil {
		return nil, err
	}
	if err := a.openBackends(ctx); err != nil {
		return nil, err
	}

	if err := a.openTelemetry(ctx); err != nil {
		return nil, err
	}
	if err := a.makeEngine(); err != nil {
		return nil, err
	}

	// One resolver serves both transports and the sweeper. It looks the operation up
	// in the ledger.
	var resolver idem.Resolver
	if cfg.Resolver == resolverLedger {
		resolver = payments.LedgerResolver(a.books, cfg.ledgerIsPrivate(), answer)
	}
	if err := a.makeSweeper(resolver); err != nil {
		return nil, err
	}

	operatorsPage, err := a.makeConsole()
	if err != nil {
		return nil, err
	}

	// Both servers use one engine, and so share the keys.
	service := &payments.Service{Ledger: a.books, Latency: cfg.ProcessorLatency, LatencyFirst: cfg.joined(), Log: log, Step: a.timeline.Step}
	if cfg.Demo {
		service.Crash = func() {
			a.timeline.AwaitTold(time.Second)
			crash()
		}
	}
	handler, err := server.New(server.Config{Engine: a.engine, Service: service, Ledger: a.books, Keys: cfg.APIKeys,
		Telemetry: a.telemetry, Log: log, Wait: cfg.Wait, Resolver: resolver, Console: operatorsPage, Timeline: a.timeline})
	if err != nil {
		return nil, err
	}
	a.http = &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    2 << 20, // so that the middleware refuses a very long key, with a reason
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	a.http.RegisterOnShutdown(a.timeline.Close)
	a.grpc, err = rpc.New(rpc.Config{Engine: a.engine, Service: service, Ledger: a.books, Keys: cfg.APIKeys,
		Telemetry: a.telemetry, Log: log, Wait: cfg.Wait, Resolver: resolver})
	if err != nil {
		return nil, err
	}
	return a, a.listen(ctx)
}

// openTelemetry sets metrics and traces up. The rest of the start uses a context that ends, and
// the exporters outlive it.
func (a *App) openTelemetry(ctx context.Context) (err error) {
	if a.telemetry, err = telemetry.New(context.WithoutCancel(ctx), a.log); err != nil {
		return err
	}
	a.closers = append(a.closers, closing(a.telemetry.Close))
	return nil
}

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
			opts = append(opts, redisstore.WithWitness(recipes.NewRegister(a.zookeeper, witnessPath)))
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
// ZooKeeper, its records commit together with the payments.
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

// makeEngine makes the engine: joined to the ledger's transactions, or with a lock.
func (a *App) makeEngine() (err error) {
	opts := []idem.Option{a.telemetry.Observer.Engine(), idem.WithObserver(a.timeline.Observe),
		idem.WithMaxOpenExecutionsPerScope(a.cfg.MaxOpen)}
	if a.console != nil {
		opts = append(opts, idem.WithObserver(a.console.Observe))
	}
	if a.joined == nil {
		a.engine, err = idem.New(a.locker, a.store, opts...)
		return err
	}
	if a.cfg.ledgerIsOwn() {
		opts = append(opts, idem.WithLockTimeout(sqliteTurn), idem.WithStoreTimeout(sqliteTurn))
	}
	a.engine, err = idem.NewJoined(a.joined, opts...)
	return err
}

// makeSweeper makes the sweeper. It settles all routes by the same resolver.
// ZooKeeper elects its leader, keeps its inbox, and has old markers to remove. In
// joined mode without ZooKeeper the database elects the leader.
func (a *App) makeSweeper(resolver idem.Resolver) (err error) {
	a.policy, err = idem.Policy{Scope: payments.Scope, InDoubt: idem.AskResolver(resolver)}.WithDefaults()
	if err != nil {
		return err
	}
	opts := []sweeper.Option{a.telemetry.Observer.Sweeper()}
	if a.console != nil {
		opts = append(opts, sweeper.WithObserver(a.console.Swept))
	}
	switch {
	case a.zookeeper != nil:
		election := recipes.NewElection(a.zookeeper, sweeperPath, candidate())
		opts = append(opts,
			sweeper.WithLead(func(ctx context.Context, term func(context.Context) error) error {
				return election.RunAsLeader(ctx, func(ctx context.Context, _ idem.Fence) error { return term(ctx) })
			}),
			sweeper.WithInbox(queue.New(a.zookeeper, inboxPath)))
	case a.joined != nil:
		opts = append(opts, sweeper.WithLead(a.ledger.Lead))
	default:
		opts = append(opts, sweeper.WithLead(sweeper.ByLock(a.locker, "example-payments")))
	}
	if a.markers != nil && a.joined == nil {
		opts = append(opts, sweeper.WithChore(min(markerChore, a.cfg.MarkerRetention), a.removeMarkers))
	}
	a.sweeper, err = sweeper.New(a.engine, a.store, sweeper.ForAll(a.policy), opts...)
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
	settled := func(ctx context.Context, id idem.KeyID, m *idem.Marker) (bool, error) {
		rec, err := a.store.Get(ctx, id)
		if err == nil && rec.State == idem.StateNone { // Redis has lost it, so it is restored from the marker for people to see
			rec, err = a.engine.Resolve(ctx, id, &a.policy)
		}
		return m.SettledBy(&rec), err
	}
	_, err := a.markers.RemoveMarkers(ctx, zookeeper.MarkerRemoval{Retention: a.cfg.MarkerRetention, Settled: settled})
	return err
}

// answer is a [payments.Answer]. It uses the transport of the payment's request.
func answer(route string, p payments.Payment) (idem.Response, error) {
	if rpc.Owns(route) {
		return rpc.Answer(p)
	}
	return server.Answer(p)
}
