package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/recipes"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
	"github.com/idemkeeper/idemkeeper/tokenstore/sealed"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
)

const (
	connectTimeout = 12 * time.Second
	lookTimeout    = 5 * time.Second // for an ensemble that a command can do without
	closeTimeout   = 3 * time.Second
)

// tokenStore is a token store with an operator's methods.
type tokenStore interface {
	driver.Store
	driver.StoreInspector

	// AcceptLoss makes the store serve new keys again after a loss of records. It
	// returns how many shards had lost theirs.
	AcceptLoss(ctx context.Context) (int, error)
	// Sealed reports whether the services have declared that they encrypt
	// responses.
	Sealed(ctx context.Context) (bool, error)
}

// backends are the connections of a command.
type backends struct {
	store     tokenStore
	redis     goredis.UniversalClient // nil if the store is in SQL
	joined    *sqlstore.Joined        // nil if the store is in Redis or SQLite
	zookeeper *zookeeper.Client       // nil without --zookeeper, or if noEnsemble is set
	// noEnsemble is why the ensemble of --zookeeper is left out.
	noEnsemble error
	closers    []func() // in the order of opening
}

// close closes everything in the reverse order of opening.
func (b *backends) close() {
	for _, end := range slices.Backward(b.closers) {
		end()
	}
	b.closers = nil
}

// openStore connects to the token store, with --zookeeper also to its witness. The
// caller calls done.
func (a *app) openStore(ctx context.Context) (store tokenStore, done func(), err error) {
	b, err := a.openBackends(ctx, need{ensemble: true})
	if err != nil {
		return nil, nil, err
	}
	return b.store, b.close, nil
}

// need says what a command needs of its connections.
type need struct {
	ensemble bool // an unreachable ensemble is an error, otherwise it is left out
	readOnly bool // write nothing to the store
}

// patience is how long a command waits for an ensemble.
func (n need) patience() time.Duration {
	if n.readOnly {
		return lookTimeout
	}
	return connectTimeout
}

// openBackends connects to all servers that the flags name. The caller calls close. With
// --redis the token store is there, as in services.
func (a *app) openBackends(ctx context.Context, n need) (_ *backends, err error) {
	b := &backends{}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	var store tokenStore
	switch {
	case a.redis != "":
		store, err = a.openRedis(ctx, b, n)
	case a.database != "":
		store, err = a.openDatabase(ctx, b, n)
	default:
		err = wrongUse("no token store: give --redis or --database, or IDEMCTL_REDIS or IDEMCTL_DATABASE")
	}
	if err != nil {
		return nil, err
	}
	if b.store = store; a.responseKeys != "" {
		b.store, err = a.seal(store)
	}
	return b, err
}

// openRedis opens the token store in Redis.
func (a *app) openRedis(ctx context.Context, b *backends, n need) (tokenStore, error) {
	log := slog.New(slog.DiscardHandler) // errors are returned
	opts := []redisstore.Option{redisstore.WithPrefix(a.prefix), redisstore.WithLogger(log)}
	if a.zookeeper != "" {
		switch err := a.joinEnsemble(ctx, b, n.patience(), log); {
		case err == nil:
			opts = append(opts, redisstore.WithWitness(a.witnessIn(b.zookeeper)))
		case n.ensemble || isWrongUse(err) || ctx.Err() != nil:
			return nil, err
		default:
			b.noEnsemble = err
		}
	}
	if n.readOnly {
		opts = append(opts, redisstore.WithReadOnly())
	}
	opening, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	client, err := a.connectRedis()
	if err != nil {
		return nil, err
	}
	b.redis = client
	b.closers = append(b.closers, func() { _ = b.redis.Close() })
	store, err := redisstore.New(opening, b.redis, opts...)
	if err != nil {
		return nil, fmt.Errorf("--redis: %w", err)
	}
	return store, nil
}

// witnessPath is the znode where the services of --prefix remember their Redis.
func (a *app) witnessPath() string { return cmp.Or(a.witness, redisstore.WitnessPath(a.prefix)) }

func (a *app) witnessIn(client *zookeeper.Client) *recipes.Register {
	return recipes.NewRegister(client, a.witnessPath())
}

// sealedStore encrypts responses. The operator's methods go to the store below directly.
type sealedStore struct {
	*sealed.Store

	below tokenStore
}

// AcceptLoss implements tokenStore.
func (s sealedStore) AcceptLoss(ctx context.Context) (int, error) { return s.below.AcceptLoss(ctx) }

// Sealed implements tokenStore.
func (s sealedStore) Sealed(ctx context.Context) (bool, error) { return s.below.Sealed(ctx) }

// seal returns the store as seen by services that encrypt stored responses.
func (a *app) seal(store tokenStore) (tokenStore, error) {
	ring, err := sealed.ParseRing(a.responseKeys)
	if err != nil {
		return nil, usageError{fmt.Errorf("--response-keys: %w", err)}
	}
	opts := []sealed.Option{sealed.WithLogger(slog.New(slog.DiscardHandler))}
	if a.plainResponses {
		opts = append(opts, sealed.WithPlain())
	}
	s, err := sealed.New(store, ring, opts...)
	if err != nil {
		return nil, fmt.Errorf("--response-keys: %w", err)
	}
	return sealedStore{s, store}, nil
}

// joinEnsemble starts a session for b.
func (a *app) joinEnsemble(ctx context.Context, b *backends, within time.Duration, log *slog.Logger) error {
	opening, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	client, end, err := a.openZooKeeper(opening, log)
	if err != nil {
		return err
	}
	b.zookeeper, b.closers = client, append(b.closers, end)
	return nil
}

// connectRedis returns a client. It connects at its first use.
func (a *app) connectRedis() (goredis.UniversalClient, error) {
	goredis.SetLogger(quiet{})
	client, err := redisstore.Connect(a.redis, redisstore.WithTLS(a.tls))
	if err != nil {
		return nil, usageError{fmt.Errorf("--redis: %w", err)}
	}
	return client, nil
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
	servers, chroot, err := a.ensemble()
	if err != nil {
		return nil, nil, err
	}
	cfg := zookeeper.Config{Servers: servers, Chroot: chroot,
		SessionTimeout: a.sessionTimeout, TickTime: a.zookeeperTick, Credentials: a.credentials(), Logger: log}
	if a.zookeeperTLS {
		cfg.TLS = a.tls
	}
	client, err = zookeeper.Open(ctx, cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("--zookeeper: %w", err)
	}
	return client, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_ = client.Close(ctx) // otherwise the session times out
	}, nil
}

// credentials reads --zookeeper-auth.
func (a *app) credentials() []zookeeper.Credential {
	if a.zookeeperAuth == "" {
		return nil
	}
	return []zookeeper.Credential{{Scheme: "digest", Secret: []byte(a.zookeeperAuth)}}
}

// ensemble reads --zookeeper.
func (a *app) ensemble() (servers []string, chroot string, err error) {
	servers, chroot, err = zookeeper.ParseConnectString(a.zookeeper)
	if err != nil {
		return nil, "", usageError{fmt.Errorf("--zookeeper: %w", err)}
	}
	return servers, chroot, nil
}

// quiet keeps Redis's client library from writing to standard error. The commands
// report its errors in one line.
type quiet struct{}

// Printf does nothing.
func (quiet) Printf(context.Context, string, ...any) {}
