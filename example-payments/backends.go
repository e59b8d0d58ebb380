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
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	storememory "github.com/idemkeeper/idemkeeper/tokenstore/memory"
	storeredis "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

// witnessPath is the znode that remembers which Redis it was.
const witnessPath = "/idem/redis"

// closeTimeout bounds the end of a session.
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
	if cfg.ZooKeeper == "" {
		b.locker, b.lockName = lockmemory.New(), "memory"
	} else if witness, err = b.openZooKeeper(ctx, cfg, log); err != nil {
		return nil, fmt.Errorf("--zookeeper: %w", err)
	}
	if cfg.TokenStore == storeMemory {
		b.store = storememory.New()
		return b, nil
	}
	if err := b.openRedis(ctx, cfg.Redis, witness, log); err != nil {
		return nil, fmt.Errorf("--redis: %w", err)
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
	b.closers = append(b.closers, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		return client.Close(ctx)
	})
	b.abandon = client.Abandon
	b.locker, b.lockName = zookeeper.NewLocker(client), "zookeeper"
	return client.Register(witnessPath), nil
}

func (b *backends) openRedis(ctx context.Context, url string, w storeredis.Witness, log *slog.Logger) error {
	goredis.SetLogger(debugLog{log})
	client, err := storeredis.Connect(url)
	if err != nil {
		return err
	}
	// Before the lock's session: what is saved in the background needs both,
	// and by then nothing is.
	b.closers = append([]func() error{client.Close}, b.closers...)
	store, err := storeredis.New(ctx, client, storeredis.WithWitness(w), storeredis.WithLogger(log))
	if err != nil {
		return err
	}
	b.store = store
	return nil
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
