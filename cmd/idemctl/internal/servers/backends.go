package servers

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/database"
	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
)

// Store is a token store with an operator's methods.
type Store interface {
	driver.Store
	driver.StoreInspector
	driver.Forgetter

	// AcceptLoss makes the store serve new keys again after a loss of records. It
	// returns how many shards had lost theirs.
	AcceptLoss(ctx context.Context) (int, error)
	// Sealed reports whether the services have declared that they encrypt
	// responses.
	Sealed(ctx context.Context) (bool, error)
}

// Backends are the connections of a command.
type Backends struct {
	Store     Store
	Redis     goredis.UniversalClient // nil if the store is in SQL
	Joined    *sqlstore.Joined        // nil if the store is in Redis or SQLite
	SQLLocks  *SQLLocks               // nil without locks in the database
	ZooKeeper *zookeeper.Client       // nil without --zookeeper, or if NoEnsemble is set
	// NoEnsemble is why the ensemble of --zookeeper is left out.
	NoEnsemble error

	closers []func() // in the order of opening
}

// Close closes everything in the reverse order of opening.
func (b *Backends) Close() {
	for _, end := range slices.Backward(b.closers) {
		end()
	}
	b.closers = nil
}

// Place names where the token store is, for messages.
func (b *Backends) Place() string {
	if b.Redis != nil {
		return "Redis"
	}
	return "database"
}

// NotHeld returns [cli.ErrNotAcquired] if an attempt of the key runs in a joined transaction.
func (b *Backends) NotHeld(ctx context.Context, id driver.KeyID) error {
	if b.Joined == nil {
		return nil
	}
	held, err := b.Joined.Held(ctx, id)
	if err == nil && held {
		err = fmt.Errorf("a transaction holds key ID %s: its attempt runs: %w", id, cli.ErrNotAcquired)
	}
	return err
}

// Need says what a command needs of its connections.
type Need struct {
	Ensemble bool // an unreachable ensemble is an error, otherwise it is left out
	ReadOnly bool // write nothing to the store
}

// patience is how long a command waits for an ensemble.
func (n Need) patience() time.Duration {
	if n.ReadOnly {
		return lookTimeout
	}
	return ConnectTimeout
}

// Open connects to all servers that the flags name. The caller calls Close. With
// --redis the token store is there, as in services.
func (s *Flags) Open(ctx context.Context, n Need) (_ *Backends, err error) {
	b := &Backends{}
	defer func() {
		if err != nil {
			b.Close()
		}
	}()
	var store Store
	switch {
	case s.Redis.URL != "":
		store, err = s.openRedis(ctx, b, n)
	case s.Database.URL != "":
		store, err = s.openDatabase(ctx, b, n)
	default:
		err = cli.WrongUse("no token store: give --redis or --database, or IDEMCTL_REDIS or IDEMCTL_DATABASE")
	}
	if err != nil {
		return nil, err
	}
	if b.Store = store; s.Responses.Keys() {
		b.Store, err = s.Responses.seal(store)
	}
	return b, err
}

// joinEnsemble starts a session for b. It leaves an ensemble out that does not answer and is
// not needed.
func (s *Flags) joinEnsemble(ctx context.Context, b *Backends, n Need) error {
	if s.ZooKeeper.Servers == "" {
		return nil
	}
	opening, cancel := context.WithTimeout(ctx, n.patience())
	defer cancel()
	client, end, err := s.ZooKeeper.Open(opening)
	switch {
	case err == nil:
		b.ZooKeeper, b.closers = client, append(b.closers, end)
	case n.Ensemble || cli.IsWrongUse(err) || ctx.Err() != nil:
		return err
	default:
		b.NoEnsemble = err
	}
	return nil
}

// openRedis opens the token store in Redis, with --zookeeper also its witness.
func (s *Flags) openRedis(ctx context.Context, b *Backends, n Need) (Store, error) {
	if err := s.joinEnsemble(ctx, b, n); err != nil {
		return nil, err
	}
	opts := []redisstore.Option{redisstore.WithPrefix(s.Redis.Prefix), redisstore.WithLogger(slog.New(slog.DiscardHandler))} // errors are returned
	if b.ZooKeeper != nil {
		opts = append(opts, redisstore.WithWitness(func(string) redisstore.Witness { return s.Redis.Witness(b.ZooKeeper) }))
	}
	if n.ReadOnly {
		opts = append(opts, redisstore.WithReadOnly())
	}
	opening, cancel := context.WithTimeout(ctx, ConnectTimeout)
	defer cancel()
	client, err := s.Redis.Connect()
	if err != nil {
		return nil, err
	}
	b.Redis = client
	b.closers = append(b.closers, func() { _ = client.Close() })
	store, err := redisstore.New(opening, client, opts...)
	if err != nil {
		return nil, fmt.Errorf("--redis: %w", err)
	}
	return store, nil
}

// openDatabase opens the token store in a database. ZooKeeper is for the locks alone.
func (s *Flags) openDatabase(ctx context.Context, b *Backends, n Need) (Store, error) {
	if err := s.joinEnsemble(ctx, b, n); err != nil {
		return nil, err
	}
	db, err := s.Database.Open(database.Options{})
	if err != nil {
		return nil, err
	}
	b.closers = append(b.closers, func() { _ = db.Close() })
	opts := s.Database.StoreOptions(db, slog.New(slog.DiscardHandler)) // errors are returned
	if n.ReadOnly {
		opts = append(opts, sqlstore.WithReadOnly())
	}
	opening, cancel := context.WithTimeout(ctx, ConnectTimeout)
	defer cancel()
	store, err := sqlstore.New(opening, db.Write, db.Dialect, opts...)
	if err != nil {
		return nil, fmt.Errorf("--database: %w", err)
	}
	b.closers = append(b.closers, func() { _ = store.Close() })
	// The process that owns a file of SQLite knows its transactions by itself, and their open
	// records are never committed.
	if !sqldialect.Of(db.Dialect).File {
		if b.Joined, err = store.Joined(); err != nil {
			return nil, fmt.Errorf("--database: %w", err)
		}
	}
	b.SQLLocks = s.Database.Locks(opening, db)
	return SQLStore{store}, nil
}
