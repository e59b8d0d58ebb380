package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	storeredis "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

const (
	connectTimeout = 12 * time.Second
	closeTimeout   = 3 * time.Second
)

// openStore connects to the token store, with the witness where --zookeeper
// names one. The caller calls done.
func (a *app) openStore(ctx context.Context) (store *storeredis.Store, done func(), err error) {
	switch {
	case a.redis == "" && a.database != "":
		return nil, nil, errors.New("--database: this build has no token store in SQL yet; use --redis")
	case a.redis == "":
		return nil, nil, wrongUse("no token store: give --redis or IDEMCTL_REDIS")
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	log := slog.New(slog.DiscardHandler) // what matters to a command comes back as its error
	opts := []storeredis.Option{storeredis.WithPrefix(a.prefix), storeredis.WithLogger(log)}
	done = func() {}
	if a.zookeeper != "" {
		client, end, err := a.openZooKeeper(ctx, log)
		if err != nil {
			return nil, nil, err
		}
		opts = append(opts, storeredis.WithWitness(client.Register(a.witness)))
		done = end
	}
	goredis.SetLogger(quiet{})
	client, err := storeredis.Connect(a.redis)
	if err != nil {
		done()
		return nil, nil, usageError{fmt.Errorf("--redis: %w", err)}
	}
	endSession := done
	done = func() { _ = client.Close(); endSession() }
	if store, err = storeredis.New(ctx, client, opts...); err != nil {
		done()
		return nil, nil, fmt.Errorf("--redis: %w", err)
	}
	return store, done, nil
}

// withZooKeeper runs f with a session of its own.
func (a *app) withZooKeeper(ctx context.Context, f func(*zookeeper.Client) error) error {
	if a.zookeeper == "" {
		return wrongUse("no ensemble: give --zookeeper or IDEMCTL_ZOOKEEPER")
	}
	opening, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	client, end, err := a.openZooKeeper(opening, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer end()
	return f(client)
}

// openZooKeeper starts a session. The caller calls end.
func (a *app) openZooKeeper(ctx context.Context, log *slog.Logger) (client *zookeeper.Client, end func(), err error) {
	servers, chroot, err := zookeeper.ParseConnectString(a.zookeeper)
	if err != nil {
		return nil, nil, usageError{fmt.Errorf("--zookeeper: %w", err)}
	}
	client, err = zookeeper.Open(ctx, zookeeper.Config{Servers: servers, Chroot: chroot,
		SessionTimeout: a.sessionTimeout, TickTime: a.zookeeperTick, Logger: log})
	if err != nil {
		return nil, nil, fmt.Errorf("--zookeeper: %w", err)
	}
	return client, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_ = client.Close(ctx) // at the worst the session times out
	}, nil
}

// quiet keeps Redis's client library from writing to standard error: what went
// wrong comes back as an error, and is told in one line.
type quiet struct{}

// Printf does nothing.
func (quiet) Printf(context.Context, string, ...any) {}
