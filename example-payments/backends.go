package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem"
	lockmemory "github.com/idemkeeper/idemkeeper/lock/memory"
	lockredis "github.com/idemkeeper/idemkeeper/lock/redis"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	storememory "github.com/idemkeeper/idemkeeper/tokenstore/memory"
	storeredis "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

// witnessPath is the znode that remembers which Redis it was.
const witnessPath = "/idem/redis"

// closeTimeout bounds the end of a session, or of a lock service.
const closeTimeout = 3 * time.Second

// backends are the lock and the token store that the configuration asks for.
type backends struct {
	locker   idem.Locker
	lockName string
	store    idem.Store
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
	var witness storeredis.Witness
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
		b.locker, b.lockName = lockmemory.New(), "memory"
	}
	if b.store == nil {
		b.store = storememory.New()
	}
	return b, nil
}

func (b *backends) openZooKeeper(ctx context.Context, cfg Config, log *slog.Logger) (storeredis.Witness, error) {
	servers, chroot, err := zookeeper.ParseConnectString(cfg.ZooKeeper)
	if err != nil {
		return nil, err
	}
	client, err := zookeeper.Open(ctx, zookeeper.Config{Servers: servers, Chroot: chroot,
		SessionTimeout: cfg.SessionTimeout, TickTime: cfg.ZooKeeperTick, Logger: log})
	if err != nil {
		return nil, err
	}
	b.closeFirst(func() error { return closeWithin(client.Close) })
	b.abandon = client.Abandon
	b.locker, b.lockName = zookeeper.NewLocker(client), "zookeeper"
	return client.Register(witnessPath), nil
}

// openRedis opens the token store, where that is there, and the lock, where
// there is none yet.
func (b *backends) openRedis(ctx context.Context, cfg Config, w storeredis.Witness, log *slog.Logger) error {
	goredis.SetLogger(debugLog{log})
	client, err := storeredis.Connect(cfg.Redis)
	if err != nil {
		return err
	}
	// Before ZooKeeper's session: what is saved in the background needs both,
	// and by then nothing is.
	b.closeFirst(client.Close)
	if cfg.TokenStore == storeRedis {
		if b.store, err = storeredis.New(ctx, client, storeredis.WithWitness(w), storeredis.WithLogger(log)); err != nil {
			return err
		}
	}
	if b.locker != nil {
		return nil
	}
	locker, err := lockredis.New(ctx, client, lockredis.WithTTL(cfg.SessionTimeout), lockredis.WithLogger(log))
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
