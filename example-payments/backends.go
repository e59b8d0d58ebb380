package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	redislock "github.com/idemkeeper/idemkeeper/lock/redis"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/sweeper"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
	"github.com/idemkeeper/idemkeeper/tokenstore/sealed"
)

// Znodes of the service, beside its locks.
const (
	witnessPath = "/idem/redis"   // remembers which Redis it was
	sweeperPath = "/idem/sweeper" // elects who sweeps
	inboxPath   = "/idem/inbox"   // queue of outcomes that a person has to settle
)

// markerChore is the pause between two removals of old markers.
const markerChore = 10 * time.Minute

// replicaTimeout is for how long an attempt waits for replicas before it is
// refused.
const replicaTimeout = 500 * time.Millisecond

// closeTimeout bounds the end of a session, or of a lock service.
const closeTimeout = 3 * time.Second

// backends are the lock and the token store that the configuration asks for.
type backends struct {
	locker   idem.Locker
	lockName string
	store    idem.Store
	sweep    []sweeper.Option // who sweeps, and what else there is to do
	resolve  func(context.Context, idem.KeyID) (idem.Record, error)
	closers  []func() error // in the order of closing
	abandon  func()         // drops the lock's session without closing it
}

// openBackends connects lock and token store. After an error nothing is left
// open.
func openBackends(ctx context.Context, cfg Config, log *slog.Logger) (_ *backends, err error) {
	b := &backends{abandon: func() {}}
	defer func() {
		if err != nil {
			_ = b.close() // what has gone wrong is told already
		}
	}()
	var witness redisstore.Witness
	if cfg.ZooKeeper != "" {
		if witness, err = b.openZooKeeper(ctx, cfg, log); err != nil {
			return nil, fmt.Errorf("--zookeeper: %w", err)
		}
	}
	if cfg.TokenStore == storeRedis || cfg.Redis != "" && b.locker == nil {
		if err := b.openRedis(ctx, cfg, witness, log); err != nil {
			return nil, fmt.Errorf("--redis: %w", err)
		}
	}
	if b.locker == nil {
		b.locker, b.lockName = memorylock.New(), "memory"
	}
	if b.store == nil {
		b.store = memorystore.New()
	}
	if cfg.ResponseKeys != nil {
		if err := b.seal(ctx, cfg, log); err != nil {
			return nil, fmt.Errorf("--response-keys: %w", err)
		}
	}
	if cfg.ZooKeeper == "" {
		b.sweep = []sweeper.Option{sweeper.WithLead(sweeper.ByLock(b.locker, "example-payments"))}
	}
	return b, nil
}

func (b *backends) openZooKeeper(ctx context.Context, cfg Config, log *slog.Logger) (redisstore.Witness, error) {
	servers, chroot, err := zookeeper.ParseConnectString(cfg.ZooKeeper)
	if err != nil {
		return nil, err
	}
	client, err := zookeeper.Open(ctx, zookeeper.Config{Servers: servers, Chroot: chroot,
		SessionTimeout: cfg.SessionTimeout, TickTime: cfg.ZooKeeperTick, ParentsOnDemand: cfg.ParentsOnDemand, Credentials: credentials(cfg), Logger: log})
	if err != nil {
		return nil, err
	}
	b.closeFirst(func() error { return closeWithin(client.Close) })
	b.abandon = client.Abandon
	var marking zookeeper.LockerOption
	if cfg.DurableMarkers {
		marking = zookeeper.WithDurableMarkers()
	}
	locker := zookeeper.NewLocker(client, marking)
	b.locker, b.lockName = locker, "zookeeper"
	election := client.Election(sweeperPath, candidate())
	b.sweep = []sweeper.Option{
		sweeper.WithLead(func(ctx context.Context, term func(context.Context) error) error {
			return election.RunAsLeader(ctx, func(ctx context.Context, _ idem.Fence) error { return term(ctx) })
		}),
		sweeper.WithInbox(client.Queue(inboxPath)),
		sweeper.WithChore(min(markerChore, cfg.MarkerRetention), func(ctx context.Context) error {
			return b.removeMarkers(ctx, locker, cfg.MarkerRetention)
		}),
	}
	return client.Register(witnessPath), nil
}

// credentials of the service at ZooKeeper.
func credentials(cfg Config) []zookeeper.Credential {
	if cfg.ZooKeeperAuth == "" {
		return nil
	}
	return []zookeeper.Credential{{Scheme: "digest", Secret: []byte(cfg.ZooKeeperAuth)}}
}

// seal encrypts the responses that the store keeps.
func (b *backends) seal(ctx context.Context, cfg Config, log *slog.Logger) (err error) {
	if s, ok := b.store.(*redisstore.Store); ok { // operators are told to bring the keys along
		if err := s.DeclareSealed(ctx); err != nil {
			return err
		}
	}
	opts := []sealed.Option{sealed.WithLogger(log)}
	if cfg.PlainResponses {
		opts = append(opts, sealed.WithPlain())
	}
	b.store, err = sealed.New(b.store, cfg.ResponseKeys, opts...)
	return err
}

// candidate is what observers of the election see.
func candidate() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}

// removeMarkers removes old markers, also where this instance leaves none: an
// earlier build or another one did. Those of unknown outcomes stay until they
// are settled.
func (b *backends) removeMarkers(ctx context.Context, l *zookeeper.Locker, retention time.Duration) error {
	settled := func(ctx context.Context, id idem.KeyID, m *idem.Marker) (bool, error) {
		rec, err := b.store.Get(ctx, id)
		if err == nil && rec.State == idem.StateNone { // Redis has lost it: written anew, people see it
			rec, err = b.resolve(ctx, id)
		}
		return m.SettledBy(&rec), err
	}
	_, err := l.RemoveMarkers(ctx, zookeeper.MarkerRemoval{Retention: retention, Settled: settled})
	return err
}

// openRedis opens the token store, where that is there, and the lock, where
// there is none yet.
func (b *backends) openRedis(ctx context.Context, cfg Config, w redisstore.Witness, log *slog.Logger) error {
	goredis.SetLogger(debugLog{log})
	client, err := redisstore.Connect(cfg.Redis)
	if err != nil {
		return err
	}
	// Before ZooKeeper's session: what is saved in the background needs both,
	// and by then nothing is.
	b.closeFirst(client.Close)
	if cfg.TokenStore == storeRedis {
		opts := []redisstore.Option{redisstore.WithWitness(w), redisstore.WithLogger(log)}
		if cfg.RedisReplicas > 0 {
			opts = append(opts, redisstore.WithReplicas(cfg.RedisReplicas, replicaTimeout))
		}
		if cfg.DurableMarkers && cfg.AcceptLoss {
			opts = append(opts, redisstore.WithLossAcceptance(func(ctx context.Context, shards int) {
				log.ErrorContext(ctx, "Redis lost its records; new keys are served on the word of the durable markers", "shards", shards)
			}))
		}
		if b.store, err = redisstore.New(ctx, client, opts...); err != nil {
			return err
		}
	}
	if b.locker != nil {
		return nil
	}
	locker, err := redislock.New(ctx, client, redislock.WithTTL(cfg.SessionTimeout), redislock.WithLogger(log))
	if err != nil {
		return err
	}
	b.closeFirst(func() error { return closeWithin(locker.Close) })
	b.abandon = locker.Abandon
	b.locker, b.lockName = locker, "redis"
	return nil
}

// closeFirst adds what is to be closed before all that was opened earlier.
func (b *backends) closeFirst(c func() error) { b.closers = append([]func() error{c}, b.closers...) }

// closeWithin bounds the end of a lock service.
func closeWithin(end func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return end(ctx)
}

func (b *backends) close() error {
	var errs []error
	for _, c := range b.closers {
		errs = append(errs, c())
	}
	b.closers = nil
	return errors.Join(errs...)
}

// debugLog takes what Redis's client library says besides its errors. The
// library has one logger for the whole process.
type debugLog struct{ *slog.Logger }

// Printf logs at debug level.
func (l debugLog) Printf(ctx context.Context, format string, args ...any) {
	l.DebugContext(ctx, fmt.Sprintf(format, args...))
}
